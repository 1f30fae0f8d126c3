//! Checks histories: whether holds overlap, whether tokens grow, and how fair the lock is.
//!
//! For a mutex, linearizability of the acquisitions and releases *is* the disjointness of their intervals. So a sweep over
//! the sorted intervals is exact, takes O(n log n), and yields readable counterexamples. It is exact for shared modes, too:
//! a new holder must be compatible with all holders at that moment, readers with readers, and the holder of a permit with
//! fewer permits than its own maximum.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fmt;

use crate::history::{Event, EventKind, History, Mode};

/// The result of checking a history.
///
/// [`Display`](fmt::Display) shows the verdicts, each with its first counterexamples, and the measures of fairness.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HistoryReport {
    /// How often a lock was held. A history without a hold proves nothing.
    pub holds: usize,
    /// **L1**: holds that overlap by wall time, from `Acquired` to `ReleaseCalled` or the death of the process, and
    /// whose [modes](Mode) do not allow it.
    pub l1: Findings<Overlap>,
    /// **L2**: holds that overlap while both guards were valid: until the deadline, or until the guard reported a loss.
    pub l2: Findings<Overlap>,
    /// **L3**: writes that the resource accepted after it had accepted one with a larger token.
    pub stale_writes: Findings<StaleWrite>,
    /// **L3**: holds with the same token.
    pub shared_tokens: Findings<TokenClash>,
    /// Holds whose token is smaller than that of an earlier grant.
    ///
    /// One grant is earlier than another when its client learned of it before the other client called acquire; or when both
    /// exclude each other, and its client learned of it first. In the second case, holds whose deadline had passed when
    /// their client learned of the grant are left out, as their order is unknown. So is the order of two that share the
    /// lock, and were both requested before either was granted.
    pub token_order: Findings<TokenClash>,
    /// How many writes the resource accepted.
    pub accepted_writes: usize,
    /// How many stale writes the resource rejected.
    pub rejected_writes: usize,
    /// The grants and waits of each lock.
    pub locks: BTreeMap<String, LockStats>,
    start_ns: u64,
}

/// Counterexamples: how many there are, and the first of them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Findings<T> {
    /// How many.
    pub count: usize,
    /// The first of them.
    pub examples: Vec<T>,
}

/// The four verdicts of a [`HistoryReport`]: `true` without a counterexample.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct HistoryVerdict {
    /// Holds never overlap by wall time.
    pub l1: bool,
    /// Holds never overlap while both guards are valid.
    pub l2: bool,
    /// The resource accepted no stale write, and no token was granted twice.
    pub l3: bool,
    /// Tokens grew from grant to grant.
    pub token_order: bool,
}

/// One hold of a lock.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Hold {
    /// The process.
    pub process: u32,
    /// The client within the process.
    pub client: u64,
    /// The lock.
    pub lock: String,
    /// How it may be shared at first.
    pub mode: Mode,
    /// When it was downgraded: readers may share it from then on.
    pub downgraded_ns: Option<u64>,
    /// The fencing token.
    pub token: Option<u64>,
    /// When the client called acquire.
    pub called_ns: Option<u64>,
    /// When the acquisition returned.
    pub acquired_ns: u64,
    /// The guard's last deadline.
    pub valid_until_ns: Option<u64>,
    /// When the guard reported a loss.
    pub lost_ns: Option<u64>,
    /// When the client called release.
    pub release_called_ns: Option<u64>,
    /// When the process was killed, if that ended the hold.
    pub died_ns: Option<u64>,
}

/// Two holds at the same time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Overlap {
    /// The earlier hold.
    pub first: Hold,
    /// The hold that began while the other lasted.
    pub second: Hold,
    /// The start of the overlap.
    pub from_ns: u64,
    /// The end of the overlap, or of the history.
    pub until_ns: u64,
}

/// A write that should have been rejected.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StaleWrite {
    /// The lock.
    pub lock: String,
    /// The write with the larger token, accepted before.
    pub before: AcceptedWrite,
    /// The stale one, accepted after it.
    pub stale: AcceptedWrite,
}

/// A write that the resource accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AcceptedWrite {
    /// The process that wrote.
    pub process: u32,
    /// The client within the process.
    pub client: u64,
    /// The token that came with the write.
    pub token: u64,
    /// When the resource decided.
    pub at_ns: u64,
}

/// Two holds whose tokens are equal or in the wrong order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TokenClash {
    /// The earlier grant.
    pub first: Hold,
    /// The later grant.
    pub second: Hold,
}

/// The grants and waits of a lock.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LockStats {
    /// How many acquisitions succeeded, by process.
    pub grants: BTreeMap<u32, usize>,
    /// Jain's index over the grants of all clients: 1 when all have equally many, 1/n when one has all.
    pub jain: f64,
    /// The longest time from a call to its grant.
    pub longest_wait_ns: u64,
    /// Calls without an outcome at the end of the history.
    pub unserved: usize,
    /// Pairs of grants in the opposite order of their calls. Strict first-come-first-served has none.
    pub fifo_inversions: u64,
    /// The times from a release to the next grant, where that client was already waiting; sorted.
    pub handoffs_ns: Vec<u64>,
}

