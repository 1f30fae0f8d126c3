//! `contended`: processes fight for one lock, each holds it for a moment.
//!
//! Every process records what it did on a clock that all of them share; the histories are put together afterwards.
//! A process more measures empty round trips to the server meanwhile: under the same load, and on a connection that
//! nobody else uses. A second, short pass sends every connection through a proxy that counts requests, so that the
//! counting does not disturb the timing.

use std::time::Duration;

use futures_util::future::join_all;
use lock_testkit::history::{Event, EventKind};
use lock_testkit::proxy::Protocol;
use lock_testkit::{FaultProxy, now_ns};
use polylock::Locks;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Bench, Measured, Plan, time};
use crate::address;
use crate::backends::Target;
use crate::contender::Contender;
use crate::crew::{Hand, unexpected};
use crate::diary::{Diary, Tenure};
use crate::failure::{Failure, Outcome};
use crate::latency::Latency;
use crate::options::BackendName;
use crate::results::Row;
use crate::worker::{Job, News, Order, Task};

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("processes", format!("{}; memory: so many tasks of one process", plan.processes)),
        ("hold", format!("{}, asleep on tokio's timer, which rounds up to the next millisecond", time(HOLD))),
        ("duration", format!("{} after {} of warm-up", time(plan.contended), time(plan.warm_up))),
        ("runtime", "current_thread in every process; memory: multi_thread with 2 workers".into()),
        ("hand-off", "from the call of release to the return of the next acquire, whoever gets it".into()),
        ("to_a_waiter", "the same until somebody gets it who waited already when it was released".into()),
        (
            "bare",
            format!(
                "the same processes pass the turn on by the bare requests, for {}: SET to wait, SET + PUBLISH, SET; zk: \
                 create, delete, a watch",
                time(plan.counted)
            ),
        ),
        (
            "ping",
            "the median of empty round trips (PING; zk: exists) in a process of their own, meanwhile, every 2 to 5 ms"
                .into(),
        ),
        ("ideal", "the number of processes x (median hold + median hand-off)".into()),
        (
            "requests",
            format!(
                "commands that arrive at the servers, counted by a proxy in a pass of {}",
                time(plan.counted)
            ),
        ),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let plan = &bench.plan;
    let lock = bench.lock("contended");
    if target.backend() == BackendName::Memory {
        let window = Window::after(plan.contended, plan.warm_up);
        let events = fight_inside(bench, target, &lock, window).await?;
        let mut measured = Fight::of(events, window, plan.processes)?.measured(target.name(), None, None);
        // Nothing goes over a connection.
        measured.rows.push(Row::new("contended", target.name(), "requests_per_grant", "", 0.0));
        return Ok(measured);
    }
    let prober = Job::new(target.url(), &lock, plan.processes, Task::Probe);
    let mut crew = Hand::hire(jobs(bench, target.url(), &lock).chain([prober])).await?;
    let prober = crew.pop().ok_or_else(|| Failure::new("no worker came"))?;
    let window = Window::after(plan.contended, plan.warm_up);
    prober.order(Order::Contend(window)).await?;
    let fought = fight(&crew, window).await.map_err(|failure| failure.during("the fight for the lock"))?;
    let fought = Fight::of(fought, window, plan.processes)?;

    // What fails from here on is told, and takes no other number along.
    let mut complaints = Vec::new();
    let mut kept = Kept(&mut complaints);
    let round_trips = kept.of("empty round trips", round_trips(&prober).await);
    let votes = match target.backend() {
        BackendName::Redlock => kept.of("the votes", votes(&crew).await),
        _ => None,
    };
    drop((crew, prober));
    let bare = match target.backend() {
        // No message of one master says that a quorum is free.
        BackendName::Redlock => None,
        _ => kept.of("the bare hand-over", relayed(bench, target).await),
    };
    let counted = counted(bench, target.backend(), target.url(), &bench.lock("counted")).await;
    let counted = kept.of("the counting of requests", counted);

    let mut measured = fought.measured(target.name(), round_trips.as_ref(), bare.as_ref());
    measured.rows.extend(votes.into_iter().flatten());
    if let Some(mut counted) = counted {
        measured.rows.push(Row::new("contended", target.name(), "requests_per_grant", "", counted.requests));
        measured.events.append(&mut counted.events);
    }
    measured.complaints = complaints;
    Ok(measured)
}

/// Where the failures of single passes go.
struct Kept<'a>(&'a mut Vec<String>);

