//! Processes that contend for one lock, and what their history shows.

use std::time::Duration;

use futures_util::future::join_all;
use lock_testkit::history::Event;

use crate::data::holds::holds;
use crate::experiments::prelude::*;
use crate::rig::worker::contend::GRACE;

/// How long a client holds the lock.
pub(crate) const HOLD: Duration = Duration::from_millis(1);

/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
/// A hand-over has two.
const FEWEST: u32 = 2;

/// Until all clients contend again, in a slice of this length.
pub(crate) fn ramp(span: Duration) -> Duration {
    span / 4
}

/// The jobs of processes that contend for `lock`.
pub(crate) fn jobs(bench: &Bench, url: &str, lock: &str) -> impl Iterator<Item = Job> {
    (0..bench.plan.processes).map(move |process| {
        let keeps = process == 0 && bench.broken == Some(Defect::NeverReleases);
        let hold = if keeps { FOR_EVER } else { HOLD };
        Job {
            lock: bench.lock_of(lock, process),
            ..Job::new(url, lock, process, Task::Contend { hold, peer: None })
        }
    })
}

/// Has all workers contend in this window. Fails when any of them does, with what each of these reports.
pub(crate) async fn let_contend(workers: &[WorkerHandle], window: Window) -> Outcome<Vec<Event>> {
    for worker in workers {
        worker.send(Order::Contend(window)).await?;
    }
    window.ends().await;
    together(join_all(workers.iter().map(|worker| worker.events(2 * GRACE))).await)
}

/// The events of all processes, or all failures.
fn together(reports: Vec<Outcome<Vec<Event>>>) -> Outcome<Vec<Event>> {
    let (mut events, mut failures, mut well) = (Vec::new(), Vec::new(), 0);
    for (process, report) in reports.into_iter().enumerate() {
        match report {
            Ok(mut reported) => {
                events.append(&mut reported);
                well += 1;
            }
            Err(failure) => failures.push(format!("process {process}: {failure}")),
        }
    }
    if failures.is_empty() {
        return Ok(events);
    }
    failures.push(format!("{well} others succeeded"));
    Err(Failure::new(failures.join("; ")))
}

/// The holds that were released, in the order of their grants.
pub(crate) fn grants(events: &[Event]) -> Vec<Hold<'_>> {
    let mut grants = holds(events);
    grants.retain(|hold| hold.end_ns < u64::MAX);
    grants
}

/// The statistics of a contended lock, over one window or several.
#[derive(Debug)]
pub(crate) struct Contention {
    /// From the call of release to the return of the next acquire.
    pub(crate) handoff: Latency,
    /// The same, until a process that waited at the time of the release has the lock. Where a releaser may acquire the
    /// lock again at once, hand-offs are fast but waiters starve.
    pub(crate) to_waiter: Latency,
    hold: Latency,
    span: Duration,
    longest_wait_ns: u64,
    /// The grants of each process.
    shares: Vec<u32>,
    pub(crate) events: Vec<Event>,
}

impl Contention {
    pub(crate) fn new(processes: u32) -> Self {
        Self {
            handoff: Latency::new(),
            to_waiter: Latency::new(),
            hold: Latency::new(),
            span: Duration::ZERO,
            longest_wait_ns: 0,
            shares: vec![0; processes as usize],
            events: Vec::new(),
        }
    }

    /// Evaluates the history of one window. Fails when the lock was hardly granted.
    pub(crate) fn of(events: Vec<Event>, window: Window, processes: u32) -> Outcome<Self> {
        let mut contention = Self::new(processes);
        contention.add(events, window)?;
        Ok(contention)
    }

    /// Adds the history of a window, and returns its hand-offs. Fails when the lock was hardly granted.
    pub(crate) fn add(&mut self, events: Vec<Event>, window: Window) -> Outcome<Latency> {
        let (before, handoff) = (self.grants(), self.add_any(events, window));
        match self.grants() - before {
            few @ ..FEWEST => Err(Failure::new(format!("{few} grants in {}", time(window.span())))),
            _ => Ok(handoff),
        }
    }

    /// Adds the history of a window, in which there may be no grant, and returns its hand-offs.
    pub(crate) fn add_any(&mut self, events: Vec<Event>, window: Window) -> Latency {
        let all = grants(&events);
        let counted: Vec<&Hold<'_>> = all.iter().filter(|grant| window.contains(grant.begin_ns)).collect();
        let mut handoff = Latency::new();
        for pair in counted.windows(2) {
            // An overlap has no gap: it shows in the verdict.
            if let Some(gap) = pair[1].begin_ns.checked_sub(pair[0].end_ns) {
                handoff.record(gap);
            }
        }
        self.handoff.add(&handoff.counts());
        waits_behind(&all, window).for_each(|wait| self.to_waiter.record(wait));
        for grant in &counted {
            self.hold.record(grant.end_ns.saturating_sub(grant.begin_ns));
            self.shares[grant.process as usize] += 1;
        }
        // A wait that goes on at the end of the window lasted at least until then.
        let waits = all
            .iter()
            .filter(|grant| grant.begin_ns >= window.from_ns && grant.called_ns < window.until_ns)
            .map(|grant| grant.begin_ns.min(window.until_ns) - grant.called_ns.max(window.from_ns));
        self.longest_wait_ns = waits.fold(self.longest_wait_ns, u64::max);
        self.span += window.span();
        self.events.extend(events);
        handoff
    }

