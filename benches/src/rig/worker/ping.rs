//! Measures the round trips to a server that a hand-over takes at least, which no lock can beat.

use std::time::Duration;

use lock_testkit::now_ns;
use polylock::backend::LockUrl;
use rand::Rng;
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;
use tokio_postgres::Client as Session;
use zookeeper_client::Client;

use crate::data::{Outcome, Window};
use crate::rig::backends::{postgres, redis as redis_servers, zk as zk_servers};
use crate::rig::floor::{Bare, BareConnections, Floor};
use crate::rig::url;

pub(crate) enum Pinger {
    /// `PING`.
    Redis(MultiplexedConnection),
    /// `exists /`, which every server answers by itself.
    Zk(Client),
    /// Three empty queries, and two commits: a hand-over has to be on the disk, and its confirmation.
    Postgres(Session, Box<Bare>),
    /// Two swaps.
    Swaps(Box<Bare>),
}

impl Pinger {
    /// Connects, with a name that no other pinger uses.
    pub(crate) async fn connect(url: &str, name: &str) -> Outcome<Self> {
        Ok(match LockUrl::parse(url)?.scheme.as_str() {
            "zk" => Self::Zk(zk_servers::connect(url, SESSION).await?),
            "postgres" => {
                let one = BareConnections::open(&url::with_option(url, "pool", "1"), SESSION).await?;
                Self::Postgres(postgres::connect(url).await?, Box::new(one.floor(name, SESSION).await?))
            }
            "etcd" | "mysql" | "sqlite" | "s3" => {
                Self::Swaps(Box::new(BareConnections::open(url, SESSION).await?.floor(name, SESSION).await?))
            }
            _ => Self::Redis(redis_servers::connect(url, url::first_host(url)).await?),
        })
    }

    /// Sends a ping every few milliseconds in the window, and returns the times in nanoseconds.
    pub(crate) async fn measure(&mut self, window: Window) -> Outcome<Vec<u64>> {
        window.begins().await;
        let mut times = Vec::new();
        while !window.left().is_zero() {
            let began_ns = now_ns();
            self.round_trip().await?;
            times.push(now_ns() - began_ns);
            // Random, so that it does not resonate with the load.
            let pause = rand::rng().random_range(PAUSE.0..PAUSE.1);
            sleep(Duration::from_micros(pause)).await;
        }
        Ok(times)
    }

    async fn round_trip(&mut self) -> Outcome<()> {
        match self {
            Self::Redis(connection) => redis::cmd("PING").exec_async(connection).await?,
            Self::Zk(client) => drop(client.check_stat("/").await?),
            Self::Postgres(session, row) => {
                for _ in 0..3 {
                    session.batch_execute("").await?;
                }
                row.acquire().await?;
                row.release().await?;
            }
            Self::Swaps(value) => {
                value.acquire().await?;
                value.release().await?;
            }
        }
        Ok(())
    }
}

/// Microseconds; tokio's timer rounds up to the next millisecond.
const PAUSE: (u64, u64) = (1_000, 4_000);
const SESSION: Duration = Duration::from_secs(10);