impl Kept<'_> {
    /// What the pass gave, if it gave something.
    fn of<T>(&mut self, pass: &str, outcome: Outcome<T>) -> Option<T> {
        outcome.map_err(|failure| self.0.push(failure.during(pass).to_string())).ok()
    }
}

/// When contenders contend, on the clock of the histories.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Window {
    /// From then on grants count.
    from_ns: u64,
    /// From then on nobody asks any more.
    until_ns: u64,
}

impl Window {
    /// One of this span, that begins after the warm-up.
    pub(crate) fn after(span: Duration, warm_up: Duration) -> Self {
        let from_ns = now_ns() + nanos(warm_up);
        Self { from_ns, until_ns: from_ns + nanos(span) }
    }

    /// From one of these times to the other.
    pub(super) const fn between(from_ns: u64, until_ns: u64) -> Self {
        Self { from_ns, until_ns }
    }

    /// When it ends.
    pub(crate) const fn until_ns(self) -> u64 {
        self.until_ns
    }

    /// Whether this moment is in it.
    pub(crate) const fn contains(self, at_ns: u64) -> bool {
        self.from_ns <= at_ns && at_ns < self.until_ns
    }

    /// Waits until it begins.
    pub(crate) async fn begins(self) {
        sleep(Duration::from_nanos(self.from_ns.saturating_sub(now_ns()))).await;
    }

    /// What is left of it, or of the time until it begins and it.
    pub(crate) fn left(self) -> Duration {
        Duration::from_nanos(self.until_ns.saturating_sub(now_ns()))
    }

    /// Waits until it ends.
    pub(crate) async fn ends(self) {
        sleep(self.left()).await;
    }
}

/// What one contender does: takes the lock, holds it, gives it back, until the window is over.
///
/// # Errors
///
/// When the lock fails, or is not granted long after everybody has stopped asking for more.
pub(crate) async fn contend<C: Contender>(
    contender: &C,
    diary: &mut Diary,
    window: Window,
    hold: Duration,
) -> Outcome<()> {
    while !window.left().is_zero() {
        let patience = window.left() + GRACE;
        let called_ns = now_ns();
        let Ok(held) = timeout(patience, contender.acquire()).await else {
            return Err(Failure::new(format!("the lock was not granted for {patience:?}: it is stuck")));
        };
        let (held, acquired_ns) = (held?, now_ns());
        let claim = C::claim(&held);
        if !hold.is_zero() {
            sleep(hold).await;
        }
        let release_called_ns = now_ns();
        let released = contender.release(held).await?;
        // Written down when somebody else may have the lock: while it is handed over every microsecond counts.
        diary.tenure(&Tenure {
            called_ns,
            acquired_ns,
            claim,
            release_called_ns,
            released_ns: now_ns(),
            released,
        });
    }
    Ok(())
}

/// What the processes of a fight are to do.
pub(super) fn jobs(bench: &Bench, url: &str, lock: &str) -> impl Iterator<Item = Job> {
    (0..bench.plan.processes).map(move |process| Job {
        lock: bench.lock_of(lock, process),
        ..Job::new(url, lock, process, Task::Contend { hold: HOLD, peer: None })
    })
}

/// Lets them fight.
///
/// # Errors
///
/// When some of them fail: what each of these says.
pub(super) async fn fight(crew: &[Hand], window: Window) -> Outcome<Vec<Event>> {
    for hand in crew {
        hand.order(Order::Contend(window)).await?;
    }
    window.ends().await;
    together(join_all(crew.iter().map(|hand| hand.events(2 * GRACE))).await)
}

/// The events of all processes, or what each of those says that failed.
fn together(told: Vec<Outcome<Vec<Event>>>) -> Outcome<Vec<Event>> {
    let (mut events, mut failures, mut well) = (Vec::new(), Vec::new(), 0);
    for (process, told) in told.into_iter().enumerate() {
        match told {
            Ok(mut told) => {
                events.append(&mut told);
                well += 1;
            }
            Err(failure) => failures.push(format!("process {process}: {failure}")),
        }
    }
    if failures.is_empty() {
        return Ok(events);
    }
    failures.push(format!("{well} others ended well"));
    Err(Failure::new(failures.join("; ")))
}

