//! Every choice of the five masters fails in every way: what becomes of a lock, and what is left. How long it takes to
//! the millisecond is tested in virtual time.

use std::time::Duration;

use lock_core::{ErrorKind, Locks, Released};
use lock_redlock::RedlockConfig;
use lock_testkit::proxy::{Direction, Protocol};
use lock_testkit::{FaultProxy, RedisFive, RedisServer};
use tokio::time::{Instant, sleep, timeout};

const MASTERS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(20);
/// Beyond what the options allow for: the machine may be busy.
const SLACK: Duration = Duration::from_millis(1500);
/// Longer than a mask takes: what is left is not gone by itself.
const TTL: Duration = Duration::from_secs(60);

/// What happens to the masters of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Frozen: the connections stay, and nothing is answered.
    Stopped,
    /// Gone, with all that they had.
    Killed,
    /// Every connection is reset, and new ones are refused.
    Reset,
    /// Every answer comes later than the deadlines allow, and before the connection would be given up.
    Slow,
}

impl Fault {
    /// How long an answer is waited for, and a connection.
    const fn timeout(self) -> Duration {
        match self {
            Self::Slow => Duration::from_secs(3),
            _ => Duration::from_millis(400),
        }
    }
}

/// Five masters that are reused, each behind a proxy.
struct Site {
    five: RedisFive,
    proxies: Vec<FaultProxy>,
}

impl Site {
    async fn new() -> Self {
        let five = RedisServer::builder().appendonly(true).start_n(MASTERS).await.unwrap();
        let start = |server: &RedisServer| FaultProxy::start(server.addr(), Protocol::Redis).unwrap();
        let proxies = five.servers().iter().map(start).collect();
        Self { five, proxies }
    }

    async fn connect(&self, timeout: Duration) -> Locks {
        let addrs: Vec<_> = self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        let (ttl, timeout) = (TTL.as_millis(), timeout.as_millis());
        let options =
            format!("ttl={ttl}ms&longest_ttl={ttl}ms&master_timeout={timeout}ms&connect_timeout={timeout}ms");
        let config = RedlockConfig::from_url(&format!("redlock://{}?{options}", addrs.join(","))).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match config.clone().connect().await {
                Ok(locks) => return locks,
                // The timeouts are short for a machine that is busy.
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }

    fn hurt(&self, mask: u32, fault: Fault) {
        for number in numbers(mask) {
            match fault {
                Fault::Stopped => self.five.servers()[number].stop(),
                Fault::Killed => self.five.servers()[number].kill(),
                Fault::Reset => {
                    self.proxies[number].refuse(true);
                    self.proxies[number].rst();
                }
                Fault::Slow => self.proxies[number].delay(Direction::ToClient, SLOW),
            }
        }
    }

    async fn mend(&self, mask: u32, fault: Fault) {
        for number in numbers(mask) {
            match fault {
                Fault::Stopped => self.five.servers()[number].cont(),
                Fault::Killed => self.five.servers()[number].start_again().await.unwrap(),
                Fault::Reset | Fault::Slow => self.proxies[number].heal(),
            }
        }
    }

    /// No key of the lock is on these masters, or soon none is.
    async fn nothing_is_left(&self, mask: u32, name: &str, story: &str) {
        for number in numbers(mask) {
            let deadline = Instant::now() + PATIENCE;
            while let left = self.keys(number, name).await
                && !left.is_empty()
            {
                assert!(Instant::now() < deadline, "{story}: master {number} keeps {left:?}");
                sleep(Duration::from_millis(10)).await;
            }
        }
    }

    async fn keys(&self, number: usize, name: &str) -> Vec<String> {
        let keys = self.five.servers()[number].command(&["KEYS", &format!("*{name}*")]).await.unwrap();
        let keys = keys.array().unwrap_or_default().iter().filter_map(|key| key.text().map(str::to_owned));
        keys.filter(|key| !key.starts_with("polylock:tokens")).collect()
    }
}

fn numbers(mask: u32) -> impl Iterator<Item = usize> {
    (0..MASTERS).filter(move |number| mask & (1 << number) != 0)
}

/// By how much an answer is late.
const SLOW: Duration = Duration::from_millis(300);
const ALL: u32 = (1 << MASTERS) - 1;

/// Every mask, once with the fault before the lock is asked for and once while it is held.
async fn every_mask(fault: Fault) {
    let mut site = Site::new().await;
    for mask in 0..=ALL {
        one_mask(&site, mask, fault).await;
        if fault == Fault::Killed {
            // Those that have restarted do not vote for long.
            site = Site::new().await;
        }
    }
}

async fn one_mask(site: &Site, mask: u32, fault: Fault) {
    // The longest that an answer, or a connection, is waited for.
    let most = fault.timeout() * 2 + SLACK;
    let (few, story) = (mask.count_ones() <= 2, format!("{fault:?} {mask:05b}"));
    // Who is only late is waited for.
    let works = few || fault == Fault::Slow;
    let (locks, name) = (site.connect(fault.timeout()).await, format!("m{mask}x"));
    let held = locks.mutex(format!("{name}h")).acquire().await.unwrap();

    site.hurt(mask, fault);
    let started = Instant::now();
    let asked = timeout(PATIENCE, locks.mutex(format!("{name}a")).try_acquire()).await.unwrap();
    let took = started.elapsed();
    assert!(took < most, "{story}: the answer took {took:?}");
    match asked {
        Ok(Some(guard)) => {
            assert!(works, "{story}: granted by a minority");
            let started = Instant::now();
            let released = timeout(PATIENCE, guard.release()).await.unwrap();
            assert_eq!(released.unwrap(), Released::Released, "{story}");
            assert!(started.elapsed() < most, "{story}: the release took {:?}", started.elapsed());
        }
        Ok(None) => panic!("{story}: nobody else has the lock"),
        Err(error) => {
            assert!(!works, "{story}: {error}");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{story}: {error}");
        }
    }
    if works {
        let extended = timeout(PATIENCE, held.extend(TTL)).await.unwrap();
        assert!(extended.is_ok(), "{story}: {extended:?}");
    }
    assert!(held.is_valid(), "{story}: a failed request unlocks nothing");
    let started = Instant::now();
    let released = timeout(PATIENCE, held.release()).await.unwrap();
    assert!(started.elapsed() < most, "{story}: the release took {:?}", started.elapsed());
    match released {
        Ok(released) => assert_eq!(released, Released::Released, "{story}"),
        Err(error) => assert!(!works && error.is_retryable(), "{story}: {error}"),
    }
    site.nothing_is_left(ALL & !mask, &name, &story).await;
    site.mend(mask, fault).await;
    site.nothing_is_left(mask, &name, &story).await;
    locks.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: all combinations of masters"]
async fn stopped_masters() {
    every_mask(Fault::Stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: all combinations of masters"]
async fn killed_masters() {
    every_mask(Fault::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: all combinations of masters"]
async fn reset_masters() {
    every_mask(Fault::Reset).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: all combinations of masters"]
async fn slow_masters() {
    every_mask(Fault::Slow).await;
}