/// Checks a history.
pub fn check(history: &History) -> HistoryReport {
    let mut report = HistoryReport {
        start_ns: history.events().first().map_or(0, |event| event.at_ns),
        ..HistoryReport::default()
    };
    let end_ns = history.events().last().map_or(0, |event| event.at_ns);
    for (lock, lock_events) in by_lock(history) {
        let LockEvents { mut holds, waiting, clients, writes } = lock_events;
        holds.sort_by_key(|hold| hold.acquired_ns);
        report.holds += holds.len();
        sweep(&holds, Hold::wall_time, end_ns, &mut report.l1);
        sweep(&holds, Hold::valid_time, end_ns, &mut report.l2);
        find_token_clashes(&holds, &mut report.shared_tokens, &mut report.token_order);
        find_stale_writes(lock, &writes, &mut report);
        report.locks.insert(lock.to_owned(), stats(&holds, waiting, &clients));
    }
    report
}

impl HistoryReport {
    /// The verdicts without their reasons.
    pub fn verdict(&self) -> HistoryVerdict {
        HistoryVerdict {
            l1: self.l1.is_empty(),
            l2: self.l2.is_empty(),
            l3: self.stale_writes.is_empty() && self.shared_tokens.is_empty(),
            token_order: self.token_order.is_empty(),
        }
    }

    /// Passes when the history holds at all levels and is not empty.
    ///
    /// # Panics
    ///
    /// With the whole report otherwise.
    #[track_caller]
    pub fn assert_holds(&self) {
        let all = HistoryVerdict { l1: true, l2: true, l3: true, token_order: true };
        assert!(self.holds > 0, "no lock was ever held: the history proves nothing");
        assert!(self.verdict() == all, "{self}");
    }
}

impl<T> Findings<T> {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn add(&mut self, example: impl FnOnce() -> T) {
        self.count += 1;
        // Examples are expensive: of a thoroughly broken history, a few will do.
        if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(example());
        }
    }
}

impl<T> Default for Findings<T> {
    fn default() -> Self {
        Self { count: 0, examples: Vec::new() }
    }
}

impl Hold {
    /// From the grant until the client stopped using the lock: L1.
    pub fn wall_time(&self) -> (u64, u64) {
        (self.acquired_ns, earliest([self.release_called_ns, self.died_ns]))
    }

    /// From the grant until the guard was no longer valid: L2.
    pub fn valid_time(&self) -> (u64, u64) {
        let ends = [self.release_called_ns, self.died_ns, self.valid_until_ns, self.lost_ns];
        (self.acquired_ns, earliest(ends))
    }

    fn valid_on_arrival(&self) -> bool {
        self.valid_until_ns.is_none_or(|deadline| deadline > self.acquired_ns)
    }

    fn open(&self) -> bool {
        self.release_called_ns.is_none() && self.died_ns.is_none()
    }
}

impl Overlap {
    /// For how long both held.
    pub fn length_ns(&self) -> u64 {
        self.until_ns - self.from_ns
    }
}

impl LockStats {
    /// The hand-off gap that this part of all gaps does not exceed: `0.5` for the median.
    pub fn handoff_quantile_ns(&self, part: f64) -> Option<u64> {
        let last = self.handoffs_ns.len().checked_sub(1)?;
        Some(self.handoffs_ns[(part.clamp(0.0, 1.0) * last as f64).round() as usize])
    }
}

impl fmt::Display for HistoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |ns: u64| Millis(ns.saturating_sub(self.start_ns));
        let who = |hold: &Hold| {
            let token = hold.token.map(|token| format!(", token {token}")).unwrap_or_default();
            format!("process {} client {}{token}", hold.process, hold.client)
        };
        writeln!(f, "{} holds of {} locks", self.holds, self.locks.len())?;
        for (title, overlaps) in
            [("L1 holds never overlap", &self.l1), ("L2 valid guards never overlap", &self.l2)]
        {
            heading(f, title, overlaps)?;
            for overlap in &overlaps.examples {
                let (first, second) = (&overlap.first, &overlap.second);
                writeln!(
                    f,
                    "  {}: {} had it from +{}; {} got it too at +{}; overlap {}",
                    first.lock,
                    who(first),
                    at(first.acquired_ns),
                    who(second),
                    at(second.acquired_ns),
                    Millis(overlap.length_ns()),
                )?;
            }
        }
        heading(f, "L3 no stale write is accepted", &self.stale_writes)?;
        for StaleWrite { lock, before, stale } in &self.stale_writes.examples {
            writeln!(
                f,
                "  {lock}: token {} of process {} client {} accepted at +{}, after token {} of process {} client {} at +{}",
                stale.token,
                stale.process,
                stale.client,
                at(stale.at_ns),
                before.token,
                before.process,
                before.client,
                at(before.at_ns),
            )?;
        }
        for (title, clashes) in
            [("L3 no token is granted twice", &self.shared_tokens), ("tokens grow", &self.token_order)]
        {
            heading(f, title, clashes)?;
            for TokenClash { first, second } in &clashes.examples {
                writeln!(
                    f,
                    "  {}: {} at +{}, then {} at +{}",
                    first.lock,
                    who(first),
                    at(first.acquired_ns),
                    who(second),
                    at(second.acquired_ns),
                )?;
            }
        }
        if self.accepted_writes + self.rejected_writes > 0 {
            writeln!(f, "writes: {} accepted, {} rejected", self.accepted_writes, self.rejected_writes)?;
        }
        for (lock, stats) in &self.locks {
            let gap = |part| {
                stats.handoff_quantile_ns(part).map_or_else(|| "-".to_owned(), |ns| Millis(ns).to_string())
            };
            writeln!(
                f,
                "{lock}: grants by process {:?}, Jain {:.3}, longest wait {}, FIFO inversions {}, unserved {}, \
                 hand-off median {} worst {}",
                stats.grants,
                stats.jain,
                Millis(stats.longest_wait_ns),
                stats.fifo_inversions,
                stats.unserved,
                gap(0.5),
                gap(1.0),
            )?;
        }
        Ok(())
    }
}

