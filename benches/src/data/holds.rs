//! The holds of a history, and the times in which nobody held a lock.

use std::collections::{BTreeMap, HashMap};

use lock_testkit::history::{Event, EventKind};

/// The time in which a client acted as the holder of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold<'a> {
    pub(crate) lock: &'a str,
    pub(crate) process: u32,
    pub(crate) token: Option<u64>,
    pub(crate) called_ns: u64,
    pub(crate) begin_ns: u64,
    /// When the client called release, learned that it lost the lock, or died; never if it did neither.
    pub(crate) end_ns: u64,
    /// Until when the guard was valid.
    pub(crate) valid_until_ns: u64,
}

/// All holds, in the order of their grants.
pub(crate) fn holds(events: &[Event]) -> Vec<Hold<'_>> {
    let (mut called, mut open, mut holds) = (HashMap::new(), HashMap::new(), Vec::new());
    for &Event { process, client, ref lock, at_ns, ref kind } in events {
        let key = (process, client, lock.as_str());
        match *kind {
            EventKind::AcquireCalled => drop(called.insert(key, at_ns)),
            EventKind::Acquired { token, valid_until_ns, .. } => {
                let (called_ns, begin_ns) = (called.get(&key).copied().unwrap_or_default(), at_ns);
                let (end_ns, valid_until_ns) = (u64::MAX, valid_until_ns.unwrap_or(u64::MAX));
                open.insert(key, Hold { lock, process, token, called_ns, begin_ns, end_ns, valid_until_ns });
            }
            EventKind::Extended { valid_until_ns } => {
                open.entry(key).and_modify(|hold| hold.valid_until_ns = valid_until_ns);
            }
            EventKind::Lost | EventKind::ReleaseCalled => {
                holds.extend(open.remove(&key).map(|hold| Hold { end_ns: at_ns, ..hold }));
            }
            EventKind::Died => {
                let of_process = open.extract_if(|(of, ..), _| *of == process);
                holds.extend(of_process.map(|(_, hold)| Hold { end_ns: at_ns, ..hold }));
            }
            _ => {}
        }
    }
    holds.extend(open.into_values());
    holds.sort_by_key(|hold| hold.begin_ns);
    holds
}

/// The times in which no guard of a lock was valid, for each lock, from its first call of acquire on.
pub(crate) fn free(events: &[Event], end_ns: u64) -> Vec<(String, u64, u64)> {
    let mut begins: BTreeMap<&str, u64> = BTreeMap::new();
    for event in events.iter().filter(|event| event.kind == EventKind::AcquireCalled) {
        begins.entry(&event.lock).or_insert(event.at_ns);
    }
    let (holds, mut free) = (holds(events), Vec::new());
    for (lock, begin_ns) in begins {
        let mut until_ns = begin_ns;
        let of_lock = holds.iter().filter(|hold| hold.lock == lock);
        let valid = of_lock.map(|hold| (hold.begin_ns, hold.end_ns.min(hold.valid_until_ns)));
        for (from_ns, to_ns) in valid.chain([(end_ns, end_ns)]) {
            let from_ns = from_ns.min(end_ns);
            if from_ns > until_ns {
                free.push((lock.to_owned(), until_ns, from_ns));
            }
            until_ns = until_ns.max(to_ns);
        }
    }
    free
}
