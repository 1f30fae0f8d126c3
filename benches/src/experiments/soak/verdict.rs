//! Checks the history of a soak: exclusion, tokens, and how long locks were free.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use lock_testkit::history::{Event, EventKind, History};

use super::cpu_pressure::CpuPressure;
use crate::data::exclusion::{Excused, Findings};
use crate::data::holds::free;
use crate::data::{Fault, Losses};
use crate::experiments::faults::injector::Injected;
use crate::rig::worker::client_runtimes::runtime_of;

/// How much longer than its leases a lock may be free after a fault.
pub(super) const SLACK: Duration = Duration::from_secs(2);

/// What the history of one backend shows.
#[derive(Debug)]
pub(crate) struct SoakVerdict {
    /// How often a lock was granted.
    pub(crate) grants: usize,
    pub(crate) faults: BTreeMap<Fault, usize>,
    /// How often two guards of one lock were valid at once.
    pub(crate) overlaps: usize,
    /// How often a token did not grow.
    pub(crate) inversions: usize,
    /// How many fenced transactions were committed.
    pub(crate) commits: usize,
    /// How many of them were committed after a later grant.
    pub(crate) stale: usize,
    /// The longest time that a lock was free after a fault.
    pub(crate) longest: Option<Gap>,
    /// The longest time that a lock was free, faults included.
    pub(crate) longest_ns: u64,
    /// The longest time that a client waited for a lock, faults included.
    pub(crate) longest_wait_ns: u64,
    /// The largest value that `longest` may have.
    pub(crate) limit: Duration,
    /// The CPU pressure in percent.
    pub(crate) pressure: Option<f64>,
    /// Broken promises.
    pub(crate) violations: Vec<String>,
    /// The whole report of the checker.
    pub(crate) report: String,
}

/// A time in which a lock was free and there was no fault.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    lock: String,
    from_ns: u64,
    /// How long it went on.
    pub(crate) length_ns: u64,
    /// The fault before it, in words.
    around: String,
}

impl Gap {
    /// The lock, and the fault before the gap.
    pub(crate) fn place(&self) -> String {
        format!("{}, {}", self.lock, self.around)
    }
}

/// Checks the history from `began_ns` to `end_ns`. A lock may be free for `limit` after a fault.
pub(super) fn judge(
    history: &History,
    faults: &[Injected],
    limit: Duration,
    (began_ns, end_ns): (u64, u64),
    pressure: &CpuPressure,
) -> SoakVerdict {
    let found = Findings::of(history);
    let stale = stale_commits(history.events());
    let forgets = faults.iter().any(|fault| fault.fault.row().losses == Losses::Unnoticed);
    let excused = if forgets { Excused::Everything } else { Excused::Nothing };
    let broken = found.complaints(excused, ("fenced transactions were committed after a later grant", stale));
    let mut violations: Vec<_> =
        broken.into_iter().map(|complaint| format!("{complaint}; see report.txt")).collect();
    let free = free(history.events(), end_ns);
    let longest_ns = free.iter().map(|(_, from_ns, until_ns)| until_ns - from_ns).max().unwrap_or(0);
    let gaps: Vec<Gap> = free.iter().flat_map(|free| unexplained(free, faults)).collect();
    let mut long: Vec<&Gap> =
        gaps.iter().filter(|gap| u128::from(gap.length_ns) > limit.as_nanos()).collect();
    long.sort_by_key(|gap| Reverse(gap.length_ns));
    violations.extend(long.iter().take(MOST).map(|gap| {
        let (length, at) = (seconds(gap.length_ns), seconds(gap.from_ns.saturating_sub(began_ns)));
        let busy = percent(pressure.between(gap.from_ns, gap.from_ns + gap.length_ns));
        format!("a lock was not granted for {length}, from {at} on: {}; cpu pressure {busy}", gap.place())
    }));
    if long.len() > MOST {
        violations.push(format!("{} more such gaps", long.len() - MOST));
    }
    let lost = lost_for_no_reason(history.events(), faults);
    violations.extend(lost.iter().take(MOST).map(|(event, fault)| {
        let (at, since) = (event.at_ns.saturating_sub(began_ns), event.at_ns - fault.from_ns);
        let busy = percent(pressure.between(fault.from_ns, event.at_ns));
        format!(
            "process {} lost {} at {}, {} after the start of the {} of {}, which takes no lock; cpu pressure {busy}",
            event.process,
            event.lock,
            seconds(at),
            seconds(since),
            fault.fault.soak_name(),
            fault.whom
        )
    }));
    if lost.len() > MOST {
        violations.push(format!("{} more such losses", lost.len() - MOST));
    }
    let mut kinds = BTreeMap::new();
    for fault in faults.iter().filter(|fault| !fault.resumes) {
        *kinds.entry(fault.fault).or_default() += 1;
    }
    SoakVerdict {
        grants: found.holds,
        faults: kinds,
        overlaps: found.l2.count,
        inversions: found.token_errors(),
        commits: found.accepted_writes,
        stale,
        longest: gaps.into_iter().max_by_key(|gap| gap.length_ns),
        longest_ns,
        longest_wait_ns: found.locks.values().map(|stats| stats.longest_wait_ns).max().unwrap_or(0),
        limit,
        pressure: pressure.between(began_ns, end_ns),
        violations,
        report: found.to_string(),
    }
}

