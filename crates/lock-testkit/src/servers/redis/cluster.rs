//! A Redis Cluster.

use super::RedisServer;
use crate::error::{Error, Result};

const SLOTS: usize = 16_384;

/// Masters that share the 16384 slots, each with one replica or none.
#[derive(Debug)]
pub struct RedisCluster {
    masters: Vec<RedisServer>,
    replicas: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three masters without replicas.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`].
    pub async fn start() -> Result<Self> {
        Self::start_n(3, false).await
    }

    /// Starts masters, with one replica each or none.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`].
    pub async fn start_n(masters: usize, replicas: bool) -> Result<Self> {
        let node = || RedisServer::builder().clustered().config("cluster-node-timeout", "1000").start();
        let mut cluster = Self { masters: Vec::new(), replicas: Vec::new() };
        for _ in 0..masters {
            cluster.masters.push(node().await?);
            if replicas {
                cluster.replicas.push(node().await?);
            }
        }
        cluster.form().await?;
        Ok(cluster)
    }

    /// `redis+cluster://host:port,host:port,...`.
    pub fn url(&self) -> String {
        let addrs: Vec<_> = self.masters.iter().map(|master| master.addr().to_string()).collect();
        format!("redis+cluster://{}", addrs.join(","))
    }

    /// The initial masters, in the order of their slots.
    pub fn masters(&self) -> &[RedisServer] {
        &self.masters
    }

    /// The initial replicas, in the order of their masters.
    pub fn replicas(&self) -> &[RedisServer] {
        &self.replicas
    }

    /// The id of a node in the cluster.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when it does not answer.
    pub async fn id(&self, node: &RedisServer) -> Result<String> {
        text_of(node, &["CLUSTER", "MYID"]).await
    }

    /// The slot of a key.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the first master does not answer.
    pub async fn slot(&self, key: &str) -> Result<u16> {
        let slot = self.masters[0].command(&["CLUSTER", "KEYSLOT", key]).await?;
        let slot = slot.int().and_then(|slot| u16::try_from(slot).ok());
        slot.ok_or_else(|| refused(&self.masters[0], "CLUSTER KEYSLOT", &slot))
    }

    async fn form(&self) -> Result<()> {
        let share = SLOTS.div_ceil(self.masters.len());
        for (at, master) in self.masters.iter().enumerate() {
            let slots: Vec<_> =
                (at * share..((at + 1) * share).min(SLOTS)).map(|slot| slot.to_string()).collect();
            let mut add = vec!["CLUSTER", "ADDSLOTS"];
            add.extend(slots.iter().map(String::as_str));
            text_of(master, &add).await?;
            text_of(master, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]).await?;
        }
        let nodes = || self.masters.iter().chain(&self.replicas);
        for node in nodes().skip(1) {
            let (port, bus) = (node.port().to_string(), node.bus_port().to_string());
            text_of(&self.masters[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
        }
        let known = format!("cluster_known_nodes:{}", self.masters.len() + self.replicas.len());
        for node in nodes() {
            node.wait_for_answer(&["CLUSTER", "INFO"], &known).await?;
        }
        for (replica, master) in self.replicas.iter().zip(&self.masters) {
            let id = self.id(master).await?;
            replica.wait_for_answer(&["CLUSTER", "NODES"], &id).await?;
            text_of(replica, &["CLUSTER", "REPLICATE", &id]).await?;
            // Only then does the master replicate writes.
            master.wait_for_answer(&["INFO", "replication"], "state=online").await?;
        }
        for node in nodes() {
            node.wait_for_answer(&["CLUSTER", "INFO"], "cluster_state:ok").await?;
        }
        Ok(())
    }
}

/// The text of an answer that is no error.
async fn text_of(node: &RedisServer, words: &[&str]) -> Result<String> {
    let reply = node.command(words).await?;
    reply
        .text()
        .filter(|_| !reply.is_error())
        .map(str::to_owned)
        .ok_or_else(|| refused(node, &words[..words.len().min(3)].join(" "), &reply))
}

fn refused(node: &RedisServer, what: &str, reply: &impl std::fmt::Debug) -> Error {
    Error::Protocol {
        peer: format!("redis-server on port {}", node.port()),
        what: format!("`{what}` was answered by {reply:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reply;
    use super::*;

    #[tokio::test]
    async fn a_cluster_with_replicas_forms() {
        let cluster = RedisCluster::start_n(3, true).await.unwrap();
        for master in cluster.masters() {
            let reply = master.command(&["INFO", "replication"]).await.unwrap();
            assert!(reply.text().is_some_and(|text| text.contains("connected_slaves:1")), "{reply:?}");
        }
        assert_eq!(cluster.slot("foo").await.unwrap(), 12182);
        assert!(matches!(cluster.masters()[0].command(&["GET", "foo"]).await.unwrap(), Reply::Error(_)));
    }
}
