//! Renews leases on a quorum.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renew, Renewed};
use lock_core::{BootInstant, Clock, Error, Result, Token, Validity};
use redis_link::drift::valid_until;

use crate::ballot::Extension;
use crate::claims::Claims;
use crate::error::no_quorum;
use crate::fan_out::FanOut;
use crate::late_policy::LatePolicy;
use crate::master::Master;
use crate::masters::{Masters, deadlines, skipped_to_confirm};
use crate::quorum::quorum;

/// Renews a batch of leases in one pipeline to each master.
///
/// A quorum of all masters has to confirm a lease, not of those that once granted it. After that, masters that lack the
/// key get it again.
#[derive(Debug)]
pub(crate) struct RenewOnQuorum {
    pub(crate) masters: Masters,
    pub(crate) clock: Clock,
}

/// A lease to renew, and the ttl to ask for.
type Due = (Arc<HeldLock>, Duration);
/// The answer of one master: for each lease, whether it has the key.
type Answer = Result<Vec<Result<bool>>>;

/// A held lock, as its renewals need it.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) claims: Arc<Claims>,
    pub(crate) token: Token,
    pub(crate) validity: Validity,
}

#[async_trait]
impl Renew for RenewOnQuorum {
    type Key = Arc<HeldLock>;

    async fn renew(&self, batch: &[Due]) -> Vec<Renewed> {
        let sent = self.clock.now();
        batch.iter().for_each(|(held, ttl)| held.claims.votes.will_extend(sent, *ttl));
        let leases: Arc<[Due]> = batch.into();
        let has_vote = |number| leases.iter().any(|(held, _)| held.claims.has_vote(number));
        let skipped = skipped_to_confirm(&self.masters, has_vote).into_iter().enumerate();
        let replies = FanOut::new(skipped.map(|(number, skipped)| {
            let (master, leases) = (Arc::clone(&self.masters[number]), Arc::clone(&leases));
            async move {
                match skipped {
                    Some(error) => Err(error),
                    None => extend(&master, number, &leases).await,
                }
            }
        }));
        let shortest = batch.iter().map(|(_, ttl)| *ttl).min().unwrap_or_default();
        let mut round = Round {
            replies: replies.until(deadlines(&self.masters, shortest)),
            // Leave time for a retry.
            late: LatePolicy::new(&self.masters).at_most(shortest / 5),
            count: Count::new(self.masters.len(), batch.len()),
            without: vec![0; batch.len()],
            masters: Arc::clone(&self.masters),
            leases,
            sent,
        };
        while !round.count.is_decided() && round.replies.outstanding() > 0 && round.receive().await {}
        let Round { count, late, .. } = &round;
        let outcome =
            |(lease, (_, ttl)): (usize, &Due)| count.outcome(lease, valid_until(sent, *ttl), late.errors());
        let outcomes = batch.iter().enumerate().map(outcome).collect();
        round.end();
        outcomes
    }
}

async fn extend(master: &Arc<Master>, number: usize, leases: &[Due]) -> Answer {
    let extensions: Vec<_> = leases
        .iter()
        .map(|(held, ttl)| {
            let Claims { keys, owner, .. } = &*held.claims;
            Extension { keys, owner: *owner, ttl: *ttl }
        })
        .collect();
    master.extend(&extensions, |lease| leases[lease].0.claims.has_vote(number)).await
}

/// The renewal of one batch by all masters.
struct Round {
    replies: FanOut<Answer>,
    late: LatePolicy,
    count: Count,
    /// For each lease, the masters that lack its key, as bits.
    without: Vec<u64>,
    masters: Masters,
    leases: Arc<[Due]>,
    sent: BootInstant,
}

impl Round {
    /// Counts the next reply; `false` if there is none.
    async fn receive(&mut self) -> bool {
        let Some((master, reply)) = self.replies.next().await else { return false };
        if let Some(answers) = self.late.note(master, reply) {
            for (((held, ttl), without), answer) in self.leases.iter().zip(&mut self.without).zip(&answers) {
                match answer {
                    Ok(true) => held.claims.votes.note(master, self.sent, *ttl),
                    Ok(false) => *without |= 1 << master,
                    Err(_) => {}
                }
            }
            self.count.add(answers);
        }
        self.late.wait_on(&mut self.replies);
        true
    }

