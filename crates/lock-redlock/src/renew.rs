//! The renewal of the locks that are held on a quorum.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renew, Renewed};
use lock_core::{BootInstant, Clock, Error, Result, Token, Validity};
use lock_redis::server::{Extension, Hold};
use lock_redis::trusted_until;

use crate::backend::no_quorum;
use crate::campaign::{deadlines, skipped};
use crate::footprint::Footprint;
use crate::master::Master;
use crate::patience::Patience;
use crate::quorum::{Heard, Wave, quorum};

/// What the leases are renewed by: one pipeline to each master for all that are due.
///
/// Of all masters a quorum has to have the key still: not of those that once granted the lock. The others get the
/// key again once a quorum has confirmed it.
#[derive(Debug)]
pub(crate) struct RenewOnQuorum {
    pub(crate) masters: Arc<[Arc<Master>]>,
    pub(crate) clock: Clock,
}

/// A lease that is to be renewed, and the time to live to ask for.
type Due = (Arc<Held>, Duration);
/// What one master says of each lease: whether it has the key.
type Answer = Result<Vec<Result<bool>>>;

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) footprint: Arc<Footprint>,
    pub(crate) token: Token,
    pub(crate) validity: Validity,
}

#[async_trait]
impl Renew for RenewOnQuorum {
    type Key = Arc<Held>;

    async fn renew(&self, batch: &[Due]) -> Vec<Renewed> {
        let sent = self.clock.now();
        let leases: Arc<[Due]> = batch.into();
        let wave =
            Wave::new(skipped(&self.masters).into_iter().zip(&*self.masters).map(|(skipped, master)| {
                let (master, leases) = (Arc::clone(master), Arc::clone(&leases));
                async move {
                    match skipped {
                        Some(error) => Err(error),
                        None => extend(&master, &leases).await,
                    }
                }
            }));
        let shortest = batch.iter().map(|(_, ttl)| *ttl).min().unwrap_or_default();
        let mut round = Round {
            wave: wave.until(deadlines(&self.masters, shortest)),
            // There has to be time to try again.
            patience: Patience::new(&self.masters).at_most(shortest / 5),
            failed: BTreeSet::new(),
            count: Count::new(self.masters.len(), batch.len()),
            without: vec![0; batch.len()],
            masters: Arc::clone(&self.masters),
            leases,
        };
        while !round.count.is_decided() && round.wave.outstanding() > 0 && round.hear().await {}
        let outcomes = batch.iter().enumerate();
        let outcomes =
            outcomes.map(|(lease, (_, ttl))| round.count.outcome(lease, trusted_until(sent, *ttl))).collect();
        round.end();
        outcomes
    }
}

async fn extend(master: &Arc<Master>, leases: &[Due]) -> Answer {
    let leases: Vec<_> = leases
        .iter()
        .map(|(held, ttl)| {
            let Footprint { keys, owner, .. } = &*held.footprint;
            Extension { keys, owner: *owner, hold: Hold::Alone, ttl: *ttl }
        })
        .collect();
    master.extend(&leases).await
}

/// One batch on its way to the masters.
struct Round {
    wave: Wave<Answer>,
    patience: Patience,
    /// The masters that did not answer, or are late.
    failed: BTreeSet<usize>,
    count: Count,
    /// Of each lease the masters that do not have its key, one bit for each.
    without: Vec<u64>,
    masters: Arc<[Arc<Master>]>,
    leases: Arc<[Due]>,
}

impl Round {
    /// Counts what is heard next, and says whether there was something.
    async fn hear(&mut self) -> bool {
        let Some((master, heard)) = self.wave.next().await else { return false };
        match heard {
            Heard::Late => {
                self.failed.insert(master);
                self.count.failed.insert(master, self.patience.is_late(master));
            }
            Heard::Answer(answer) => {
                self.patience.hears(master);
                match answer {
                    Ok(_) => self.failed.remove(&master),
                    Err(_) => self.failed.insert(master),
                };
                for (without, answer) in self.without.iter_mut().zip(answer.iter().flatten()) {
                    *without |= u64::from(matches!(answer, Ok(false))) << master;
                }
                self.count.add(master, answer);
            }
        }
        self.patience.wait_on(&mut self.wave, self.failed.len());
        true
    }

