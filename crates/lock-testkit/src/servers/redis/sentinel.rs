//! A master with replicas, watched by sentinels.

use std::time::Duration;

use super::{RedisOptions, RedisServer};
use crate::error::Result;

/// A master, a replica, and three sentinels, which promote the replica when the master fails.
///
/// They know the master as [`NAME`](Self::NAME).
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisSentinel {
    /// After how long [`start`](Self::start) has them treat it as failed.
    pub const DOWN_AFTER: Duration = Duration::from_millis(500);
    /// The sentinels' name of the master.
    pub const NAME: &'static str = "mymaster";

    /// Starts a master with one replica, and three sentinels, which treat it as failed after
    /// [half a second](Self::DOWN_AFTER).
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`].
    pub async fn start() -> Result<Self> {
        Self::start_with(RedisServer::builder(), Self::DOWN_AFTER).await
    }

    /// Starts a master and one replica with these options, and three sentinels, which treat it as failed after this time.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`].
    pub async fn start_with(options: RedisOptions, down_after: Duration) -> Result<Self> {
        let master = options.clone().start().await?;
        let replica = options.replica_of(&master).start().await?;
        let file = format!(
            "sentinel monitor {name} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {name} {down_after}\n\
             sentinel failover-timeout {name} 3000\n\
             sentinel parallel-syncs {name} 1\n",
            name = Self::NAME,
            port = master.port(),
            down_after = down_after.as_millis()
        );
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(RedisServer::builder().sentinel(file.clone()).start().await?);
        }
        let started = Self { servers: vec![master, replica], sentinels };
        started.settled().await?;
        Ok(started)
    }

    /// `redis+sentinel://host:port,host:port,host:port/mymaster`.
    pub fn url(&self) -> String {
        let addrs: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
        format!("redis+sentinel://{}/{}", addrs.join(","), Self::NAME)
    }

    /// The initial master, and the replica.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The sentinels, in the order of the URL.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The master, according to the first sentinel that answers.
    pub async fn master(&self) -> Option<&RedisServer> {
        for sentinel in &self.sentinels {
            let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME];
            let Ok(reply) = sentinel.command(&ask).await else { continue };
            let port = reply.array().and_then(|parts| parts.get(1)).and_then(|port| port.int());
            return self.servers.iter().find(|server| Some(i64::from(server.port())) == port);
        }
        None
    }

    /// Waits until every sentinel knows the others and the replica, and the replica is in sync.
    async fn settled(&self) -> Result<()> {
        for sentinel in &self.sentinels {
            sentinel.wait_for_answer(&["INFO", "sentinel"], "slaves=1,sentinels=3").await?;
        }
        // Only then does the master replicate writes.
        self.servers[0].wait_for_answer(&["INFO", "replication"], "state=online").await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sentinels_promote_the_replica() {
        let sentinel = RedisSentinel::start().await.unwrap();
        let first = sentinel.master().await.unwrap().port();
        assert_eq!(first, sentinel.servers()[0].port());
        sentinel.servers()[0].kill();
        sentinel.servers()[1].wait_for_answer(&["INFO", "replication"], "role:master").await.unwrap();
    }
}
