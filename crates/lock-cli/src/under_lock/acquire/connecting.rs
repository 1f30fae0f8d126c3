//! The connection of a command that waits: for a store that starts later, too.

use std::time::Duration;

use polylock::Locks;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::AcquireOptions;
use super::refusals::Refusals;
use crate::connect::{mentioning, reasons};
use crate::failure::{Exit, Failure};
use crate::output::{Level, Output};

/// Connects to the store. If it `persists`, it tries again until the wait is over, and without end if it `restarts`. Returns when
/// the wait for the lock is over, too: the time that the store was down counts, except for a restart.
pub(super) async fn connect(
    options: &AcquireOptions,
    restarts: bool,
    persists: bool,
    refusals: &Refusals,
    output: Output,
) -> Result<(Locks, Option<Instant>), Failure> {
    let url = options.store.url()?;
    let until = options.deadline().filter(|_| !restarts);
    let mut failure = match attempt(&url, until, output).await {
        Ok(locks) => return Ok((locks, options.deadline())),
        Err(failure) => failure,
    };
    loop {
        let now = Instant::now();
        let is_over = until.is_some_and(|until| now >= until);
        if is_over || !persists || !failure.can_pass {
            return Err(failure);
        }
        refusals.say(&failure);
        let next = now + PAUSE;
        sleep_until(until.map_or(next, |until| next.min(until))).await;
        // The reason was mentioned.
        match attempt(&url, until, output.at(Level::Quiet)).await {
            Ok(locks) => return Ok((locks, until.or_else(|| options.deadline()))),
            Err(next) => failure = next,
        }
    }
}

/// One attempt. A short wait for a lock is no short time to connect.
async fn attempt(url: &str, until: Option<Instant>, output: Output) -> Result<Locks, Failure> {
    let attempt = mentioning(url, output, Box::pin(Locks::connect(url)));
    let Some(until) = until else { return Ok(attempt.await?) };
    match timeout_at(until.max(Instant::now() + LEAST), attempt).await {
        Ok(connected) => Ok(connected?),
        Err(_) => Err(no_answer(url).await),
    }
}

async fn no_answer(url: &str) -> Failure {
    let message = format!("the store did not answer within the time of --wait{}", reasons(url).await);
    let hint = "check the URL, and that the store runs and can be reached".to_owned();
    Failure { can_pass: true, ..Failure::new(Exit::Unavailable, "timeout", message, Some(hint)) }
}

/// For an attempt, however short the wait.
const LEAST: Duration = Duration::from_secs(5);
/// From one attempt to the next. A store that is down refuses at once.
const PAUSE: Duration = Duration::from_secs(1);
