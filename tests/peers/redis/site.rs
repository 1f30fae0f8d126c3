//! Servers that the clients of all libraries share.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_testkit::redis::Reply;
use lock_testkit::{RedisFive, RedisServer};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::peers::program::Idle;

/// One Redis server.
pub const ONE: usize = 1;
/// The masters of a Redlock.
pub const FIVE: usize = 5;

/// Servers that are started when they are first needed, and the programs that talk to them.
#[derive(Debug)]
pub struct Site {
    // The programs go before the servers that they are connected to.
    pub(super) idle: Arc<Idle>,
    servers: OnceCell<RedisFive>,
    count: usize,
}

impl Site {
    pub fn new(count: usize) -> Self {
        Self { idle: Arc::default(), servers: OnceCell::new(), count }
    }

    /// `redis://host:port` of each server.
    pub async fn urls(&self) -> Vec<String> {
        self.servers().await.iter().map(RedisServer::url).collect()
    }

    /// `host:port,host:port,...`
    pub async fn addrs(&self) -> String {
        let addrs: Vec<_> = self.servers().await.iter().map(|server| server.addr().to_string()).collect();
        addrs.join(",")
    }

    /// What every server answers to a command.
    pub async fn everywhere(&self, command: &[&str]) -> Vec<Reply> {
        let mut replies = Vec::new();
        for server in self.servers().await {
            replies.push(server.command(command).await.unwrap_or_else(|error| panic!("{error}")));
        }
        replies
    }

    /// What the first server answers to a command.
    pub async fn first(&self, command: &[&str]) -> Reply {
        self.servers().await[0].command(command).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Adds one to a counter beside a lock, as only a holder may.
    pub async fn update_counter(&self, lock: &str) {
        let count = self.read_counter(lock).await;
        sleep(Duration::from_millis(5)).await;
        let reply = self.first(&["SET", &format!("counter/{lock}"), &(count + 1).to_string()]).await;
        assert_eq!(reply.text(), Some("OK"));
    }

    pub async fn read_counter(&self, lock: &str) -> usize {
        let count = self.first(&["GET", &format!("counter/{lock}")]).await.int();
        usize::try_from(count.unwrap_or_default()).unwrap()
    }

    /// Deletes a key on as many servers as may lose it while the others still hold the lock.
    pub async fn forget_on_minority(&self, key: &str) {
        // A client has the lock with a quorum; its other requests may still be on their way.
        while self.everywhere(&["EXISTS", key]).await.iter().any(|exists| exists.int() == Some(0)) {
            sleep(Duration::from_millis(1)).await;
        }
        for server in &self.servers().await[..(self.count - 1) / 2] {
            server.command(&["DEL", key]).await.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Whether so many servers are enough to hold a lock.
    pub fn is_quorum(&self, count: usize) -> bool {
        count > self.count / 2
    }

    /// Whether a lock ends by itself within `longest`, on a quorum: by the time to live of its key or, if it has none,
    /// at the time that is its value.
    pub async fn ends_within(&self, key: &str, longest: Duration) -> bool {
        let longest = i64::try_from(longest.as_millis()).unwrap();
        let (lasts, values) = (self.everywhere(&["PTTL", key]).await, self.everywhere(&["GET", key]).await);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = i64::try_from(now.as_millis()).unwrap();
        let left = lasts.iter().zip(&values).map(|(lasts, value)| match lasts.int().unwrap() {
            // The recipe adds one.
            -1 => value.int().unwrap_or_default() - now - 1,
            lasts => lasts,
        });
        self.is_quorum(left.filter(|left| (1..=longest).contains(left)).count())
    }

    async fn servers(&self) -> &[RedisServer] {
        let start = || async {
            let started = RedisServer::builder().start_n(self.count).await;
            started.unwrap_or_else(|error| panic!("{error}"))
        };
        self.servers.get_or_init(start).await.servers()
    }
}
