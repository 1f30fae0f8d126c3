//! How long each request takes while every choice of five masters fails in every way.

use std::time::Duration;

use lock_core::{ErrorKind, Guard, GuardState, Locks, Released};
use lock_testkit::fake::{Faults, Link};
use tokio::time::{Instant, sleep, timeout};

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
        let fleet = Fleet::new(MASTERS as u64).await;
        let near = Faults { delay_ms: WAY..=WAY, ..Faults::default() };
        (0..MASTERS).for_each(|master| fleet.set_faults(master, &near));
        let locks = fleet.connect(TTL).await;
        for _ in 0..10 {
            locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        }
        let held = Some(locks.mutex("held").acquire().await.unwrap());
        sleep(Duration::from_secs(1)).await;
        for master in numbers(mask) {
            match fault {
                Fault::Hangs => fleet.stall(master, TTL * 10),
                Fault::Refuses => {
                    fleet.set_faults(master, &Faults { refuse: 1.0, ..near.clone() });
                    fleet.links[master].iter().for_each(Link::reset);
                }
                Fault::IsKilled => fleet.masters[master].crash(),
                Fault::IsSlow => {
                    fleet.set_faults(master, &Faults { delay_ms: 150..=150, ..near.clone() });
                }
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
        for master in 0..MASTERS {
            self.fleet.set_faults(master, &Faults::default());
            self.fleet.links[master].iter().for_each(Link::resume);
        }
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

/// Asks every scene for something, and checks how long that took: `longest` without a quorum. Whether it `works` is for the caller
/// to compare with the answer.
async fn of_every_scene<T>(
    longest: Duration,
    ask: impl AsyncFn(&mut Scene) -> T,
    check: impl Fn(T, bool, &str),
) {
    for fault in FAULTS {
        for mask in 0..1_u32 << MASTERS {
            let (few, story) = (mask.count_ones() <= 2, format!("{fault:?} {mask:05b}"));
            let mut scene = Scene::new(mask, fault).await;
            let started = Instant::now();
            let answer = ask(&mut scene).await;
            let (took, most) = (started.elapsed(), if few { DEADLINE } else { longest });
            assert!(took <= most + ROUNDED, "{story}: it took {took:?}");
            check(answer, few || fault == Fault::IsSlow, &story);
            scene.ends().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn to_acquire() {
    let acquire = async |scene: &mut Scene| scene.locks.mutex("a").try_acquire().await;
    of_every_scene(TWO_ATTEMPTS, acquire, |acquired, works, story| match acquired {
        Ok(guard) => assert!(works && guard.is_some(), "{story}: {guard:?}"),
        Err(error) => assert!(!works && error.kind() == ErrorKind::Unavailable, "{story}: {error}"),
    })
    .await;
}

/// The attempt is rolled back before it is reported.
#[tokio::test(start_paused = true)]
async fn to_acquire_in_vain() {
    let acquire = async |scene: &mut Scene| scene.locks.mutex("a").acquire().await;
    of_every_scene(TWO_ATTEMPTS, acquire, |acquired, works, story| match acquired {
        Ok(_) => assert!(works, "{story}"),
        Err(error) => assert!(!works && error.kind() == ErrorKind::Unavailable, "{story}: {error}"),
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn to_extend() {
    // It is tried again while the lease is valid.
    let extend = async |scene: &mut Scene| timeout(TIMEOUT, scene.held().extend(TTL)).await;
    of_every_scene(TIMEOUT + GIVEN_BACK, extend, |extended, works, story| match extended {
        Ok(extended) => assert!(works && extended.is_ok(), "{story}: {extended:?}"),
        Err(_) => assert!(!works, "{story}"),
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn to_verify() {
    let verify = async |scene: &mut Scene| scene.held().verify().await;
    of_every_scene(TIMEOUT + GIVEN_BACK, verify, |verified, works, story| match verified {
        Ok(standing) => assert!(works && standing == GuardState::Valid, "{story}: {standing:?}"),
        Err(error) => assert!(!works && error.kind() == ErrorKind::Unavailable, "{story}: {error}"),
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn to_release() {
    let release = async |scene: &mut Scene| scene.held.take().unwrap().release().await;
    of_every_scene(TIMEOUT + GIVEN_BACK, release, |released, works, story| match released {
        Ok(released) => assert!(works && released == Released::Released, "{story}: {released:?}"),
        Err(error) => assert!(!works && error.kind() == ErrorKind::Unavailable, "{story}: {error}"),
    })
    .await;
}
