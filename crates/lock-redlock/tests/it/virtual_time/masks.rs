//! How long each request takes while every choice of five masters fails in every way.

use std::time::Duration;

use lock_core::{ErrorKind, Guard, GuardState, Locks, Released, Result};
use lock_testkit::fake::{Faults, Link};
use lock_testkit::take;
use tokio::time::{Instant, sleep, timeout};

use super::away;
use super::fleet::{Fleet, TIMEOUT};

const MASTERS: usize = 5;
const TTL: Duration = Duration::from_secs(60);
/// One way between the client and a master.
const WAY: u64 = 2;
/// The least that a deadline is, and so what it is for masters that answer in a few milliseconds.
const DEADLINE: Duration = Duration::from_millis(20);
/// Timers are rounded up to a millisecond.
const ROUNDED: Duration = Duration::from_millis(2);
/// What was acquired in vain is released.
const GIVEN_BACK: Duration = Duration::from_millis(2 * WAY);

/// Masters that fall silent are asked once more, over new connections, after a moment for the roll-back.
const TWO_ATTEMPTS: Duration = Duration::from_millis(2 * TIMEOUT.as_millis() as u64 + 200);

/// What happens to the masters of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing passes, and the connections stay.
    Hangs,
    /// The connections are reset, and new ones are refused.
    Refuses,
    /// They are killed, and come back with their data.
    IsKilled,
    /// The answers come later than the deadlines allow, and in time for the connections.
    IsSlow,
}

const FAULTS: [Fault; 4] = [Fault::Hangs, Fault::Refuses, Fault::IsKilled, Fault::IsSlow];

/// Five masters that have always answered at once, of which some have just begun to fail, and a lock that was held before.
struct Scene {
    fleet: Fleet,
    locks: Locks,
    held: Option<Guard>,
    mask: u32,
    fault: Fault,
}

impl Scene {
    async fn new(mask: u32, fault: Fault) -> Self {
        let (fleet, locks) = Fleet::swift(MASTERS as u64).await;
        let held = Some(take(&locks, "held").await);
        sleep(Duration::from_secs(1)).await;
        for master in numbers(mask) {
            match fault {
                Fault::Hangs => fleet.stall(master, TTL * 10),
                Fault::Refuses => {
                    fleet.set_faults(master, &Faults { refuse: 1.0, ..away(WAY) });
                    fleet.links[master].iter().for_each(Link::reset);
                }
                Fault::IsKilled => fleet.masters[master].crash(),
                Fault::IsSlow => fleet.set_faults(master, &away(150)),
            }
        }
        Self { fleet, locks, held, mask, fault }
    }

    fn held(&self) -> &Guard {
        self.held.as_ref().unwrap()
    }

    /// All is well again, and then soon no key is left.
    async fn ends(self) {
        drop(self.held);
        if self.fault == Fault::IsKilled {
            numbers(self.mask).for_each(|master| self.fleet.masters[master].start_again(true));
        }
        self.fleet.set_all(&Faults::default());
        self.fleet.links.iter().flatten().for_each(Link::resume);
        sleep(TTL / 10).await;
        for (number, master) in self.fleet.masters.iter().enumerate() {
            let keys = master.keys();
            let left: Vec<_> = keys.iter().filter(|key| key.starts_with("lock:")).collect();
            assert!(left.is_empty(), "{:?} {:05b}: master {number} keeps {left:?}", self.fault, self.mask);
        }
    }
}

fn numbers(mask: u32) -> impl Iterator<Item = usize> {
    (0..MASTERS).filter(move |number| mask & (1 << number) != 0)
}

/// Asks every scene for something, which takes at most so long without a quorum: whether it worked, `None` if it was given up.
async fn of_every_scene(longest: Duration, ask: impl AsyncFn(&mut Scene) -> Option<Result<bool>>) {
    for fault in FAULTS {
        for mask in 0..1_u32 << MASTERS {
            let (few, story) = (mask.count_ones() <= 2, format!("{fault:?} {mask:05b}"));
            let mut scene = Scene::new(mask, fault).await;
            let started = Instant::now();
            let answer = ask(&mut scene).await;
            let (took, most) = (started.elapsed(), if few { DEADLINE } else { longest });
            assert!(took <= most + ROUNDED, "{story}: it took {took:?}");
            let works = few || fault == Fault::IsSlow;
            match answer {
                Some(Ok(worked)) => assert!(works && worked, "{story}"),
                Some(Err(error)) => {
                    assert!(!works && error.kind() == ErrorKind::Unavailable, "{story}: {error}");
                }
                None => assert!(!works, "{story}"),
            }
            scene.ends().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn to_acquire() {
    of_every_scene(TWO_ATTEMPTS, async |scene| {
        Some(scene.locks.mutex("a").try_acquire().await.map(|guard| guard.is_some()))
    })
    .await;
}

/// The attempt is rolled back before it is reported.
#[tokio::test(start_paused = true)]
async fn to_acquire_in_vain() {
    of_every_scene(TWO_ATTEMPTS, async |scene| Some(scene.locks.mutex("a").acquire().await.map(|_| true)))
        .await;
}

/// It is tried again while the lease is valid.
#[tokio::test(start_paused = true)]
async fn to_extend() {
    of_every_scene(TIMEOUT + GIVEN_BACK, async |scene| {
        timeout(TIMEOUT, scene.held().extend(TTL)).await.ok().map(|extended| extended.map(|_| true))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn to_verify() {
    of_every_scene(TIMEOUT + GIVEN_BACK, async |scene| {
        Some(scene.held().verify().await.map(|state| state == GuardState::Valid))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn to_release() {
    of_every_scene(TIMEOUT + GIVEN_BACK, async |scene| {
        Some(scene.held.take().unwrap().release().await.map(|released| released == Released::Released))
    })
    .await;
}
