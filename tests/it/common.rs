//! What several modules need: servers of each kind, the stores of a migration, runtimes, and what every error must have.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lock_testkit::{RedisFive, RedisServer, ZooKeeper, migration_url, soon};
use polylock::{Error, ErrorKind, Guard, Locks, Operator, Rung};
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

/// In no text of an error and in no log line.
pub(crate) const SECRET: &str = "s3cret-Pa55";

/// A server of each kind.
pub(crate) struct Servers {
    pub(crate) redis: RedisServer,
    pub(crate) masters: RedisFive,
    pub(crate) zk: ZooKeeper,
}

impl Servers {
    pub(crate) async fn start() -> Self {
        let (redis, masters, zk) =
            tokio::try_join!(RedisServer::start(), RedisFive::start(), ZooKeeper::start()).unwrap();
        Self { redis, masters, zk }
    }

    /// The URLs of all, with these options of Redis and Redlock, and those of ZooKeeper.
    pub(crate) fn urls(&self, redis: &str, zk: &str) -> [String; 3] {
        let of =
            |url: String, options: &str| if options.is_empty() { url } else { format!("{url}?{options}") };
        [of(self.redis.url(), redis), of(self.masters.url(), redis), of(self.zk.url(), zk)]
    }
}

/// The stores of a migration, by the URL of the old one.
pub(crate) struct Stores<Redis = RedisServer> {
    pub(crate) redis: Redis,
    pub(crate) from: String,
    pub(crate) zk: ZooKeeper,
}

impl<Redis: Sync> Stores<Redis> {
    pub(crate) async fn with(redis: Redis, from: String) -> Self {
        Self { redis, from, zk: ZooKeeper::start().await.unwrap() }
    }

    /// A process that stays on this rung, or follows the record.
    pub(crate) async fn process(&self, rung: Option<Rung>) -> Locks {
        let rung = rung.map(|rung| format!("&rung={rung}")).unwrap_or_default();
        self.open(&rung).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// A process with these options, such as `&rung=old`.
    pub(crate) async fn open(&self, options: &str) -> polylock::Result<Locks> {
        Locks::connect(&migration_url("shop", &self.from, &self.to(), options)).await
    }

    pub(crate) fn to(&self) -> String {
        format!("{}?session_timeout=10s&session=private", self.zk.url())
    }

    pub(crate) async fn operator(&self) -> Operator {
        let store = |url: &str| Arc::clone(Locks::connect_lazy(url).unwrap().backend());
        Operator::connect("shop", store(&self.from), store(&self.to())).await.unwrap()
    }
}

/// Acquires the lock, in spite of an outage that can pass.
pub(crate) async fn take_at_last(locks: &Locks, name: &str) -> Guard {
    soon(async {
        loop {
            match locks.mutex(name).acquire().await {
                Ok(guard) => return guard,
                Err(error) => passes(&error).await,
            }
        }
    })
    .await
}

/// A client, in spite of an outage that can pass.
pub(crate) async fn connect_at_last(url: &str) -> Locks {
    soon(async {
        loop {
            match Locks::connect(url).await {
                Ok(locks) => return locks,
                Err(error) => passes(&error).await,
            }
        }
    })
    .await
}

/// Waits a little, as this error can pass.
pub(crate) async fn passes(error: &Error) {
    assert!(error.is_retryable(), "{error}");
    // Time: it asks again.
    sleep(Duration::from_millis(20)).await;
}

pub(crate) fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime that runs while its owner does something else.
pub(crate) fn in_background() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The text names a way out, and is one line without secrets.
pub(crate) fn must_help(error: &Error, kind: ErrorKind) -> String {
    hides_the_secret(error);
    let text = error.to_string();
    assert!(!text.contains(SECRET), "the text shows a password: {text}");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(text.contains("; "), "the text names no way out: {text}");
    assert!(!text.contains('\n'), "the text has more than one line: {text}");
    text
}

pub(crate) fn hides_the_secret(shown: &impl Debug) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!text.contains(SECRET), "shows the password: {text}");
    }
}