/// Tasks instead of processes, each with a connection of its own to the same locks.
async fn fight_inside(bench: &Bench, target: &Target, lock: &str, window: Window) -> Outcome<Vec<Event>> {
    let mut tasks = JoinSet::new();
    for process in 0..bench.plan.processes {
        let mutex = Locks::connect(target.url()).await?.mutex(bench.lock_of(lock, process));
        let mut diary = Diary::new(process, 0, lock);
        tasks.spawn(
            async move { contend(&mutex, &mut diary, window, HOLD).await.map(|()| diary.into_events()) },
        );
    }
    let mut events = Vec::new();
    while let Some(done) = tasks.join_next().await {
        events.append(&mut done??);
    }
    Ok(events)
}

/// How the votes went, of all processes together.
async fn votes(crew: &[Hand]) -> Outcome<[Row; 2]> {
    let (mut all, mut at_once, mut splits) = (0, 0, 0);
    for hand in crew {
        match hand.hear(2 * GRACE).await? {
            News::Votes { won, won_at_once, split } => {
                (all, at_once, splits) = (all + won, at_once + won_at_once, splits + split);
            }
            other => return Err(unexpected(&other)),
        }
    }
    let row = |metric, unit, value| Row::new("contended", BackendName::Redlock.as_str(), metric, unit, value);
    let share = at_once as f64 / all as f64 * 100.0;
    Ok([row("first_try", "%", share), row("split_votes", "", splits as f64)])
}

/// How long the bare hand-over takes.
async fn relayed(bench: &Bench, target: &Target) -> Outcome<Latency> {
    let (lock, of) = (bench.lock("bare"), bench.plan.processes);
    let places =
        (0..of).map(|process| Job::new(target.url(), &lock, process, Task::Relay { hold: HOLD, of }));
    let crew = Hand::hire(places).await?;
    let window = Window::after(bench.plan.counted, bench.plan.warm_up);
    Ok(Fight::of(fight(&crew, window).await?, window, of)?.handoff)
}

async fn round_trips(prober: &Hand) -> Outcome<Latency> {
    let round_trips = match prober.hear(2 * GRACE).await? {
        News::RoundTrips(round_trips) => round_trips,
        other => return Err(unexpected(&other)),
    };
    let mut latency = Latency::new();
    round_trips.into_iter().for_each(|ns| latency.record(ns));
    if latency.len() == 0 {
        return Err(Failure::new("no round trip was measured: the server did not answer"));
    }
    Ok(latency)
}

/// What a fight costs the servers, for each grant.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) requests: f64,
    /// What the servers tell unasked.
    pub(super) notifications: f64,
    pub(super) events: Vec<Event>,
}

impl Counted {
    /// What was counted meanwhile, for each grant between these times.
    ///
    /// # Errors
    ///
    /// When nobody got the lock.
    pub(super) fn of(counts: Counts, events: Vec<Event>, span: Window) -> Outcome<Self> {
        let grants = grants(&events).iter().filter(|grant| span.contains(grant.acquired_ns)).count();
        if grants == 0 {
            return Err(Failure::new("no lock was granted while requests were counted"));
        }
        let each = |count: u64| count as f64 / grants as f64;
        Ok(Self { requests: each(counts.requests), notifications: each(counts.notifications), events })
    }
}

/// Counts in a fight.
///
/// # Errors
///
/// When nobody got the lock.
pub(super) async fn counted(bench: &Bench, backend: BackendName, url: &str, lock: &str) -> Outcome<Counted> {
    let counters = Counters::start(backend, url).await?;
    let crew = Hand::hire(jobs(bench, &counters.address(url), lock)).await?;
    let window = Window::after(bench.plan.counted, bench.plan.warm_up);
    let counting = async {
        window.begins().await;
        let before = counters.counts();
        window.ends().await;
        counters.counts().since(before)
    };
    let (counts, events) = tokio::join!(counting, fight(&crew, window));
    Counted::of(counts, events?, window)
}

/// Proxies that count what goes through them, one before each server.
#[derive(Debug)]
pub(super) struct Counters(Vec<FaultProxy>);

/// What went through them so far.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Counts {
    requests: u64,
    notifications: u64,
}

impl Counters {
    /// Starts them before the servers of this URL.
    ///
    /// # Errors
    ///
    /// When the address of a server is not known.
    pub(super) async fn start(backend: BackendName, url: &str) -> Outcome<Self> {
        let protocol = if backend == BackendName::Zk { Protocol::ZooKeeper } else { Protocol::Redis };
        let mut proxies = Vec::new();
        for host in address::hosts(url) {
            proxies.push(FaultProxy::start(address::resolve(host, backend).await?, protocol)?);
        }
        Ok(Self(proxies))
    }

