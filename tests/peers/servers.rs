//! The servers that the clients of all libraries share.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_testkit::redis::Reply;
use lock_testkit::{RedisFive, RedisServer, ZooKeeper, until};
use tokio::sync::OnceCell;
use tokio::time::sleep;

use super::program::Idle;

/// Servers that are started when they are first needed, and the programs that talk to them.
#[derive(Debug, Default)]
pub struct Servers {
    // The programs go before the servers that they are connected to.
    pub idle: Arc<Idle>,
    one: OnceCell<RedisFive>,
    five: OnceCell<RedisFive>,
    zk: OnceCell<ZooKeeper>,
}

impl Servers {
    pub async fn zk(&self) -> &ZooKeeper {
        let start = || async { ZooKeeper::start().await.unwrap_or_else(|error| panic!("{error}")) };
        self.zk.get_or_init(start).await
    }

    /// The nodes of those who hold or wait for the lock of this path.
    pub async fn nodes(&self, lock: &str) -> Vec<String> {
        let dump = self.zk().await.four_letter("dump").await.unwrap_or_else(|error| panic!("{error}"));
        let nodes = dump.lines().filter_map(|line| line.trim().strip_prefix(lock)?.strip_prefix('/'));
        nodes.map(str::to_owned).collect()
    }
}

/// One Redis server, or the masters of a Redlock.
#[derive(Clone, Debug)]
pub struct Site {
    pub servers: Arc<Servers>,
    pub masters: usize,
}

impl Site {
    async fn all(&self) -> &[RedisServer] {
        let start = || async {
            let started = RedisServer::builder().start_n(self.masters).await;
            started.unwrap_or_else(|error| panic!("{error}"))
        };
        let cell = if self.masters == 1 { &self.servers.one } else { &self.servers.five };
        cell.get_or_init(start).await.servers()
    }

    /// `redis://host:port` of each server.
    pub async fn urls(&self) -> Vec<String> {
        self.all().await.iter().map(RedisServer::url).collect()
    }

    /// `host:port,host:port,...`
    pub async fn addrs(&self) -> String {
        let addrs: Vec<_> = self.all().await.iter().map(|server| server.addr().to_string()).collect();
        addrs.join(",")
    }

    /// What every server answers to a command.
    pub async fn everywhere(&self, command: &[&str]) -> Vec<Reply> {
        let mut replies = Vec::new();
        for server in self.all().await {
            replies.push(server.command(command).await.unwrap_or_else(|error| panic!("{error}")));
        }
        replies
    }

    /// What the first server answers to a command.
    pub async fn first(&self, command: &[&str]) -> Reply {
        self.all().await[0].command(command).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Has every server do this.
    pub async fn does(&self, command: &[&str]) {
        for reply in self.everywhere(command).await {
            assert!(!reply.is_error(), "{command:?}: {reply:?}");
        }
    }

    /// Adds one to a counter beside a lock, as only a holder may.
    pub async fn update_counter(&self, lock: &str) {
        let count = self.read_counter(lock).await;
        // Time: another holder would read the same number meanwhile.
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
        let is_everywhere =
            async || self.everywhere(&["EXISTS", key]).await.iter().all(|exists| exists.int() == Some(1));
        until("all masters have the key", is_everywhere).await;
        for server in &self.all().await[..(self.masters - 1) / 2] {
            server.call(&["DEL", key]).await;
        }
    }

    /// Whether so many servers are enough to hold a lock.
    pub fn is_quorum(&self, count: usize) -> bool {
        count > self.masters / 2
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
}
