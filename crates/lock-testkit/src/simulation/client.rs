//! A task of a client: it acquires, holds and releases locks, in all possible ways.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lock_core::{BootInstant, Guard, LockOptions, Locks, Released, Result, Token};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::stage::{Leases, Stage, lock_name, nanos, unless_paused};
use crate::cancel_after;
use crate::fake::Dice;
use crate::history::{EventKind, Mode as Share, ReleaseOutcome};

impl Stage {
    /// Has every client acquire locks in this many tasks until the end of the run. Returns what hangs.
    ///
    /// # Panics
    ///
    /// When a task panics.
    pub async fn play(self: &Arc<Self>, clients: &[Locks], tasks: usize, dice: &mut Dice) -> Vec<String> {
        let mut faults = Vec::new();
        for task in self.spawn_tasks(clients, tasks, dice) {
            match timeout(LONGEST_RUN, task).await {
                Ok(ended) => ended.expect("a task does not panic"),
                Err(_) => faults.push("a task hangs".to_owned()),
            }
        }
        faults
    }

    fn spawn_tasks(
        self: &Arc<Self>,
        clients: &[Locks],
        tasks: usize,
        dice: &mut Dice,
    ) -> Vec<JoinHandle<()>> {
        let mut work = Vec::new();
        for (client, locks) in clients.iter().enumerate() {
            for task in 0..tasks {
                let (stage, locks, dice) = (Arc::clone(self), locks.clone(), dice.fork(task as u64));
                let task = Task { stage: Arc::clone(&stage), locks, client, task, dice };
                work.push(tokio::spawn(unless_paused(stage, client, task.run())));
            }
        }
        work
    }
}

/// One task of a client.
struct Task {
    stage: Arc<Stage>,
    locks: Locks,
    client: usize,
    task: usize,
    dice: Dice,
}

impl Task {
    /// Acquires locks until the end of the run.
    async fn run(mut self) {
        let end = BootInstant::from_boot(self.stage.habits.until);
        while self.stage.clock.now() < end {
            sleep(self.dice.millis(0..=150)).await;
            let lock = lock_name(self.dice.below(self.stage.habits.locks as u64) as usize);
            self.record(&lock, EventKind::AcquireCalled);
            let (share, ttl) = (self.some_share(), self.some_ttl());
            // A mutex is never downgraded, so that its end is known to be the grant.
            let writes = share == Share::Exclusive && self.has_readers() && !self.dice.chance(0.3);
            match self.acquire(&lock, share, writes, ttl).await {
                Some(guard) => self.hold(&lock, share, writes, guard, ttl).await,
                None => self.record(&lock, EventKind::AcquireUnknown),
            }
        }
    }

    async fn acquire(&mut self, lock: &str, share: Share, writes: bool, ttl: Duration) -> Option<Guard> {
        let mut options = match self.stage.habits.leases {
            Leases::Session | Leases::SessionAndBeyond(_) => LockOptions::new(),
            Leases::Any if !self.dice.chance(0.3) => LockOptions::new().ttl(ttl),
            _ => LockOptions::new().fixed_ttl(ttl),
        };
        if self.stage.habits.limited && self.dice.chance(0.2) {
            options = options.max_hold(self.dice.millis(100..=2_000));
        }
        let locks = self.locks.clone();
        let ask = |wait| ask(&locks, lock, share, writes, options, wait);
        let (patience, polls) = (self.dice.millis(0..=3_000), self.dice.below(12) as usize);
        match self.dice.below(10) {
            0..4 => timeout(patience, ask(Wait::Forever)).await.ok()?.ok()?,
            4 => ask(Wait::Never).await.ok()?,
            5..7 => ask(Wait::For(patience)).await.ok()?,
            7 => cancel_after(polls, ask(Wait::Forever)).await?.ok()?,
            8 => cancel_after(polls, ask(Wait::For(patience))).await?.ok()?,
            _ => pause_after(polls, patience, ask(Wait::For(patience))).await.ok()?,
        }
    }

