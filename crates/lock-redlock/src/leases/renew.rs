//! Renews leases on a quorum.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::drift::valid_until;
use lock_core::renewal::{self, Answered, Renew, Renewed};
use lock_core::{BootInstant, Clock, Error, Outcome, Result, Token, Validity};
use tokio::time::Instant;

use crate::error::no_quorum;
use crate::servers::fan_out::FanOut;
use crate::servers::late_policy::LatePolicy;
use crate::servers::master::Master;
use crate::servers::masters::{Masters, deadlines, skipped_to_confirm};
use crate::voting::ballot::Extension;
use crate::voting::claims::Claims;
use crate::voting::quorum::{OfEach, quorum};
use crate::voting::unanswered::Unanswered;

/// Renews a batch of leases in one pipeline to each master.
///
/// A quorum of all masters has to confirm a lease, not of those that once granted it. After that, masters that lack the
/// key get it again.
#[derive(Debug)]
pub(crate) struct RenewOnQuorum {
    pub(crate) masters: Masters,
    pub(crate) clock: Clock,
}

/// A lease to renew.
type Due = renewal::Due<Arc<HeldLock>>;
/// The answer of one master: for each lease, for how long its vote counts, if it has the key.
type Answer = Result<Vec<Result<Option<Duration>>>>;

/// A held lock, as its renewals need it.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) claims: Arc<Claims>,
    pub(crate) token: Token,
    pub(crate) validity: Validity,
    pub(crate) unanswered: Unanswered,
}

#[async_trait]
impl Renew for RenewOnQuorum {
    type Key = Arc<HeldLock>;

    async fn renew(&self, batch: &[Due], answered: &dyn Answered<Renewed>) {
        let sent = self.clock.now();
        batch.iter().for_each(|due| due.key.claims.votes.will_extend(sent, due.ttl));
        let leases: Arc<[Due]> = batch.into();
        let has_vote = |number| leases.iter().any(|due| due.key.claims.has_vote(number));
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
        let shortest = batch.iter().map(|due| due.ttl).min().unwrap_or_default();
        let mut round = Round {
            replies: replies.until(deadlines(&self.masters, shortest)),
            // Leave time for a retry.
            late: LatePolicy::new(&self.masters).at_most(shortest / 5),
            count: Count::new(self.masters.len(), batch.iter().map(|due| due.ttl)),
            without: vec![0; batch.len()],
            masters: Arc::clone(&self.masters),
            leases,
            sent,
        };
        while !round.count.is_decided() && round.replies.outstanding() > 0 && round.receive().await {}
        let Round { count, late, .. } = &round;
        let outcomes = batch.iter().enumerate().map(|(lease, due)| {
            match count.outcome(lease, sent, late.errors()) {
                // What a quorum has confirmed before still holds: a shorter ttl has cut it off before it was asked for.
                Renewed::Until(end) => Renewed::Until(end.max(due.key.validity.until())),
                outcome => outcome,
            }
        });
        let outcomes: Vec<_> = outcomes.collect();
        round.end();
        outcomes.into_iter().enumerate().for_each(|(lease, outcome)| answered(lease, outcome));
    }

    fn spares_longer(&self) -> bool {
        true
    }
}

