//! A lock that is held on a quorum.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renew, Renewal, Renewed};
use lock_core::{
    BootInstant, Clock, Error, ErrorKind, Lease, LossReason, Outcome, OwnerId, Released, Result, Standing,
    Token, Validity, ValidityCell,
};
use lock_redis::server::Extension;
use lock_redis::{Keys, trusted_until};
use tokio::time::timeout;

use crate::backend::{BACKEND, check_ttl, no_quorum};
use crate::campaign::Footprint;
use crate::master::Master;
use crate::quorum::{Wave, quorum};

#[derive(Debug)]
pub(crate) struct RedlockLease {
    pub(crate) footprint: Arc<Footprint>,
    pub(crate) patience: Duration,
    pub(crate) token: Token,
    pub(crate) cell: ValidityCell,
    pub(crate) validity: Validity,
    pub(crate) renewal: Renewal,
    /// Only ever reached through `&mut`: the mutex makes the lease `Sync`.
    pub(crate) releasing: Mutex<Option<Releasing>>,
}

/// A release that was sent to all masters.
#[derive(Debug)]
pub(crate) struct Releasing {
    was_valid: bool,
    /// Until it is decided; from then on the rest of it runs in the background.
    wave: Option<Wave<Option<bool>>>,
    ours: usize,
    not_ours: usize,
}

#[async_trait]
impl Lease for RedlockLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.footprint.owner
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        check_ttl(ttl)?;
        match self.renewal.extend(ttl).await {
            Renewed::Until(until) => Ok(until),
            Renewed::NotOurs => Err(Error::lost(BACKEND)),
            Renewed::Unknown(error) => Err(error),
        }
    }

    async fn verify(&self) -> Result<Standing> {
        let masters = &self.footprint.masters;
        let looks = masters.iter().map(|master| {
            let (master, keys) = (Arc::clone(master), Arc::clone(&self.footprint.keys));
            async move { master.server.look(&keys, None).await }
        });
        let (mut wave, owner) = (Wave::new(looks), self.footprint.owner.to_string());
        let (mut ours, mut not_ours, mut failed) = (0, 0, None);
        while let Some((_, sight)) = wave.next().await {
            match sight {
                Ok(sight) if sight.value == owner => ours += 1,
                Ok(_) => not_ours += 1,
                Err(error) => failed = Some(error),
            }
            if ours >= quorum(masters.len()) {
                return Ok(self.validity.standing());
            }
            if not_ours > masters.len() - quorum(masters.len()) {
                self.cell.lose(LossReason::Removed);
                return Ok(self.validity.standing());
            }
        }
        Err(no_quorum(masters.len(), ours, failed))
    }

    async fn release(&mut self) -> Result<Released> {
        self.renewal.stop().await;
        let masters = self.footprint.masters.len();
        let releasing = self.releasing.get_mut().unwrap_or_else(PoisonError::into_inner);
        let releasing = releasing.get_or_insert_with(|| Releasing {
            was_valid: self.validity.is_valid(),
            wave: Some(Arc::clone(&self.footprint).erase(self.renewal.longest_ttl())),
            ours: 0,
            not_ours: 0,
        });
        let decided = timeout(self.patience, releasing.decide(masters)).await;
        let ours = match decided {
            Ok(ours) => ours,
            // The rest does not answer, but a quorum has nothing of ours any more.
            Err(_) if releasing.ours + releasing.not_ours >= quorum(masters) => true,
            Err(_) => {
                let confirmed = releasing.ours + releasing.not_ours;
                return Err(Error::new(ErrorKind::Unavailable, BACKEND)
                    .message(format!("only {confirmed} of {masters} masters confirmed the release in time"))
                    .hint("the release goes on in the background")
                    .with_outcome(Outcome::Unknown));
            }
        };
        let released = if ours && releasing.was_valid { Released::Released } else { Released::AlreadyLost };
        self.cell.lose(LossReason::Released);
        Ok(released)
    }
}

impl Releasing {
    /// Whether the lock was ours on a quorum until now.
    async fn decide(&mut self, masters: usize) -> bool {
        while let Some(wave) = &mut self.wave {
            match wave.next().await {
                // In doubt it was one of our own requests that removed it.
                Some((_, Some(true) | None)) => self.ours += 1,
                Some((_, Some(false))) => self.not_ours += 1,
                None => self.wave = None,
            }
            if self.ours >= quorum(masters) || self.not_ours > masters - quorum(masters) {
                self.wave = None;
            }
        }
        self.ours >= quorum(masters)
    }
}