    async fn hold(&mut self, lock: &str, share: Share, writes: bool, mut guard: Guard, ttl: Duration) {
        let mut until = self.until(&guard);
        if self.stage.habits.leases == Leases::FixedFromReply {
            until = self.stage.clock.now() + ttl - (ttl / 100 + Duration::from_millis(2));
        }
        let token = Some(guard.token().get());
        let valid_until_ns = Some(nanos(until));
        self.record(lock, EventKind::Acquired { token, valid_until_ns, mode: share });
        self.stage.granted(lock, &guard);
        let mut alone = share == Share::Exclusive;
        // Some tasks ignore a loss, of which their guards must have notified them.
        let careless = self.is_fixed() || self.dice.chance(0.3);
        for _ in 0..self.dice.below(4) {
            let span = self.dice.millis(0..=600);
            tokio::select! {
                biased;
                reason = guard.lost(), if !careless => {
                    self.stage.note(|| format!("lost: {reason}"));
                    self.record(lock, EventKind::Lost);
                    break;
                }
                () = sleep(span) => {}
            }
            if self.is_fixed() {
                continue;
            }
            self.record_validity(lock, &guard);
            if writes && self.dice.chance(0.4) {
                self.downgrade(lock, &mut guard).await;
                alone = false;
            }
            // Not with sharers: one may have been granted a lower token a moment before.
            if alone && self.is_of_a_session() && self.dice.chance(0.1) {
                self.raise(lock, &guard).await;
            }
            match self.dice.below(6) {
                0 => {
                    let ttl = self.some_ttl();
                    drop(guard.extend(ttl).await);
                }
                1 => drop(timeout(self.dice.millis(0..=100), guard.extend(self.some_ttl())).await),
                2 => drop(guard.verify().await),
                _ => {}
            }
            self.record_validity(lock, &guard);
        }
        self.finish(lock, guard).await;
    }

    /// Downgrades to a reader, or tries to; repeated calls have no effect.
    async fn downgrade(&mut self, lock: &str, guard: &mut Guard) {
        self.record(lock, EventKind::DowngradeCalled);
        let polls = self.dice.below(6) as usize;
        match self.dice.below(4) {
            0 => drop(cancel_after(polls, guard.downgrade()).await),
            1 => drop(timeout(self.dice.millis(0..=100), guard.downgrade()).await),
            _ => drop(guard.downgrade().await),
        }
        self.record_validity(lock, guard);
    }

    /// Raises the floor of later tokens, or tries to.
    async fn raise(&mut self, lock: &str, guard: &Guard) {
        let floor = Token::new(guard.token().get() + self.dice.within(1..=1_000_000));
        let polls = self.dice.below(12) as usize;
        let raised = match self.dice.below(4) {
            0 => cancel_after(polls, guard.raise_token(floor)).await,
            1 => timeout(self.dice.millis(0..=100), guard.raise_token(floor)).await.ok(),
            _ => Some(guard.raise_token(floor).await),
        };
        if matches!(raised, Some(Ok(()))) {
            self.stage.raised(lock, guard, floor);
        }
        self.record_validity(lock, guard);
    }

    /// The end of the guard's validity, with the run's deliberate mistake.
    fn until(&self, guard: &Guard) -> BootInstant {
        match self.stage.habits.leases {
            Leases::SessionAndBeyond(span) => guard.valid_until() + span,
            _ => guard.valid_until(),
        }
    }

    /// Records the guard's validity or loss: an unanswered extension may have brought the end nearer.
    fn record_validity(&self, lock: &str, guard: &Guard) {
        self.record(lock, EventKind::Extended { valid_until_ns: nanos(self.until(guard)) });
        let stubborn = matches!(self.stage.habits.leases, Leases::SessionAndBeyond(_));
        if !stubborn && !guard.is_valid() {
            self.record(lock, EventKind::Lost);
        }
    }