    /// The URL that leads through them.
    pub(super) fn address(&self, url: &str) -> String {
        let addresses: Vec<_> = self.0.iter().map(FaultProxy::addr).collect();
        address::with_hosts(url, &addresses)
    }

    /// Reads them.
    pub(super) fn counts(&self) -> Counts {
        let of = |count: fn(&FaultProxy) -> u64| self.0.iter().map(count).sum();
        Counts { requests: of(FaultProxy::requests), notifications: of(FaultProxy::pushes) }
    }
}

impl Counts {
    /// What has come since then.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            notifications: self.notifications - before.notifications,
        }
    }
}

/// One grant.
#[derive(Clone, Copy, Debug)]
struct Grant {
    process: u32,
    called_ns: u64,
    acquired_ns: u64,
    release_called_ns: u64,
}

/// The grants of a history, in the order of time.
fn grants(events: &[Event]) -> Vec<Grant> {
    let mut open = std::collections::HashMap::new();
    let mut grants = Vec::new();
    for event in events {
        let process = event.process;
        let grant = open.entry(process).or_insert(Grant {
            process,
            called_ns: 0,
            acquired_ns: 0,
            release_called_ns: 0,
        });
        match event.kind {
            EventKind::AcquireCalled => grant.called_ns = event.at_ns,
            EventKind::Acquired { .. } => grant.acquired_ns = event.at_ns,
            EventKind::ReleaseCalled => {
                grant.release_called_ns = event.at_ns;
                grants.push(*grant);
            }
            _ => {}
        }
    }
    grants.sort_by_key(|grant| grant.acquired_ns);
    grants
}

/// What a fight has shown.
#[derive(Debug)]
pub(super) struct Fight {
    /// From the call of release to the return of the next acquire.
    pub(super) handoff: Latency,
    /// The same until one of those gets the lock who waited for it then. Where a releaser may take it back at once,
    /// the hand-off is quick and those who wait have nothing of it.
    pub(super) to_waiter: Latency,
    hold: Latency,
    grants_per_s: f64,
    longest_wait_us: f64,
    jain: f64,
    processes: u32,
    events: Vec<Event>,
}

impl Fight {
    /// Out of what was recorded.
    ///
    /// # Errors
    ///
    /// When the lock hardly went round.
    pub(super) fn of(events: Vec<Event>, window: Window, processes: u32) -> Outcome<Self> {
        let all = grants(&events);
        let counted: Vec<&Grant> = all.iter().filter(|grant| window.contains(grant.acquired_ns)).collect();
        let span = Duration::from_nanos(window.until_ns - window.from_ns);
        if counted.len() < 2 {
            return Err(Failure::new(format!("{} grants in {}", counted.len(), time(span))));
        }
        let (mut handoff, mut to_waiter, mut hold) = (Latency::new(), Latency::new(), Latency::new());
        for pair in counted.windows(2) {
            // An overlap has no gap; the verdict tells about it.
            if let Some(gap) = pair[1].acquired_ns.checked_sub(pair[0].release_called_ns) {
                handoff.record(gap);
            }
        }
        for wait in waits_behind(&all, window) {
            to_waiter.record(wait);
        }
        let mut shares = vec![0_u32; processes as usize];
        for grant in &counted {
            hold.record(grant.release_called_ns.saturating_sub(grant.acquired_ns));
            shares[grant.process as usize] += 1;
        }
        // Whoever still waited at the end of the window has waited at least until then.
        let waits = all
            .iter()
            .filter(|grant| grant.acquired_ns >= window.from_ns && grant.called_ns < window.until_ns)
            .map(|grant| grant.acquired_ns.min(window.until_ns) - grant.called_ns.max(window.from_ns));
        let longest_wait_us = waits.max().unwrap_or(0) as f64 / 1e3;
        let grants_per_s = counted.len() as f64 / span.as_secs_f64();
        Ok(Self {
            handoff,
            to_waiter,
            hold,
            grants_per_s,
            longest_wait_us,
            jain: jain(&shares),
            processes,
            events,
        })
    }

