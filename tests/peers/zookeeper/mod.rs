//! Clients of other libraries for ZooKeeper.

use std::fmt;
use std::time::Duration;

use serde_json::json;

use super::Remote;
use super::program::{Kind, Program, millis};
use super::servers::Servers;

/// What there is to know of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Client {
    Curator,
    Kazoo,
    /// With `extra_lock_patterns=['lock-']`: it sees the nodes of Curator's layout, and Curator does not see its own.
    KazooWithPatterns,
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

    /// One that is ready to take the lock of this path by this recipe, in a session of this length: `mutex`, `read`, `write`,
    /// or `revocable`, a mutex of Curator that is made so.
    pub async fn start(self, servers: &Servers, session: Duration, path: &str, recipe: &str) -> Remote {
        let kind = if self == Self::Curator { Kind::ZooKeeperJava } else { Kind::ZooKeeperPython };
        let program = Program::start(kind, &servers.idle).await;
        let lock = json!({
            "client": self.to_string(),
            "server": servers.zk().await.connect_string(),
            "session": millis(session),
            "lock": path,
            "recipe": recipe,
        });
        Remote::new(program, lock)
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
