//! One task of a client: it takes locks, holds them and gives them back, in all the ways there are.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lock_core::{BootInstant, Guard, LockOptions, Locks, Released};
use tokio::time::{sleep, timeout};

use super::stage::{Leases, Stage, lock_name, nanos};
use crate::cancel_after;
use crate::fake::Dice;
use crate::history::{EventKind, Mode as Share, ReleaseOutcome};

/// One task of a client.
pub(super) struct Task {
    pub(super) stage: Arc<Stage>,
    pub(super) locks: Locks,
    pub(super) client: usize,
    pub(super) task: usize,
    pub(super) dice: Dice,
}

impl Task {
    /// Takes locks until the time is over.
    pub(super) async fn run(mut self) {
        let end = BootInstant::from_boot(self.stage.habits.until);
        while self.stage.clock.now() < end {
            sleep(self.dice.millis(0..=150)).await;
            let lock = lock_name(self.dice.below(self.stage.habits.locks as u64) as usize);
            self.record(&lock, EventKind::AcquireCalled);
            let ttl = self.some_ttl();
            match self.acquire(&lock, ttl).await {
                Some(guard) => self.hold(&lock, guard, ttl).await,
                None => self.record(&lock, EventKind::AcquireUnknown),
            }
        }
    }

    async fn acquire(&mut self, lock: &str, ttl: Duration) -> Option<Guard> {
        let mut options = match self.is_fixed() || self.dice.chance(0.3) {
            true => LockOptions::new().fixed_ttl(ttl),
            false => LockOptions::new().ttl(ttl),
        };
        if self.stage.habits.limited && self.dice.chance(0.2) {
            options = options.max_hold(self.dice.millis(100..=2_000));
        }
        let mutex = self.locks.mutex_with(lock, options).unwrap();
        let (patience, polls) = (self.dice.millis(0..=3_000), self.dice.below(12) as usize);
        match self.dice.below(10) {
            0..4 => timeout(patience, mutex.acquire()).await.ok()?.ok(),
            4 => mutex.try_acquire().await.ok()?,
            5..7 => mutex.try_acquire_for(patience).await.ok()?,
            7 => cancel_after(polls, mutex.acquire()).await?.ok(),
            8 => cancel_after(polls, mutex.try_acquire_for(patience)).await?.ok()?,
            _ => pause_after(polls, patience, mutex.try_acquire_for(patience)).await.ok()?,
        }
    }

    async fn hold(&mut self, lock: &str, guard: Guard, ttl: Duration) {
        let mut until = guard.valid_until();
        if self.stage.habits.leases == Leases::FixedFromReply {
            until = self.stage.clock.now() + ttl - (ttl / 100 + Duration::from_millis(2));
        }
        let token = Some(guard.token().get());
        let valid_until_ns = Some(nanos(until));
        self.record(lock, EventKind::Acquired { token, valid_until_ns, mode: Share::Exclusive });
        // Some use what they no longer hold; their guards must have told them.
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
            self.believe(lock, &guard);
            match self.dice.below(6) {
                0 => {
                    let ttl = self.some_ttl();
                    drop(guard.extend(ttl).await);
                }
                1 => drop(timeout(self.dice.millis(0..=100), guard.extend(self.some_ttl())).await),
                2 => drop(guard.verify().await),
                _ => {}
            }
            self.believe(lock, &guard);
        }
        self.finish(lock, guard).await;
    }

    /// Notes until when the guard believes that it holds the lock, or that it no longer does: an extension that was
    /// not answered may have brought the end nearer.
    fn believe(&self, lock: &str, guard: &Guard) {
        self.record(lock, EventKind::Extended { valid_until_ns: nanos(guard.valid_until()) });
        if !guard.is_valid() {
            self.record(lock, EventKind::Lost);
        }
    }

    async fn finish(&mut self, lock: &str, guard: Guard) {
        if !self.is_fixed() {
            self.believe(lock, &guard);
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
            Some(Ok(Released::AlreadyLost)) => ReleaseOutcome::AlreadyLost,
            Some(Err(_)) | None => ReleaseOutcome::Unknown,
        };
        self.record(lock, EventKind::Released { outcome });
    }

    /// Half to twice the time to live of the run.
    fn some_ttl(&mut self) -> Duration {
        let ttl = self.stage.habits.ttl;
        (*self.dice.pick(&[ttl / 2, ttl, ttl * 2])).max(Duration::from_millis(100))
    }

    fn is_fixed(&self) -> bool {
        self.stage.habits.leases != Leases::Any
    }

    fn record(&self, lock: &str, kind: EventKind) {
        self.stage.record(self.client, self.task, lock, kind);
    }
}

/// Polls a future `polls` times, then not for so long, as when the task is starved, and then as usual.
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
            // The last poll has been: nobody waits for the wake-up that it asked for.
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