    /// The numbers of `contended`, those of the hand-off against empty round trips and the bare hand-over if there
    /// were any.
    fn measured(
        self,
        backend: &'static str,
        round_trips: Option<&Latency>,
        bare: Option<&Latency>,
    ) -> Measured {
        let ping_us = round_trips.map(|latency| latency.quantile_us(0.5));
        let handoffs = [("handoff_p50", 0.5), ("handoff_p95", 0.95), ("handoff_p99", 0.99)];
        let handoffs = handoffs.map(|(metric, part)| {
            let row = Row::new("contended", backend, metric, "us", self.handoff.quantile_us(part));
            // One ratio less: nothing is said of the rarest ones.
            match ping_us {
                Some(ping_us) if part < 0.99 => row.with_floor(ping_us),
                _ => row,
            }
        });
        let against_bare = bare.map(|bare| {
            [("handoff_p50_bare", 0.5), ("handoff_p95_bare", 0.95)].map(|(metric, part)| {
                Row::new("contended", backend, metric, "us", self.handoff.quantile_us(part))
                    .with_floor(bare.quantile_us(part))
            })
        });
        let waiter_us = self.to_waiter.quantile_us(0.5);
        let mut measured = self.into_measured("contended", backend);
        let waiter = Row::new("contended", backend, "waiter_p50", "us", waiter_us);
        let against_bare = against_bare.into_iter().flatten();
        measured.rows.splice(1..1, handoffs.into_iter().chain(against_bare).chain([waiter]));
        if let Some(latency) = round_trips {
            // The longest tells of stalls that nobody who waits for the lock can escape.
            let spread = [0.5, 0.95, 1.0].map(|part| format!("{:.0}", latency.quantile_us(part)));
            measured.notes.push(("ping_p50_p95_longest", format!("{} us", spread.join(", "))));
        }
        measured
    }

    /// The numbers without those of the hand-off, which every scenario compares with something else.
    pub(super) fn into_measured(self, scenario: &str, backend: &'static str) -> Measured {
        let row = |metric, unit, value| Row::new(scenario, backend, metric, unit, value);
        let (hold_us, handoff_us) = (self.hold.quantile_us(0.5), self.handoff.quantile_us(0.5));
        Measured {
            backend,
            rows: vec![
                row("grants_per_s", "1/s", self.grants_per_s),
                row("longest_wait", "us", self.longest_wait_us).with_floor(ideal_rotation(
                    self.processes,
                    hold_us,
                    handoff_us,
                )),
                row("jain", "", self.jain),
            ],
            events: self.events,
            notes: vec![("hold_median", format!("{:.2} ms", hold_us / 1e3))],
            ..Measured::default()
        }
    }
}

/// For every release in the window, how long it took until one of those had the lock who waited for it at that moment.
/// Where that was after the window, it was at least until then. The grants are in the order of time.
fn waits_behind(grants: &[Grant], window: Window) -> impl Iterator<Item = u64> {
    grants.iter().enumerate().filter_map(move |(index, grant)| {
        let released_ns = grant.release_called_ns;
        let next = grants[index + 1..].iter().find(|next| next.called_ns < released_ns)?;
        window
            .contains(released_ns)
            .then(|| next.acquired_ns.min(window.until_ns).saturating_sub(released_ns))
    })
}

/// How long one who fights alone takes from one acquisition to the next, at the end of which everything is done that
/// it left for later.
pub(super) fn rounds(events: &[Event], window: Window) -> Latency {
    let mut rounds = Latency::new();
    for pair in grants(events).windows(2).filter(|pair| window.contains(pair[0].called_ns)) {
        rounds.record(pair[1].called_ns - pair[0].called_ns);
    }
    rounds
}

/// How long a process waits when all of them take turns: until everybody has held the lock and handed it on.
fn ideal_rotation(processes: u32, hold: f64, handoff: f64) -> f64 {
    f64::from(processes) * (hold + handoff)
}

