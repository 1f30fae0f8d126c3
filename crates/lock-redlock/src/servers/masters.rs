//! Requests to all masters, and their answers.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Outcome, Result};
use tokio::time::Instant;

use crate::error::no_quorum;
use crate::servers::fan_out::{FanOut, Reply};
use crate::servers::master::{Master, Readiness};
use crate::voting::quorum::{OfEach, quorum};

/// The masters, in the order of the configuration.
pub(crate) type Masters = Arc<[Arc<Master>]>;

/// Asks all masters, and returns the answer of each. A master whose last request failed is not waited for beyond its
/// deadline.
pub(crate) async fn ask_all<T, F>(masters: &Masters, ask: impl Fn(Arc<Master>) -> F) -> Vec<Result<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let requests = masters.iter().map(|master| {
        let (master, answer) = (Arc::clone(master), ask(Arc::clone(master)));
        async move {
            let sent = Instant::now();
            master.noted(sent, answer.await)
        }
    });
    let now = Instant::now();
    let limits = masters.iter().map(|master| now + master.answer_timeout());
    let mut replies = FanOut::new(requests).until(limits.collect::<Vec<_>>());
    let mut answers: Vec<Option<Result<T>>> = masters.iter().map(|_| None).collect();
    while replies.outstanding() > 0 {
        match replies.next().await {
            Some((master, Reply::Answer(answer))) => answers[master] = Some(answer),
            Some((master, Reply::Late(_))) => answers[master] = Some(Err(masters[master].note_late())),
            None => break,
        }
    }
    let unasked = || Err(no_quorum(masters.len(), 0, []));
    answers.into_iter().map(|answer| answer.unwrap_or_else(unasked)).collect()
}

/// The answers, if a quorum of the masters answered.
pub(crate) fn of_a_quorum<T>(answers: Vec<Result<T>>) -> Result<Vec<Result<T>>> {
    let good = answers.iter().filter(|answer| answer.is_ok()).count();
    let masters = answers.len();
    if good < quorum(masters) {
        let failed = answers.into_iter().filter_map(Result::err);
        return Err(no_quorum(masters, good, failed));
    }
    Ok(answers)
}

/// When a quorum can vote again, if restarted masters are the reason why it cannot now.
pub(crate) fn votes_from(masters: &[Arc<Master>]) -> Option<Instant> {
    let mut quarantined: Vec<_> = masters.iter().filter_map(|master| master.quarantined_until()).collect();
    quarantined.sort_unstable();
    let others = masters.len() - quarantined.len();
    quarantined.get(quorum(masters.len()).checked_sub(others + 1)?).copied()
}

/// The deadline for the answer of each master.
pub(crate) fn deadlines(masters: &[Arc<Master>], ttl: Duration) -> OfEach<Instant> {
    let now = Instant::now();
    masters.iter().map(|master| now + master.deadline(ttl)).collect()
}

/// For each master, the reason to skip it, if there is one.
pub(crate) fn skipped(masters: &[Arc<Master>]) -> OfEach<Option<Error>> {
    skipped_to_confirm(masters, |_| false)
}

/// The same for a request about held locks, of which a master may confirm one if it `has_vote`.
pub(crate) fn skipped_to_confirm(
    masters: &[Arc<Master>],
    has_vote: impl Fn(usize) -> bool,
) -> OfEach<Option<Error>> {
    let readiness: OfEach<Readiness> = masters
        .iter()
        .enumerate()
        .map(|(number, master)| master.readiness_to_confirm(has_vote(number)))
        .collect();
    let healthy = readiness.iter().filter(|readiness| matches!(readiness, Readiness::Healthy)).count();
    let skip = |readiness| match readiness {
        Readiness::Healthy => None,
        Readiness::Sick(_) if healthy < quorum(masters.len()) => None,
        Readiness::Sick(error) | Readiness::NotVoting(error) => Some(error.with_outcome(Outcome::NotApplied)),
    };
    readiness.into_iter().map(skip).collect()
}