/// The commits of fenced transactions after a grant with a larger token, or after a commit with one.
fn stale_commits(events: &[Event]) -> usize {
    let mut later: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    for Event { lock, at_ns, kind, .. } in events {
        let (token, known_ns) = match *kind {
            EventKind::Acquired { token: Some(token), .. } => (token, at_ns + CLOCKS_NS),
            EventKind::Write { token, accepted: true } => (token, *at_ns),
            _ => continue,
        };
        let first_ns = later.entry(lock).or_default().entry(token).or_insert(known_ns);
        *first_ns = known_ns.min(*first_ns);
    }
    for of_lock in later.values_mut() {
        // When this token or a larger one was known at first.
        let mut first_ns = u64::MAX;
        for known_ns in of_lock.values_mut().rev() {
            first_ns = first_ns.min(*known_ns);
            *known_ns = first_ns;
        }
    }
    let is_stale = |event: &&Event| match event.kind {
        EventKind::Write { token, accepted: true } => {
            let larger = later[event.lock.as_str()].range(token + 1..).next();
            larger.is_some_and(|(_, &known_ns)| known_ns < event.at_ns)
        }
        _ => false,
    };
    events.iter().filter(is_stale).count()
}

/// The parts of a free time without a fault. The faults are in the order of their start.
fn unexplained(free: &(String, u64, u64), faults: &[Injected]) -> Vec<Gap> {
    let &(ref lock, mut from_ns, until_ns) = free;
    let (mut gaps, mut last): (_, Option<&Injected>) = (Vec::new(), None);
    let mut part = |from_ns: u64, until_ns: u64, last: Option<&Injected>| {
        if from_ns < until_ns {
            let (lock, around) = (lock.clone(), after(from_ns, last));
            gaps.push(Gap { lock, from_ns, length_ns: until_ns - from_ns, around });
        }
    };
    for fault in faults.iter().filter(|fault| fault.from_ns < until_ns) {
        part(from_ns, fault.from_ns, last);
        from_ns = from_ns.max(fault.until_ns);
        if last.is_none_or(|last| last.until_ns <= fault.until_ns) {
            last = Some(fault);
        }
    }
    part(from_ns, until_ns, last);
    gaps
}

/// The losses since a fault that takes no lock, up to the next one. The faults are in the order of their start.
fn lost_for_no_reason<'a>(events: &'a [Event], faults: &'a [Injected]) -> Vec<(&'a Event, &'a Injected)> {
    let losses = events.iter().filter(|event| matches!(event.kind, EventKind::Lost));
    let since = losses.filter_map(|event| {
        let mut before = faults.iter().rev().filter(|fault| fault.from_ns <= event.at_ns);
        Some((event, before.find(|fault| fault.fault.row().losses != Losses::OfTheKilled)?))
    });
    let is_kept = |(event, fault): &(&Event, &Injected)| {
        fault.keeps_locks && fault.computes != Some((event.process, runtime_of(event.client)))
    };
    since.filter(is_kept).collect()
}

fn after(at_ns: u64, last: Option<&Injected>) -> String {
    let Some(fault) = last else { return "before any fault".to_owned() };
    let since = seconds(at_ns.saturating_sub(fault.until_ns));
    let what = if fault.resumes { "the end of the" } else { "the" };
    format!("{since} after {what} {} of {}", fault.fault.soak_name(), fault.whom)
}

/// `1.50 s`
pub(crate) fn seconds(ns: u64) -> String {
    format!("{:.2} s", ns as f64 / 1e9)
}