    /// Counts the remaining replies in the background, and heals.
    fn end(mut self) {
        if self.replies.outstanding() == 0 {
            return self.heal();
        }
        drop(tokio::spawn(async move {
            while self.replies.outstanding() > 0 && self.receive().await {}
            self.heal();
        }));
    }

    /// Puts the key back on masters that lack it, unless the lease has ended meanwhile.
    fn heal(self) {
        for (lease, (held, ttl)) in self.leases.iter().enumerate() {
            let without = self.without[lease];
            if without != 0 && self.count.is_ours(lease) && held.validity.is_valid() {
                let numbers = (0..self.masters.len()).filter(|number| without & (1 << number) != 0);
                held.claims.heal(numbers, *ttl, held.token);
            }
        }
    }
}

/// The votes on a batch of renewals.
struct Count {
    masters: usize,
    votes: Vec<(usize, usize)>,
    /// Errors about single leases.
    failed: Vec<(usize, Error)>,
}

impl Count {
    fn new(masters: usize, leases: usize) -> Self {
        Self { masters, votes: vec![(0, 0); leases], failed: Vec::new() }
    }

    fn add(&mut self, answers: Vec<Result<bool>>) {
        for (lease, ((ours, not_ours), answer)) in self.votes.iter_mut().zip(answers).enumerate() {
            match answer {
                Ok(true) => *ours += 1,
                Ok(false) => *not_ours += 1,
                Err(error) => self.failed.push((lease, error)),
            }
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

    /// The outcome for a lease; `failed` are the errors of masters that did not count.
    fn outcome(&self, lease: usize, until: BootInstant, failed: impl Iterator<Item = Error>) -> Renewed {
        if self.is_ours(lease) {
            Renewed::Until(until)
        } else if self.is_not_ours(lease) {
            Renewed::Lost
        } else {
            let refused = self.failed.iter().filter(|(of, _)| *of == lease).map(|(_, error)| error.clone());
            let failed = refused.chain(failed);
            Renewed::Unknown(no_quorum(self.masters, self.votes[lease].0, failed))
        }
    }
}

#[cfg(test)]
mod tests {
    use lock_core::ErrorKind;

    use super::*;
    use crate::error::BACKEND;

    fn answers(answers: &[bool]) -> Vec<Result<bool>> {
        answers.iter().map(|answer| Ok(*answer)).collect()
    }

    fn outcome(count: &Count, lease: usize) -> Renewed {
        count.outcome(lease, BootInstant::from_boot(Duration::from_secs(1)), std::iter::empty())
    }

    #[test]
    fn renewals_need_a_quorum_of_all_masters() {
        let mut count = Count::new(5, 2);
        for said in [answers(&[true, true]), answers(&[true, false])] {
            count.add(said);
            assert!(!count.is_decided());
        }
        assert!(matches!(outcome(&count, 0), Renewed::Unknown(_)));
        count.add(answers(&[true, false]));
        assert!(matches!(outcome(&count, 0), Renewed::Until(_)));
        assert!(matches!(outcome(&count, 1), Renewed::Unknown(_)));

        let mut lost = Count::new(5, 1);
        for _ in 0..3 {
            lost.add(answers(&[false]));
        }
        assert!(lost.is_decided() && matches!(outcome(&lost, 0), Renewed::Lost));
    }

    #[test]
    fn an_error_about_one_lease_does_not_affect_the_others() {
        let mut count = Count::new(5, 2);
        for said in [true, false, false] {
            count.add(vec![Err(Error::new(ErrorKind::Denied, BACKEND)), Ok(said)]);
        }
        let kind = |lease| match outcome(&count, lease) {
            Renewed::Unknown(error) => Some(error.kind()),
            _ => None,
        };
        assert_eq!([0, 1].map(kind), [Some(ErrorKind::Denied), Some(ErrorKind::Unavailable)]);
    }
}