/// All that happened to one lock.
#[derive(Default)]
struct LockEvents {
    holds: Vec<Hold>,
    /// Calls without an outcome.
    waiting: usize,
    /// Grants of every client that asked.
    clients: HashMap<(u32, u64), usize>,
    writes: Vec<(AcceptedWrite, bool)>,
}

/// The state of one client and one lock.
#[derive(Default)]
struct Actor {
    called_ns: Option<u64>,
    /// The holds that have not ended, as indices. A sound client has at most one.
    open: Vec<usize>,
}

fn by_lock(history: &History) -> BTreeMap<&str, LockEvents> {
    let mut by_lock: BTreeMap<&str, LockEvents> = BTreeMap::new();
    let mut actors: HashMap<(u32, u64, &str), Actor> = HashMap::new();
    for Event { process, client, lock, at_ns, kind } in history.events() {
        let (process, client, at_ns) = (*process, *client, *at_ns);
        if *kind == EventKind::Died {
            for (&(_, _, lock), actor) in actors.iter_mut().filter(|((dead, ..), _)| *dead == process) {
                actor.called_ns = None;
                for index in actor.open.drain(..) {
                    by_lock.entry(lock).or_default().holds[index].died_ns = Some(at_ns);
                }
            }
            continue;
        }
        let lock_events = by_lock.entry(lock).or_default();
        let actor = actors.entry((process, client, lock)).or_default();
        // Events about a hold are about the latest one.
        let latest = actor.open.last().copied();
        match *kind {
            EventKind::AcquireCalled => {
                actor.called_ns = Some(at_ns);
                lock_events.clients.entry((process, client)).or_default();
                // A client that lost its lock may ask again without a release.
                actor.open.retain(|&index| {
                    let hold = &mut lock_events.holds[index];
                    if hold.lost_ns.is_some() {
                        hold.release_called_ns = Some(at_ns);
                    }
                    hold.open()
                });
            }
            EventKind::Acquired { token, valid_until_ns, mode } => {
                *lock_events.clients.entry((process, client)).or_default() += 1;
                actor.open.push(lock_events.holds.len());
                lock_events.holds.push(Hold {
                    process,
                    client,
                    lock: lock.clone(),
                    mode,
                    downgraded_ns: None,
                    token,
                    called_ns: actor.called_ns.take(),
                    acquired_ns: at_ns,
                    valid_until_ns,
                    lost_ns: None,
                    release_called_ns: None,
                    died_ns: None,
                });
            }
            EventKind::AcquireFailed | EventKind::AcquireUnknown => actor.called_ns = None,
            EventKind::Extended { valid_until_ns } => {
                if let Some(index) = latest {
                    lock_events.holds[index].valid_until_ns = Some(valid_until_ns);
                }
            }
            EventKind::DowngradeCalled => {
                if let Some(index) = latest {
                    lock_events.holds[index].downgraded_ns.get_or_insert(at_ns);
                }
            }
            EventKind::Lost => {
                if let Some(index) = latest {
                    lock_events.holds[index].lost_ns.get_or_insert(at_ns);
                }
            }
            EventKind::ReleaseCalled => {
                if let Some(index) = actor.open.pop() {
                    lock_events.holds[index].release_called_ns = Some(at_ns);
                }
            }
            EventKind::Released { .. } | EventKind::Died => {}
            EventKind::Write { token, accepted } => {
                lock_events.writes.push((AcceptedWrite { process, client, token, at_ns }, accepted));
            }
        }
    }
    for ((_, _, lock), actor) in actors {
        if let Some(lock_events) = by_lock.get_mut(lock) {
            lock_events.waiting += usize::from(actor.called_ns.is_some());
        }
    }
    by_lock
}

/// A part of a hold with a constant mode.
struct Part<'a> {
    hold: &'a Hold,
    mode: Mode,
    start: u64,
    end: u64,
}

/// The parts of all holds, sorted by their beginning: a writer that goes on as a reader has two.
fn parts(holds: &[Hold], span: impl Fn(&Hold) -> (u64, u64)) -> Vec<Part<'_>> {
    let mut parts = Vec::with_capacity(holds.len());
    for hold in holds {
        let ((start, end), mode) = (span(hold), hold.mode);
        // A deadline may have passed before the acquisition returned.
        if end < start {
            continue;
        }
        match hold.downgraded_ns.filter(|at| (start..end).contains(at)) {
            None => parts.push(Part { hold, mode, start, end }),
            Some(at) => {
                parts.push(Part { hold, mode, start, end: at });
                parts.push(Part { hold, mode: Mode::Shared, start: at, end });
            }
        }
    }
    parts.sort_by_key(|part| part.start);
    parts
}

