//! The connection of a command that waits: for a store that starts later, too.

use std::time::Duration;

use polylock::Locks;
use polylock::backend::LockUrl;
use polylock::zk::unreachable;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::SILENT_WAIT;
use super::refusals::Refusals;
use crate::connect::LocksOptions;
use crate::failure::{Exit, Failure};
use crate::output::{Output, printable};

/// Connects to the store, again and again if it `persists`, and by this time at the latest.
pub(super) async fn connect(
    store: &LocksOptions,
    persists: bool,
    until: Option<Instant>,
    refusals: &Refusals,
    output: Output,
) -> Result<Locks, Failure> {
    let url = store.url()?;
    let mut last = None;
    loop {
        let attempt = attempt(&url, output);
        let connected = match until {
            Some(until) => match timeout_at(until, attempt).await {
                Ok(connected) => connected,
                Err(_) => Err(match last.take() {
                    Some(failure) => failure,
                    None => no_answer(&url).await,
                }),
            },
            None => attempt.await,
        };
        let next = Instant::now() + PAUSE;
        match connected {
            Err(failure) if persists && failure.can_pass && until.is_none_or(|until| next < until) => {
                refusals.say(&failure);
                last = Some(failure);
            }
            connected => return connected,
        }
        sleep_until(next).await;
    }
}

async fn attempt(url: &str, output: Output) -> Result<Locks, Failure> {
    let connect = Locks::connect(url);
    tokio::pin!(connect);
    let connected = tokio::select! {
        connected = &mut connect => connected,
        () = mention(url, output) => connect.await,
    };
    Ok(connected?)
}

/// Mentions an attempt that takes more than a moment.
async fn mention(url: &str, output: Output) {
    sleep(SILENT_WAIT).await;
    output.note(&format!("the store does not answer yet{}; still trying", reasons(url).await));
}

async fn no_answer(url: &str) -> Failure {
    let message = format!("the store did not answer within the time of --wait{}", reasons(url).await);
    let hint = "check the URL, and that the store runs and can be reached".to_owned();
    Failure::new(Exit::Unavailable, "timeout", message, Some(hint))
}

/// Why the servers of a store that is tried again and again cannot be reached. The errors of the others say so at once.
async fn reasons(url: &str) -> String {
    match LockUrl::parse(url) {
        Ok(url) if ["zk", "zks"].contains(&&*url.scheme) => {
            let reasons = unreachable(&url.hosts).await;
            reasons.iter().map(|reason| format!(": {}", printable(reason))).collect()
        }
        _ => String::new(),
    }
}

/// From one attempt to the next. A store that is down refuses at once.
const PAUSE: Duration = Duration::from_secs(1);
