//! One task of a client: it takes locks, holds them and gives them back, in all the ways there are.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use lock_core::{BootInstant, Clock, Guard, Locks, Released};
use lock_testkit::cancel_after;
use lock_testkit::fake::Dice;
use lock_testkit::history::{Event, EventKind, Mode as Share, ReleaseOutcome};
use tokio::time::{sleep, timeout};

use crate::ensemble::Ensemble;
use crate::scenario::{Mode, Scenario};

/// What all tasks share.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) clock: Clock,
    pub(crate) ensemble: Ensemble,
    pub(crate) events: Mutex<Vec<Event>>,
}

/// One task of a client.
pub(crate) struct Task {
    pub(crate) world: Arc<World>,
    pub(crate) locks: Locks,
    pub(crate) client: usize,
    pub(crate) task: usize,
    pub(crate) dice: Dice,
}

impl World {
    /// Records what happened now, in the history and in the story.
    pub(crate) fn record(&self, client: usize, task: usize, lock: &str, kind: EventKind) {
        let at_ns = nanos(self.clock.now());
        self.ensemble.note(|| format!("client {client}.{task} {lock}: {}", short(&kind)));
        let (process, client) = (client as u32, task as u64);
        self.events.lock().unwrap().push(Event { process, client, lock: lock.to_owned(), at_ns, kind });
    }
}

pub(crate) fn lock_name(number: usize) -> String {
    ["a", "b"][number].to_owned()
}

impl Task {
    /// Takes locks until the time is over.
    pub(crate) async fn run(mut self) {
        let end = BootInstant::from_boot(self.world.scenario.chaos);
        while self.world.clock.now() < end {
            sleep(self.dice.millis(0..=150)).await;
            let lock = lock_name(self.dice.below(self.world.scenario.locks as u64) as usize);
            let share = *self.dice.pick(self.world.scenario.shares);
            self.record(&lock, EventKind::AcquireCalled);
            match self.acquire(&lock, share).await {
                Some(guard) => self.hold(&lock, share, guard).await,
                None => self.record(&lock, EventKind::AcquireUnknown),
            }
        }
    }

    async fn acquire(&mut self, lock: &str, share: Share) -> Option<Guard> {
        let (patience, polls) = (self.dice.millis(0..=3_000), self.dice.below(16) as usize);
        let locks = self.locks.clone();
        let ask = async |patience: Option<Duration>| match (share, patience) {
            (Share::Shared, None) => locks.rw(lock).read().await.map(Some),
            (Share::Shared, Some(patience)) => locks.rw(lock).try_read_for(patience).await,
            (Share::Permit(most), None) => locks.semaphore(lock, most).acquire().await.map(Some),
            (Share::Permit(most), Some(patience)) => {
                locks.semaphore(lock, most).try_acquire_for(patience).await
            }
            (_, None) => locks.mutex(lock).acquire().await.map(Some),
            (_, Some(Duration::ZERO)) => locks.mutex(lock).try_acquire().await,
            (_, Some(patience)) => locks.mutex(lock).try_acquire_for(patience).await,
        };
        match self.dice.below(10) {
            0..4 => timeout(patience, ask(None)).await.ok()?.ok()?,
            4 => ask(Some(Duration::ZERO)).await.ok()?,
            5..7 => ask(Some(patience)).await.ok()?,
            7 => cancel_after(polls, ask(None)).await?.ok()?,
            8 => cancel_after(polls, ask(Some(patience))).await?.ok()?,
            _ => pause_after(polls, patience, ask(Some(patience))).await.ok()?,
        }
    }

    async fn hold(&mut self, lock: &str, share: Share, guard: Guard) {
        let token = Some(guard.token().get());
        let valid_until_ns = Some(nanos(self.until(&guard)));
        self.record(lock, EventKind::Acquired { token, valid_until_ns, mode: share });
        // Some use what they no longer hold; their guards must have told them.
        let careless = self.dice.chance(0.3);
        for _ in 0..self.dice.below(4) {
            let span = self.dice.millis(0..=600);
            tokio::select! {
                biased;
                reason = guard.lost(), if !careless => {
                    self.world.ensemble.note(|| format!("lost: {reason}"));
                    self.record(lock, EventKind::Lost);
                    break;
                }
                () = sleep(span) => {}
            }
            self.believe(lock, &guard);
            if self.dice.chance(0.2) {
                drop(guard.verify().await);
                self.believe(lock, &guard);
            }
        }
        self.finish(lock, guard).await;
    }

    fn until(&self, guard: &Guard) -> BootInstant {
        match self.world.scenario.mode {
            Mode::TooLong => guard.valid_until() + self.world.scenario.timeout / 4 * 3,
            _ => guard.valid_until(),
        }
    }

    /// Notes until when the guard believes that it holds the lock, or that it no longer does.
    fn believe(&self, lock: &str, guard: &Guard) {
        self.record(lock, EventKind::Extended { valid_until_ns: nanos(self.until(guard)) });
        if !guard.is_valid() && self.world.scenario.mode != Mode::TooLong {
            self.record(lock, EventKind::Lost);
        }
    }

    async fn finish(&mut self, lock: &str, guard: Guard) {
        self.believe(lock, &guard);
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

    fn record(&self, lock: &str, kind: EventKind) {
        self.world.record(self.client, self.task, lock, kind);
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

pub(crate) fn nanos(at: BootInstant) -> u64 {
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
        EventKind::Extended { valid_until_ns } => format!("believes until {}", until(valid_until_ns)),
        other => format!("{other:?}"),
    }
}
