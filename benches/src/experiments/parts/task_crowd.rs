//! Tasks of one process that contend for one lock, in turn with bare commands.

use std::pin::pin;
use std::time::{Duration, Instant};

use lock_testkit::history::Event;
use lock_testkit::now_ns;
use polylock::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::data::events::outcome;
use crate::experiments::prelude::*;

/// The pairs per second of both in each round, and the history.
#[derive(Default)]
pub(crate) struct Turns {
    pub(crate) rates: Vec<(f64, f64)>,
    pub(crate) events: Vec<Event>,
}

/// The lock and the floor in turn, in so many rounds after a first one that warms up, each for a slice of time.
pub(crate) async fn take_turns(
    crowd: Crowd,
    mut floor: impl Floor,
    rounds: u32,
    slice: Duration,
) -> Outcome<Turns> {
    let mut turns = Turns::default();
    // The first round warms up.
    for round in 0..=rounds {
        let bare = one_by_one(&mut floor, slice).await?;
        let (ours, mut events) = crowd.contend(slice).await?;
        turns.events.append(&mut events);
        if round > 0 {
            turns.rates.push((ours, bare));
        }
        // Cancelled requests are rolled back in the background.
        sleep(SETTLE).await;
    }
    floor.clean().await?;
    Ok(turns)
}

async fn one_by_one(floor: &mut impl Floor, span: Duration) -> Outcome<f64> {
    let (began, mut pairs) = (Instant::now(), 0_u64);
    while began.elapsed() < span {
        floor.acquire().await?;
        floor.release().await?;
        pairs += 1;
    }
    Ok(pairs as f64 / began.elapsed().as_secs_f64())
}

pub(crate) struct Crowd {
    pub(crate) mutexes: Vec<Mutex>,
    /// The name of the lock in the history.
    pub(crate) lock: String,
}

impl Crowd {
    async fn contend(&self, span: Duration) -> Outcome<(f64, Vec<Event>)> {
        let window = Window::after(span, RAMP);
        let over = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for (number, mutex) in (0..).zip(&self.mutexes) {
            let (mutex, over) = (mutex.clone(), over.clone());
            tasks.spawn(async move { (number, contend(&mutex, window, &over).await) });
        }
        window.ends().await;
        over.cancel();
        let (mut pairs, mut events) = (0_u64, Vec::new());
        while let Some(done) = tasks.join_next().await {
            let (number, done) = done?;
            let (counted, holds) = done?;
            pairs += counted;
            let mut log = EventLog::new(0, number, &self.lock);
            holds.iter().for_each(|hold| log.hold(hold));
            events.append(&mut log.into_events());
        }
        Ok((pairs as f64 / span.as_secs_f64(), events))
    }
}

/// The loop of one task. Returns how many pairs it completed in the window, and the first of its holds.
async fn contend(mutex: &Mutex, window: Window, over: &CancellationToken) -> Outcome<(u64, Vec<TimedHold>)> {
    let mut over = pin!(over.cancelled());
    let (mut pairs, mut holds) = (0, Vec::with_capacity(MOST_TENURES));
    loop {
        let called_ns = now_ns();
        let guard = tokio::select! {
            biased;
            () = &mut over => return Ok((pairs, holds)),
            guard = mutex.acquire() => guard?,
        };
        let acquired_ns = now_ns();
        let grant = GrantInfo::of(&guard);
        let release_called_ns = now_ns();
        let released = outcome(guard.release().await?);
        let released_ns = now_ns();
        pairs += u64::from(window.contains(released_ns));
        if holds.len() < MOST_TENURES {
            holds.push(TimedHold { called_ns, acquired_ns, grant, release_called_ns, released_ns, released });
        }
    }
}

/// Until all tasks contend.
pub(crate) const RAMP: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_millis(50);
/// A longer history of a lock that takes a microsecond would fill the memory.
pub(crate) const MOST_TENURES: usize = 30;
