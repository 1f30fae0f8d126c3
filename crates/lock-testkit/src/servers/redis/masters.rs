//! Independent Redis masters, for Redlock.

use std::thread;

use super::{RedisOptions, RedisServer, userinfo};
use crate::error::Result;
use crate::servers::process::off_thread;

/// Independent Redis masters, for Redlock; five by default.
#[derive(Debug)]
pub struct RedisFive {
    servers: Vec<RedisServer>,
    password: Option<String>,
}

impl RedisFive {
    /// Starts five servers with default options.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`]; when one server fails none stays.
    pub async fn start() -> Result<Self> {
        Self::start_n(5).await
    }

    /// Starts `n` servers with default options. [`RedisOptions::start_n`] does so with others.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`]; when one server fails none stays.
    pub async fn start_n(n: usize) -> Result<Self> {
        RedisServer::builder().start_n(n).await
    }

    /// As after their first locks. A master without any key looks restarted, and does not vote for a while, to whoever connects
    /// while others acquire the first ones.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::command`].
    pub async fn have_been_used(&self) -> Result<()> {
        for server in &self.servers {
            server.command(&["SET", "polylock:tokens:used", "1"]).await?;
        }
        Ok(())
    }

    /// `redlock://host:port,host:port,...`, with the password when there is one.
    pub fn url(&self) -> String {
        let addrs: Vec<_> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        format!("redlock://{}{}", userinfo(self.password.as_deref()), addrs.join(","))
    }

    /// The servers, in the order of the URL.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }
}

impl RedisOptions {
    /// Starts `n` independent servers in parallel.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start); when one server fails none stays.
    pub async fn start_n(self, n: usize) -> Result<RedisFive> {
        off_thread(move || {
            let password = self.password.clone();
            let starts: Vec<_> = (0..n)
                .map(|_| {
                    let options = self.clone();
                    thread::spawn(move || options.start_blocking())
                })
                .collect();
            // Waits for all, even when one fails: none may start later.
            let started: Vec<_> =
                starts.into_iter().map(|start| start.join().expect("a start does not panic")).collect();
            let servers = started.into_iter().collect::<Result<_>>()?;
            Ok(RedisFive { servers, password })
        })
        .await
    }
}
