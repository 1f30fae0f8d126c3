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
//! Times in the cases are bounds for a noisy machine: nothing here measures speed.

mod cancellation;
mod closing;
mod exclusion;
mod faults;
mod lifetime;
mod memory;
#[cfg(test)]
mod museum;
mod names;
mod options;
mod processes;
mod release;
mod sight;
mod steps;
mod tokens;
mod waiting;
mod worker;

use std::fmt;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Capabilities, LeaseKind, Locks};

pub use memory::{Connect, Connecting, MemoryHarness};
pub use worker::serve;

/// A backend under test.
///
/// A hook that cannot do its work panics with the reason: the case fails then, it is never skipped. Hooks for servers
/// are not called on a backend whose [`Capabilities::cross_process`] is off.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// What the names of the trials begin with, such as `redis::typed`.
    fn name(&self) -> &str;

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

/// One thing that a backend promises.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// What the case is called.
    pub name: &'static str,
    /// Whether a backend with these capabilities has to pass, or why not.
    pub needs: fn(&Capabilities) -> Result<(), &'static str>,
    /// The case; it panics when the backend fails it.
    pub run: for<'a> fn(&'a dyn Harness) -> CaseFuture<'a>,
}

/// A running case.
pub type CaseFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A case and a backend to run it on.
#[derive(Clone)]
pub struct Trial {
    name: String,
    case: &'static Case,
    harness: Arc<dyn Harness>,
}

/// A trial of every case that applies to this backend, in the order of [`CASES`].
pub fn trials(harness: &Arc<dyn Harness>) -> Vec<Trial> {
    let capabilities = harness.capabilities();
    let applies = CASES.iter().filter(|case| (case.needs)(&capabilities).is_ok());
    let name = |case: &Case| format!("{}::{}", harness.name(), case.name);
    applies.map(|case| Trial { name: name(case), case, harness: Arc::clone(harness) }).collect()
}

/// The cases that do not apply to this backend, and why.
pub fn left_out(harness: &dyn Harness) -> Vec<(&'static str, &'static str)> {
    let capabilities = harness.capabilities();
    CASES.iter().filter_map(|case| Some((case.name, (case.needs)(&capabilities).err()?))).collect()
}

impl Trial {
    /// The name: harness and case.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The case.
    pub fn case(&self) -> &'static Case {
        self.case
    }

    /// Runs the case to its end, in a tokio runtime of its own.
    ///
    /// # Panics
    ///
    /// When the backend fails the case, also by not coming to an end.
    pub fn run(&self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("the system has threads to spare");
        let ended =
            runtime.block_on(async { tokio::time::timeout(LONGEST, (self.case.run)(&*self.harness)).await });
        runtime.shutdown_timeout(FAREWELL);
        assert!(ended.is_ok(), "{} has not ended after {LONGEST:?}", self.name);
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("name", &self.name).finish_non_exhaustive()
    }
}

macro_rules! cases {
    ($($theme:ident { $($case:ident: $needs:ident,)* })*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$($(Case {
            name: stringify!($case),
            needs: $needs,
            run: |harness| Box::pin($theme::$case(harness)),
        },)*)*];
    };
}

