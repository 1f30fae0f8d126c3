//! Finds out which servers have the locks, or may have them after a failover.

use std::sync::Arc;

use futures_util::future::join_all;
use lock_core::Result;
use redis::{ConnectionAddr, Pipeline};

use crate::connect::link::{Link, Route};
use crate::connect::topology::host_and_port;
use crate::route::client::RedisClient;
use crate::scripts::wire;

impl RedisClient {
    /// The masters and the replicas that are connected to them, each as host and port or as the path of a socket. A master that
    /// does not answer is named without its replicas, while another one answers.
    ///
    /// # Errors
    ///
    /// When no master answers.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn servers(&self) -> Result<Vec<String>> {
        let masters = match self.masters().await {
            Ok(masters) => masters,
            // A cluster that is down has servers that answer all the same.
            Err(_) => self.links().await?,
        };
        let looks = join_all(masters.iter().map(|master| self.with_replicas(master))).await;
        let (mut servers, mut silent, mut failed) = (Vec::new(), Vec::new(), None);
        for (master, look) in masters.iter().zip(looks) {
            match look {
                Ok(found) => servers.extend(found),
                Err(error) => {
                    failed = Some(error);
                    if let Route::Fixed(info) = master.route() {
                        silent.push(host_and_port(info.addr()));
                    }
                }
            }
        }
        match failed {
            Some(error) if servers.is_empty() => Err(error),
            _ => Ok(servers.into_iter().chain(silent).collect()),
        }
    }

    async fn with_replicas(&self, master: &Arc<Link>) -> Result<Vec<String>> {
        let mut info = Pipeline::new();
        info.cmd("INFO").arg("replication");
        let answer = self.query_each(master, &info).await?.pop();
        // Without the right to INFO, only the master is known.
        let info = answer.and_then(|answer| wire::text(&answer.ok()?)).unwrap_or_default();
        let at = host_and_port(master.at().await?.addr());
        Ok(replicas(&info).chain([at]).collect())
    }
}

/// The replicas in the answer to INFO, which are its fields such as `slave0:ip=10.0.0.2,port=6379,state=online`.
fn replicas(info: &str) -> impl Iterator<Item = String> {
    info.lines().filter_map(|line| {
        let (field, replica) = line.split_once(':')?;
        field.strip_prefix("slave")?.parse::<usize>().ok()?;
        let part = |name: &str| replica.split(',').find_map(|part| part.strip_prefix(name));
        let (host, port) = (part("ip=")?, part("port=")?.parse().ok()?);
        Some(host_and_port(&ConnectionAddr::Tcp(host.to_owned(), port)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_named_by_host_and_port() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:3\r\nslave_repl_offset:1\r\n\
             slave0:ip=10.0.0.2,port=6379,state=online,offset=14,lag=1\r\nslave1:ip=::1,port=7,state=wait_bgsave\r\n\
             slave2:state=online\r\n";
        assert_eq!(replicas(info).collect::<Vec<_>>(), ["10.0.0.2:6379", "[::1]:7"]);
    }
}