/// Jain's fairness index: 1 when all got the same, 1/n when one got all.
fn jain(shares: &[u32]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| f64::from(share)).sum();
    let squares: f64 = shares.iter().map(|&share| f64::from(share).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// How long a contender holds the lock.
pub(super) const HOLD: Duration = Duration::from_millis(1);
/// How long after the window the last ones may take: longer than a lock waits after a lost message.
const GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use lock_testkit::history::ReleaseOutcome;

    use super::*;
    use crate::diary::Claim;

    fn held(process: u32, called_ms: u64, from_ms: u64, until_ms: u64) -> Vec<Event> {
        let ns = |ms| ms * 1_000_000;
        let mut diary = Diary::new(process, 0, "a");
        diary.tenure(&Tenure {
            called_ns: ns(called_ms),
            acquired_ns: ns(from_ms),
            claim: Claim { token: Some(from_ms), until_ns: None },
            release_called_ns: ns(until_ms),
            released_ns: ns(until_ms),
            released: ReleaseOutcome::Released,
        });
        diary.into_events()
    }

    #[test]
    fn numbers_are_those_of_the_window() {
        let events = [
            held(0, 0, 50, 99),
            held(1, 0, 100, 110),
            held(0, 100, 112, 120),
            held(1, 111, 124, 130),
            held(0, 121, 300, 310),
        ];
        let window = Window { from_ns: 100_000_000, until_ns: 200_000_000 };
        let mut round_trips = Latency::new();
        [400_000, 500_000, 900_000].into_iter().for_each(|ns| round_trips.record(ns));
        let fight = Fight::of(events.concat(), window, 2).unwrap();
        let measured = fight.measured("redis", Some(&round_trips), Some(&round_trips));
        let row = |metric: &str| measured.rows.iter().find(|row| row.metric == metric).unwrap();
        let value = |metric: &str| row(metric).value;
        assert!((value("grants_per_s") - 30.0).abs() < 1e-9);
        assert!((value("handoff_p50") - 2_000.0).abs() < 2.0, "{}", value("handoff_p50"));
        assert!((value("handoff_p99") - 4_000.0).abs() < 4.0);
        assert!((row("handoff_p50").ratio.unwrap() - 4.0).abs() < 0.01, "{:?}", row("handoff_p50"));
        assert!((row("handoff_p95").ratio.unwrap() - 8.0).abs() < 0.02);
        assert!((value("waiter_p50") - 4_000.0).abs() < 4.0, "{}", value("waiter_p50"));
        // Two processes, a median hold of 8 ms and a median hand-off of 2 ms.
        assert!((row("longest_wait").floor.unwrap() - 20_000.0).abs() < 20.0, "{:?}", row("longest_wait"));
        assert!((value("longest_wait") - 79_000.0).abs() < 1e-6, "{}", value("longest_wait"));
        assert!((value("jain") - 9.0 / (2.0 * 5.0)).abs() < 1e-9);
    }

    #[test]
    fn a_history_with_hardly_a_grant_is_no_measurement() {
        let window = Window { from_ns: 0, until_ns: 1_000_000_000 };
        assert_eq!(Fight::of(held(0, 1, 2, 3), window, 2).unwrap_err().to_string(), "1 grants in 1 s");
    }

    #[test]
    fn a_lock_that_is_taken_back_at_once_is_not_handed_over() {
        let grant = |process, called_ns, acquired_ns, release_called_ns| Grant {
            process,
            called_ns,
            acquired_ns,
            release_called_ns,
        };
        // The first one takes it three times, while the other waits all the time.
        let grants = [grant(0, 0, 1, 10), grant(0, 11, 12, 20), grant(0, 21, 22, 30), grant(1, 5, 33, 40)];
        let waits = |until_ns| waits_behind(&grants, Window { from_ns: 0, until_ns }).collect::<Vec<_>>();
        assert_eq!(waits(100), [23, 13, 3]);
        assert_eq!(waits(25), [15, 5]);
    }

    #[test]
    fn a_failed_fight_names_all_who_failed() {
        let failed = |what: &str| Err(Failure::new(what));
        let told = vec![Ok(held(0, 1, 2, 3)), failed("it is stuck"), Ok(Vec::new()), failed("no answer")];
        let text = "process 1: it is stuck; process 3: no answer; 2 others ended well";
        assert_eq!(together(told).unwrap_err().to_string(), text);
        assert_eq!(together(vec![Ok(held(0, 1, 2, 3)), Ok(held(1, 4, 5, 6))]).unwrap().len(), 8);
    }

    #[test]
    fn a_failed_pass_is_named_and_no_more() {
        let mut complaints = Vec::new();
        let mut kept = Kept(&mut complaints);
        assert_eq!(kept.of("the fight", Ok(7)), Some(7));
        assert_eq!(kept.of::<()>("the bare hand-over", Err(Failure::new("it is stuck"))), None);
        assert_eq!(complaints, ["the bare hand-over: it is stuck"]);
    }

    #[test]
    fn the_ideal_is_one_round() {
        assert!((ideal_rotation(20, 2_000.0, 300.0) - 46_000.0).abs() < 1e-9);
    }

    #[test]
    fn jain_knows_the_extremes() {
        assert!((jain(&[5, 5, 5]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-9);
    }
}