    pub(crate) fn grants(&self) -> u32 {
        self.shares.iter().sum()
    }

    /// Whether the processes kept each other from the lock.
    pub(crate) fn is_starved(&self) -> bool {
        self.grants() < FEWEST
    }

    /// The rows without those of the hand-off, which each experiment compares with something else.
    pub(crate) fn into_measured(self, backend: &str) -> Measured {
        let (hold_us, handoff_us) = (self.hold.quantile_us(0.5), self.handoff.quantile_us(0.5));
        // All take turns.
        let ideal_us = self.shares.len() as f64 * (hold_us + handoff_us);
        let rows = vec![
            Row::of("grants_per_s", f64::from(self.grants()) / self.span.as_secs_f64()),
            Row::of("longest_wait", self.longest_wait_ns as f64 / 1e3).with_floor(ideal_us),
            Row::of("jain", jain(&self.shares)),
        ];
        let notes = vec![("hold_median", format!("{:.2} ms", hold_us / 1e3))];
        Measured { events: self.events, notes, ..Measured::of(backend, rows) }
    }
}

/// For every release in the window: the time until a process that waited at that moment had the lock, or until the end of
/// the window. The grants are in the order of time.
fn waits_behind(grants: &[Hold<'_>], window: Window) -> impl Iterator<Item = u64> {
    grants.iter().enumerate().filter_map(move |(index, grant)| {
        let released_ns = grant.end_ns;
        let next = grants[index + 1..].iter().find(|next| next.called_ns < released_ns)?;
        window.contains(released_ns).then(|| next.begin_ns.min(window.until_ns).saturating_sub(released_ns))
    })
}

/// The times from one acquisition to the next of a single client: they include what a release leaves for later.
pub(crate) fn rounds(events: &[Event], window: Window) -> Latency {
    let mut rounds = Latency::new();
    for pair in grants(events).windows(2).filter(|pair| window.contains(pair[0].called_ns)) {
        rounds.record(pair[1].called_ns - pair[0].called_ns);
    }
    rounds
}

/// Jain's fairness index: 1 when all shares are equal, 1/n when one of n has everything.
fn jain(shares: &[u32]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| f64::from(share)).sum();
    let squares: f64 = shares.iter().map(|&share| f64::from(share).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::data::GrantInfo;
    use crate::data::events::sample_hold;

    pub(crate) fn held(process: u32, called_ms: u64, from_ms: u64, until_ms: u64) -> Vec<Event> {
        let grant = GrantInfo { token: Some(from_ms), until_ns: None };
        sample_hold(process, [called_ms, from_ms, until_ms].map(|ms| ms * 1_000_000), grant)
    }

    #[test]
    fn a_history_with_hardly_a_grant_is_no_measurement() {
        let window = Window { from_ns: 0, until_ns: 1_000_000_000 };
        assert_eq!(Contention::of(held(0, 1, 2, 3), window, 2).unwrap_err().to_string(), "1 grants in 1 s");
    }

    #[test]
    fn a_lock_that_is_taken_back_at_once_is_not_handed_over() {
        let grant = |process, called_ns, begin_ns, end_ns| {
            let (lock, token, valid_until_ns) = ("a", None, u64::MAX);
            Hold { lock, process, token, called_ns, begin_ns, end_ns, valid_until_ns }
        };
        // The first one takes it three times, while the other waits all the time.
        let grants = [grant(0, 0, 1, 10), grant(0, 11, 12, 20), grant(0, 21, 22, 30), grant(1, 5, 33, 40)];
        let waits = |until_ns| waits_behind(&grants, Window { from_ns: 0, until_ns }).collect::<Vec<_>>();
        assert_eq!(waits(100), [23, 13, 3]);
        assert_eq!(waits(25), [15, 5]);
    }

    #[test]
    fn all_failed_processes_are_named() {
        let failed = |what: &str| Err(Failure::new(what));
        let reports = vec![Ok(held(0, 1, 2, 3)), failed("it is stuck"), Ok(Vec::new()), failed("no answer")];
        let text = "process 1: it is stuck; process 3: no answer; 2 others succeeded";
        assert_eq!(together(reports).unwrap_err().to_string(), text);
        assert_eq!(together(vec![Ok(held(0, 1, 2, 3)), Ok(held(1, 4, 5, 6))]).unwrap().len(), 8);
    }

    #[test]
    fn jain_knows_the_extremes() {
        assert!((jain(&[5, 5, 5]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-9);
    }
}
