//! Clients of other libraries for ZooKeeper, and the server that we share with them.

mod site;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::peers::program::{Kind, Program, millis};
pub use site::Site;

/// What there is to know of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Client {
    Curator,
    Kazoo,
    /// With `extra_lock_patterns=['lock-']`: it sees the nodes of Curator's layout, and Curator does not see its own.
    KazooWithPatterns,
}

/// A lock of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ZkRecipe {
    /// `InterProcessMutex`, `Lock`.
    Mutex,
    /// `InterProcessMutex` that is made revocable.
    Revocable,
    /// Of `InterProcessReadWriteLock`; `ReadLock`.
    Read,
    /// Of `InterProcessReadWriteLock`; `WriteLock`.
    Write,
}

/// A client of another library in a process of its own, with one lock at a time.
pub struct Peer {
    client: Client,
    server: String,
    session: Duration,
    program: Program,
}

impl Client {
    pub const ALL: [Self; 3] = [Self::Curator, Self::Kazoo, Self::KazooWithPatterns];

    /// Those whose read/write locks are in the same layout.
    pub const SHARING: [Self; 2] = [Self::Curator, Self::Kazoo];

    /// The value of our URL option `layout` that makes nodes which the client understands.
    pub const fn layout(self) -> &'static str {
        match self {
            Self::Curator | Self::KazooWithPatterns => "curator",
            Self::Kazoo => "kazoo",
        }
    }

    /// One that is ready to take locks, in sessions of this length.
    pub async fn start(self, site: &Site, session: Duration) -> Peer {
        let kind = if self == Self::Curator { Kind::ZooKeeperJava } else { Kind::ZooKeeperPython };
        let program = Program::start(kind, &site.idle).await;
        Peer { client: self, server: site.addr().await, session, program }
    }
}

impl Peer {
    /// Acquires the lock of this path if it is free within `wait`, and says whether it did.
    pub async fn acquire(&mut self, lock: &str, recipe: ZkRecipe, wait: Duration) -> bool {
        self.call(lock, wait, json!({ "call": "acquire", "recipe": recipe.to_string() })).await
    }

    /// Releases the lock, and says whether it was still its own, as far as the client knows.
    pub async fn release(&mut self) -> bool {
        self.program.call(json!({ "call": "release" }), Duration::ZERO).await
    }

    /// Asks the holder of this lock to give it up.
    pub async fn revoke(&mut self, lock: &str) -> bool {
        self.call(lock, Duration::ZERO, json!({ "call": "revoke" })).await
    }

    /// Whether it is asked to give its lock up within that time.
    pub async fn is_revoked(&mut self, wait: Duration) -> bool {
        self.program.call(json!({ "call": "is_revoked", "wait": millis(wait) }), wait).await
    }

    /// Acquires and releases the lock so many times, by each recipe in turn; waits up to `wait` every time. What
    /// happened is appended to the history.
    pub async fn work(
        &mut self,
        lock: &str,
        recipes: &[ZkRecipe],
        rounds: usize,
        wait: Duration,
        (process, history): (u32, &Path),
    ) -> bool {
        let recipes: Vec<_> = recipes.iter().map(ZkRecipe::to_string).collect();
        let more = json!({
            "call": "work",
            "recipes": recipes.join(","),
            "rounds": rounds,
            "process": process,
            "history": history,
        });
        self.call(lock, wait, more).await
    }

    /// Ends the process by SIGKILL.
    pub fn kill(self) {
        self.program.kill();
    }

    async fn call(&mut self, lock: &str, wait: Duration, more: Value) -> bool {
        let mut request = json!({
            "client": self.client.to_string(),
            "server": self.server,
            "session": millis(self.session),
            "lock": lock,
            "wait": millis(wait),
        });
        if let (Value::Object(request), Value::Object(more)) = (&mut request, more) {
            request.extend(more);
        }
        self.program.call(request, wait).await
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Curator => "curator",
            Self::Kazoo => "kazoo",
            Self::KazooWithPatterns => "kazoo-with-patterns",
        })
    }
}

impl fmt::Display for ZkRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mutex => "mutex",
            Self::Revocable => "revocable",
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}
