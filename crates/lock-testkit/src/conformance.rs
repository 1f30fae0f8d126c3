//! The conformance suite: what every backend promises, as named cases that run on any of them.
//!
//! A backend is put to the test through a [`Harness`]: how to connect to it, how to look behind its back, and how to
//! break what lies between it and its servers. [`trials`] makes one [`Trial`] of every case that the backend's
//! [`Capabilities`] call for, and [`left_out`] tells which cases they excuse and why; there is no other way for a case
//! not to run.
//!
//! With a test target of `harness = false` and the crate `libtest-mimic`:
//!
//! ```ignore
//! fn main() {
//!     let harness: Arc<dyn Harness> = Arc::new(MyHarness);
//!     let trials = conformance::trials(&harness).into_iter().map(|trial| {
//!         libtest_mimic::Trial::test(trial.name().to_owned(), move || {
//!             trial.run();
//!             Ok(())
//!         })
//!     });
//!     libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
//! }
//! ```
//!
//! A write lock, and a semaphore of one permit, are mutexes too: a harness says by its [`Handle`] by which of them cases
//! take a lock that is for one at a time, and so the whole suite can be run on each.
//!
//! Times in the cases are bounds for a noisy machine: nothing here measures speed.

#[cfg(test)]
mod broken_locks;
mod cancellation;
mod cases;
mod client;
mod closing;
mod downgrade;
mod exclusion;
mod faults;
mod helpers;
mod inspection;
mod lifetime;
mod memory_harness;
mod modes;
mod names;
mod options;
mod permits;
mod processes;
mod readers;
mod release;
mod revocation;
mod sharers;
mod tokens;
mod waiting;
mod worker;

use std::num::NonZeroU32;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Capabilities, Locks, Mode};
use serde::{Deserialize, Serialize};

pub use self::cases::{CASES, Case, CaseFuture, Trial, left_out, trials};
pub use self::memory_harness::{Connect, Connecting, MemoryHarness};
pub use self::worker::serve;

/// A backend under test.
///
/// A hook that cannot do its work panics with the reason: the case fails then, it is never skipped. Hooks for servers
/// are not called on a backend whose [`Capabilities::cross_process`] is off.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// What the names of the trials begin with, such as `redis::typed`.
    fn name(&self) -> &str;

    /// By what the cases take a lock that is for one at a time.
    fn handle(&self) -> Handle {
        Handle::Mutex
    }

    /// What clients of this harness are going to say that they can do. The case `capabilities_are_as_declared` compares
    /// it with what they say; the times in it are free.
    fn capabilities(&self) -> Capabilities;

    /// A lease or session timeout as short as this machine can keep reliably.
    fn short_lease(&self) -> Duration;

    /// A new client, as another process would be one, whose locks outlive it by `lease`: the default ttl or the session
    /// timeout.
    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks>;

    /// A command that runs [`serve`] in a process of its own, on such a client.
    async fn worker(&self, lease: Duration) -> Command {
        panic!("{} has no workers (asked for one with a lease of {lease:?})", self.name())
    }

    /// What the store keeps for the locks whose name contains `part`, besides what is meant to stay (fencing counters,
    /// empty directories). Seen from the server where there is one.
    async fn leftovers(&self, part: &str) -> Vec<String>;

    /// Removes a lock that is held, as an operator does who knows nothing of this library.
    async fn delete_behind_the_back(&self, name: &str);

    /// The same store, reached by connections of its own that [`fault`](Self::fault) can break.
    async fn link(&self) -> Box<dyn Harness>;

    /// A store of its own: nobody else is disturbed when it is restarted or closed.
    async fn private(&self) -> Box<dyn Harness>;

    /// Lets this happen to all connections of a [`link`](Self::link) from now on, instead of what was before.
    async fn fault(&self, fault: Fault);

    /// Kills the servers of a [`private`](Self::private) store and starts them again with their data.
    async fn restart(&self);
}

/// By what a lock is taken that is for one holder at a time.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Handle {
    /// A mutex.
    #[default]
    Mutex,
    /// A read/write lock that is only written.
    Write,
    /// A semaphore of one permit.
    Permit,
}

/// What happens to connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing any more. What [`Hold`](Self::Hold) kept back arrives now.
    None,
    /// They are reset, and new ones refused.
    Cut,
    /// The next request still arrives; then as [`Cut`](Self::Cut).
    CutAfterRequest,
    /// Nothing arrives, in either direction, and it is not lost.
    Hold,
    /// Requests arrive, replies are lost.
    LoseReplies,
    /// Replies arrive so much later.
    DelayReplies(Duration),
}

impl Handle {
    /// The mode in which it asks for a lock.
    #[must_use]
    pub fn mode(self) -> Mode {
        match self {
            Self::Mutex | Self::Write => Mode::Exclusive,
            Self::Permit => Mode::Permit { max: NonZeroU32::MIN },
        }
    }
}
