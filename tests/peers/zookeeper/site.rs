//! A server that the clients of all libraries share.

use std::sync::Arc;

use lock_testkit::ZooKeeper;
use tokio::sync::OnceCell;

use crate::peers::program::Idle;

/// A server that is started when it is first needed, and the programs that talk to it.
#[derive(Debug, Default)]
pub struct Site {
    // The programs go before the server that they are connected to.
    pub(super) idle: Arc<Idle>,
    server: OnceCell<ZooKeeper>,
}

impl Site {
    /// `host:port`
    pub async fn addr(&self) -> String {
        self.server().await.connect_string()
    }

    /// The nodes of those who hold or wait for the lock of this path.
    pub async fn nodes(&self, lock: &str) -> Vec<String> {
        let dump = self.server().await.four_letter("dump").await.unwrap_or_else(|error| panic!("{error}"));
        let nodes = dump.lines().filter_map(|line| line.trim().strip_prefix(lock)?.strip_prefix('/'));
        nodes.map(str::to_owned).collect()
    }

    async fn server(&self) -> &ZooKeeper {
        let start = || async { ZooKeeper::start().await.unwrap_or_else(|error| panic!("{error}")) };
        self.server.get_or_init(start).await
    }
}