    /// Hears the rest out in the background, and heals.
    fn end(mut self) {
        if self.wave.outstanding() == 0 {
            return self.heal();
        }
        drop(tokio::spawn(async move {
            while self.wave.outstanding() > 0 && self.hear().await {}
            self.heal();
        }));
    }

    /// Not for a lease that has ended, as the answers may be late.
    fn heal(self) {
        for (lease, (held, ttl)) in self.leases.iter().enumerate() {
            let without = self.without[lease];
            if without != 0 && self.count.is_ours(lease) && held.validity.is_valid() {
                let numbers = (0..self.masters.len()).filter(|number| without & (1 << number) != 0);
                held.footprint.heal(numbers, *ttl, held.token);
            }
        }
    }
}

/// The votes on a batch of renewals.
struct Count {
    masters: usize,
    votes: Vec<(usize, usize)>,
    /// What the masters said last that did not vote.
    failed: BTreeMap<usize, Error>,
}

impl Count {
    fn new(masters: usize, leases: usize) -> Self {
        Self { masters, votes: vec![(0, 0); leases], failed: BTreeMap::new() }
    }

    fn add(&mut self, master: usize, answer: Answer) {
        self.failed.remove(&master);
        match answer {
            Ok(answers) => {
                for ((ours, not_ours), answer) in self.votes.iter_mut().zip(answers) {
                    match answer {
                        Ok(true) => *ours += 1,
                        Ok(false) => *not_ours += 1,
                        Err(error) => drop(self.failed.insert(master, error)),
                    }
                }
            }
            Err(error) => drop(self.failed.insert(master, error)),
        }
    }

    fn is_ours(&self, lease: usize) -> bool {
        self.votes[lease].0 >= quorum(self.masters)
    }

    fn is_not_ours(&self, lease: usize) -> bool {
        self.votes[lease].1 > self.masters - quorum(self.masters)
    }

    fn is_decided(&self) -> bool {
        (0..self.votes.len()).all(|lease| self.is_ours(lease) || self.is_not_ours(lease))
    }

    fn outcome(&self, lease: usize, until: BootInstant) -> Renewed {
        if self.is_ours(lease) {
            Renewed::Until(until)
        } else if self.is_not_ours(lease) {
            Renewed::NotOurs
        } else {
            Renewed::Unknown(no_quorum(self.masters, self.votes[lease].0, self.failed.values().cloned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use lock_core::ErrorKind;

    use super::*;
    use crate::backend::BACKEND;

    fn unavailable() -> Answer {
        Err(Error::new(ErrorKind::Unavailable, BACKEND))
    }

    #[allow(clippy::unnecessary_wraps, reason = "as a master answers")]
    fn answers(answers: &[bool]) -> Answer {
        Ok(answers.iter().map(|answer| Ok(*answer)).collect())
    }

    #[test]
    fn renewals_need_a_quorum_of_all_masters() {
        let until = BootInstant::from_boot(Duration::from_secs(1));
        let mut count = Count::new(5, 2);
        let said = [answers(&[true, true]), answers(&[true, false]), unavailable(), unavailable()];
        for (master, answer) in said.into_iter().enumerate() {
            count.add(master, answer);
            assert!(!count.is_decided());
        }
        assert!(matches!(count.outcome(0, until), Renewed::Unknown(_)));
        count.add(4, answers(&[true, false]));
        assert!(matches!(count.outcome(0, until), Renewed::Until(_)));
        assert!(matches!(count.outcome(1, until), Renewed::Unknown(_)));

        let mut lost = Count::new(5, 1);
        for master in 0..3 {
            lost.add(master, answers(&[false]));
        }
        assert!(lost.is_decided() && matches!(lost.outcome(0, until), Renewed::NotOurs));
    }
}
