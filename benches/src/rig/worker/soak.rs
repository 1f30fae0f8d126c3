//! The clients of a soak: they use locks of all kinds, whatever happens to the servers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_testkit::history::{EventKind, Mode, Recorder, ReleaseOutcome};
use polylock::{
    Error, ErrorKind, Guard, LockOptions, Locks, Mutex, Outcome as ErrorOutcome, RwLock, Semaphore,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::client_runtimes::{ClientRuntimes, Demands};
use super::journal::Journal;
use super::orders::send;
use super::{Job, Order, WorkerReport};
use crate::data::events::outcome;
use crate::data::{Defect, Failure, Fault, GrantInfo, Outcome};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SoakTask {
    /// Chooses what the clients do.
    pub(crate) seed: u64,
    /// How long a lock outlives its holder.
    pub(crate) lease: Duration,
    /// The folder for the files of events.
    pub(crate) folder: PathBuf,
    pub(crate) broken: Option<Defect>,
    /// What happens to servers and workers.
    pub(crate) faults: Vec<Fault>,
    /// The number of the process that the worker forks to do the same.
    pub(crate) child: Option<u32>,
}

/// Uses locks until `end`, on these runtimes alone; the connections are on the caller's. Returns what was still running after it,
/// and unexpected errors.
pub(super) async fn use_locks(
    job: &Job,
    task: &SoakTask,
    runtimes: &ClientRuntimes,
    mut orders: UnboundedReceiver<Order>,
    end: impl Future<Output = Outcome<()>>,
) -> Outcome<Vec<String>> {
    let log = SoakLog::new(job.process, task)?;
    let mut end = pin!(end);
    let mut is_over = false;
    while !is_over {
        let locks = tokio::select! {
            biased;
            ended = &mut end => return ended.map(|()| log.odds()),
            locks = connect(job, &log) => locks,
        };
        let mut clients = Clients::start(job, task, &locks, runtimes, &log)?;
        loop {
            let order = tokio::select! {
                biased;
                ended = &mut end => {
                    is_over = true;
                    clients.stop.cancel();
                    ended?;
                    break;
                }
                Some(order) = orders.recv() => order,
            };
            match order {
                Order::Crowd(tasks) => send(&crowd(job, task, &locks, runtimes, tasks).await)?,
                Order::Close => {
                    // Whatever the clients do.
                    close(&locks, &log).await;
                    clients.stop.cancel();
                    send(&WorkerReport::Closed)?;
                    break;
                }
                _ => {}
            }
        }
        clients.ended(task.lease + FINISH, &log).await;
        if is_over {
            close(&locks, &log).await;
        }
    }
    Ok(log.odds())
}

async fn connect(job: &Job, log: &SoakLog) -> Locks {
    loop {
        match Locks::connect(&job.url).await {
            Ok(locks) => return locks,
            Err(error) => log.failed("connect", &error),
        }
        sleep(RETRY).await;
    }
}

async fn close(locks: &Locks, log: &SoakLog) {
    if timeout(FINISH, locks.close()).await.is_err() {
        log.odd(format!("closing has not ended within {FINISH:?}"));
    }
}

/// Has many tasks acquire and release a lock each, at once.
async fn crowd(
    job: &Job,
    task: &SoakTask,
    locks: &Locks,
    runtimes: &ClientRuntimes,
    tasks: usize,
) -> WorkerReport {
    let mut crowd = JoinSet::new();
    for number in 0..tasks {
        let mutex = locks.mutex(format!("{}/crowd/{}/{number}", job.lock, job.process));
        let patience = task.lease * 4;
        let once = async move {
            let guard = mutex.try_acquire_for(patience).await?.ok_or_else(|| Failure::new("it is busy"))?;
            guard.release().await?;
            Outcome::Ok(())
        };
        crowd.spawn_on(once, runtimes.of(number as u64));
    }
    let (mut failed, mut why) = (0, String::new());
    while let Some(ended) = crowd.join_next().await {
        if let Some(failure) =
            ended.map_or_else(|died| Some(died.to_string()), |once| Some(once.err()?.to_string()))
        {
            if failed == 0 {
                why = failure;
            }
            failed += 1;
        }
    }
    WorkerReport::Crowded { failed, why }
}

/// The clients of a connection.
struct Clients {
    running: JoinSet<()>,
    names: BTreeMap<Id, (&'static str, u64, Arc<StdMutex<&'static str>>)>,
    stop: CancellationToken,
}

impl Clients {
    fn start(
        job: &Job,
        task: &SoakTask,
        locks: &Locks,
        runtimes: &ClientRuntimes,
        log: &SoakLog,
    ) -> Outcome<Self> {
        let (mut running, mut names, stop) = (JoinSet::new(), BTreeMap::new(), CancellationToken::new());
        for (number, lock) in (0..).zip(locks_of(locks)) {
            let (log, demands) = (log.clone(), runtimes.demands());
            let client = Client::new(job, task, locks, lock, number, log, demands)?;
            let doing = Arc::clone(&client.doing);
            let client = running.spawn_on(client.run(stop.clone()), runtimes.of(number));
            names.insert(client.id(), (lock, number, doing));
        }
        Ok(Self { running, names, stop })
    }

    /// Waits until they have ended, and reports those that have not within this time.
    async fn ended(&mut self, patience: Duration, log: &SoakLog) {
        let patience = Instant::now() + patience;
        while let Ok(Some(ended)) = timeout_at(patience, self.running.join_next_with_id()).await {
            match ended {
                Ok((id, ())) => drop(self.names.remove(&id)),
                Err(error) => {
                    if let Some((lock, number, _)) = self.names.remove(&error.id()) {
                        log.odd(format!("client {number} of {lock} ended: {error}"));
                    }
                }
            }
        }
        for (lock, number, doing) in self.names.values() {
            let doing = *doing.lock().unwrap_or_else(PoisonError::into_inner);
            log.odd(format!("client {number} of {lock} has not ended: it {doing}"));
        }
    }
}

/// The locks of a worker, one for each of its clients. Several processes contend for each, for one also two clients of a
/// process.
fn locks_of(locks: &Locks) -> Vec<&'static str> {
    let mut names = vec![BUSY, BUSY, "mutex-1", "mutex-2"];
    let capabilities = locks.capabilities();
    names.extend(capabilities.shared.is_supported().then_some(RW));
    names.extend(capabilities.permits.is_supported().then_some(SEMAPHORE));
    names
}