cases! {
    exclusion {
        one_holder_at_a_time: every_backend,
        names_are_independent: every_backend,
        a_released_lock_can_be_taken_again: every_backend,
        try_on_a_held_lock: every_backend,
        a_hundred_tasks_lose_no_update: every_backend,
        two_clients_lose_no_update: every_backend,
    }
    waiting {
        a_deadline_is_kept: every_backend,
        a_passed_deadline_asks_once: every_backend,
        a_short_deadline_gets_the_first_answer: every_backend,
        a_waiter_gets_the_released_lock: every_backend,
        tasks_of_one_client_take_turns: every_backend,
        clients_take_turns: fair_backends,
    }
    release {
        a_second_release_frees_nobody: every_backend,
        a_late_release_frees_nobody: every_backend,
        a_dropped_guard_releases: every_backend,
        a_guard_dropped_outside_a_runtime_releases: every_backend,
        a_guard_outlives_its_runtime: every_backend,
        a_panic_releases: every_backend,
        a_dropped_lease_ends_by_itself: leases,
    }
    lifetime {
        renewal_keeps_a_lock: every_backend,
        a_lease_ends_without_renewal: leases,
        a_forgotten_guard_ends_with_its_lease: leases,
        a_forgotten_guard_ends_with_its_session: sessions,
        an_extended_lease_lasts_longer: leases,
        a_lost_lock_is_not_extended: leases,
        sessions_cannot_be_extended: sessions,
        max_hold_ends_a_lock: every_backend,
        run_drops_the_work_of_a_lost_lock: every_backend,
        validity_counts_from_the_request: with_a_server,
    }
    tokens {
        tokens_grow_from_holder_to_holder: every_backend,
        tokens_of_waiters_grow: every_backend,
    }
    names {
        odd_names_are_locks_of_their_own: every_backend,
        bad_names_are_refused: every_backend,
    }
    sight {
        inspect_shows_a_free_lock: every_backend,
        inspect_shows_the_holder: every_backend,
        inspect_counts_the_waiters: counting_backends,
        verify_asks_the_server: every_backend,
        a_broken_lock_is_free_and_its_holder_knows: every_backend,
        a_lock_deleted_by_an_operator_is_noticed: every_backend,
    }
    options {
        capabilities_are_as_declared: every_backend,
        impossible_lease_options_are_refused: every_backend,
        impossible_session_options_are_refused: sessions,
    }
    closing {
        closed_locks_refuse: every_backend,
        closing_ends_what_is_held: every_backend,
        closing_leaves_other_clients_alone: every_backend,
    }
    cancellation {
        a_cancelled_acquire_of_a_free_lock_leaves_nothing: every_backend,
        a_cancelled_wait_leaves_nothing: every_backend,
        a_wait_cancelled_during_the_hand_over_leaves_nothing: every_backend,
        a_cancelled_release_still_releases: every_backend,
        a_cancelled_extend_leaves_the_lease_usable: leases,
    }
    faults {
        a_dead_server_is_told_at_connect: with_a_server,
        a_dead_server_is_told_at_acquire: with_a_server,
        a_silent_server_is_told_at_acquire: with_a_server,
        a_lost_reply_leaves_nothing: with_a_server,
        a_reset_instead_of_a_reply_leaves_nothing: with_a_server,
        a_waiter_rides_out_a_short_outage: with_a_server,
        a_long_outage_ends_a_wait: with_a_server,
        a_waiter_cut_off_for_long_jumps_no_queue: with_a_server,
        a_holder_that_is_cut_off_doubts_and_loses: with_a_server,
        a_holder_of_a_silent_server_loses: with_a_server,
        a_release_ends_during_an_outage: with_a_server,
        a_drop_during_an_outage_releases_in_the_end: with_a_server,
        a_restart_keeps_locks_and_tokens: with_a_server,
    }
    processes {
        eight_processes_lose_no_update: with_a_server,
        a_killed_holder_is_followed: with_a_server,
        a_killed_waiter_is_no_obstacle: with_a_server,
        a_stopped_holder_knows_that_it_lost: with_a_server,
    }
}

fn every_backend(_: &Capabilities) -> Result<(), &'static str> {
    Ok(())
}

fn leases(capabilities: &Capabilities) -> Result<(), &'static str> {
    match capabilities.lease {
        LeaseKind::Ttl { .. } => Ok(()),
        LeaseKind::Session { .. } => {
            Err("a session keeps the locks: they have no ttl that could be fixed or extended")
        }
    }
}

fn sessions(capabilities: &Capabilities) -> Result<(), &'static str> {
    match capabilities.lease {
        LeaseKind::Session { .. } => Ok(()),
        LeaseKind::Ttl { .. } => Err("every lock has a ttl of its own: there is no session"),
    }
}

fn fair_backends(capabilities: &Capabilities) -> Result<(), &'static str> {
    if capabilities.fifo { Ok(()) } else { Err("the backend promises no order among processes") }
}

fn counting_backends(capabilities: &Capabilities) -> Result<(), &'static str> {
    if capabilities.counts_waiters {
        Ok(())
    } else {
        Err("the backend does not count the waiters of other processes")
    }
}

fn with_a_server(capabilities: &Capabilities) -> Result<(), &'static str> {
    if capabilities.cross_process {
        Ok(())
    } else {
        Err("the store lives in this process: no server, no other process")
    }
}

/// No case needs nearly as long.
const LONGEST: Duration = Duration::from_secs(120);
/// For what goes on in the background when a case ends.
const FAREWELL: Duration = Duration::from_secs(1);
