//! The times in which nobody held a lock.

use std::collections::{BTreeMap, HashMap};

use lock_testkit::history::{Event, EventKind};

/// The times in which no guard of a lock was valid, for each lock.
pub(crate) fn free(events: &[Event], end_ns: u64) -> Vec<(String, u64, u64)> {
    let mut open: HashMap<(u32, u64, &str), (u64, u64)> = HashMap::new();
    let mut held: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    let mut begins: BTreeMap<&str, u64> = BTreeMap::new();
    for Event { process, client, lock, at_ns, kind } in events {
        let key = (*process, *client, lock.as_str());
        match kind {
            EventKind::AcquireCalled => {
                begins.entry(lock).or_insert(*at_ns);
            }
            EventKind::Acquired { valid_until_ns, .. } => {
                open.insert(key, (*at_ns, valid_until_ns.unwrap_or(u64::MAX)));
            }
            EventKind::Extended { valid_until_ns } => {
                if let Some((_, until_ns)) = open.get_mut(&key) {
                    *until_ns = *valid_until_ns;
                }
            }
            EventKind::ReleaseCalled | EventKind::Lost => {
                if let Some((from_ns, until_ns)) = open.remove(&key) {
                    held.entry(lock).or_default().push((from_ns, until_ns.min(*at_ns)));
                }
            }
            EventKind::Died => {
                for ((_, _, lock), (from_ns, until_ns)) in open.extract_if(|(dead, ..), _| dead == process) {
                    held.entry(lock).or_default().push((from_ns, until_ns.min(*at_ns)));
                }
            }
            _ => {}
        }
    }
    for ((_, _, lock), hold) in open {
        held.entry(lock).or_default().push(hold);
    }
    let mut free = Vec::new();
    for (lock, begin_ns) in begins {
        let mut holds = held.remove(lock).unwrap_or_default();
        holds.sort_unstable();
        let mut until_ns = begin_ns;
        for (from_ns, to_ns) in holds.into_iter().chain([(end_ns, end_ns)]) {
            let from_ns = from_ns.min(end_ns);
            if from_ns > until_ns {
                free.push((lock.to_owned(), until_ns, from_ns));
            }
            until_ns = until_ns.max(to_ns);
        }
    }
    free
}