/// How far the clocks of commits and of events may differ.
const CLOCKS_NS: u64 = 10_000_000;
/// How many violations of a kind are listed.
const MOST: usize = 10;

/// `12 %`, or `-` when unknown.
pub(crate) fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".into(), |part| format!("{part:.0} %"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::events::sample_hold;
    use crate::data::{GrantInfo, Site};

    const LEASE: Duration = Duration::from_secs(2);
    const S: u64 = 1_000_000_000;

    fn event(process: u32, at_ns: u64, kind: EventKind) -> Event {
        Event { process, client: 0, lock: "a".into(), at_ns, kind }
    }

    /// Seconds throughout.
    fn hold(process: u32, from: u64, until: u64) -> Vec<Event> {
        let grant = GrantInfo { token: Some(from), until_ns: Some((from + 2) * S) };
        sample_hold(process, [from * S - 1, from * S, until * S], grant)
    }

    fn fault(fault: Fault, from: u64, until: u64) -> Injected {
        let (from_ns, until_ns) = (from * S, until * S);
        let keeps_locks = fault.row().keeps_locks(Site::Redlock);
        Injected { fault, whom: "it".into(), resumes: false, keeps_locks, from_ns, until_ns, computes: None }
    }

    fn judged(events: &[Vec<Event>], faults: &[Injected], end: u64) -> SoakVerdict {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let pressure = runtime.block_on(async { CpuPressure::watch() });
        judge(&History::new(events.concat()), faults, LEASE + SLACK, (0, end * S), &pressure)
    }

    #[test]
    fn a_lock_that_is_handed_over_is_fine() {
        let verdict = judged(&[hold(1, 1, 2), hold(2, 3, 4), hold(1, 5, 6)], &[], 7);
        assert_eq!(verdict.violations, Vec::<String>::new());
        assert_eq!((verdict.grants, verdict.longest_ns), (3, S));
    }

    #[test]
    fn overlaps_and_token_inversions_are_violations() {
        let verdict = judged(&[hold(1, 10, 12), hold(2, 11, 13)], &[], 14);
        assert_eq!((verdict.overlaps, verdict.violations.len()), (1, 1), "{verdict:?}");
        let mut smaller = hold(2, 13, 14);
        let EventKind::Acquired { token, .. } = &mut smaller[1].kind else { unreachable!() };
        *token = Some(9);
        let verdict = judged(&[hold(1, 10, 12), smaller], &[], 15);
        assert_eq!((verdict.inversions, verdict.violations.len()), (1, 1), "{verdict:?}");
        assert_eq!(judged(&[], &[], 15).violations.len(), 1);
        // A server that loses a lock breaks exclusion: no promise covers it.
        let lossy = [fault(Fault::Failover, 11, 11)];
        let verdict = judged(&[hold(1, 10, 12), hold(2, 11, 13)], &lossy, 14);
        assert_eq!((verdict.overlaps, verdict.violations.len()), (1, 0), "{verdict:?}");
    }

    #[test]
    fn a_stale_commit_is_a_violation() {
        let commit = |token, at: u64| event(1, at * S, EventKind::Write { token, accepted: true });
        let holds = [hold(1, 10, 12), hold(2, 13, 14)].concat();
        let judged = |commits: &[Event]| {
            let verdict = judged(&[holds.clone(), commits.to_vec()], &[], 15);
            assert_eq!(verdict.violations.len(), usize::from(verdict.stale > 0), "{verdict:?}");
            (verdict.commits, verdict.stale)
        };
        assert_eq!(judged(&[commit(10, 11), commit(10, 12), commit(13, 14)]), (3, 0));
        // Though nobody has written with the later token, or learned of it.
        assert_eq!(judged(&[commit(10, 14)]), (1, 1));
        assert_eq!(judged(&[commit(12, 11), commit(11, 12)]), (2, 1));
        let refused = event(1, 14 * S, EventKind::Write { token: 10, accepted: false });
        assert_eq!(judged(&[refused]), (0, 0));
    }

    #[test]
    fn a_lock_that_stays_free_is_a_violation() {
        let verdict = judged(&[hold(1, 1, 2), hold(2, 7, 8)], &[], 9);
        assert!(
            verdict.violations[0].starts_with("a lock was not granted for 5.00 s, from 2.00 s on: a, before"),
            "{verdict:?}"
        );
        // Nor at the end, nor at the beginning.
        assert_eq!(judged(&[hold(1, 1, 2)], &[], 7).violations.len(), 1);
        let late = [vec![event(2, S, EventKind::AcquireCalled)], hold(1, 6, 7)];
        assert_eq!(judged(&late, &[], 8).violations.len(), 1);
        // Even when another lock is handed over.
        let mut other = hold(3, 3, 5);
        other.iter_mut().for_each(|event| event.lock = "b".into());
        assert_eq!(judged(&[hold(1, 1, 2), other, hold(2, 7, 8)], &[], 9).violations.len(), 1);
    }

    #[test]
    fn time_counts_from_the_end_of_the_last_fault() {
        let events = [hold(1, 1, 2), hold(2, 17, 18)];
        let verdict = judged(&events, &[fault(Fault::ServerPaused, 3, 13)], 19);
        assert_eq!(verdict.violations, Vec::<String>::new());
        let longest = verdict.longest.unwrap();
        assert_eq!((longest.length_ns, longest.place()), (4 * S, "a, 0.00 s after the freeze of it".into()));
        assert_eq!(verdict.longest_ns, 15 * S);
        assert_eq!(judged(&events, &[fault(Fault::ServerPaused, 3, 12)], 19).violations.len(), 1);
        // Each part between two faults counts.
        let freezes = [fault(Fault::ServerPaused, 3, 4), fault(Fault::ServerPaused, 10, 14)];
        let verdict = judged(&events, &freezes, 19);
        assert_eq!(verdict.violations.len(), 1, "{verdict:?}");
        assert!(verdict.violations[0].starts_with("a lock was not granted for 6.00 s"), "{verdict:?}");
        // A fault that has not ended explains everything, a later one nothing.
        assert_eq!(judged(&events, &[fault(Fault::ServerPaused, 3, 30)], 19).violations.len(), 0);
        assert_eq!(judged(&events, &[fault(Fault::ServerPaused, 18, 30)], 19).violations.len(), 1);
    }

    #[test]
    fn a_killed_or_silent_holder_holds_until_its_deadline() {
        let mut killed = hold(1, 1, 2);
        killed.truncate(2);
        let next = hold(2, 7, 8);
        // By its deadline, at 3.
        let verdict = judged(&[killed.clone(), next.clone()], &[], 9);
        assert_eq!((verdict.violations.len(), verdict.longest_ns), (0, 4 * S), "{verdict:?}");
        // A death ends it sooner.
        killed.push(event(1, 2 * S, EventKind::Died));
        let kill = fault(Fault::ClientKilled, 2, 2);
        let verdict = judged(&[killed, next], &[kill], 9);
        assert_eq!(verdict.violations.len(), 1, "{verdict:?}");
    }

    #[test]
    fn a_lock_that_is_lost_while_the_memory_is_full_is_a_violation() {
        let mut lost = hold(1, 1, 4);
        lost.insert(2, event(1, 3 * S, EventKind::Lost));
        let judged = |faults: &[Injected]| judged(&[lost.clone()], faults, 5).violations;
        let full = fault(Fault::FullMemory, 1, 2);
        let expected = "process 1 lost a at 3.00 s, 2.00 s after the start of the full-memory of it";
        assert!(judged(std::slice::from_ref(&full))[0].starts_with(expected));
        // A kill meanwhile explains nothing, a freeze everything.
        assert_eq!(judged(&[full.clone(), fault(Fault::ClientKilled, 2, 2)]).len(), 1);
        assert_eq!(judged(&[full, fault(Fault::ServerPaused, 2, 2)]).len(), 0);
        assert_eq!(judged(&[fault(Fault::FullMemory, 4, 5)]).len(), 0);
    }

    #[test]
    fn only_the_runtime_whose_thread_computes_may_lose_its_locks() {
        let mut lost = hold(1, 1, 4);
        lost.insert(2, event(1, 3 * S, EventKind::Lost));
        let judged = |process, runtime| {
            let computes = Some((process, runtime));
            let fault = Injected { computes, ..fault(Fault::BusyThread, 1, 1) };
            judged(&[lost.clone()], &[fault], 5).violations.len()
        };
        assert_eq!([judged(1, runtime_of(0)), judged(1, runtime_of(1)), judged(2, runtime_of(0))], [0, 1, 1]);
    }

    #[test]
    fn a_renewed_lock_is_held() {
        let mut long = hold(1, 1, 9);
        for at in 2..8 {
            long.insert(2, event(1, at * S, EventKind::Extended { valid_until_ns: (at + 2) * S }));
        }
        assert_eq!(judged(&[long], &[], 10).longest_ns, S);
    }
}
