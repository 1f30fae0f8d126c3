//! The conformance suite: the promises of every backend, as named cases that run on any of them.
//!
//! A backend is tested through a [`Harness`]: how to connect to it, how to inspect its store, and how to inject faults
//! between it and its servers. [`trials`] makes a [`Trial`] of every case that applies by the backend's [`Capabilities`], and
//! [`left_out`] lists the other cases with the reasons. No case is skipped in any other way.
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
//! A write lock and a semaphore of one permit are mutexes, too, and so are a [`Reentrant`](lock_core::Reentrant) and a
//! [`Multi`](lock_core::Multi): the [`Handle`] of a harness says which of them the cases use as a mutex, so that the whole
//! suite runs on each.
//!
//! Durations in the cases are bounds for a noisy machine: nothing here measures speed.

mod acquisitions;
#[cfg(test)]
mod broken_locks;
mod cases;
mod client;
mod guards;
mod handles;
mod held;
mod helpers;
mod inspection;
mod lives;
mod memory_harness;
mod observe;
mod shared;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Capabilities, ErrorKind, LockName, Locks, Mode, Outcome};
use serde::{Deserialize, Serialize};

pub use self::cases::{CASES, Case, CaseFuture, Trial, left_out, trials};
pub use self::lives::logs::{keep_secret, watch_logs};
pub use self::lives::worker::serve;
pub use self::memory_harness::{Connect, Connecting, MemoryHarness};

/// A backend under test.
///
/// A hook that cannot do its work panics with the reason, and the case fails. Hooks for servers are not called for a backend
/// without [`Capabilities::cross_process`].
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The prefix of the names of the trials, such as `redis::typed`.
    fn name(&self) -> &str;

    /// What the cases use as a mutex.
    fn handle(&self) -> Handle {
        Handle::Mutex
    }

    /// The capabilities that clients of this harness will report. The case `capabilities_are_as_declared` compares them,
    /// durations excepted.
    fn capabilities(&self) -> Capabilities;

    /// The backends that this one is made of: its errors may name them, and its holders may have leases of theirs.
    fn parts(&self) -> &[&'static str] {
        &[]
    }

    /// Why a case is none for this backend, where its capabilities do not say that.
    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        let _ = case;
        None
    }

    /// The longest name of a lock, in bytes: shorter than others have it where a prefix is put before it.
    fn longest_name(&self) -> usize {
        LockName::MAX_BYTES
    }

    /// Whether `inspect` always shows the holder's own token. Else it may show a larger or a smaller one.
    fn shows_own_tokens(&self) -> bool {
        true
    }

    /// The shortest lease or session timeout that this machine can keep reliably.
    fn short_lease(&self) -> Duration;

    /// A new client, independent of the others as that of another process. `lease` is its default ttl or session timeout.
    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks>;

    /// A command that runs [`serve`] in a new process, with such a client.
    async fn worker(&self, lease: Duration) -> Command {
        panic!("{} has no workers (asked for one with a lease of {lease:?})", self.name())
    }

    /// What the store keeps for locks whose name contains `part`, except for what is meant to stay (fencing counters, empty
    /// directories). Read from the server where there is one.
    async fn leftovers(&self, part: &str) -> Vec<String>;

    /// Deletes a held lock from the store, as an operator would without this library.
    async fn delete_behind_the_back(&self, name: &str);

    /// The same store, over connections that [`fault`](Self::fault) can break.
    async fn link(&self) -> Box<dyn Harness>;

    /// A new store, which can be restarted, and has no locks of other cases.
    async fn private(&self) -> Box<dyn Harness>;

    /// Injects a fault into all connections of a [`link`](Self::link), in place of the one before.
    async fn fault(&self, fault: Fault);

    /// Kills the servers of a [`private`](Self::private) store and restarts them with their data.
    async fn restart(&self);

    /// Whether the clients of a store log in by this and can be given another, or why not.
    fn rotates(&self, credential: &Credential) -> Result<(), &'static str> {
        let _ = credential;
        Err("it has no hook that rotates what its clients log in by")
    }

    /// A new store whose clients log in by this; the file has the first password.
    async fn secured(&self, credential: Credential) -> Box<dyn Harness> {
        unreachable!("its clients do not log in by {credential:?}")
    }

    /// Ends the connections to a [`secured`](Self::secured) store, which takes this password and no other from then on, or has new
    /// certificates, as its clients have.
    async fn rotate(&self, password: &str) {
        unreachable!("its store has no password {password:?}")
    }

    /// What its stores do while they refuse writes, or why they never do.
    fn refusal(&self) -> Result<Refusal, &'static str> {
        Err("it has no hook that makes its store refuse writes")
    }

    /// Has a [`private`](Self::private) store refuse writes, as a full or a read-only one, or take them again.
    async fn refuse_writes(&self, refuses: bool) {
        unreachable!("its store refuses no writes (asked for {refuses})")
    }
}