/// Finds holds that begin while one that excludes them goes on.
fn sweep(holds: &[Hold], span: impl Fn(&Hold) -> (u64, u64), end_ns: u64, overlaps: &mut Findings<Overlap>) {
    let parts = parts(holds, span);
    let mut active: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let (mut exclusive, mut shared, mut permits) = (0_usize, 0_usize, 0_usize);
    for (index, &Part { hold, mode, start, end }) in parts.iter().enumerate() {
        while let Some(&Reverse((ended, index))) = active.peek() {
            if ended > start {
                break;
            }
            active.pop();
            *counter(parts[index].mode, &mut exclusive, &mut shared, &mut permits) -= 1;
        }
        let excluded = match mode {
            Mode::Exclusive => !active.is_empty(),
            Mode::Shared => exclusive + permits > 0,
            Mode::Permit(most) => exclusive + shared > 0 || permits >= most as usize,
        };
        if excluded {
            overlaps.add(|| {
                let rival = |&&Reverse((_, index)): &&Reverse<(u64, usize)>| {
                    !matches!((mode, parts[index].mode), (Mode::Shared, Mode::Shared))
                };
                let Reverse((ended, first)) = active
                    .iter()
                    .filter(rival)
                    .max_by_key(|Reverse(entry)| *entry)
                    .expect("something excludes it");
                Overlap {
                    first: parts[*first].hold.clone(),
                    second: hold.clone(),
                    from_ns: start,
                    until_ns: end.min(*ended).min(end_ns).max(start),
                }
            });
        }
        *counter(mode, &mut exclusive, &mut shared, &mut permits) += 1;
        active.push(Reverse((end, index)));
    }
}

fn counter<'a>(
    mode: Mode,
    exclusive: &'a mut usize,
    shared: &'a mut usize,
    permits: &'a mut usize,
) -> &'a mut usize {
    match mode {
        Mode::Exclusive => exclusive,
        Mode::Shared => shared,
        Mode::Permit(_) => permits,
    }
}

/// The hold with the largest token among some.
type Largest<'a> = Option<(u64, &'a Hold)>;

/// `holds` are sorted by their beginning.
fn find_token_clashes(holds: &[Hold], shared: &mut Findings<TokenClash>, order: &mut Findings<TokenClash>) {
    let mut seen: HashMap<u64, &Hold> = HashMap::new();
    let mut by_kind: [Largest<'_>; KINDS.len()] = [None; KINDS.len()];
    // Among the first so many.
    let mut among: Vec<Largest<'_>> = vec![None];
    for hold in holds {
        let own = hold.token.map(|token| (token, hold));
        let so_far = among[among.len() - 1];
        among.push(larger(so_far, own));
        let Some(token) = hold.token else { continue };
        let clash = |first: &Hold| TokenClash { first: first.clone(), second: hold.clone() };
        if let Some(first) = seen.insert(token, hold) {
            shared.add(|| clash(first));
        }
        let called_ns = hold.called_ns.unwrap_or(0);
        let mut before = among[holds.partition_point(|other| other.acquired_ns < called_ns)];
        if hold.valid_on_arrival() {
            let kind = kind(hold.mode);
            let rivals = (0..KINDS.len()).filter(|&other| !KINDS[kind].contains(&other));
            before = rivals.fold(before, |before, other| larger(before, by_kind[other]));
            by_kind[kind] = larger(by_kind[kind], own);
        }
        if let Some((_, first)) = before.filter(|(larger, _)| token < *larger) {
            order.add(|| clash(first));
        }
    }
}

fn kind(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Permit(1) => 2,
        Mode::Permit(_) => 3,
    }
}

/// For every kind, those that one of it may share the lock with.
const KINDS: [&[usize]; 4] = [&[], &[1], &[3], &[2, 3]];

fn larger<'a>(one: Largest<'a>, two: Largest<'a>) -> Largest<'a> {
    one.into_iter().chain(two).reduce(|one, two| if two.0 > one.0 { two } else { one })
}

fn find_stale_writes(lock: &str, writes: &[(AcceptedWrite, bool)], report: &mut HistoryReport) {
    let mut largest: Option<AcceptedWrite> = None;
    for &(write, accepted) in writes {
        if !accepted {
            report.rejected_writes += 1;
            continue;
        }
        report.accepted_writes += 1;
        match largest {
            Some(before) if write.token < before.token => {
                report.stale_writes.add(|| StaleWrite { lock: lock.to_owned(), before, stale: write });
            }
            _ => largest = Some(write),
        }
    }
}

fn stats(holds: &[Hold], unserved: usize, clients: &HashMap<(u32, u64), usize>) -> LockStats {
    let mut grants = BTreeMap::new();
    for hold in holds {
        *grants.entry(hold.process).or_default() += 1;
    }
    let waits = holds.iter().filter_map(|hold| Some(hold.acquired_ns - hold.called_ns?));
    let mut calls: Vec<_> = holds.iter().filter_map(|hold| hold.called_ns).collect();
    let mut handoffs_ns: Vec<_> = holds
        .windows(2)
        .filter_map(|pair| {
            let (released, called) = (pair[0].release_called_ns?, pair[1].called_ns?);
            (called <= released).then(|| pair[1].acquired_ns.checked_sub(released)).flatten()
        })
        .collect();
    handoffs_ns.sort_unstable();
    LockStats {
        grants,
        jain: jain(clients.values().copied()),
        longest_wait_ns: waits.max().unwrap_or(0),
        unserved,
        fifo_inversions: inversions(&mut calls),
        handoffs_ns,
    }
}

fn jain(shares: impl ExactSizeIterator<Item = usize>) -> f64 {
    let n = shares.len() as f64;
    let (sum, squares) = shares.fold((0.0, 0.0), |(sum, squares), share| {
        let share = share as f64;
        (sum + share, squares + share * share)
    });
    if squares == 0.0 { 1.0 } else { sum * sum / (n * squares) }
}

