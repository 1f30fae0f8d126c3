//! Servers between two tests: a JVM takes longer to start than most tests to run.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ZooKeeper;
use crate::error::Result;
use crate::process::remove_at_exit;

/// A server with default options for one test after the other.
///
/// It ends when it is dropped, as any other. A test that has left it as it found it [returns](Self::give_back) it to the tests
/// of the same process.
#[derive(Debug)]
pub struct Borrowed {
    server: ZooKeeper,
}

impl ZooKeeper {
    /// A server that another test of this process has returned, or else a new one.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn borrow() -> Result<Borrowed> {
        let idle = idle().pop();
        let server = match idle {
            Some(server) => server,
            None => {
                let server = Self::start().await?;
                // What is idle when the process ends is not dropped.
                remove_at_exit(server.inner.process.dir())?;
                server
            }
        };
        Ok(Borrowed { server })
    }
}

impl Borrowed {
    /// Leaves the server to the next test. Nothing may be on it: no session, no watch, no node.
    pub fn give_back(self) {
        idle().push(self.server);
    }
}

impl Deref for Borrowed {
    type Target = ZooKeeper;

    fn deref(&self) -> &ZooKeeper {
        &self.server
    }
}

fn idle() -> MutexGuard<'static, Vec<ZooKeeper>> {
    static IDLE: Mutex<Vec<ZooKeeper>> = Mutex::new(Vec::new());
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}
