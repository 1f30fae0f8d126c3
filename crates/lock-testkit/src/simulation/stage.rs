//! The shared state of a run's clients, and the checks after the run.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::ready;
use std::time::Duration;

use lock_core::{BootInstant, Clock, Guard, Locks, Token};
use tokio::time::{Instant, sleep, timeout};

use crate::checker::{HistoryReport, check};
use crate::fake::{Dice, Trace};
use crate::history::{Event, EventKind, History, Mode as Share};

/// The behaviour of the clients of a run.
#[derive(Clone, Debug)]
pub struct Habits {
    /// The usual ttl; some requests have half or twice of it. Ignored with a session.
    pub ttl: Duration,
    /// The number of locks.
    pub locks: usize,
    /// The modes of acquisition.
    pub shares: &'static [Share],
    /// Whether some locks have a `max_hold`, which makes their last leases as short as possible.
    pub limited: bool,
    /// The kind of leases.
    pub leases: Leases,
    /// The end of the last acquisitions, on the clock of the run.
    pub until: Duration,
}

/// The kind of leases in a run, with some deliberate mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leases {
    /// Renewed and fixed leases, some of which are extended.
    Any,
    /// Fixed leases only, so that the first deadline is the last.
    Fixed,
    /// Fixed leases, with the mistake to count them from the reply instead of the request.
    FixedFromReply,
    /// Leases of a session.
    Session,
    /// Leases of a session, with the mistake to treat them as valid for this much longer.
    SessionAndBeyond(Duration),
}

/// The shared state of a run.
#[derive(Debug)]
pub struct Stage {
    pub(super) habits: Habits,
    pub(super) clock: Clock,
    trace: Option<Trace>,
    events: Mutex<Vec<Event>>,
    /// The ends of the clients' pauses.
    paused: Mutex<HashMap<usize, Instant>>,
    floors: Mutex<Floors>,
}

/// The floors that tokens were raised to.
#[derive(Debug, Default)]
struct Floors {
    /// By lock.
    highest: BTreeMap<String, Token>,
    /// Grants with a token that is not above the floor.
    faults: Vec<String>,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The report on its history.
    pub report: HistoryReport,
    /// Other failures: locks that are not granted, things left behind.
    pub faults: Vec<String>,
    /// The trace, if requested.
    pub log: Vec<String>,
}

impl Stage {
    /// The state at the start of a run.
    pub fn new(habits: Habits, clock: Clock, trace: Option<Trace>) -> Self {
        let (events, paused, floors) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { habits, clock, trace, events, paused, floors }
    }

    /// Pauses the tasks of a client that [`play`](Self::play) has started: they are not polled for this long from now on,
    /// which replaces an earlier pause. Unlike in a stopped process, background work such as renewals continues, and
    /// reaches the servers unless the client's links are stalled as well.
    pub fn pause(&self, client: usize, span: Duration) {
        self.note(|| format!("client {client} is paused for {span:?}"));
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.insert(client, Instant::now() + span);
    }

    fn paused_until(&self, client: usize) -> Option<Instant> {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.get(&client).copied().filter(|until| *until > Instant::now())
    }

    /// Has every client acquire every lock after the end of all faults. Returns which are not granted within the limit.
    pub async fn look_for_locks_that_nobody_gets(&self, clients: &[Locks], limit: Duration) -> Vec<String> {
        let mut faults = Vec::new();
        for (client, locks) in clients.iter().enumerate() {
            for lock in (0..self.habits.locks).map(lock_name) {
                self.record(client, LAST_TASK, &lock, EventKind::AcquireCalled);
                let Ok(guard) = timeout(limit, acquire(locks, &lock)).await else {
                    faults.push(format!("client {client} does not get {lock} within {limit:?}"));
                    continue;
                };
                let valid_until_ns = Some(nanos(guard.valid_until()));
                let token = Some(guard.token().get());
                let kind = EventKind::Acquired { token, valid_until_ns, mode: Share::Exclusive };
                self.record(client, LAST_TASK, &lock, kind);
                self.granted(&lock, &guard);
                self.record(client, LAST_TASK, &lock, EventKind::ReleaseCalled);
                if !matches!(timeout(limit, guard.release()).await, Ok(Ok(_))) {
                    faults.push(format!("client {client} cannot release {lock}"));
                }
            }
        }
        faults
    }

    /// Has every client drop an acquisition, and returns what is left of it after a pause: it must be rolled back at once,
    /// not only when its lease ends.
    pub async fn look_for_what_a_cancelled_acquisition_leaves(
        &self,
        clients: &[Locks],
        dice: &mut Dice,
        pause: Duration,
        left: impl Fn(&str) -> usize,
    ) -> Vec<String> {
        let (mut faults, lock) = (Vec::new(), lock_name(0));
        for locks in clients {
            let patience = dice.millis(0..=10);
            drop(timeout(patience, locks.mutex(&lock).acquire()).await);
            sleep(pause).await;
            let left = left(&lock);
            if left > 0 {
                faults.push(format!(
                    "an acquisition that was dropped after {patience:?} is still in {left} places"
                ));
            }
        }
        faults
    }

