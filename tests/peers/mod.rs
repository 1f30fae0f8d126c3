//! The lock clients of other libraries, as peers that do what a test says.

pub mod program;
pub mod redis;
pub mod servers;
pub mod zookeeper;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use program::{Program, millis};

/// A client of another library, with one lock at a time: in this process, or [`Remote`].
#[async_trait]
pub trait Peer: Send {
    /// Acquires the lock if it is free within `wait`, and says whether it did. Without a `ttl` it never ends by itself.
    async fn acquire_for(&mut self, ttl: Option<Duration>, wait: Duration) -> bool;

    /// Acquires the lock for longer than any test takes.
    async fn acquire(&mut self, wait: Duration) -> bool {
        self.acquire_for(Some(LONG), wait).await
    }

    /// Releases the lock, and says whether it was still its own; `None` when the client does not tell.
    async fn release(&mut self) -> Option<bool>;

    /// Lets the lock end `ttl` from now, and says whether it was still its own.
    async fn extend(&mut self, ttl: Duration) -> bool;

    /// Whether the last acquire failed because the lock is of a type that the client does not use.
    async fn met_another_type(&mut self) -> bool {
        false
    }

    /// Releases the lock whoever holds it, as the client's own call for operators does.
    async fn reset(&mut self) -> bool {
        false
    }
}

/// Longer than any test.
pub const LONG: Duration = Duration::from_secs(60);

/// A client in a process of its own.
pub struct Remote {
    program: Program,
    /// What a request for its lock names: the client, its servers, the lock.
    lock: Value,
}

impl Remote {
    pub fn new(program: Program, lock: Value) -> Self {
        Self { program, lock }
    }

    /// Ends the process by SIGKILL.
    pub fn kill(self) {
        self.program.kill();
    }

    /// Asks the holder of the lock to give it up.
    pub async fn revoke(&mut self) -> bool {
        self.about_lock(json!({ "call": "revoke" }), Duration::ZERO).await
    }

    /// Whether it is asked to give its lock up within that time.
    pub async fn is_revoked(&mut self, wait: Duration) -> bool {
        self.program.call(json!({ "call": "is_revoked", "wait": millis(wait) }), wait).await
    }

    /// Acquires and releases the lock so many times, by each of these recipes in turn. What happened is appended to the
    /// history.
    pub async fn work(&mut self, recipes: &str, rounds: usize, process: u32, history: &Path) -> bool {
        let work = json!({
            "call": "work", "recipes": recipes, "rounds": rounds, "process": process, "history": history, "wait": millis(LONG),
        });
        self.about_lock(work, LONG).await
    }

    async fn about_lock(&mut self, mut request: Value, wait: Duration) -> bool {
        if let (Value::Object(request), Value::Object(lock)) = (&mut request, &self.lock) {
            for (key, value) in lock {
                request.entry(key).or_insert_with(|| value.clone());
            }
        }
        self.program.call(request, wait).await
    }

    async fn call(&mut self, call: &str) -> bool {
        self.program.call(json!({ "call": call }), Duration::ZERO).await
    }
}

#[async_trait]
impl Peer for Remote {
    async fn acquire_for(&mut self, ttl: Option<Duration>, wait: Duration) -> bool {
        let acquire = json!({ "call": "acquire", "ttl": ttl.map(millis), "wait": millis(wait) });
        self.about_lock(acquire, wait).await
    }

    async fn release(&mut self) -> Option<bool> {
        Some(self.call("release").await)
    }

    async fn extend(&mut self, ttl: Duration) -> bool {
        self.program.call(json!({ "call": "extend", "ttl": millis(ttl) }), Duration::ZERO).await
    }

    async fn met_another_type(&mut self) -> bool {
        self.call("met_another_type").await
    }

    async fn reset(&mut self) -> bool {
        self.call("reset").await
    }
}
