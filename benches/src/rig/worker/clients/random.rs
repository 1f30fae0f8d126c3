//! The clients of a soak: they use locks of all kinds, whatever happens to the servers.

use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::BoxFuture;
use lock_testkit::history::{EventKind, Mode};
use polylock::{ErrorKind, Guard, LockOptions, Locks, Mutex, RwLock, Semaphore};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Client, ClientsTask};
use crate::data::{Defect, Failure, Outcome};
use crate::rig::worker::client_runtimes::{ClientRuntimes, Demands};
use crate::rig::worker::journal::Journal;
use crate::rig::worker::log::{GRACE, patiently};
use crate::rig::worker::{Job, WorkerReport};

/// Has many tasks acquire and release a lock each, at once.
pub(super) async fn crowd(
    job: &Job,
    task: &ClientsTask,
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

/// The locks of a worker, one for each of its clients. Several processes contend for each, for one also two clients of a
/// process.
pub(super) fn locks_of(locks: &Locks) -> Vec<&'static str> {
    let mut names = vec![BUSY, BUSY, "mutex-1", "mutex-2"];
    let capabilities = locks.capabilities();
    names.extend(capabilities.shared.is_supported().then_some(RW));
    names.extend(capabilities.permits.is_supported().then_some(SEMAPHORE));
    names
}

pub(super) struct RandomClient {
    client: Client,
    handle: Handle,
    /// Where an exclusive holder writes, on PostgreSQL.
    journal: Option<Journal>,
    dice: StdRng,
    demands: Demands,
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

macro_rules! ask {
    ($how:expr, $lock:expr, $wait:ident, $try:ident, $try_for:ident) => {
        match $how {
            Ask::Wait | Ask::Dropped(_) => Box::pin($lock.$wait().map_ok(Some)) as BoxFuture<'_, _>,
            Ask::Try => Box::pin($lock.$try()),
            Ask::For(patience) => Box::pin($lock.$try_for(patience)),
        }
    };
}

impl RandomClient {
    pub(super) fn new(
        client: Client,
        job: &Job,
        locks: &Locks,
        seed: u64,
        demands: Demands,
    ) -> Outcome<Self> {
        let lock = client.lock.as_str();
        let name = match client.broken {
            Some(Defect::EveryProcessAlone) => format!("{}/{lock}/{}", job.lock, job.process),
            _ => format!("{}/{lock}", job.lock),
        };
        let handle = match lock {
            RW => Handle::Rw(locks.rw(name)),
            SEMAPHORE => Handle::Semaphore(locks.semaphore(name, PERMITS)),
            _ => {
                let options = LockOptions::new().fixed_ttl(client.lease);
                let has_ttl = !locks.capabilities().lease.is_session();
                let fixed = has_ttl.then(|| locks.mutex_with(&name, options)).transpose()?;
                let renewed = match (client.broken, &fixed) {
                    (Some(Defect::NeverRenews), Some(fixed)) => fixed.clone(),
                    _ => locks.mutex(name),
                };
                Handle::Mutex(renewed, fixed)
            }
        };
        let seed = seed ^ u64::from(job.process) << 32 ^ client.number << 48;
        let journal = Journal::new(&job.url, job.process, client.number);
        Ok(Self { client, handle, journal, dice: StdRng::seed_from_u64(seed), demands })
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Outcome<()> {
        while !stop.is_cancelled() {
            self.client.does("thinks");
            sleep(self.up_to(THINK)).await;
            self.once().await?;
        }
        Ok(())
    }

    async fn once(&mut self) -> Outcome<()> {
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
        self.client.note(EventKind::AcquireCalled)?;
        self.client.does("asks");
        let (asking, is_fixed): (BoxFuture<'_, polylock::Result<Option<Guard>>>, _) = match &self.handle {
            Handle::Mutex(_, Some(mutex)) if fixed => {
                (ask!(ask, mutex, acquire, try_acquire, try_acquire_for), true)
            }
            Handle::Mutex(mutex, _) => (ask!(ask, mutex, acquire, try_acquire, try_acquire_for), false),
            Handle::Rw(rw) if shared => (ask!(ask, rw, read, try_read, try_read_for), false),
            Handle::Rw(rw) => (ask!(ask, rw, write, try_write, try_write_for), false),
            Handle::Semaphore(semaphore) => {
                (ask!(ask, semaphore, acquire, try_acquire, try_acquire_for), false)
            }
        };
        let asked = match ask {
            Ask::Dropped(patience) => match timeout(patience, asking).await {
                Ok(asked) => asked,
                Err(_) => return self.client.note(EventKind::AcquireUnknown),
            },
            _ => patiently(GRACE, asking).await,
        };
        match self.client.asked(asked).await? {
            Some(guard) => self.hold(guard, mode, is_fixed).await,
            None => Ok(()),
        }
    }

    /// Holds the lock for a while, and releases it in one of several ways.
    async fn hold(&mut self, guard: Guard, mode: Mode, is_fixed: bool) -> Outcome<()> {
        self.client.does("holds");
        let span = match self.dice.random_range(0..100) {
            // Long enough for renewals, and at times longer than a fixed ttl.
            0 => self.up_to(self.client.lease * 3 / 2),
            1..6 => self.up_to(LONG_HOLD),
            _ => self.up_to(SHORT_HOLD),
        };
        let (demands, number) = (self.demands.clone(), self.client.number);
        let end = async move {
            demands.compute_if_wanted(number);
            demands.kept_until(Instant::now() + span).await;
        };
        self.client.hold(&guard, mode, (false, is_fixed), end).await?;
        if mode == Mode::Exclusive {
            self.write(&guard).await?;
        }
        self.client.does("releases");
        self.client.note(EventKind::ReleaseCalled)?;
        if self.client.broken == Some(Defect::NeverReleases) {
            std::mem::forget(guard);
            return Ok(());
        }
        let released = match self.dice.random_range(0..100) {
            0..10 => {
                drop(guard);
                return Ok(());
            }
            10..15 => match timeout(self.up_to(ROUND_TRIPS), guard.release()).await {
                Ok(released) => released,
                Err(_) => return Ok(()),
            },
            _ => guard.release().await,
        };
        self.client.released(released)
    }

    /// Writes to the journal now and then, and always when the guard is not valid any more.
    async fn write(&mut self, guard: &Guard) -> Outcome<()> {
        let (writes, dawdles) = (self.dice.random_bool(0.2) || !guard.is_valid(), self.dice.random_bool(0.1));
        let pause = self.up_to(if dawdles { LONG_HOLD } else { ROUND_TRIPS });
        let Some(journal) = self.journal.as_mut().filter(|_| writes) else { return Ok(()) };
        self.client.does("writes");
        // What fails is no write. The server knows what was committed.
        let written = timeout(self.client.lease, journal.write(guard, &self.client.lock, pause)).await;
        if let Ok(Ok(Err(refused))) = written
            && refused.kind() == ErrorKind::Lost
        {
            self.client.note(EventKind::Write { token: guard.token().get(), accepted: false })?;
        }
        Ok(())
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.dice.random_range(0.0..1.0))
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