struct Client {
    lock: &'static str,
    number: u64,
    handle: Handle,
    /// Where an exclusive holder writes, on PostgreSQL.
    journal: Option<Journal>,
    task: SoakTask,
    dice: StdRng,
    log: SoakLog,
    demands: Demands,
    doing: Arc<StdMutex<&'static str>>,
}

enum Handle {
    /// Renewed, and with a fixed ttl where the backend has ttls.
    Mutex(Mutex, Option<Mutex>),
    Rw(RwLock),
    Semaphore(Semaphore),
}

/// How a client acquires a lock.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Wait,
    Try,
    For(Duration),
    /// The future is dropped after this time.
    Dropped(Duration),
}

impl Client {
    fn new(
        job: &Job,
        task: &SoakTask,
        locks: &Locks,
        lock: &'static str,
        number: u64,
        log: SoakLog,
        demands: Demands,
    ) -> Outcome<Self> {
        let name = match task.broken {
            Some(Defect::EveryProcessAlone) => format!("{}/{lock}/{}", job.lock, job.process),
            _ => format!("{}/{lock}", job.lock),
        };
        let handle = match lock {
            RW => Handle::Rw(locks.rw(name)),
            SEMAPHORE => Handle::Semaphore(locks.semaphore(name, PERMITS)),
            _ => {
                let options = LockOptions::new().fixed_ttl(task.lease);
                let has_ttl = !locks.capabilities().lease.is_session();
                let fixed = has_ttl.then(|| locks.mutex_with(&name, options)).transpose()?;
                let renewed = match (task.broken, &fixed) {
                    (Some(Defect::NeverRenews), Some(fixed)) => fixed.clone(),
                    _ => locks.mutex(name),
                };
                Handle::Mutex(renewed, fixed)
            }
        };
        let seed = task.seed ^ u64::from(job.process) << 32 ^ number << 48;
        let dice = StdRng::seed_from_u64(seed);
        let journal = Journal::new(&job.url, job.process, number);
        let (task, doing) = (task.clone(), Arc::default());
        Ok(Self { lock, number, handle, journal, task, dice, log, demands, doing })
    }

    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            self.does("thinks");
            sleep(self.up_to(THINK)).await;
            self.once().await;
        }
    }

    async fn once(&mut self) {
        let ask = match self.dice.random_range(0..100) {
            0..50 => Ask::Wait,
            50..65 => Ask::Try,
            65..85 => Ask::For(self.up_to(PATIENCE)),
            _ => Ask::Dropped(self.up_to(PATIENCE / 4)),
        };
        let (shared, fixed) = (self.dice.random_bool(0.6), self.dice.random_bool(0.2));
        let mode = match &self.handle {
            Handle::Rw(_) if shared => Mode::Shared,
            Handle::Rw(_) | Handle::Mutex(..) => Mode::Exclusive,
            Handle::Semaphore(_) => Mode::Permit(PERMITS),
        };
        let fixed = fixed && matches!(self.handle, Handle::Mutex(_, Some(_)));
        self.note(EventKind::AcquireCalled);
        self.does("asks");
        let asked = match ask {
            Ask::Wait => self.wait(shared, fixed).await.map(Some),
            Ask::Try => self.try_for(Duration::ZERO, shared, fixed).await,
            Ask::For(patience) => self.try_for(patience, shared, fixed).await,
            Ask::Dropped(patience) => match timeout(patience, self.wait(shared, fixed)).await {
                Ok(asked) => asked.map(Some),
                Err(_) => return self.note(EventKind::AcquireUnknown),
            },
        };
        match asked {
            Ok(Some(guard)) => self.hold(guard, mode, fixed).await,
            Ok(None) => self.note(EventKind::AcquireFailed),
            Err(error) => {
                let known = error.outcome() == ErrorOutcome::NotApplied;
                self.note(if known { EventKind::AcquireFailed } else { EventKind::AcquireUnknown });
                self.log.failed(self.lock, &error);
                sleep(RETRY + self.up_to(RETRY)).await;
            }
        }
    }

    fn wait(&self, shared: bool, fixed: bool) -> BoxFuture<'_, polylock::Result<Guard>> {
        match &self.handle {
            Handle::Mutex(_, Some(mutex)) if fixed => Box::pin(mutex.acquire()),
            Handle::Mutex(mutex, _) => Box::pin(mutex.acquire()),
            Handle::Rw(rw) if shared => Box::pin(rw.read()),
            Handle::Rw(rw) => Box::pin(rw.write()),
            Handle::Semaphore(semaphore) => Box::pin(semaphore.acquire()),
        }
    }

    fn try_for(
        &self,
        patience: Duration,
        shared: bool,
        fixed: bool,
    ) -> BoxFuture<'_, polylock::Result<Option<Guard>>> {
        let once = patience.is_zero();
        match &self.handle {
            Handle::Mutex(renewed, other) => {
                let mutex = other.as_ref().filter(|_| fixed).unwrap_or(renewed);
                if once { Box::pin(mutex.try_acquire()) } else { Box::pin(mutex.try_acquire_for(patience)) }
            }
            Handle::Rw(rw) if shared => {
                if once {
                    Box::pin(rw.try_read())
                } else {
                    Box::pin(rw.try_read_for(patience))
                }
            }
            Handle::Rw(rw) => {
                if once {
                    Box::pin(rw.try_write())
                } else {
                    Box::pin(rw.try_write_for(patience))
                }
            }
            Handle::Semaphore(semaphore) if once => Box::pin(semaphore.try_acquire()),
            Handle::Semaphore(semaphore) => Box::pin(semaphore.try_acquire_for(patience)),
        }
    }

    /// Holds the lock for a while, and releases it in one of several ways.
    async fn hold(&mut self, guard: Guard, mode: Mode, fixed: bool) {
        let GrantInfo { token, until_ns: valid_until_ns } = self.grant_info(&guard);
        self.note(EventKind::Acquired { token, valid_until_ns, mode });
        self.does("holds");
        let span = match self.dice.random_range(0..100) {
            // Long enough for renewals, and at times longer than a fixed ttl.
            0 => self.up_to(self.task.lease * 3 / 2),
            1..6 => self.up_to(LONG_HOLD),
            _ => self.up_to(SHORT_HOLD),
        };
        self.demands.compute_if_wanted(self.number);
        let mut end = Instant::now() + span;
        let mut recorded_ns = valid_until_ns;
        loop {
            end = end.max(self.demands.keep_until().unwrap_or(end));
            let look = end.min(Instant::now() + LOOK);
            let lost = timeout_at(look, guard.lost()).await.is_ok();
            let until_ns = self.grant_info(&guard).until_ns;
            if let Some(valid_until_ns) = until_ns.filter(|_| until_ns > recorded_ns) {
                self.note(EventKind::Extended { valid_until_ns });
                recorded_ns = until_ns;
            }
            if lost || Instant::now() >= end {
                break;
            }
        }
        // The end of a fixed ttl is no loss.
        if !fixed && !guard.is_valid() {
            self.note(EventKind::Lost);
        }
        if mode == Mode::Exclusive {
            self.write(&guard).await;
        }
        self.does("releases");
        self.note(EventKind::ReleaseCalled);
        if self.task.broken == Some(Defect::NeverReleases) {
            return std::mem::forget(guard);
        }
        let released = match self.dice.random_range(0..100) {
            0..10 => {
                drop(guard);
                return;
            }
            10..15 => match timeout(self.up_to(ROUND_TRIPS), guard.release()).await {
                Ok(released) => released,
                Err(_) => return,
            },
            _ => guard.release().await,
        };
        let outcome = match released {
            Ok(released) => outcome(released),
            Err(error) => {
                self.log.failed(self.lock, &error);
                ReleaseOutcome::Unknown
            }
        };
        self.note(EventKind::Released { outcome });
    }

    /// Writes to the journal now and then, and always when the guard is not valid any more.
    async fn write(&mut self, guard: &Guard) {
        let (writes, dawdles) = (self.dice.random_bool(0.2) || !guard.is_valid(), self.dice.random_bool(0.1));
        let pause = self.up_to(if dawdles { LONG_HOLD } else { ROUND_TRIPS });
        let Some(journal) = self.journal.as_mut().filter(|_| writes) else { return };
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = "writes";
        // What fails is no write. The server knows what was committed.
        let written = timeout(self.task.lease, journal.write(guard, self.lock, pause)).await;
        if let Ok(Ok(Err(refused))) = written
            && refused.kind() == ErrorKind::Lost
        {
            self.note(EventKind::Write { token: guard.token().get(), accepted: false });
        }
    }

    fn grant_info(&self, guard: &Guard) -> GrantInfo {
        let grant = GrantInfo::of(guard);
        match self.task.broken {
            Some(Defect::TokensShrink) => {
                GrantInfo { token: grant.token.map(|token| u64::MAX - token), ..grant }
            }
            _ => grant,
        }
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.dice.random_range(0.0..1.0))
    }

    fn does(&self, what: &'static str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    fn note(&self, kind: EventKind) {
        self.log.events.record(self.number, self.lock, kind);
    }
}

