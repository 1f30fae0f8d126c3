//! What a process has seen of the old store: its servers, and whether it answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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
        assert_eq!(find(&["a:1"], KEPT - Duration::from_secs(10)), ["a:1", "b:1"]);
        assert_eq!(find(&["c:1"], KEPT), ["a:1", "c:1"]);
        seen.found_none(false);
        assert!(!seen.answers() && seen.servers() == ["a:1", "c:1"]);
    }
}