/// The cases that cut connections, or restart servers: for [`Harness::leaves_out`] of stores that have none.
pub const OF_CONNECTIONS: &[&str] = &[
    "signals_of_a_guard_end_before_its_release_is_answered",
    "validity_counts_from_the_request",
    "closing_does_not_wait_for_a_silent_server_for_ever",
    "a_dead_server_is_reported_at_connect",
    "a_dead_server_is_reported_at_acquire",
    "a_silent_server_is_reported_at_acquire",
    "patience_ends_at_a_silent_server",
    "a_waiter_at_a_server_that_falls_silent_gives_up_without_an_error",
    "a_lost_reply_leaves_nothing",
    "a_reset_instead_of_a_reply_leaves_nothing",
    "a_waiter_rides_out_a_short_outage",
    "a_long_outage_ends_strict_waits_alone",
    "a_waiter_cut_off_for_long_jumps_no_queue",
    "a_holder_that_is_cut_off_suspects_a_loss_and_loses",
    "a_holder_of_a_silent_server_loses",
    "a_release_ends_during_an_outage",
    "a_drop_during_an_outage_releases_in_the_end",
    "a_restart_keeps_locks_and_tokens",
    "a_forgotten_connection_is_replaced",
    "a_downgrade_without_an_answer_gives_nothing_up",
];

/// What a case uses as a mutex.
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
    /// An owner of a mutex, who acquires it twice.
    Reentrant,
    /// Several mutexes, of which there is one.
    MultiOfOne,
    /// A mutex and [another](Self::names), acquired together.
    MultiOfTwo,
}

/// What clients log in by.
#[derive(Clone, Debug)]
pub enum Credential {
    /// A user's password, in this file.
    Password(PathBuf),
    /// Certificates of clients and servers.
    Certificates,
}

/// What a store does that refuses writes.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The kind of its errors.
    pub kind: ErrorKind,
    /// A part of their hint.
    pub advice: &'static str,
    /// What became of the request.
    pub outcome: Outcome,
    /// What it does all the same.
    pub still: Still,
}

/// What a store that refuses writes does all the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Still {
    /// Nothing: a lease ends when it would have been extended.
    Nothing,
    /// It extends and ends leases.
    Renews,
    /// It does all that holders ask for, and hands their locks over to those that wait already.
    HandsOver,
}

/// A fault of connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// No fault. What [`Hold`](Self::Hold) kept back is delivered now.
    None,
    /// Connections are reset, and new ones refused.
    Cut,
    /// The next request is delivered; then as [`Cut`](Self::Cut).
    CutAfterRequest,
    /// Everything is kept back, in both directions.
    Hold,
    /// Requests are delivered, replies are lost.
    LoseReplies,
    /// Nothing passes over the present connections any more, and new ones work: a router has forgotten them.
    Forget,
    /// Replies are delivered this much later.
    DelayReplies(Duration),
}

impl Handle {
    /// The mode of its requests.
    #[must_use]
    pub fn mode(self) -> Mode {
        match self {
            Self::Permit => Mode::Permit { max: NonZeroU32::MIN },
            Self::Mutex | Self::Write | Self::Reentrant | Self::MultiOfOne | Self::MultiOfTwo => {
                Mode::Exclusive
            }
        }
    }

    /// The locks that it acquires for this name, in their order.
    #[must_use]
    pub fn names(self, name: &str) -> Vec<String> {
        let mut names = vec![name.to_owned()];
        if self == Self::MultiOfTwo {
            names.push(format!("{name}~"));
        }
        names
    }
}