async fn extend(master: &Arc<Master>, number: usize, leases: &[Due]) -> Answer {
    let extensions: Vec<_> = leases
        .iter()
        .map(|due| {
            let Claims { keys, owner, .. } = &*due.key.claims;
            Extension { keys, owner: *owner, ttl: due.ttl, shortens: due.shortens }
        })
        .collect();
    let requests: Vec<_> =
        leases.iter().map(|due| due.key.unanswered.sent(number, due.ttl, due.shortens)).collect();
    let sent = Instant::now();
    let answer = master.voter.extend(&extensions).await;
    let error_about = |lease: usize| match &answer {
        Ok(answers) => answers[lease].as_ref().err(),
        Err(error) => Some(error),
    };
    let settle = |(lease, due): (usize, &Due)| match error_about(lease).map(Error::outcome) {
        Some(Outcome::Unknown) => {
            due.key.unanswered.lost(requests[lease]);
            Duration::ZERO
        }
        _ => due.key.unanswered.answered(requests[lease]),
    };
    let counts: Vec<_> = leases.iter().enumerate().map(settle).collect();
    let has_vote = |lease: usize| leases[lease].key.claims.has_vote(number);
    let answers = master.confirm_each(sent, answer, has_vote)?;
    let counted = answers.into_iter().zip(counts);
    Ok(counted.map(|(answer, ttl)| answer.map(|is_ours| is_ours.then_some(ttl))).collect())
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
        for (lease, answer) in self.late.note(master, reply).unwrap_or_default().into_iter().enumerate() {
            let held = &self.leases[lease].key;
            match answer {
                Ok(Some(ttl)) => {
                    held.claims.votes.note(master, self.sent, ttl);
                    self.count.votes[lease].ours.push(ttl);
                }
                Ok(None) => {
                    self.without[lease] |= 1 << master;
                    self.count.votes[lease].not_ours += 1;
                }
                Err(error) => self.count.failed.push((lease, error)),
            }
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
        for (lease, Due { key: held, ttl, .. }) in self.leases.iter().enumerate() {
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
    votes: Vec<Votes>,
    /// Errors about single leases.
    failed: Vec<(usize, Error)>,
}

/// The votes on the renewal of one lease.
struct Votes {
    /// The ttl that was asked for.
    ttl: Duration,
    /// For how long each vote counts.
    ours: OfEach<Duration>,
    not_ours: usize,
}

impl Count {
    fn new(masters: usize, ttls: impl IntoIterator<Item = Duration>) -> Self {
        let votes = |ttl| Votes { ttl, ours: OfEach::new(), not_ours: 0 };
        Self { masters, votes: ttls.into_iter().map(votes).collect(), failed: Vec::new() }
    }

    fn is_ours(&self, lease: usize) -> bool {
        self.votes[lease].ours.len() >= quorum(self.masters)
    }

    fn is_not_ours(&self, lease: usize) -> bool {
        self.votes[lease].not_ours > self.masters - quorum(self.masters)
    }

    /// Whether further votes change nothing.
    fn is_decided(&self) -> bool {
        let is_whole = |votes: &Votes| {
            votes.ours.iter().filter(|ttl| **ttl == votes.ttl).count() >= quorum(self.masters)
        };
        (0..self.votes.len()).all(|lease| is_whole(&self.votes[lease]) || self.is_not_ours(lease))
    }

    /// The ttl that a quorum has confirmed.
    fn confirmed(&self, lease: usize) -> Option<Duration> {
        let mut ttls = self.votes[lease].ours.clone();
        ttls.sort_unstable_by(|one, other| other.cmp(one));
        ttls.get(quorum(self.masters) - 1).copied()
    }

    /// The outcome for a lease that was asked for then; `failed` are the errors of masters that did not count.
    fn outcome(&self, lease: usize, sent: BootInstant, failed: impl Iterator<Item = Error>) -> Renewed {
        if let Some(ttl) = self.confirmed(lease) {
            Renewed::Until(valid_until(sent, ttl))
        } else if self.is_not_ours(lease) {
            Renewed::Lost
        } else {
            let refused = self.failed.iter().filter(|(of, _)| *of == lease).map(|(_, error)| error.clone());
            let failed = refused.chain(failed);
            Renewed::Unknown(no_quorum(self.masters, self.votes[lease].ours.len(), failed))
        }
    }
}

#[cfg(test)]
mod tests {
    use lock_core::ErrorKind;

    use super::*;
    use crate::error::BACKEND;

    const TTL: Duration = Duration::from_secs(10);

    /// Five masters, of which these have confirmed the lease for so long, and so many do not have it.
    fn outcome(ours: &[Duration], not_ours: usize, failed: Vec<(usize, Error)>) -> (bool, Renewed) {
        let votes = vec![Votes { ttl: TTL, ours: ours.into(), not_ours }];
        let count = Count { masters: 5, votes, failed };
        let sent = BootInstant::from_boot(Duration::ZERO);
        (count.is_decided(), count.outcome(0, sent, std::iter::empty()))
    }

    fn until(ttl: Duration) -> BootInstant {
        valid_until(BootInstant::from_boot(Duration::ZERO), ttl)
    }

    #[test]
    fn renewals_need_a_quorum_of_all_masters() {
        assert!(matches!(outcome(&[TTL; 2], 0, Vec::new()), (false, Renewed::Unknown(_))));
        assert!(matches!(outcome(&[TTL; 2], 2, Vec::new()), (false, Renewed::Unknown(_))));
        assert!(
            matches!(outcome(&[TTL; 3], 2, Vec::new()), (true, Renewed::Until(end)) if end == until(TTL))
        );
        assert!(matches!(outcome(&[], 3, Vec::new()), (true, Renewed::Lost)));
    }

    #[test]
    fn a_lease_lasts_as_long_as_a_quorum_has_confirmed_it() {
        let (short, shorter) = (TTL / 2, TTL / 4);
        assert!(
            matches!(outcome(&[TTL, short, TTL], 0, Vec::new()), (false, Renewed::Until(end)) if end == until(short))
        );
        let all = [shorter, TTL, short, TTL, shorter];
        assert!(matches!(outcome(&all, 0, Vec::new()), (false, Renewed::Until(end)) if end == until(short)));
        assert!(
            matches!(outcome(&[short, TTL, TTL, TTL], 0, Vec::new()), (true, Renewed::Until(end)) if end == until(TTL))
        );
    }

    #[test]
    fn the_reason_of_a_master_that_refuses_is_told() {
        let refused = |lease| vec![(lease, Error::new(ErrorKind::Denied, BACKEND)); 3];
        let kind = |lease| match outcome(&[TTL; 2], 0, refused(lease)) {
            (false, Renewed::Unknown(error)) => Some(error.kind()),
            _ => None,
        };
        assert_eq!([0, 1].map(kind), [Some(ErrorKind::Denied), Some(ErrorKind::Unavailable)]);
    }
}