    /// Closes all clients, and returns what is left of their connections after a pause.
    pub async fn look_for_connections_that_are_left(
        &self,
        clients: Vec<Locks>,
        pause: Duration,
        left: impl Fn() -> usize,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        for locks in clients {
            if let Err(error) = locks.close().await {
                faults.push(format!("the locks cannot be closed: {error}"));
            }
        }
        sleep(pause).await;
        let left = left();
        if left > 0 {
            faults.push(format!("{left} connections or watches are left"));
        }
        faults
    }

    /// Records an event with the current time in the history and in the trace.
    pub fn record(&self, client: usize, task: usize, lock: &str, kind: EventKind) {
        let at_ns = nanos(self.clock.now());
        self.note(|| format!("client {client}.{task} {lock}: {}", short(&kind)));
        let (process, client) = (client as u32, task as u64);
        let event = Event { process, client, lock: lock.to_owned(), at_ns, kind };
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Records that the holder of a lock, if it is valid, has raised the floor of its tokens.
    pub(super) fn raised(&self, lock: &str, guard: &Guard, floor: Token) {
        if !guard.is_valid() {
            return;
        }
        self.note(|| format!("the tokens of {lock} are raised to {floor}"));
        let mut floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        let highest = floors.highest.entry(lock.to_owned()).or_insert(floor);
        *highest = floor.max(*highest);
    }

    /// Checks that the token of a new holder is above the floor.
    pub(super) fn granted(&self, lock: &str, guard: &Guard) {
        let mut floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, highest) = (guard.token(), floors.highest.get(lock).copied());
        if let Some(floor) = highest.filter(|floor| token <= *floor && guard.is_valid()) {
            floors.faults.push(format!("{lock} is granted with {token}, which is not above {floor}"));
        }
    }

    /// Adds a line to the trace, if there is one.
    pub fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.note(&what());
        }
    }

    /// Checks the history. `faults` are failures found otherwise.
    pub fn judge(&self, mut faults: Vec<String>) -> Outcome {
        faults.append(&mut self.floors.lock().unwrap_or_else(PoisonError::into_inner).faults);
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let log = self.trace.as_ref().map(Trace::lines).unwrap_or_default();
        Outcome { report: check(&History::new(events)), faults, log }
    }
}

/// The name of a lock.
pub fn lock_name(number: usize) -> String {
    ["a", "b"][number].to_owned()
}

impl Outcome {
    /// Whether the run kept every promise.
    pub fn holds(&self) -> bool {
        let verdict = self.report.verdict();
        verdict.l2 && verdict.l3 && verdict.token_order && self.faults.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            writeln!(f, "{fault}")?;
        }
        self.report.fmt(f)
    }
}

async fn acquire(locks: &Locks, lock: &str) -> Guard {
    loop {
        // A connection that broke before may be noticed only now.
        match locks.mutex(lock).acquire().await {
            Ok(guard) => return guard,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Runs a future that is not polled while its client is paused.
pub(super) async fn unless_paused(stage: Arc<Stage>, client: usize, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    let mut over = pin!(sleep(Duration::ZERO));
    poll_fn(|cx| {
        while let Some(until) = stage.paused_until(client) {
            over.as_mut().reset(until);
            ready!(over.as_mut().poll(cx));
        }
        future.as_mut().poll(cx)
    })
    .await;
}

pub(super) fn nanos(at: BootInstant) -> u64 {
    u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

fn short(kind: &EventKind) -> String {
    let until = |ns: &u64| format!("{:.6}s", Duration::from_nanos(*ns).as_secs_f64());
    match kind {
        EventKind::Acquired { token, valid_until_ns, .. } => format!(
            "ACQUIRED, token {}, until {}",
            token.unwrap_or_default(),
            valid_until_ns.as_ref().map_or_else(String::new, until)
        ),
        EventKind::Extended { valid_until_ns } => format!("valid until {}", until(valid_until_ns)),
        other => format!("{other:?}"),
    }
}

const LAST_TASK: usize = 99;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_paused_client_does_nothing() {
        let (second, clock) = (Duration::from_secs(1), Clock::tokio());
        let habits = Habits {
            ttl: second,
            locks: 1,
            shares: &[Share::Exclusive],
            limited: false,
            leases: Leases::Any,
            until: second,
        };
        let stage = Arc::new(Stage::new(habits, clock, None));
        let steps = |client| {
            let (sender, steps) = tokio::sync::watch::channel(0);
            let counts = async move {
                for step in 1..=30 {
                    sleep(second / 10).await;
                    sender.send_replace(step);
                }
            };
            drop(tokio::spawn(unless_paused(Arc::clone(&stage), client, counts)));
            steps
        };
        let (paused, other) = (steps(0), steps(1));
        sleep(second + second / 20).await;
        stage.pause(0, second);
        sleep(second - second / 10).await;
        assert_eq!((*paused.borrow(), *other.borrow()), (10, 19));
        sleep(second).await;
        assert!(*paused.borrow() > 10 && *paused.borrow() < *other.borrow());
    }
}
