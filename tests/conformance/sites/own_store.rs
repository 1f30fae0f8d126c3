//! The store of leases of one's own, from the examples.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Support;
use lock_core::{Capabilities, LeaseKind, Locks};
use lock_testkit::conformance::{Fault, Harness, OF_CONNECTIONS};
use serde_json::Value;
use tempfile::TempDir;

use super::{Flavour, connect, directory_in_memory, worker};

#[allow(dead_code, reason = "the example shows more than the suite needs")]
#[path = "../../../examples/own_store/store.rs"]
mod store;

const SCHEME: &str = "own-store://";

/// A directory, which is deleted with the last harness of it.
#[derive(Clone, Debug)]
pub struct OwnStoreHarness(Arc<TempDir>);

impl OwnStoreHarness {
    pub fn new() -> Self {
        Self(Arc::new(directory_in_memory()))
    }

    fn url(&self, lease: Duration) -> String {
        format!("{SCHEME}{}?{}", self.0.path().display(), lease.as_millis())
    }
}

/// A client of the store of this URL.
pub fn open(url: &str) -> lock_core::Result<Locks> {
    let (path, ttl) = url.trim_start_matches(SCHEME).split_once('?').expect("the URL is of a harness");
    // Time: as the URL says.
    store::connect(Path::new(path), Duration::from_millis(ttl.parse().expect("the ttl is a number")))
}

#[async_trait]
impl Harness for OwnStoreHarness {
    fn name(&self) -> &str {
        "own-store::dyn"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(
            "directory",
            // Time: the shortest that the store takes.
            LeaseKind::ttl(Duration::from_secs(10), Duration::from_millis(100)),
        );
        (capabilities.fifo, capabilities.counts_waiters, capabilities.names_sharers) = (true, true, true);
        (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        capabilities.breaks_one = Support::Yes;
        capabilities
    }

    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        match case {
            "odd_names_are_distinct_locks" => Some("the names of files are shorter"),
            "a_waiter_in_the_store_that_is_not_polled_stops_nobody" => {
                Some("it asks so often that one of its requests may be under way, and be granted")
            }
            _ if OF_CONNECTIONS.contains(&case) => {
                Some("a directory has no connection to cut, and no server to restart")
            }
            _ => None,
        }
    }

    fn longest_name(&self) -> usize {
        store::LONGEST_NAME
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        connect(Flavour::Dyn, self.url(lease)).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        worker(Flavour::Dyn, &self.url(lease))
    }

    /// Holders and waiters, also those whose time is over.
    async fn leftovers(&self, part: &str) -> Vec<String> {
        let files = fs::read_dir(self.0.path()).expect("the directory exists");
        let mut left = Vec::new();
        for file in files.map(|file| file.expect("the directory can be read").path()) {
            if !file.to_string_lossy().contains(part) || file.extension().is_none_or(|kind| kind != "json") {
                continue;
            }
            let Ok(json) = fs::read(&file) else { continue };
            let record: Value = serde_json::from_slice(&json).expect("the file has a record");
            let parties =
                ["holders", "queue"].into_iter().flat_map(|list| record[list].as_array().into_iter());
            left.extend(parties.flatten().map(|party| format!("{}: {party}", file.display())));
        }
        left
    }

    async fn delete_behind_the_back(&self, name: &str) {
        fs::remove_file(self.0.path().join(format!("{name}.json"))).expect("the lock is held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        unreachable!("the cases with connections are left out")
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::new())
    }

    async fn fault(&self, fault: Fault) {
        unreachable!("the cases with {fault:?} are left out")
    }

    async fn restart(&self) {
        unreachable!("the cases with a restart are left out")
    }
}