/// What the leases are renewed by: one pipeline to each master for all that are due.
#[derive(Debug)]
pub(crate) struct RenewOnQuorum {
    pub(crate) masters: Arc<[Arc<Master>]>,
    pub(crate) clock: Clock,
}

#[async_trait]
impl Renew for RenewOnQuorum {
    type Key = (Arc<Keys>, OwnerId);

    async fn renew(&self, batch: &[(Self::Key, Duration)]) -> Vec<Renewed> {
        let sent = self.clock.now();
        let shared: Arc<[(Self::Key, Duration)]> = batch.into();
        let mut wave = Wave::new(self.masters.iter().map(|master| {
            let (master, batch) = (Arc::clone(master), Arc::clone(&shared));
            async move {
                let leases: Vec<_> = batch
                    .iter()
                    .map(|((keys, owner), ttl)| Extension { keys, owner: *owner, shares: false, ttl: *ttl })
                    .collect();
                master.extend(&leases).await
            }
        }));
        let mut tally = Tally::new(self.masters.len(), batch.len());
        while !tally.decided() {
            match wave.next().await {
                Some((_, answer)) => tally.count(answer),
                None => break,
            }
        }
        let outcomes = batch.iter().enumerate();
        outcomes.map(|(lease, (_, ttl))| tally.outcome(lease, trusted_until(sent, *ttl))).collect()
    }
}

/// The votes on a batch of renewals.
struct Tally {
    masters: usize,
    votes: Vec<(usize, usize)>,
    failed: Option<Error>,
}

impl Tally {
    fn new(masters: usize, leases: usize) -> Self {
        Self { masters, votes: vec![(0, 0); leases], failed: None }
    }

    fn count(&mut self, answer: Result<Vec<Result<bool>>>) {
        match answer {
            Ok(answers) => {
                for ((ours, not_ours), answer) in self.votes.iter_mut().zip(answers) {
                    match answer {
                        Ok(true) => *ours += 1,
                        Ok(false) => *not_ours += 1,
                        Err(error) => self.failed = Some(error),
                    }
                }
            }
            Err(error) => self.failed = Some(error),
        }
    }

    fn decided(&self) -> bool {
        let quorum = quorum(self.masters);
        self.votes.iter().all(|(ours, not_ours)| *ours >= quorum || *not_ours > self.masters - quorum)
    }

    fn outcome(&self, lease: usize, until: BootInstant) -> Renewed {
        let (quorum, (ours, not_ours)) = (quorum(self.masters), self.votes[lease]);
        if ours >= quorum {
            Renewed::Until(until)
        } else if not_ours > self.masters - quorum {
            Renewed::NotOurs
        } else {
            Renewed::Unknown(no_quorum(self.masters, ours, self.failed.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Result<Vec<Result<bool>>> {
        Err(Error::new(ErrorKind::Unavailable, BACKEND))
    }

    #[allow(clippy::unnecessary_wraps, reason = "as a master answers")]
    fn answers(answers: &[bool]) -> Result<Vec<Result<bool>>> {
        Ok(answers.iter().map(|answer| Ok(*answer)).collect())
    }

    #[test]
    fn tallies_need_a_quorum_of_all_masters() {
        let until = BootInstant::from_boot(Duration::from_secs(1));
        let mut tally = Tally::new(5, 2);
        for answer in [answers(&[true, true]), answers(&[true, false]), unavailable(), unavailable()] {
            tally.count(answer);
            assert!(!tally.decided());
        }
        assert!(matches!(tally.outcome(0, until), Renewed::Unknown(_)));
        tally.count(answers(&[true, false]));
        assert!(matches!(tally.outcome(0, until), Renewed::Until(_)));
        assert!(matches!(tally.outcome(1, until), Renewed::Unknown(_)));

        let mut lost = Tally::new(5, 1);
        for _ in 0..3 {
            lost.count(answers(&[false]));
        }
        assert!(lost.decided() && matches!(lost.outcome(0, until), Renewed::NotOurs));
    }
}