    async fn finish(&mut self, lock: &str, guard: Guard) {
        if !self.is_fixed() {
            self.record_validity(lock, &guard);
        }
        self.record(lock, EventKind::ReleaseCalled);
        let polls = self.dice.below(6) as usize;
        let outcome = match self.dice.below(4) {
            0 => return drop(guard),
            1 => cancel_after(polls, guard.release()).await,
            _ => Some(guard.release().await),
        };
        let outcome = match outcome {
            Some(Ok(Released::Released)) => ReleaseOutcome::Released,
            Some(Ok(_)) => ReleaseOutcome::AlreadyLost,
            Some(Err(_)) | None => ReleaseOutcome::Unknown,
        };
        self.record(lock, EventKind::Released { outcome });
    }

    /// Half to twice the ttl of the run.
    fn some_ttl(&mut self) -> Duration {
        let ttl = self.stage.habits.ttl;
        (*self.dice.pick(&[ttl / 2, ttl, ttl * 2])).max(Duration::from_millis(100))
    }

    fn some_share(&mut self) -> Share {
        match self.stage.habits.shares {
            [only] => *only,
            shares => *self.dice.pick(shares),
        }
    }

    fn has_readers(&self) -> bool {
        self.stage.habits.shares.contains(&Share::Shared)
    }

    fn is_of_a_session(&self) -> bool {
        matches!(self.stage.habits.leases, Leases::Session | Leases::SessionAndBeyond(_))
    }

    fn is_fixed(&self) -> bool {
        matches!(self.stage.habits.leases, Leases::Fixed | Leases::FixedFromReply)
    }

    fn record(&self, lock: &str, kind: EventKind) {
        self.stage.record(self.client, self.task, lock, kind);
    }
}

/// How long an acquisition waits.
enum Wait {
    Never,
    For(Duration),
    Forever,
}

/// Acquires a lock in this mode; an exclusive one as the writer of a read/write lock, if it `writes`.
async fn ask(
    locks: &Locks,
    lock: &str,
    share: Share,
    writes: bool,
    options: LockOptions,
    wait: Wait,
) -> Result<Option<Guard>> {
    match share {
        Share::Exclusive if writes => {
            let rw = locks.rw_with(lock, options)?;
            match wait {
                Wait::Never => rw.try_write().await,
                Wait::For(patience) => rw.try_write_for(patience).await,
                Wait::Forever => rw.write().await.map(Some),
            }
        }
        Share::Exclusive => {
            let mutex = locks.mutex_with(lock, options)?;
            match wait {
                Wait::Never => mutex.try_acquire().await,
                Wait::For(patience) => mutex.try_acquire_for(patience).await,
                Wait::Forever => mutex.acquire().await.map(Some),
            }
        }
        Share::Shared => {
            let rw = locks.rw_with(lock, options)?;
            match wait {
                Wait::Never => rw.try_read().await,
                Wait::For(patience) => rw.try_read_for(patience).await,
                Wait::Forever => rw.read().await.map(Some),
            }
        }
        Share::Permit(max) => {
            let semaphore = locks.semaphore_with(lock, max, options)?;
            match wait {
                Wait::Never => semaphore.try_acquire().await,
                Wait::For(patience) => semaphore.try_acquire_for(patience).await,
                Wait::Forever => semaphore.acquire().await.map(Some),
            }
        }
    }
}

/// Polls a future `polls` times, then pauses as when the task is starved, and then polls as usual.
async fn pause_after<F: Future>(polls: usize, span: Duration, future: F) -> F::Output {
    let mut future = pin!(future);
    if let Some(output) = (FirstPolls { future: future.as_mut(), left: polls }).await {
        return output;
    }
    sleep(span).await;
    future.await
}

struct FirstPolls<'a, F> {
    future: Pin<&'a mut F>,
    left: usize,
}

impl<F: Future> Future for FirstPolls<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // After the last poll its wake-up is ignored.
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

const LONGEST_RUN: Duration = Duration::from_secs(120);
