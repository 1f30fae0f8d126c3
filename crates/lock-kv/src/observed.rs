//! What a client has seen of the locks, and since when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use lock_core::poison::lock;
use lock_core::{BootInstant, OwnerId};

use crate::registers::Version;
use crate::stored::Stored;

/// How many locks are remembered. To forget one delays who waits for the end of a crashed holder.
const MOST: usize = 16_384;
/// After so many reads that do not show a beat it is forgotten: reads may be stale.
const MISSES: u8 = 16;

/// The locks of one client.
#[derive(Debug, Default)]
pub(crate) struct Observed(Mutex<HashMap<Arc<str>, Arc<Known>>>);

/// What is known of one lock.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// `None` if nobody has had it.
    pub(crate) value: Option<(Version, Stored)>,
    /// When a read returned that showed the beat of an owner first. No beat has the number of another one.
    seen: HashMap<(OwnerId, u64), Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    first: BootInstant,
    misses: u8,
}

impl Observed {
    pub(crate) fn recall(&self, key: &str) -> Option<Arc<Known>> {
        lock(&self.0).get(key).cloned()
    }

    /// What would be known if this value were there. Nothing is noted.
    pub(crate) fn assume(&self, key: &str, value: (Version, Stored)) -> Arc<Known> {
        let seen = self.recall(key).map(|known| known.seen.clone()).unwrap_or_default();
        Arc::new(Known { value: Some(value), seen })
    }

    /// Notes a value that a read returned, or that was written, before `returned`.
    pub(crate) fn note(
        &self,
        key: &Arc<str>,
        value: Option<(Version, Stored)>,
        returned: BootInstant,
    ) -> Arc<Known> {
        let mut locks = lock(&self.0);
        let mut seen = locks.get(key).map(|known| known.seen.clone()).unwrap_or_default();
        seen.values_mut().for_each(|seen| seen.misses += 1);
        for beat in value.iter().flat_map(|(_, stored)| stored.beats()) {
            seen.entry(beat).or_insert(Seen { first: returned, misses: 0 }).misses = 0;
        }
        seen.retain(|_, seen| seen.misses < MISSES);
        let known = Arc::new(Known { value, seen });
        if locks.len() >= MOST && !locks.contains_key(key) {
            locks.retain(|_, known| known.value.as_ref().is_some_and(|(_, stored)| !stored.is_idle()));
            // Not all: who waits for one of the others would begin anew each time.
            let excess = locks.len().saturating_sub(MOST - MOST / 8);
            let some: Vec<_> = locks.keys().take(excess).cloned().collect();
            some.iter().for_each(|key| drop(locks.remove(key)));
        }
        locks.insert(Arc::clone(key), Arc::clone(&known));
        known
    }
}

impl Known {
    /// When this client saw this beat first: not yet, if it is not known.
    pub(crate) fn since(&self, owner: OwnerId, beat: u64) -> BootInstant {
        self.seen.get(&(owner, beat)).map_or(BootInstant::NEVER, |seen| seen.first)
    }
}
