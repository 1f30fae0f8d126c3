//! Redlock while some of its masters are in trouble.

use std::fmt;
use std::time::{Duration, Instant};

use lock_testkit::FaultProxy;
use lock_testkit::proxy::Direction;
use polylock::Locks;
use tokio::time::timeout;

use crate::data::{BackendName, Latency, Outcome};
use crate::rig::{MeasuredLock, Proxies, Rslock, url};

/// What happens to masters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Trouble {
    Lost,
    Hung,
    Slow,
    Reset,
}

impl Trouble {
    pub(crate) const ALL: [Self; 4] = [Self::Lost, Self::Hung, Self::Slow, Self::Reset];

    pub(crate) const fn metric(self) -> &'static str {
        match self {
            Self::Lost => "success_lost",
            Self::Hung => "success_hung",
            Self::Slow => "success_slow",
            Self::Reset => "success_reset",
        }
    }

    /// Whether a master in this trouble cannot vote.
    pub(crate) const fn is_a_loss(self) -> bool {
        matches!(self, Self::Lost | Self::Hung)
    }

    fn happens(self, proxy: &FaultProxy) {
        let both = [Direction::ToServer, Direction::ToClient];
        match self {
            Self::Lost => {
                proxy.refuse(true);
                proxy.rst();
            }
            Self::Hung => both.into_iter().for_each(|direction| proxy.black_hole(direction, true)),
            Self::Slow => both.into_iter().for_each(|direction| proxy.delay(direction, SLOWER)),
            Self::Reset => proxy.rst(),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lost => "are lost",
            Self::Hung => "hang",
            Self::Slow => "are slow",
            Self::Reset => "reset connections",
        })
    }
}

/// The share of attempts that succeed, in percent, and how long these take.
pub(crate) async fn attempts_in(
    url: &str,
    lock: &str,
    trouble: Trouble,
    masters: usize,
    attempts: u32,
    subject: &str,
) -> Outcome<(f64, Latency)> {
    let proxies = Proxies::start(BackendName::Redlock, url).await?;
    let url = proxies.url(url);
    let happens = || proxies.all().iter().take(masters).for_each(|proxy| trouble.happens(proxy));
    if subject == OURS {
        let locks = Locks::connect(&url).await?;
        let measured =
            attempt(|number| locks.mutex(format!("{lock}-{number}")), attempts, trouble, happens).await;
        // Masters that are lost hold up an orderly end.
        let _ = timeout(WITHIN, locks.close()).await;
        return measured;
    }
    let urls = url::each(&url);
    attempt(|number| Rslock::new(urls.clone(), &format!("{lock}-{number}")), attempts, trouble, happens).await
}

/// Acquires and releases one lock after the other.
async fn attempt<L: MeasuredLock>(
    lock: impl Fn(u32) -> L,
    attempts: u32,
    trouble: Trouble,
    happens: impl Fn(),
) -> Outcome<(f64, Latency)> {
    // The first one connects.
    let first = lock(0);
    first.release(first.acquire().await?).await?;
    happens();
    let (mut succeeded, mut latency) = (0, Latency::new());
    for number in 1..=attempts {
        let lock = lock(number);
        if trouble == Trouble::Reset {
            happens();
        }
        let began = Instant::now();
        if let Ok(Ok(held)) = timeout(WITHIN, lock.acquire()).await {
            latency.record(u64::try_from(began.elapsed().as_nanos())?);
            succeeded += 1;
            let _ = timeout(WITHIN, lock.release(held)).await;
        }
        // Nothing is to be learnt from more of these.
        if succeeded == 0 && number >= ENOUGH_FAILURES {
            break;
        }
    }
    Ok((f64::from(succeeded) / f64::from(attempts) * 100.0, latency))
}

pub(crate) const OURS: &str = "redlock";
const SLOWER: Duration = Duration::from_millis(20);
const WITHIN: Duration = Duration::from_secs(1);
const ENOUGH_FAILURES: u32 = 3;