/// Counts the pairs that stand in the wrong order, and sorts.
fn inversions(values: &mut [u64]) -> u64 {
    if values.len() < 2 {
        return 0;
    }
    let middle = values.len() / 2;
    let mut count = inversions(&mut values[..middle]) + inversions(&mut values[middle..]);
    let merged = {
        let (left, right) = values.split_at(middle);
        let (mut l, mut r) = (0, 0);
        let mut merged = Vec::with_capacity(values.len());
        while l < left.len() && r < right.len() {
            if left[l] <= right[r] {
                merged.push(left[l]);
                l += 1;
            } else {
                count += (left.len() - l) as u64;
                merged.push(right[r]);
                r += 1;
            }
        }
        merged.extend_from_slice(&left[l..]);
        merged.extend_from_slice(&right[r..]);
        merged
    };
    values.copy_from_slice(&merged);
    count
}

fn earliest<const N: usize>(ends: [Option<u64>; N]) -> u64 {
    ends.into_iter().flatten().min().unwrap_or(u64::MAX)
}

fn heading<T>(f: &mut fmt::Formatter<'_>, title: &str, findings: &Findings<T>) -> fmt::Result {
    match findings.count {
        0 => writeln!(f, "{title}: yes"),
        count => writeln!(f, "{title}: NO, {count} counterexamples"),
    }
}

struct Millis(u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ms", self.0 / 1_000_000, self.0 / 1_000 % 1_000)
    }
}

