//! The clients that use locks while faults happen: as ordered, or at random. They report every event at once.

pub(crate) mod ordered;
pub(crate) mod random;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_testkit::history::{Event, EventKind, Mode, ReleaseOutcome};
use lock_testkit::now_ns;
use polylock::{Error, ErrorKind, Guard, Locks, Outcome as ErrorOutcome, Released};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::ordered::{ClientRole, OrderedClient};
use self::random::{RandomClient, crowd, locks_of};
use super::client_runtimes::ClientRuntimes;
use super::orders::{Orders, send};
use super::{Job, Order, WorkerReport};
use crate::data::events::outcome;
use crate::data::{Defect, Fault, GrantInfo, Outcome};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ClientsTask {
    pub(crate) program: ClientProgram,
    /// How long a lock outlives its holder.
    pub(crate) lease: Duration,
    pub(crate) broken: Option<Defect>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientProgram {
    /// A client for each role uses the lock of the job, as ordered.
    Ordered(Vec<ClientRole>),
    /// Clients use locks of all kinds, whatever happens.
    Random {
        /// Chooses what the clients do.
        seed: u64,
        /// What happens to servers and workers.
        faults: Vec<Fault>,
        /// The number of the process that the worker forks to do the same.
        child: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientOrder {
    /// The holder acquires the lock.
    Hold,
    /// The others do.
    Contend,
    /// The holder's process stops itself by SIGSTOP, between a check of the guard and the write.
    Pause,
    /// The holder releases it. Each ordered client ends when it was granted the lock once more.
    Release,
    /// The holder's task is aborted.
    Abort,
    /// All random clients keep the locks that they have or get for so long.
    Keep(Duration),
    /// The only thread of a runtime computes, while one of its clients holds a lock.
    Compute {
        runtime: usize,
        span: Duration,
    },
    /// Close the locks, and connect again.
    Close,
    /// So many tasks acquire a lock each, at once.
    Crowd(usize),
    End,
}

/// What clients wait for.
#[derive(Clone, Default)]
pub(super) struct Signals {
    hold: CancellationToken,
    contend: CancellationToken,
    pause: Arc<AtomicBool>,
    release: CancellationToken,
    end: CancellationToken,
}

impl Signals {
    pub(super) fn end_all(&self) {
        for signal in [&self.hold, &self.contend, &self.release, &self.end] {
            signal.cancel();
        }
    }
}

/// Executes orders until the last one, or until the parent ends. Passes on those that concern the connection.
pub(super) async fn obey(
    orders: &mut Orders,
    signals: &Signals,
    runtimes: &ClientRuntimes,
    pass_on: UnboundedSender<ClientOrder>,
) -> Outcome<()> {
    while let Some(Order::Clients(order)) = orders.next().await? {
        match order {
            ClientOrder::Hold => signals.hold.cancel(),
            ClientOrder::Contend => signals.contend.cancel(),
            ClientOrder::Pause => signals.pause.store(true, Ordering::Relaxed),
            ClientOrder::Release => signals.release.cancel(),
            ClientOrder::Keep(span) => runtimes.keep(span),
            ClientOrder::Compute { runtime, span } => {
                runtimes.compute(runtime, span).await;
                send(&WorkerReport::Computed)?;
            }
            ClientOrder::Abort | ClientOrder::Close | ClientOrder::Crowd(_) => drop(pass_on.send(order)),
            ClientOrder::End => break,
        }
    }
    signals.end_all();
    Ok(())
}

/// Uses locks until the signal to end, on these runtimes alone; the connections are on the caller's. Returns what was still
/// running after it, and unexpected errors.
pub(super) async fn use_locks(
    job: &Job,
    task: &ClientsTask,
    runtimes: &ClientRuntimes,
    signals: &Signals,
    mut orders: UnboundedReceiver<ClientOrder>,
) -> Outcome<Vec<String>> {
    let errors = Errors::of(&task.program);
    let is_ordered = matches!(task.program, ClientProgram::Ordered(_));
    while !signals.end.is_cancelled() {
        let locks = tokio::select! {
            biased;
            () = signals.end.cancelled() => break,
            locks = connect(job, is_ordered, &errors) => locks?,
        };
        let mut clients = Clients::start(job, task, &locks, runtimes, signals, &errors)?;
        if is_ordered {
            send(&WorkerReport::Ready { lease: locks.capabilities().lease.default_ttl() })?;
        }
        loop {
            let order = tokio::select! {
                biased;
                () = signals.end.cancelled() => break,
                Some(order) = orders.recv() => order,
            };
            match order {
                ClientOrder::Abort => clients.first.iter().for_each(AbortHandle::abort),
                ClientOrder::Crowd(tasks) => send(&crowd(job, task, &locks, runtimes, tasks).await)?,
                ClientOrder::Close => {
                    // Whatever the clients do.
                    close(&locks, &errors).await;
                    send(&WorkerReport::Closed)?;
                    break;
                }
                _ => {}
            }
        }
        clients.stop.cancel();
        let patience = if is_ordered { FINISH_ORDERED } else { task.lease + FINISH };
        clients.ended(patience, &errors).await;
        if signals.end.is_cancelled() && is_ordered {
            // During an outage it takes long, which is no part of the fault.
            let _ = timeout(FINISH, locks.close()).await;
        } else if signals.end.is_cancelled() {
            close(&locks, &errors).await;
        }
    }
    Ok(errors.odd())
}

/// Connects; random clients try again and again.
async fn connect(job: &Job, is_ordered: bool, errors: &Errors) -> Outcome<Locks> {
    loop {
        match Locks::connect(&job.url).await {
            Ok(locks) if is_ordered => {
                // Loads the scripts, and makes the directories.
                locks.mutex(format!("{}-before", job.lock)).acquire().await?.release().await?;
                return Ok(locks);
            }
            Ok(locks) => return Ok(locks),
            Err(error) if is_ordered => return Err(error.into()),
            Err(error) => errors.add("connect", &error),
        }
        sleep(RETRY).await;
    }
}

async fn close(locks: &Locks, errors: &Errors) {
    if timeout(FINISH, locks.close()).await.is_err() {
        errors.add_odd(format!("closing has not ended within {FINISH:?}"));
    }
}

/// The clients of a connection.
struct Clients {
    running: JoinSet<Outcome<()>>,
    first: Option<AbortHandle>,
    names: BTreeMap<Id, (String, Arc<StdMutex<&'static str>>)>,
    stop: CancellationToken,
}

impl Clients {
    fn start(
        job: &Job,
        task: &ClientsTask,
        locks: &Locks,
        runtimes: &ClientRuntimes,
        signals: &Signals,
        errors: &Errors,
    ) -> Outcome<Self> {
        let mut clients = Self {
            running: JoinSet::new(),
            first: None,
            names: BTreeMap::new(),
            stop: CancellationToken::new(),
        };
        let client = |number, lock: &str| Client {
            process: job.process,
            number,
            lock: lock.to_owned(),
            lease: task.lease,
            broken: task.broken,
            signals: signals.clone(),
            errors: errors.clone(),
            doing: Arc::default(),
        };
        match &task.program {
            ClientProgram::Ordered(roles) => {
                for (number, &role) in (0..).zip(roles) {
                    let client = client(number, &job.recorded_as);
                    let named = (client.to_string(), Arc::clone(&client.doing));
                    let ordered = OrderedClient::new(client, role, locks, &job.lock);
                    clients.spawn(named, ordered.run(), runtimes, number);
                }
            }
            ClientProgram::Random { seed, .. } => {
                for (number, lock) in (0..).zip(locks_of(locks)) {
                    let client = client(number, lock);
                    let named = (client.to_string(), Arc::clone(&client.doing));
                    let random = RandomClient::new(client, job, locks, *seed, runtimes.demands())?;
                    clients.spawn(named, random.run(clients.stop.clone()), runtimes, number);
                }
            }
        }
        Ok(clients)
    }

    fn spawn(
        &mut self,
        named: (String, Arc<StdMutex<&'static str>>),
        client: impl Future<Output = Outcome<()>> + Send + 'static,
        runtimes: &ClientRuntimes,
        number: u64,
    ) {
        let running = self.running.spawn_on(client, runtimes.of(number));
        self.names.insert(running.id(), named);
        self.first.get_or_insert(running);
    }

    /// Waits until they have ended, and reports those that have not within this time.
    async fn ended(&mut self, patience: Duration, errors: &Errors) {
        let patience = Instant::now() + patience;
        while let Ok(Some(ended)) = timeout_at(patience, self.running.join_next_with_id()).await {
            let (id, why) = match ended {
                Ok((id, ended)) => (id, ended.err().map(|failure| failure.to_string())),
                Err(error) => (error.id(), (!error.is_cancelled()).then(|| error.to_string())),
            };
            if let (Some((name, _)), Some(why)) = (self.names.remove(&id), why) {
                errors.add_odd(format!("{name} ended: {why}"));
            }
        }
        for (name, doing) in self.names.values() {
            errors.add_odd(format!("{name} has not ended: it {}", locked(doing)));
        }
    }
}

/// What all clients have in common.
struct Client {
    process: u32,
    number: u64,
    /// The name of the lock in the history.
    lock: String,
    lease: Duration,
    broken: Option<Defect>,
    signals: Signals,
    errors: Errors,
    /// What it is doing, for the report on one that does not end.
    doing: Arc<StdMutex<&'static str>>,
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client {} of {}", self.number, self.lock)
    }
}

impl Client {
    fn note(&self, kind: EventKind) -> Outcome<()> {
        let (process, client, lock) = (self.process, self.number, self.lock.clone());
        send(&WorkerReport::Events(vec![Event { process, client, lock, at_ns: now_ns(), kind }]))
    }

    fn does(&self, what: &'static str) {
        *locked(&self.doing) = what;
    }

    /// Records how a call of acquire ended. Returns the guard if the lock was granted.
    async fn asked(&self, asked: polylock::Result<Option<Guard>>) -> Outcome<Option<Guard>> {
        match asked {
            Ok(Some(guard)) => return Ok(Some(guard)),
            Ok(None) => self.note(EventKind::AcquireFailed)?,
            Err(error) => {
                let known = error.outcome() == ErrorOutcome::NotApplied;
                self.note(if known { EventKind::AcquireFailed } else { EventKind::AcquireUnknown })?;
                self.errors.add(&self.lock, &error);
                sleep(RETRY).await;
            }
        }
        Ok(None)
    }

    /// Holds the lock until `end` or until it is lost, and records its validity meanwhile. A client that `works` checks the guard,
    /// works, and writes, again and again. The end of a fixed ttl is no loss.
    async fn hold(
        &self,
        guard: &Guard,
        mode: Mode,
        (works, is_fixed): (bool, bool),
        end: impl Future<Output = ()>,
    ) -> Outcome<()> {
        let (mut end, mut is_lost, mut is_over) = (pin!(end), false, false);
        let (mut seen, mut until_ns) = (guard.valid_until(), self.until_ns(guard));
        let token = self.token(guard);
        self.note(EventKind::Acquired { token: Some(token), valid_until_ns: Some(until_ns), mode })?;
        loop {
            if !is_lost && guard.valid_until() != seen {
                (seen, until_ns) = (guard.valid_until(), self.until_ns(guard));
                self.note(EventKind::Extended { valid_until_ns: until_ns })?;
            }
            if !is_lost && !self.is_valid(guard, until_ns) {
                is_lost = true;
                if !is_fixed {
                    self.note(EventKind::Lost)?;
                }
            }
            if is_lost || is_over {
                return Ok(());
            }
            // What happens between this check and the write is not seen.
            if self.signals.pause.swap(false, Ordering::Relaxed) {
                kill_process(getpid(), Signal::STOP)?;
            }
            let mut step = pin!(sleep(if works { WORK } else { LOOK }));
            loop {
                tokio::select! {
                    () = &mut step => break,
                    () = &mut end => {
                        is_over = true;
                        break;
                    }
                    // The loop above sees it, and this guard may have been renewed just before.
                    _ = guard.lost(), if !works => break,
                    _ = guard.lost(), if works && !is_lost && self.broken != Some(Defect::NoElapsedTime) => {
                        self.note(EventKind::Lost)?;
                        is_lost = true;
                    }
                }
            }
            if works && !is_over {
                send(&WorkerReport::Write { client: self.number, token })?;
            }
        }
    }

    /// Records how a release ended.
    fn released(&self, released: polylock::Result<Released>) -> Outcome<()> {
        let outcome = match released {
            Ok(released) => outcome(released),
            Err(error) => {
                self.errors.add(&self.lock, &error);
                ReleaseOutcome::Unknown
            }
        };
        self.note(EventKind::Released { outcome })
    }

    fn token(&self, guard: &Guard) -> u64 {
        let token = guard.token().get();
        if self.broken == Some(Defect::TokensShrink) { u64::MAX - token } else { token }
    }

    /// The end of the guard's validity. A defect counts it from now, the answer.
    fn until_ns(&self, guard: &Guard) -> u64 {
        if self.broken == Some(Defect::NoElapsedTime) {
            return now_ns() + u64::try_from(self.lease.as_nanos()).unwrap_or(u64::MAX / 2);
        }
        GrantInfo::of(guard).until_ns.unwrap_or(u64::MAX)
    }

    fn is_valid(&self, guard: &Guard, until_ns: u64) -> bool {
        match self.broken {
            Some(Defect::NoElapsedTime) => now_ns() < until_ns,
            _ => guard.is_valid(),
        }
    }
}

/// The errors of a worker. Those that no fault explains are odd; ordered clients have none of these.
#[derive(Clone)]
struct Errors {
    faults: Option<Vec<Fault>>,
    seen: Arc<StdMutex<(usize, Vec<String>)>>,
}

impl Errors {
    fn of(program: &ClientProgram) -> Self {
        let faults = match program {
            ClientProgram::Ordered(_) => None,
            ClientProgram::Random { faults, .. } => Some(faults.clone()),
        };
        Self { faults, seen: Arc::default() }
    }

    /// Reports an error.
    fn add(&self, what: &str, error: &Error) {
        let is_explained = |faults: &Vec<Fault>| match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Lost => true,
            kind => faults.iter().any(|fault| fault.row().explains == Some(kind)),
        };
        if !self.faults.as_ref().is_none_or(is_explained) {
            self.add_odd(format!("{what}: {error}"));
        }
        let mut seen = locked(&self.seen);
        seen.0 += 1;
        if seen.0 <= MOST_LINES {
            // The verdict does not need it.
            let _ = send(&WorkerReport::Error(format!("{} {what}: {error}", now_ns())));
        }
    }

    fn add_odd(&self, text: String) {
        let mut seen = locked(&self.seen);
        if seen.1.len() < MOST_ODDS && !seen.1.contains(&text) {
            seen.1.push(text);
        }
    }

    fn odd(&self) -> Vec<String> {
        locked(&self.seen).1.clone()
    }
}

fn locked<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time between a check of the guard and the write. Less than the margin by which a guard expires before the servers grant
/// the lock again.
const WORK: Duration = Duration::from_millis(10);
/// How often a holder that does not work records its deadline, in case it is killed.
const LOOK: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_millis(50);
/// How much longer than a lease a client may take to end.
const FINISH: Duration = Duration::from_secs(10);
/// How long a client takes at most that has been ordered to end.
const FINISH_ORDERED: Duration = Duration::from_secs(5);
const MOST_LINES: usize = 5_000;
const MOST_ODDS: usize = 5;
