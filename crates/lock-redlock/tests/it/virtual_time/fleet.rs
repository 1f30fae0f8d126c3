//! Masters in memory, and how one client reaches them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use lock_core::{Clock, Locks};
use lock_redlock::redis::IntoConnectionInfo;
use lock_redlock::{MasterConfig, Redlock, RedlockConfig, StreamDial, WallClock};
use lock_testkit::fake::{FakeRedis, Faults, Link};
use lock_testkit::redis::Reply;

use super::{SECOND, away, cycle};

/// How long an answer is waited for, and a connection.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// Masters that have run for long.
pub(crate) struct Fleet {
    pub(crate) masters: Vec<FakeRedis>,
    /// Of each master: the link of the first connection, and that of the later ones.
    pub(crate) links: Vec<[Link; 2]>,
}

impl Fleet {
    pub(crate) async fn new(masters: u64) -> Self {
        let masters: Vec<_> = (0..masters).map(|number| FakeRedis::new().numbered(number)).collect();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let links = masters.iter().map(|redis| ["first", "later"].map(|label| redis.link(label, 0)));
        Self { links: links.collect(), masters }
    }

    /// Masters that have always answered at once, and so have short deadlines.
    pub(crate) async fn swift(masters: u64) -> (Self, Locks) {
        let fleet = Self::new(masters).await;
        fleet.set_all(&away(2));
        let locks = fleet.connect(60 * SECOND).await;
        for _ in 0..10 {
            cycle(&locks).await;
        }
        (fleet, locks)
    }

    /// For a client with locks of this time to live.
    pub(crate) fn config(&self, ttl: Duration) -> RedlockConfig {
        let clock = Clock::tokio();
        let masters = self.links.iter().enumerate().map(|(number, [first, later])| {
            let (first, later, was_there) = (first.clone(), later.clone(), AtomicBool::new(false));
            let connect = move || {
                if was_there.swap(true, Ordering::Relaxed) { later.connect() } else { first.connect() }
            };
            let info = format!("redis://master-{number}").into_connection_info().unwrap();
            MasterConfig::new(info).dial(Arc::new(StreamDial::new(TIMEOUT, connect)))
        });
        let wall_clock = {
            let clock = clock.clone();
            WallClock::new(move || UNIX_EPOCH + Duration::from_secs(1_700_000_000) + clock.now().since_boot())
        };
        RedlockConfig::new(masters)
            .clock(clock)
            .wall_clock(wall_clock)
            .ttl(ttl)
            .longest_ttl(ttl)
            .connect_timeout(TIMEOUT)
            .master_timeout(TIMEOUT)
    }

    pub(crate) async fn connect(&self, ttl: Duration) -> Locks {
        self.config(ttl).connect().await.unwrap()
    }

    /// The backend as well, for what locks do not show.
    pub(crate) async fn backend(&self, ttl: Duration) -> (Arc<Redlock>, Locks) {
        let backend = Arc::new(Redlock::connect(self.config(ttl)).await.unwrap());
        (Arc::clone(&backend), Locks::from_dyn(backend))
    }

    /// Lets nothing pass to and from this master for so long.
    pub(crate) fn stall(&self, master: usize, span: Duration) {
        self.links[master].iter().for_each(|link| link.stall(span));
    }

    pub(crate) fn resume(&self, master: usize) {
        self.links[master].iter().for_each(Link::resume);
    }

    pub(crate) fn set_faults(&self, master: usize, faults: &Faults) {
        self.links[master].iter().for_each(|link| link.set_faults(faults.clone()));
    }

    pub(crate) fn set_all(&self, faults: &Faults) {
        (0..self.links.len()).for_each(|master| self.set_faults(master, faults));
    }

    /// Executes a command on a master, as an operator or a client of another library does.
    pub(crate) fn command(&self, master: usize, line: &str) -> Reply {
        self.masters[master].command(&line.split(' ').collect::<Vec<_>>())
    }

    /// Whether no master has a key of the lock `a`.
    pub(crate) fn is_free(&self) -> bool {
        !(0..self.masters.len()).any(|master| self.has_key(master))
    }

    /// Whether a master has a key of the lock `a`.
    pub(crate) fn has_key(&self, master: usize) -> bool {
        self.masters[master].keys().iter().any(|key| key == "lock:a")
    }
}
