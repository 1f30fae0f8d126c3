//! Servers between two tests: a JVM takes longer to start than most tests to run.

use std::ops::Deref;
use std::sync::Mutex;

use lock_core::poison::lock;

use super::{ZkEnsemble, ZooKeeper};
use crate::error::Result;
use crate::servers::process::remove_at_exit;

/// A server, or an ensemble, for one test after the other.
///
/// It ends when it is dropped, as any other. A test that has left it as it found it returns it by `give_back` to the tests of the
/// same process.
#[derive(Debug)]
pub struct Borrowed<S> {
    servers: S,
}

impl ZooKeeper {
    /// A server with default options that another test of this process has returned, or else a new one.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn borrow() -> Result<Borrowed<Self>> {
        let idle = lock(&SERVERS).pop();
        let servers = match idle {
            Some(server) => server,
            None => {
                let server = Self::start().await?;
                // What is idle when the process ends is not dropped.
                remove_at_exit(server.inner.process.dir())?;
                server
            }
        };
        Ok(Borrowed { servers })
    }
}

impl ZkEnsemble {
    /// Three servers with [proxied links](super::ZkOptions::proxied_links), each of which may be silent for half a minute before it
    /// is dropped: those that another test of this process has returned, or else new ones.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn borrow() -> Result<Borrowed<Self>> {
        let idle = lock(&ENSEMBLES).pop();
        let servers = match idle {
            Some(ensemble) => ensemble,
            None => {
                let options = ZooKeeper::builder().proxied_links().config("syncLimit", "150");
                let ensemble = options.start_ensemble(3).await?;
                for node in ensemble.nodes() {
                    remove_at_exit(node.inner.process.dir())?;
                }
                ensemble
            }
        };
        Ok(Borrowed { servers })
    }
}

impl Borrowed<ZooKeeper> {
    /// Leaves the server to the next test. Nothing may be on it: no session, no watch, no node.
    pub fn give_back(self) {
        lock(&SERVERS).push(self.servers);
    }
}

impl Borrowed<ZkEnsemble> {
    /// Leaves the servers to the next test. All of them run, nothing is on them, and the links have no fault.
    pub fn give_back(self) {
        lock(&ENSEMBLES).push(self.servers);
    }
}

impl<S> Deref for Borrowed<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.servers
    }
}

static SERVERS: Mutex<Vec<ZooKeeper>> = Mutex::new(Vec::new());
static ENSEMBLES: Mutex<Vec<ZkEnsemble>> = Mutex::new(Vec::new());