/// The files of a worker: its history, and its errors.
#[derive(Clone)]
struct SoakLog {
    events: Recorder,
    errors: Arc<StdMutex<Errors>>,
    faults: Vec<Fault>,
}

struct Errors {
    log: File,
    lines: usize,
    odd: Vec<String>,
}

impl SoakLog {
    fn new(process: u32, task: &SoakTask) -> Outcome<Self> {
        let history = task.folder.join(format!("process-{process}.jsonl"));
        let events = Recorder::create(&history, process)?.flush_every_event();
        let log = File::create(history.with_extension("log"))?;
        let errors = Arc::new(StdMutex::new(Errors { log, lines: 0, odd: Vec::new() }));
        Ok(Self { events, errors, faults: task.faults.clone() })
    }

    /// Logs an error. An error that no outage explains is reported as well.
    fn failed(&self, what: &str, error: &Error) {
        let is_explained = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Lost => true,
            kind => self.faults.iter().any(|fault| fault.row().explains == Some(kind)),
        };
        if !is_explained {
            self.odd(format!("{what}: {error}"));
        }
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.lines += 1;
        if errors.lines <= MOST_LINES {
            let at_ns = lock_testkit::now_ns();
            // The verdict does not need it.
            let _ = writeln!(errors.log, "{at_ns} {what}: {error}");
        }
    }

    fn odd(&self, text: String) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.odd.len() < MOST_ODDS && !errors.odd.contains(&text) {
            errors.odd.push(text);
        }
    }

    fn odds(&self) -> Vec<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).odd.clone()
    }
}

/// Two clients of each process contend for it.
const BUSY: &str = "mutex-0";
const RW: &str = "rw";
const SEMAPHORE: &str = "semaphore";
const PERMITS: u32 = 2;
const THINK: Duration = Duration::from_millis(40);
const PATIENCE: Duration = Duration::from_millis(1500);
const SHORT_HOLD: Duration = Duration::from_millis(20);
const LONG_HOLD: Duration = Duration::from_millis(500);
/// After so long the future of a release is dropped.
const ROUND_TRIPS: Duration = Duration::from_millis(4);
/// How often a holder records its deadline, in case it is killed.
const LOOK: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_millis(50);
/// How much longer than a lease a client may take to end.
const FINISH: Duration = Duration::from_secs(10);
const MOST_LINES: usize = 5_000;
const MOST_ODDS: usize = 5;
