//! What a process sees of the old store: its servers, and whether it answers.
//!
//! Behind sentinels and in a cluster, no URL names all servers. And what an operator cannot reach, a process may.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use lock_core::ErrorKind;
use lock_core::backend::Backend;
use lock_core::poison::lock;
use tokio::runtime::Handle;

/// Looks at the old store every few seconds, while its process registers what was seen.
#[derive(Debug)]
pub(crate) struct SourceWatch {
    from: Weak<dyn Backend>,
    seen: Mutex<Seen>,
}

/// What the last looks have found.
#[derive(Debug, Default)]
struct Seen {
    /// When each server was last found.
    servers: BTreeMap<String, Instant>,
    /// When the store last answered, if the last look got an answer.
    answered: Option<Instant>,
    /// When the last look began.
    looked: Option<Instant>,
}

impl SourceWatch {
    pub(crate) fn new(from: &Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { from: Arc::downgrade(from), seen: Mutex::default() })
    }

    /// The servers that the store has, and whether it answered some seconds ago. Begins the next look, if it is time, on the runtime of the
    /// caller: the one on which the locks were opened may have ended.
    pub(crate) fn seen(self: &Arc<Self>) -> (Vec<String>, bool) {
        let (now, mut seen) = (Instant::now(), lock(&self.seen));
        if seen.is_due(now)
            && let Ok(here) = Handle::try_current()
        {
            seen.looked = Some(now);
            drop(here.spawn(Arc::clone(self).look()));
        }
        (seen.servers.keys().cloned().collect(), seen.answers(now))
    }

    async fn look(self: Arc<Self>) {
        let Some(from) = self.from.upgrade() else { return };
        // A store that was not connected yet has no source.
        let Some(source) = from.migration_source() else { return };
        let found = source.servers().await;
        let (now, mut seen) = (Instant::now(), lock(&self.seen));
        match found {
            Ok(servers) => seen.found(servers, now),
            Err(error) => {
                // One that refuses runs.
                let answers = !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Closed);
                seen.answered = answers.then_some(now);
            }
        }
    }
}

impl Seen {
    /// Notes the servers of a store that answers. One that is not found any more for a day has left the store: its address may
    /// be that of another program by now.
    fn found(&mut self, servers: Vec<String>, now: Instant) {
        self.answered = Some(now);
        self.servers.extend(servers.into_iter().map(|server| (server, now)));
        self.servers.retain(|_, found| now.saturating_duration_since(*found) < KEPT);
    }

    fn is_due(&self, now: Instant) -> bool {
        self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK)
    }

    fn answers(&self, now: Instant) -> bool {
        self.answered.is_some_and(|answered| now.saturating_duration_since(answered) < RECENT)
    }
}

/// How often a process looks.
const LOOK: Duration = Duration::from_secs(10);
/// For how long an answer counts: a look may be slow, or end with its runtime.
const RECENT: Duration = Duration::from_secs(30);
/// For how long a server counts that is not found any more.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_counts_for_a_day_after_it_was_last_found_and_while_none_answers() {
        let (mut seen, began) = (Seen::default(), Instant::now());
        let mut find = |servers: &[&str], after: Duration| {
            seen.found(servers.iter().map(ToString::to_string).collect(), began + after);
            seen.servers.keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(find(&["b:1", "a:1"], Duration::ZERO), ["a:1", "b:1"]);
        assert_eq!(find(&["a:1"], KEPT - LOOK), ["a:1", "b:1"]);
        assert_eq!(find(&["c:1"], KEPT), ["a:1", "c:1"]);
        seen.answered = None;
        assert_eq!(seen.servers.len(), 2);
    }

    #[test]
    fn an_answer_counts_for_some_looks() {
        let (mut seen, began) = (Seen::default(), Instant::now());
        assert!(seen.is_due(began) && !seen.answers(began));
        seen.looked = Some(began);
        seen.found(Vec::new(), began);
        assert!(!seen.is_due(began) && seen.is_due(began + LOOK));
        assert!(seen.answers(began + 2 * LOOK) && !seen.answers(began + RECENT));
    }
}
