//! Looks which servers the old store has, and whether it answers.
//!
//! Behind sentinels and in a cluster, no URL names all servers. And what an operator cannot reach, a process may.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use lock_core::ErrorKind;
use tokio::time::sleep;

use crate::context::Context;

/// What the last looks have found.
#[derive(Debug, Default)]
pub(crate) struct SourceSeen {
    /// When each server was last found.
    servers: BTreeMap<String, Instant>,
    answers: bool,
}

impl SourceSeen {
    /// Notes the servers of a store that answers. One that is not found any more for a day has left the store: its address may
    /// be that of another program by now.
    pub(crate) fn found(&mut self, servers: Vec<String>, now: Instant) {
        self.answers = true;
        self.servers.extend(servers.into_iter().map(|server| (server, now)));
        self.servers.retain(|_, found| now.saturating_duration_since(*found) < KEPT);
    }

    /// Notes whether the store answers, though not with its servers.
    pub(crate) const fn found_none(&mut self, answers: bool) {
        self.answers = answers;
    }

    pub(crate) const fn answers(&self) -> bool {
        self.answers
    }

    pub(crate) fn servers(&self) -> Vec<String> {
        self.servers.keys().cloned().collect()
    }
}

/// Looks every few seconds, until the seal.
pub(crate) async fn watch(context: Weak<Context>) {
    loop {
        let Some(context) = context.upgrade() else { return };
        if context.process.is_sealed() {
            return context.process.note_source(|seen| *seen = SourceSeen::default());
        }
        // A store that was not connected yet has no source.
        if let Ok(source) = context.source() {
            match source.servers().await {
                Ok(servers) => context.process.note_source(|seen| seen.found(servers, Instant::now())),
                Err(error) if error.kind() == ErrorKind::Closed => return,
                // One that refuses runs.
                Err(error) => {
                    let answers = error.kind() != ErrorKind::Unavailable;
                    context.process.note_source(|seen| seen.found_none(answers));
                }
            }
        }
        drop(context);
        sleep(LOOK).await;
    }
}

/// How often a process looks.
const LOOK: Duration = Duration::from_secs(10);
/// For how long a server counts that is not found any more.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_counts_for_a_day_after_it_was_last_found_and_while_none_answers() {
        let (mut seen, began) = (SourceSeen::default(), Instant::now());
        let mut find = |servers: &[&str], after: Duration| {
            seen.found(servers.iter().map(ToString::to_string).collect(), began + after);
            seen.servers()
        };
        assert_eq!(find(&["b:1", "a:1"], Duration::ZERO), ["a:1", "b:1"]);
        assert_eq!(find(&["a:1"], KEPT - LOOK), ["a:1", "b:1"]);
        assert_eq!(find(&["c:1"], KEPT), ["a:1", "c:1"]);
        seen.found_none(false);
        assert!(!seen.answers() && seen.servers() == ["a:1", "c:1"]);
    }
}
