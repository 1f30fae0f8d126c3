//! An empty round trip to a server: what nobody can be faster than.

use std::time::Duration;

use lock_testkit::now_ns;
use polylock::backend::LockUrl;
use rand::Rng;
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;
use zookeeper_client::Client;

use crate::address;
use crate::backends::redis::connect;
use crate::failure::Outcome;
use crate::floor::zk_session;
use crate::scenarios::contended::Window;

/// A connection that serves nothing else.
pub(crate) enum Probe {
    /// `PING`.
    Redis(MultiplexedConnection),
    /// Whether the root is there, which every server knows without the others.
    Zk(Client),
}

impl Probe {
    /// Connects to the first server of the URL.
    ///
    /// # Errors
    ///
    /// When it does not let us in.
    pub(crate) async fn connect(url: &str) -> Outcome<Self> {
        if LockUrl::parse(url)?.scheme == "zk" {
            return Ok(Self::Zk(zk_session(url, SESSION).await?));
        }
        let host = address::hosts(url).first().copied().unwrap_or_default();
        Ok(Self::Redis(connect(url, host).await?))
    }

    /// Measures round trips within the window, now and then, and gives their times in nanoseconds.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub(crate) async fn watch(&mut self, window: Window) -> Outcome<Vec<u64>> {
        window.begins().await;
        let mut times = Vec::new();
        while !window.left().is_zero() {
            let began_ns = now_ns();
            self.round_trip().await?;
            times.push(now_ns() - began_ns);
            // At random, so that it does not keep time with anybody.
            let pause = rand::rng().random_range(PAUSE.0..PAUSE.1);
            sleep(Duration::from_micros(pause)).await;
        }
        Ok(times)
    }

    async fn round_trip(&mut self) -> Outcome<()> {
        match self {
            Self::Redis(connection) => redis::cmd("PING").exec_async(connection).await?,
            Self::Zk(client) => drop(client.check_stat("/").await?),
        }
        Ok(())
    }
}

/// Microseconds; tokio's timer rounds up to the next millisecond.
const PAUSE: (u64, u64) = (1_000, 4_000);
const SESSION: Duration = Duration::from_secs(10);
