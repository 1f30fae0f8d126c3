//! Judges the record of a fault by what is promised.

use std::time::Duration;

use lock_testkit::history::{Event, EventKind};

use super::record::{FaultRecord, RecordHead};
use crate::data::exclusion::{Excused, Findings};
use crate::data::fault::{Cell, Expectation, Promise};
use crate::data::holds::free;
use crate::data::{BackendName, Failure, Fault, FaultResult, FaultVerdict, Outcome};

/// Judges a record. Fails when the record names an expectation that is not in the table.
pub(super) fn judge(record: &FaultRecord, file: &str) -> Outcome<FaultResult> {
    let RecordHead { fault, backend, lease, from_ns, until_ns, all_served, ref effect, .. } = record.head;
    let expected = match fault.on(backend) {
        Cell::Expected(expected) if record.head.expectation == fault.name_on(backend) => expected,
        _ => return Err(Failure::new(format!("there is no expectation `{}`", record.head.expectation))),
    };
    let found = Findings::of(&record.history);
    let [l1, l2, l3] = [found.l1.count, found.l2.count, found.stale_writes.count].map(|count| count as u64);
    let (outage, wait) = (outage(record), wait(record));
    let limit = expected.outage.of(Duration::from_nanos(until_ns.saturating_sub(from_ns)), lease);
    let excused = match expected.promise {
        Promise::Exclusion | Promise::ExclusionButPaused => Excused::Nothing,
        Promise::TwoValid | Promise::MaybeTwoValid => Excused::Overlaps,
    };
    let mut wrong = found.complaints(excused, ("the store accepted stale writes", found.stale_writes.count));
    if effect.is_none() {
        wrong.push(format!("the fault had no effect: {effect}"));
    }
    if outage > limit {
        wrong.push(format!("nobody could get the lock for {outage:.1?}, more than {limit:.1?}"));
    } else if wait > limit {
        wrong.push(format!(
            "the waiters waited {wait:.1?} for a lock that nobody held, more than {limit:.1?}"
        ));
    }
    if !all_served {
        let saved = record.head.stuck.as_deref().unwrap_or_default();
        wrong.push(format!("a client never got the lock after the fault{saved}"));
    }
    let (verdict, what) = compare(&expected, &found);
    wrong.extend((verdict == FaultVerdict::Differs).then(|| what.to_owned()));
    let mut result = without_run(fault, backend);
    result.verdict = if wrong.is_empty() { verdict } else { FaultVerdict::Differs };
    result.what = if wrong.is_empty() { what.to_owned() } else { wrong.join("; ") };
    result.servers.clone_from(&record.head.servers);
    result.promised = one_line(expected.sentence);
    result.outage_ms = outage.as_secs_f64() * 1e3;
    result.wait_ms = wait.as_secs_f64() * 1e3;
    result.history = file.to_owned();
    result.command = format!("{} --seed {}", result.command, record.head.seed);
    if let Some(broken) = record.head.broken {
        result.command.push_str(&format!(" --break {broken}"));
    }
    let (unfenced, tokens) = (l3 + found.rejected_writes as u64, found.token_errors() as u64);
    Ok(FaultResult { l1, l2, l3, unfenced, tokens, ..result })
}

pub(super) fn no_meaning(fault: Fault, backend: BackendName, why: &str) -> FaultResult {
    let (verdict, what) = (FaultVerdict::NoMeaning, why.to_owned());
    FaultResult { verdict, what, command: String::new(), ..without_run(fault, backend) }
}

pub(super) fn not_run(fault: Fault, backend: BackendName, why: &Failure) -> FaultResult {
    FaultResult { verdict: FaultVerdict::NotRun, what: why.to_string(), ..without_run(fault, backend) }
}

fn without_run(fault: Fault, backend: BackendName) -> FaultResult {
    FaultResult {
        fault: fault.title().to_owned(),
        backend: backend.to_string(),
        servers: None,
        l1: 0,
        l2: 0,
        l3: 0,
        unfenced: 0,
        tokens: 0,
        outage_ms: 0.0,
        wait_ms: 0.0,
        promised: String::new(),
        verdict: FaultVerdict::NotRun,
        what: String::new(),
        history: String::new(),
        command: format!("cargo xtask compare --faults --fault {fault} --backend {backend}"),
    }
}

/// Compares the overlaps, and the writes that the store refused, with what is promised of them. Two valid guards that are not
/// promised are a complaint already.
fn compare(expected: &Expectation, found: &Findings) -> (FaultVerdict, &'static str) {
    match (expected.promise, found.l2.count > 0) {
        (Promise::Exclusion, _) | (Promise::ExclusionButPaused, true) | (Promise::MaybeTwoValid, false) => {
            (FaultVerdict::Holds, "")
        }
        (Promise::ExclusionButPaused, false) if found.l1.count > 0 && found.rejected_writes > 0 => {
            (FaultVerdict::BreaksAsDocumented, "held beyond the lease")
        }
        (Promise::ExclusionButPaused, false) => {
            (FaultVerdict::Differs, "no store refused a late write of the paused holder")
        }
        (Promise::TwoValid | Promise::MaybeTwoValid, true) => {
            (FaultVerdict::BreaksAsDocumented, "two valid guards")
        }
        (Promise::TwoValid, false) => (FaultVerdict::Differs, "two guards should have been valid at once"),
    }
}

