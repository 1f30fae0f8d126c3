//! The clients of a fault: one holds the lock for long, the others want it all the time. Every holder writes to the resource.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_testkit::history::{Event, EventKind, Mode, ReleaseOutcome};
use lock_testkit::now_ns;
use polylock::{Guard, Locks, Mutex, Outcome as ErrorOutcome};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::orders::{Orders, send};
use super::{Job, Order, WorkerReport};
use crate::data::events::outcome;
use crate::data::{Defect, GrantInfo, Outcome};

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FaultTask {
    pub(crate) roles: Vec<ClientRole>,
    pub(crate) broken: Option<Defect>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientRole {
    /// Holds it until the order to release it, or until it is lost. Then it is a waiter.
    Holder,
    /// Waits for it, holds it for a moment, and waits for it again.
    Waiter,
    /// The same, but tries again and again instead of waiting.
    Poller,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultOrder {
    Hold,
    Contend,
    /// The holder's process stops itself by SIGSTOP, between a check of the guard and the write.
    Pause,
    /// The holder releases it. Each client ends when it was granted the lock once more.
    Release,
    /// The holder's task is aborted.
    Abort,
    End,
}

/// Executes the orders, and reports every event and write at once.
pub(super) async fn serve(job: &Job, task: &FaultTask, orders: &mut Orders) -> Outcome<()> {
    let locks = Locks::connect(&job.url).await?;
    // Loads the scripts, and makes the directories.
    locks.mutex(format!("{}-before", job.lock)).acquire().await?.release().await?;
    let lease = locks.capabilities().lease.default_ttl();
    let signals = Signals::default();
    let (mut clients, mut holder) = (JoinSet::new(), None);
    for (number, &role) in (0..).zip(&task.roles) {
        let client = Client {
            number,
            role,
            mutex: locks.mutex(&job.lock),
            locks: locks.clone(),
            lease,
            job: job.clone(),
            broken: task.broken,
            signals: signals.clone(),
        };
        let running = clients.spawn(client.run());
        if role == ClientRole::Holder {
            holder = Some(running);
        }
    }
    send(&WorkerReport::Ready { lease })?;
    loop {
        match orders.next().await? {
            Some(Order::Fault(FaultOrder::Hold)) => signals.hold.cancel(),
            Some(Order::Fault(FaultOrder::Contend)) => signals.contend.cancel(),
            Some(Order::Fault(FaultOrder::Pause)) => signals.pause.store(true, Ordering::Relaxed),
            Some(Order::Fault(FaultOrder::Release)) => signals.release.cancel(),
            Some(Order::Fault(FaultOrder::Abort)) => holder.iter().for_each(|holder| holder.abort()),
            _ => break,
        }
    }
    for signal in [&signals.hold, &signals.contend, &signals.release, &signals.end] {
        signal.cancel();
    }
    let (mut stuck, patience) = (Vec::new(), Instant::now() + FINISH);
    while let Ok(Some(ended)) = timeout_at(patience, clients.join_next()).await {
        match ended {
            Ok(Err(failure)) => stuck.push(failure.to_string()),
            Err(error) if !error.is_cancelled() => stuck.push(error.to_string()),
            _ => {}
        }
    }
    if !clients.is_empty() {
        stuck.push(format!("{} clients have not ended within {FINISH:?}", clients.len()));
    }
    // During an outage it takes long, which is no part of the fault.
    let _ = timeout(FINISH, locks.close()).await;
    send(&WorkerReport::Stuck(stuck))
}

#[derive(Clone, Default)]
struct Signals {
    hold: CancellationToken,
    contend: CancellationToken,
    pause: Arc<AtomicBool>,
    release: CancellationToken,
    end: CancellationToken,
}

struct Client {
    number: u64,
    role: ClientRole,
    mutex: Mutex,
    locks: Locks,
    lease: Duration,
    job: Job,
    broken: Option<Defect>,
    signals: Signals,
}

impl Client {
    async fn run(self) -> Outcome<()> {
        let mut first = self.role == ClientRole::Holder;
        if first {
            self.signals.hold.cancelled().await;
        } else {
            self.signals.contend.cancelled().await;
        }
        while !self.signals.end.is_cancelled() {
            let was_served = self.once(first).await?;
            if was_served {
                // A poller would get nothing while two waiters queue again and again.
                break;
            }
            first &= !self.signals.release.is_cancelled();
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Acquires the lock, holds and releases it. `long`: until the order to release it. Whether it was granted after that
    /// order.
    async fn once(&self, long: bool) -> Outcome<bool> {
        self.note(EventKind::AcquireCalled)?;
        let asking = async {
            match self.role {
                ClientRole::Poller => self.mutex.try_acquire().await,
                ClientRole::Holder | ClientRole::Waiter => self.mutex.acquire().await.map(Some),
            }
        };
        let asked = tokio::select! {
            biased;
            () = self.signals.end.cancelled() => {
                self.note(EventKind::AcquireUnknown)?;
                return Ok(false);
            }
            asked = asking => asked,
        };
        let was_served = self.signals.release.is_cancelled() && matches!(asked, Ok(Some(_)));
        match asked {
            Ok(Some(guard)) if long => self.hold(guard, self.signals.release.cancelled()).await,
            Ok(Some(guard)) if self.broken == Some(Defect::NeverReleases) => {
                self.hold(guard, self.signals.end.cancelled()).await
            }
            Ok(Some(guard)) => self.hold(guard, sleep(self.span())).await,
            Ok(None) => self.note(EventKind::AcquireFailed),
            Err(error) => {
                let known = error.outcome() == ErrorOutcome::NotApplied;
                self.note(if known { EventKind::AcquireFailed } else { EventKind::AcquireUnknown })?;
                sleep(PAUSE).await;
                Ok(())
            }
        }?;
        Ok(was_served)
    }

    /// Works under the lock until `end` or until it is lost: again and again it checks the guard, works, and writes.
    async fn hold(&self, guard: Guard, end: impl Future<Output = ()>) -> Outcome<()> {
        let mut until_ns = self.until_ns(&guard);
        let token = guard.token().get();
        let valid_until_ns = Some(until_ns);
        self.note(EventKind::Acquired { token: Some(token), valid_until_ns, mode: Mode::Exclusive })?;
        let stopped = StopNote(self);
        let (mut end, mut lost) = (pin!(end), false);
        let mut renewed = guard.valid_until();
        while !lost {
            if guard.valid_until() != renewed {
                renewed = guard.valid_until();
                until_ns = self.until_ns(&guard);
                self.note(EventKind::Extended { valid_until_ns: until_ns })?;
            }
            if !self.is_valid(&guard, until_ns) {
                self.note(EventKind::Lost)?;
                break;
            }
            // What happens between this check and the write is not seen.
            if self.role == ClientRole::Holder && self.signals.pause.swap(false, Ordering::Relaxed) {
                kill_process(getpid(), Signal::STOP)?;
            }
            let mut work = pin!(sleep(WORK));
            let ended = loop {
                tokio::select! {
                    () = &mut work => break false,
                    () = &mut end => break true,
                    _ = guard.lost(), if !lost && self.broken != Some(Defect::NoElapsedTime) => {
                        self.note(EventKind::Lost)?;
                        lost = true;
                    }
                }
            };
            if ended {
                break;
            }
            send(&WorkerReport::Write { client: self.number, token })?;
        }
        drop(stopped);
        if self.broken == Some(Defect::NaiveRelease) {
            // The defect: it does not matter whether it works.
            let _ = self.locks.break_lock(&self.job.lock).await;
        }
        let released = tokio::select! {
            released = guard.release() => released,
            () = self.signals.end.cancelled() => return Ok(()),
        };
        self.note(EventKind::Released { outcome: released.map_or(ReleaseOutcome::Unknown, outcome) })
    }

    /// How long it holds the lock. With a release of whoever holds, a late one of another client has to come meanwhile.
    fn span(&self) -> Duration {
        if self.broken == Some(Defect::NaiveRelease) { LONG_HOLD } else { SHORT_HOLD }
    }

    /// The end of the guard's validity. The defect counts it from now, the answer.
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

    fn note(&self, kind: EventKind) -> Outcome<()> {
        let (process, client, lock) = (self.job.process, self.number, self.job.recorded_as.clone());
        send(&WorkerReport::Events(vec![Event { process, client, lock, at_ns: now_ns(), kind }]))
    }
}

/// Notes on drop that the client stops to use the lock, also when its task is aborted.
struct StopNote<'a>(&'a Client);

impl Drop for StopNote<'_> {
    fn drop(&mut self) {
        // Without a parent there is no history.
        let _ = self.0.note(EventKind::ReleaseCalled);
    }
}

/// The time between a check of the guard and the write. Less than the margin by which a guard expires before the servers grant
/// the lock again.
const WORK: Duration = Duration::from_millis(10);
/// Long enough that a lock which is taken away is granted again meanwhile.
const SHORT_HOLD: Duration = Duration::from_millis(150);
const LONG_HOLD: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);
const FINISH: Duration = Duration::from_secs(5);
