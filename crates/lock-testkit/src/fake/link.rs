//! The network between one client and the server.

use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::server::Accepted;
use super::{Dice, FakeRedis};

/// The faults of a link, as probabilities for each request. The first that happens counts.
#[derive(Clone, Debug)]
pub struct Faults {
    /// The delay of each request, reply and push, in milliseconds.
    pub delay_ms: RangeInclusive<u64>,
    /// A request takes [`stall_ms`](Self::stall_ms) longer, and delays all behind it.
    pub stall: f64,
    /// See [`stall`](Self::stall).
    pub stall_ms: RangeInclusive<u64>,
    /// A request is lost, and everything after it: the connection stays silent.
    pub lose_request: f64,
    /// A request is executed, but its reply and everything after it is lost.
    pub lose_reply: f64,
    /// The connection is reset before the request is executed.
    pub reset_before: f64,
    /// The connection is reset after the request was executed.
    pub reset_after: f64,
    /// A new connection is refused.
    pub refuse: f64,
}

/// The network between one client and the server, with faults.
///
/// Clones are the same link. The faults follow from the seed and from what the client sends.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    redis: FakeRedis,
    label: String,
    state: Mutex<State>,
    /// Notified when the stall has changed. It wakes tasks in the order in which they wait; a watch channel would choose a
    /// random order.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    faults: Faults,
    dice: Dice,
    /// The end of the stall.
    stalled: Option<Instant>,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives,
    IsLost,
    LosesReply,
    ResetBefore,
    ResetAfter,
}

impl Link {
    pub(super) fn new(redis: FakeRedis, label: String, seed: u64) -> Self {
        let state = State { faults: Faults::default(), dice: Dice::new(seed), stalled: None };
        Self { shared: Arc::new(Shared { redis, label, state: Mutex::new(state), changed: Notify::new() }) }
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Holds everything back for this long, in both directions; it is delivered afterwards.
    pub fn stall(&self, span: Duration) {
        self.note(&format!("stalls for {span:?}"));
        self.set_stalled(Some(Instant::now() + span));
    }

    /// Ends a [`stall`](Self::stall) early.
    pub fn resume(&self) {
        self.set_stalled(None);
    }

    /// Resets all connections of this link: data in flight is lost.
    pub fn reset(&self) {
        self.note("is reset");
        self.redis().server().hang_up_all(&self.shared.label);
    }

    /// Opens a connection on the server, unless it is refused.
    pub(super) fn accept(&self) -> Option<Accepted> {
        let refused = self.roll(|faults, dice| dice.chance(faults.refuse));
        if refused { None } else { self.redis().server().accept(&self.shared.label) }
    }

    pub(super) fn redis(&self) -> &FakeRedis {
        &self.shared.redis
    }

    /// The fate and delay of the next request.
    pub(super) fn request(&self) -> (Fate, Duration) {
        self.roll(|faults, dice| {
            let mut delay = dice.millis(faults.delay_ms.clone());
            if dice.chance(faults.stall) {
                delay += dice.millis(faults.stall_ms.clone());
            }
            let fates = [
                (faults.lose_request, Fate::IsLost),
                (faults.lose_reply, Fate::LosesReply),
                (faults.reset_before, Fate::ResetBefore),
                (faults.reset_after, Fate::ResetAfter),
            ];
            let fate = fates.into_iter().find(|(chance, _)| dice.chance(*chance));
            (fate.map_or(Fate::Arrives, |(_, fate)| fate), delay)
        })
    }

    /// The delay of the next reply.
    pub(super) fn reply(&self) -> Duration {
        self.roll(|faults, dice| dice.millis(faults.delay_ms.clone()))
    }

    /// Waits until this time, and until the link is not stalled.
    pub(super) async fn passes(&self, at: Instant) {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            let until = self.state().stalled.map_or(at, |until| until.max(at));
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    pub(super) fn note(&self, what: &str) {
        self.shared.redis.server().note(|| format!("the link of {} {what}", self.shared.label));
    }

    fn set_stalled(&self, until: Option<Instant>) {
        self.state().stalled = until;
        self.shared.changed.notify_waiters();
    }

    fn roll<T>(&self, choose: impl FnOnce(&Faults, &mut Dice) -> T) -> T {
        let State { faults, dice, .. } = &mut *self.state();
        choose(faults, dice)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults {
    /// Random faults. Each fault is absent from some runs: one fault may show what many hide.
    pub fn some(dice: &mut Dice) -> Self {
        let mut chance = |most: f64| if dice.chance(0.5) { 0.0 } else { most };
        let (stall, lose_request, lose_reply) = (chance(0.03), chance(0.01), chance(0.01));
        let (reset_before, reset_after, refuse) = (chance(0.01), chance(0.01), chance(0.1));
        let slowest = *dice.pick(&[0, 2, 20, 80]);
        Self {
            delay_ms: 0..=slowest,
            stall,
            stall_ms: 50..=*dice.pick(&[200, 1_000, 3_000]),
            lose_request,
            lose_reply,
            reset_before,
            reset_after,
            refuse,
        }
    }
}

/// No faults and no delay.
impl Default for Faults {
    fn default() -> Self {
        Self {
            delay_ms: 0..=0,
            stall: 0.0,
            stall_ms: 0..=0,
            lose_request: 0.0,
            lose_reply: 0.0,
            reset_before: 0.0,
            reset_after: 0.0,
            refuse: 0.0,
        }
    }
}