/// The longest time from the fault on in which no client that runs had a valid guard.
fn outage(record: &FaultRecord) -> Duration {
    longest_free(&record.head, record.history.events().to_vec(), record.head.end_ns)
}

/// The same for the clients that wait, as if there were no others: a poller hides that waiters are not notified.
fn wait(record: &FaultRecord) -> Duration {
    let mut events = record.history.events().to_vec();
    events.retain(|event| record.head.waiters.contains(&(event.process, event.client)));
    // A client that was served after the fault is done.
    let end_ns = events.last().map_or(record.head.end_ns, |event| event.at_ns);
    longest_free(&record.head, events, end_ns)
}

fn longest_free(head: &RecordHead, mut events: Vec<Event>, end_ns: u64) -> Duration {
    let RecordHead { from_ns, ref stopped, .. } = *head;
    for &(process, at_ns) in stopped {
        // A process that is stopped does as little as a dead one.
        let at = events.partition_point(|event| event.at_ns <= at_ns);
        let (lock, kind) = (String::new(), EventKind::Died);
        events.insert(at, Event { process, client: 0, lock, at_ns, kind });
    }
    let gaps = free(&events, end_ns).into_iter();
    let gaps = gaps.map(|(_, begin_ns, until_ns)| until_ns.saturating_sub(begin_ns.max(from_ns)));
    Duration::from_nanos(gaps.max().unwrap_or(0))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use lock_testkit::history::History;

    use super::super::evidence::Evidence;
    use super::*;
    use crate::data::GrantInfo;
    use crate::data::events::sample_hold;

    const S: u64 = 1_000_000_000;

    /// A hold of two seconds of validity, in seconds, with one write at its beginning.
    fn hold(process: u32, token: u64, from: u64, until: u64) -> Vec<Event> {
        let grant = GrantInfo { token: Some(token), until_ns: Some((from + 2) * S) };
        let mut events = sample_hold(process, [from * S - 1, from * S, until * S], grant);
        let kind = EventKind::Write { token, accepted: true };
        events.insert(2, Event { at_ns: from * S + 1, kind, ..events[1].clone() });
        events
    }

    fn write(process: u32, token: u64, at: u64, accepted: bool) -> Vec<Event> {
        let kind = EventKind::Write { token, accepted };
        vec![Event { process, client: 0, lock: "a".into(), at_ns: at * S, kind }]
    }

    fn record(fault: Fault, events: &[Vec<Event>], end: u64) -> FaultRecord {
        let backend = BackendName::Redis;
        FaultRecord {
            head: RecordHead {
                fault,
                backend,
                expectation: fault.name_on(backend),
                servers: None,
                seed: 7,
                broken: None,
                lease: Duration::from_secs(2),
                from_ns: 11 * S,
                until_ns: 12 * S,
                end_ns: end * S,
                stopped: Vec::new(),
                stuck: None,
                effect: Evidence::counted(2, "replies swallowed"),
                waiters: vec![(1, 0), (2, 0)],
                all_served: true,
            },
            history: History::new(events.concat()),
        }
    }

    fn judged(fault: Fault, events: &[Vec<Event>], end: u64) -> FaultResult {
        judge(&record(fault, events, end), "file").unwrap()
    }

    #[test]
    fn a_lock_that_is_handed_over_holds() {
        let result = judged(Fault::ClientKilled, &[hold(1, 1, 10, 12), hold(2, 2, 13, 14)], 14);
        assert_eq!((result.verdict, result.l1, result.l2), (FaultVerdict::Holds, 0, 0), "{result:?}");
        assert!((result.outage_ms - 1e3).abs() < 1.0, "{result:?}");
        assert!(result.command.ends_with("--fault client-killed --backend redis --seed 7"), "{result:?}");
    }

    #[test]
    fn two_valid_guards_differ_unless_they_are_documented() {
        let events = [hold(1, 1, 10, 13), hold(2, 2, 11, 13)];
        let differs = judged(Fault::ClientKilled, &events, 13);
        assert_eq!((differs.verdict, differs.l2), (FaultVerdict::Differs, 1), "{differs:?}");
        let documented = judged(Fault::Flushall, &events, 13);
        assert_eq!(documented.verdict, FaultVerdict::BreaksAsDocumented, "{documented:?}");
        // A promise that something breaks is one, too.
        let nothing = judged(Fault::Flushall, &[hold(1, 1, 10, 12), hold(2, 2, 12, 13)], 13);
        assert_eq!(nothing.verdict, FaultVerdict::Differs, "{nothing:?}");
    }

    #[test]
    fn a_paused_holder_goes_on_after_its_lease() {
        let mut events = vec![hold(1, 1, 10, 15), hold(2, 2, 13, 16), write(1, 1, 14, false)];
        let result = judged(Fault::ClientPaused, &events, 16);
        assert_eq!((result.verdict, result.l1, result.l2), (FaultVerdict::BreaksAsDocumented, 1, 0));
        assert_eq!((result.l3, result.unfenced), (0, 1), "{result:?}");
        // A store that does not compare tokens.
        events[2] = write(1, 1, 14, true);
        let result = judged(Fault::ClientPaused, &events, 16);
        assert_eq!((result.verdict, result.l3), (FaultVerdict::Differs, 1), "{result:?}");
        assert!(result.what.contains("accepted stale writes: 1 times"), "{result:?}");
        // Without a late write nothing shows that a store refuses one.
        let result = judged(Fault::ClientPaused, &events[..2], 16);
        assert_eq!((result.verdict, result.l1), (FaultVerdict::Differs, 1), "{result:?}");
        assert!(result.what.contains("no store refused a late write"), "{result:?}");
    }

    #[test]
    fn a_fault_without_effect_proves_nothing() {
        let mut record = record(Fault::RepliesSwallowed, &[hold(1, 1, 10, 12), hold(2, 2, 12, 13)], 13);
        assert_eq!(judge(&record, "file").unwrap().verdict, FaultVerdict::Holds);
        record.head.effect = Evidence::counted(0, "replies swallowed");
        let result = judge(&record, "file").unwrap();
        assert_eq!(result.verdict, FaultVerdict::Differs);
        assert_eq!(result.what, "the fault had no effect: 0 replies swallowed");
    }

    #[test]
    fn a_waiter_that_is_not_served_differs_although_a_poller_is() {
        let poller: Vec<_> = (0..5).map(|nth| hold(3, 2 + nth, 12 + 2 * nth, 14 + 2 * nth)).collect();
        let late = [vec![hold(1, 1, 10, 12)], poller, vec![hold(2, 7, 22, 23)]].concat();
        let mut record = record(Fault::ClientKilled, &late, 23);
        assert_eq!((outage(&record), wait(&record)), (Duration::ZERO, Duration::from_secs(10)));
        let result = judge(&record, "file").unwrap();
        assert_eq!((result.verdict, result.wait_ms), (FaultVerdict::Differs, 1e4), "{result:?}");
        assert!(result.what.contains("the waiters waited 10.0s"), "{result:?}");
        // One that got it before the poller.
        record.history = History::new(late[..6].concat());
        record.head.waiters = vec![(1, 0)];
        assert_eq!(judge(&record, "file").unwrap().verdict, FaultVerdict::Holds);
        record.head.all_served = false;
        let result = judge(&record, "file").unwrap();
        assert_eq!(result.verdict, FaultVerdict::Differs);
        assert_eq!(result.what, "a client never got the lock after the fault");
    }

    #[test]
    fn an_outage_of_more_than_the_limit_differs() {
        // The lease is two seconds.
        let wait = |until| {
            judged(Fault::ClientKilled, &[hold(1, 1, 10, 12), hold(2, 2, until, until + 1)], until + 1)
        };
        assert_eq!(wait(15).verdict, FaultVerdict::Holds);
        assert_eq!(wait(16).verdict, FaultVerdict::Differs);
    }

    #[test]
    fn a_stopped_holder_is_none() {
        let events = [hold(1, 1, 10, 15), hold(2, 2, 13, 16)];
        let mut record = record(Fault::ClientPaused, &events, 16);
        assert_eq!(outage(&record), Duration::from_secs(1));
        record.head.stopped = vec![(1, 11 * S)];
        assert_eq!(outage(&record), Duration::from_secs(2));
    }

    #[test]
    fn tokens_that_shrink_and_locks_that_stay_away_differ() {
        let smaller = judged(Fault::ClientKilled, &[hold(1, 2, 10, 12), hold(2, 1, 13, 14)], 14);
        assert_eq!((smaller.verdict, smaller.tokens), (FaultVerdict::Differs, 1), "{smaller:?}");
        let never = judged(Fault::ClientKilled, &[hold(1, 1, 10, 12)], 30);
        assert!(never.what.contains("nobody could get the lock for 18.0s"), "{never:?}");
        assert_eq!(judged(Fault::ClientKilled, &[], 30).verdict, FaultVerdict::Differs);
    }

    #[test]
    fn a_record_is_judged_again_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/record.jsonl");
        let mut record = record(Fault::Flushall, &[hold(1, 1, 10, 13), hold(2, 2, 11, 13)], 13);
        record.write(&path).unwrap();
        let again = FaultRecord::read(&path).unwrap();
        assert_eq!((&again.head, &again.history), (&record.head, &record.history));
        assert_eq!(judge(&again, "file").unwrap(), judge(&record, "file").unwrap());
        record.head.expectation = "flushall on etcd".into();
        assert!(judge(&record, "file").unwrap_err().to_string().contains("flushall on etcd"));
        assert!(FaultRecord::read(folder.path()).is_err());
    }
}