const MOST_EXAMPLES: usize = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::history::ReleaseOutcome;

    const LOCK: &str = "orders/42";

    fn event(process: u32, at_ns: u64, kind: EventKind) -> Event {
        Event { process, client: 1, lock: LOCK.into(), at_ns, kind }
    }

    fn called(process: u32, at_ns: u64) -> Event {
        event(process, at_ns, EventKind::AcquireCalled)
    }

    fn acquired(process: u32, at_ns: u64, token: u64, valid_until_ns: u64) -> Event {
        shared(process, at_ns, token, valid_until_ns, Mode::Exclusive)
    }

    fn shared(process: u32, at_ns: u64, token: u64, valid_until_ns: u64, mode: Mode) -> Event {
        let kind = EventKind::Acquired { token: Some(token), valid_until_ns: Some(valid_until_ns), mode };
        event(process, at_ns, kind)
    }

    fn release(process: u32, at_ns: u64) -> Event {
        event(process, at_ns, EventKind::ReleaseCalled)
    }

    fn write(process: u32, at_ns: u64, token: u64, accepted: bool) -> Event {
        event(process, at_ns, EventKind::Write { token, accepted })
    }

    fn judge(events: impl IntoIterator<Item = Event>) -> HistoryReport {
        check(&History::new(events))
    }

    const GOOD: HistoryVerdict = HistoryVerdict { l1: true, l2: true, l3: true, token_order: true };

    #[test]
    fn holds_that_touch_do_not_overlap() {
        let report = judge([
            called(1, 0),
            acquired(1, 10, 1, 100),
            called(2, 15),
            release(1, 20),
            acquired(2, 20, 2, 100),
            release(2, 30),
        ]);
        report.assert_holds();
        assert_eq!(report.holds, 2);
        assert_eq!(report.locks[LOCK].handoffs_ns, [0]);
    }

    #[test]
    fn an_overlap_is_found_at_both_levels() {
        let report =
            judge([acquired(1, 10, 1, 100), acquired(2, 15, 2, 100), release(1, 20), release(2, 30)]);
        assert_eq!(report.verdict(), HistoryVerdict { l1: false, l2: false, ..GOOD });
        let overlap = &report.l1.examples[0];
        assert_eq!((overlap.first.process, overlap.second.process), (1, 2));
        assert_eq!((overlap.from_ns, overlap.until_ns, overlap.length_ns()), (15, 20, 5));
    }

    #[test]
    fn a_hold_past_its_own_deadline_breaks_only_the_first_level() {
        let paused = [acquired(1, 10, 1, 20), acquired(2, 25, 2, 100), release(1, 30), release(2, 40)];
        assert_eq!(judge(paused.clone()).verdict(), HistoryVerdict { l1: false, ..GOOD });
        // The same, but the guard had been renewed.
        let renewed = event(1, 15, EventKind::Extended { valid_until_ns: 26 });
        assert_eq!(
            judge(paused.into_iter().chain([renewed])).verdict(),
            HistoryVerdict { l1: false, l2: false, ..GOOD }
        );
    }

    #[test]
    fn a_guard_that_says_lost_in_time_keeps_the_second_level() {
        let history = |lost| {
            judge([
                acquired(1, 10, 1, 100),
                event(1, lost, EventKind::Lost),
                acquired(2, 20, 2, 100),
                release(1, 30),
                release(2, 40),
            ])
        };
        assert_eq!(history(19).verdict(), HistoryVerdict { l1: false, ..GOOD });
        assert_eq!(history(21).verdict(), HistoryVerdict { l1: false, l2: false, ..GOOD });
    }

    #[test]
    fn a_hold_ends_with_its_process() {
        let holds = [acquired(1, 10, 1, 1_000), acquired(2, 30, 2, 1_000)];
        assert_eq!(judge(holds.clone()).verdict(), HistoryVerdict { l1: false, l2: false, ..GOOD });
        let died = event(1, 20, EventKind::Died);
        judge(holds.clone().into_iter().chain([died])).assert_holds();
        let late = event(1, 31, EventKind::Died);
        assert!(!judge(holds.into_iter().chain([late])).verdict().l1);
    }

    #[test]
    fn a_hold_that_never_ends_overlaps_all_that_follow() {
        let report = judge([acquired(1, 10, 1, 15), acquired(2, 20, 2, 25), acquired(3, 30, 3, 35)]);
        assert_eq!((report.l1.count, report.l2.count), (2, 0));
    }

    #[test]
    fn a_client_that_lost_may_ask_again_and_one_that_holds_may_not_get_twice() {
        let again = [acquired(1, 10, 1, 20), called(1, 30), acquired(1, 40, 2, 50), release(1, 45)];
        assert!(!judge(again.clone()).verdict().l1);
        judge(again.into_iter().chain([event(1, 25, EventKind::Lost)])).assert_holds();
    }

    #[test]
    fn failed_and_unknown_acquisitions_hold_nothing() {
        judge([
            acquired(1, 10, 1, 100),
            called(2, 11),
            event(2, 12, EventKind::AcquireFailed),
            called(2, 13),
            event(2, 14, EventKind::AcquireUnknown),
            release(1, 20),
            event(1, 21, EventKind::Released { outcome: ReleaseOutcome::Released }),
        ])
        .assert_holds();
    }

    #[test]
    fn a_stale_write_must_be_rejected() {
        let holds = [acquired(1, 10, 1, 20), release(1, 20), acquired(2, 20, 2, 90), release(2, 90)];
        let writes = |accepted| {
            let writes = [
                write(1, 12, 1, true),
                write(2, 30, 2, true),
                write(2, 31, 2, true),
                write(1, 40, 1, accepted),
            ];
            judge(holds.iter().cloned().chain(writes))
        };
        writes(false).assert_holds();
        assert_eq!((writes(false).accepted_writes, writes(false).rejected_writes), (3, 1));
        let report = writes(true);
        assert_eq!(report.verdict(), HistoryVerdict { l3: false, ..GOOD });
        let StaleWrite { before, stale, .. } = &report.stale_writes.examples[0];
        assert_eq!((before.token, before.at_ns, stale.token, stale.at_ns), (2, 31, 1, 40));
    }

    #[test]
    fn a_grant_that_came_too_late_has_no_place_in_the_order() {
        // Granted with token 1 before the other, but its client slept until after its deadline.
        let late = |deadline| {
            judge([acquired(2, 20, 2, 100), release(2, 30), acquired(1, 40, 1, deadline), release(1, 50)])
                .verdict()
        };
        assert_eq!(late(15), GOOD);
        assert_eq!(late(45), HistoryVerdict { token_order: false, ..GOOD });
    }

    #[test]
    fn a_writer_among_readers_is_found() {
        let holds = |writes| {
            judge([
                shared(1, 10, 1, 100, Mode::Shared),
                shared(2, 12, 2, 100, Mode::Shared),
                release(1, 20),
                acquired(3, writes, 3, 100),
                release(2, 30),
                release(3, 40),
            ])
        };
        holds(30).assert_holds();
        let report = holds(25);
        assert_eq!(report.verdict(), HistoryVerdict { l1: false, l2: false, ..GOOD });
        assert_eq!(report.l1.examples[0].first.process, 2, "the reader that had left is none to blame");
        // It overlaps two of them, and is one counterexample; and so is a reader among writers.
        assert_eq!(holds(15).l1.count, 1);
        let among = [acquired(1, 10, 1, 100), shared(2, 15, 2, 100, Mode::Shared), release(1, 20)];
        assert!(!judge(among).verdict().l1);
    }

    #[test]
    fn a_writer_that_became_a_reader_lets_readers_in_and_no_writer() {
        let history = |reads_from, writes_from| {
            judge([
                acquired(1, 10, 1, 1_000),
                event(1, 20, EventKind::DowngradeCalled),
                shared(2, reads_from, 2, 1_000, Mode::Shared),
                release(1, 40),
                release(2, 50),
                acquired(3, writes_from, 3, 1_000),
                event(3, 70, EventKind::DowngradeCalled),
                release(3, 80),
            ])
        };
        history(20, 50).assert_holds();
        history(45, 50).assert_holds();
        let both = HistoryVerdict { l1: false, l2: false, ..GOOD };
        assert_eq!(history(19, 50).verdict(), both, "it wrote until then");
        assert_eq!(history(25, 45).verdict(), both, "a reader is there still");
        // The one that wrote still reads.
        let report = history(35, 39);
        assert_eq!((report.verdict(), report.l1.count), (both, 1));
        assert_eq!(report.l1.examples[0].second.process, 3);
        let lost = event(1, 30, EventKind::Lost);
        let lost = judge([
            acquired(1, 10, 1, 1_000),
            event(1, 20, EventKind::DowngradeCalled),
            lost,
            acquired(2, 30, 2, 1_000),
            release(1, 40),
            release(2, 50),
        ]);
        assert_eq!(lost.verdict(), HistoryVerdict { l1: false, ..GOOD });
    }

    #[test]
    fn a_reader_whose_deadline_passed_in_time_breaks_only_the_first_level() {
        let holds = |deadline| {
            judge([
                shared(1, 10, 1, deadline, Mode::Shared),
                shared(2, 11, 2, 100, Mode::Shared),
                release(2, 20),
                acquired(3, 30, 3, 100),
                release(1, 50),
                release(3, 60),
            ])
            .verdict()
        };
        assert_eq!(holds(29), HistoryVerdict { l1: false, ..GOOD });
        assert_eq!(holds(31), HistoryVerdict { l1: false, l2: false, ..GOOD });
    }

    #[test]
    fn tokens_of_sharers_must_differ_and_follow_what_is_known_of_their_order() {
        let two = |mode, asked, tokens: [u64; 2]| {
            judge([
                called(1, 5),
                called(2, asked),
                shared(1, 10, tokens[0], 100, mode),
                shared(2, 20, tokens[1], 100, mode),
                release(1, 30),
                release(2, 40),
            ])
            .verdict()
        };
        for mode in [Mode::Shared, Mode::Permit(2)] {
            assert_eq!(two(mode, 15, [1, 2]), GOOD);
            assert_eq!(two(mode, 15, [7, 7]), HistoryVerdict { l3: false, ..GOOD });
            assert_eq!(two(mode, 15, [2, 1]), HistoryVerdict { token_order: false, ..GOOD });
            // Both called before either returned: the first to return need not be the first grant.
            assert_eq!(two(mode, 6, [2, 1]), GOOD);
        }
        let then = |first, second| {
            let holds = [shared(1, 10, 2, 100, first), release(1, 20), shared(2, 30, 1, 100, second)];
            judge(holds).verdict().token_order
        };
        assert!(then(Mode::Shared, Mode::Shared));
        assert!(then(Mode::Permit(2), Mode::Permit(2)));
        for (first, second) in [
            (Mode::Shared, Mode::Exclusive),
            (Mode::Exclusive, Mode::Shared),
            (Mode::Shared, Mode::Permit(2)),
            (Mode::Permit(2), Mode::Exclusive),
            (Mode::Permit(1), Mode::Permit(1)),
        ] {
            assert!(!then(first, second), "{first:?}, {second:?}");
        }
    }

    #[test]
    fn locks_are_judged_apart() {
        let mut other = acquired(2, 15, 1, 100);
        other.lock = "other".into();
        let report = judge([acquired(1, 10, 1, 100), other]);
        report.assert_holds();
        assert_eq!(report.locks.len(), 2);
    }

    #[test]
    #[should_panic(expected = "proves nothing")]
    fn an_empty_history_does_not_pass() {
        judge([called(1, 1)]).assert_holds();
    }

    #[test]
    fn fairness_is_measured() {
        let report = judge([
            called(1, 0),
            called(2, 1),
            called(3, 2),
            acquired(1, 10, 1, 1_000),
            release(1, 20),
            acquired(3, 25, 2, 1_000),
            release(3, 40),
            acquired(2, 50, 3, 1_000),
            called(4, 51),
            release(2, 60),
            called(3, 70),
            acquired(3, 80, 4, 1_000),
        ]);
        let stats = &report.locks[LOCK];
        assert_eq!(stats.grants, BTreeMap::from([(1, 1), (2, 1), (3, 2)]));
        // Four clients with 1, 1, 2 and 0 grants: 16 / (4 * 6).
        assert!((stats.jain - 2.0 / 3.0).abs() < 1e-9, "{}", stats.jain);
        assert_eq!(stats.longest_wait_ns, 49);
        assert_eq!(stats.fifo_inversions, 1);
        assert_eq!(stats.unserved, 1);
        // The last grant's client was not waiting yet when the lock became free.
        assert_eq!(stats.handoffs_ns, [5, 10]);
        assert_eq!(stats.handoff_quantile_ns(1.0), Some(10));
    }

    #[test]
    fn inversions_are_counted() {
        assert_eq!(inversions(&mut [1, 2, 3]), 0);
        assert_eq!(inversions(&mut [3, 2, 1]), 3);
        assert_eq!(inversions(&mut [2, 2, 1, 5, 4]), 3);
    }

    #[test]
    fn a_report_reads_as_a_story() {
        let report = judge([
            called(1, 1_000_000),
            acquired(1, 2_000_000, 8, 9_000_000),
            acquired(2, 3_500_000, 7, 9_000_000),
            release(1, 5_000_000),
        ]);
        let text = report.to_string();
        for line in [
            "L1 holds never overlap: NO, 1 counterexamples",
            "  orders/42: process 1 client 1, token 8 had it from +1.000 ms; \
             process 2 client 1, token 7 got it too at +2.500 ms; overlap 1.500 ms",
            "L3 no token is granted twice: yes",
            "tokens grow: NO, 1 counterexamples",
        ] {
            assert!(text.contains(line), "no line {line:?} in\n{text}");
        }
    }

    #[test]
    fn a_thoroughly_broken_history_is_judged_fast() {
        let report = judge((0..200_000).map(|n| acquired(n, u64::from(n), 1, u64::MAX)));
        assert_eq!((report.l1.count, report.l1.examples.len()), (199_999, MOST_EXAMPLES));
        assert_eq!(report.shared_tokens.count, 199_999);
    }

    /// One hold in a good history.
    #[derive(Clone, Debug)]
    struct Turn {
        process: u32,
        wait: u64,
        idle: u64,
        hold: u64,
        ending: Ending,
    }

    #[derive(Clone, Copy, Debug)]
    enum Ending {
        Release,
        /// The client sleeps past its deadline, and releases after the next hold.
        Oversleep,
        Death,
    }

    fn turns() -> impl Strategy<Value = Vec<Turn>> {
        let ending =
            prop_oneof![8 => Just(Ending::Release), 1 => Just(Ending::Oversleep), 1 => Just(Ending::Death)];
        let turn = (0..5_u32, 0..50_u64, 0..20_u64, 4..40_u64, ending)
            .prop_map(|(process, wait, idle, hold, ending)| Turn { process, wait, idle, hold, ending });
        prop::collection::vec(turn, 2..30)
    }

    /// The events of a history that is good at L2 and L3, and at L1 unless a client oversleeps. Every turn has its own
    /// process id, so that deaths end nothing else; event `i * 4` is the call of turn `i`, followed by its grant, its
    /// write and its end.
    fn good(turns: &[Turn]) -> Vec<Event> {
        let mut now = 100;
        let mut events = Vec::new();
        for (index, turn) in turns.iter().enumerate() {
            let process = turn.process + 10 * index as u32;
            let token = index as u64 * 3 + 1;
            let granted = now + turn.idle;
            let ended = granted + turn.hold;
            events.push(called(process, granted.saturating_sub(turn.wait)));
            events.push(acquired(process, granted, token, ended));
            events.push(write(process, granted + 1, token, true));
            events.push(match turn.ending {
                Ending::Release => release(process, ended),
                Ending::Oversleep => release(process, ended + 10_000),
                Ending::Death => event(process, ended, EventKind::Died),
            });
            now = ended;
        }
        events
    }

    #[derive(Clone, Copy, Debug)]
    enum Mutation {
        GrantEarly,
        ReleaseLate,
        SameToken,
        SmallerToken,
        StaleWrite,
    }

    fn mutations() -> impl Strategy<Value = Mutation> {
        use Mutation::*;
        prop::sample::select(vec![GrantEarly, ReleaseLate, SameToken, SmallerToken, StaleWrite])
    }

    proptest! {
        #[test]
        fn good_histories_pass(turns in turns()) {
            let report = judge(good(&turns));
            let overslept = turns[..turns.len() - 1].iter().any(|turn| matches!(turn.ending, Ending::Oversleep));
            prop_assert_eq!(report.holds, turns.len());
            prop_assert_eq!(report.verdict(), HistoryVerdict { l1: !overslept, ..GOOD }, "{}", report);
        }

        #[test]
        fn one_mutation_is_caught(mut turns in turns(), mutation in mutations(), at in any::<prop::sample::Index>()) {
            // An early death or a long sleep could hide or forestall what the mutation does.
            for turn in &mut turns {
                turn.ending = Ending::Release;
            }
            let mut events = good(&turns);
            let second = 1 + at.index(turns.len() - 1);
            let (first_call, second_call) = ((second - 1) * 4, second * 4);
            let expected = match mutation {
                Mutation::GrantEarly => {
                    events[second_call + 1].at_ns = events[first_call + 3].at_ns - 1;
                    HistoryVerdict { l1: false, l2: false, ..GOOD }
                }
                Mutation::ReleaseLate => {
                    let late = events[second_call + 1].at_ns + 1;
                    events[first_call + 3].at_ns = late;
                    let EventKind::Acquired { valid_until_ns, .. } = &mut events[first_call + 1].kind else { panic!() };
                    *valid_until_ns = Some(late);
                    HistoryVerdict { l1: false, l2: false, ..GOOD }
                }
                Mutation::SameToken | Mutation::SmallerToken => {
                    let EventKind::Acquired { token: Some(before), .. } = events[first_call + 1].kind else { panic!() };
                    let same = matches!(mutation, Mutation::SameToken);
                    let EventKind::Acquired { token, .. } = &mut events[second_call + 1].kind else { panic!() };
                    *token = Some(if same { before } else { before - 1 });
                    HistoryVerdict { l3: !same, token_order: same, ..GOOD }
                }
                Mutation::StaleWrite => {
                    let EventKind::Write { token, .. } = &mut events[second_call + 2].kind else { panic!() };
                    *token -= 4;
                    HistoryVerdict { l3: false, ..GOOD }
                }
            };
            let report = judge(events);
            prop_assert_eq!(report.verdict(), expected, "{:?}: {}", mutation, report);
        }

        #[test]
        fn the_sweep_agrees_with_looking_at_all_pairs(
            holds in prop::collection::vec((0..60_u64, 1..20_u64, 0..4_u8), 1..12),
        ) {
            let mode = |kind: u8| match kind {
                0 => Mode::Exclusive,
                1 => Mode::Shared,
                most => Mode::Permit(u32::from(most) - 1),
            };
            let events = holds.iter().enumerate().flat_map(|(index, &(start, length, kind))| {
                let process = index as u32;
                let end = start + length;
                [shared(process, start, index as u64, end, mode(kind)), release(process, end)]
            });
            // In the order of grants, as an O(n^2) reading of the definition has it.
            let mut sorted = holds.clone();
            sorted.sort_by_key(|&(start, ..)| start);
            let excluded = sorted.iter().enumerate().filter(|&(index, &(start, _, kind))| {
                let active = || sorted[..index].iter().filter(move |&&(began, length, _)| began + length > start);
                let mine = mode(kind);
                match mine {
                    Mode::Exclusive => active().count() > 0,
                    Mode::Shared => active().any(|&(.., kind)| mode(kind) != Mode::Shared),
                    Mode::Permit(most) => {
                        let permits = active().filter(|&&(.., kind)| matches!(mode(kind), Mode::Permit(_))).count();
                        permits >= most as usize || active().count() > permits
                    }
                }
            });
            let expected = excluded.count();
            let report = judge(events);
            prop_assert_eq!((report.l1.count, report.l2.count), (expected, expected));
        }
    }
}
