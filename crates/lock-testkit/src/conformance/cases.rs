//! The list of cases: which backend each is for, and how it runs.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Capabilities;
use lock_core::backend::Support;

use super::acquisitions::{cancellation, exclusion, waiting};
use super::guards::{holding, lifetime, release, tokens};
use super::handles::{election, multi, names, options, reentrant, revocation};
use super::lives::{closing, credentials, faults, logs, processes, refuses_writes, runtimes};
use super::shared::sharers::{PERMIT, Share};
use super::shared::{downgrade, modes, permits, readers, sharers};
use super::{Credential, Fault, Handle, Harness, inspection, observe};

/// A case: one promise of a backend.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// The name.
    pub name: &'static str,
    /// What it is about, such as `tokens` or `processes`.
    pub theme: &'static str,
    /// Whether a backend with these capabilities has to pass, or why not.
    pub needs: fn(&Capabilities) -> Result<(), &'static str>,
    /// Whether it is worth running with this handle, or why not.
    pub worth: fn(Handle) -> Result<(), &'static str>,
    /// Runs the case; panics when the backend fails it.
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
    let applies = CASES.iter().filter(|case| case.applies(&**harness).is_ok());
    let name = |case: &Case| format!("{}::{}", harness.name(), case.name);
    applies.map(|case| Trial { name: name(case), case, harness: Arc::clone(harness) }).collect()
}

/// The cases that do not apply to this backend, and why.
pub fn left_out(harness: &dyn Harness) -> Vec<(&'static Case, &'static str)> {
    CASES.iter().filter_map(|case| Some((case, case.applies(harness).err()?))).collect()
}

impl Case {
    fn applies(&self, harness: &dyn Harness) -> Result<(), &'static str> {
        let (handle, capabilities) = (harness.handle(), &harness.capabilities());
        (self.needs)(capabilities)?;
        harness.leaves_out(self.name).map_or(Ok(()), Err)?;
        match (self.theme, self.name) {
            ("refuses_writes", _) => drop(harness.refusal()?),
            ("credentials", "new_certificates_are_read_from_their_files") => {
                harness.rotates(&Credential::Certificates)?;
            }
            ("credentials", _) => harness.rotates(&Credential::Password(PathBuf::new()))?,
            _ => {}
        }
        match handle {
            Handle::Mutex | Handle::Reentrant | Handle::MultiOfOne | Handle::MultiOfTwo => {}
            Handle::Write => readers(capabilities)?,
            Handle::Permit => permits(capabilities)?,
        }
        (self.worth)(handle)?;
        let not_for = NOT_FOR.iter().find(|(case, by, _)| *case == self.name && *by == handle);
        not_for.map_or(Ok(()), |(_, _, why)| Err(why))
    }
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

    /// Runs the case in a new tokio runtime.
    ///
    /// # Panics
    ///
    /// When the backend fails the case or hangs.
    pub fn run(&self) {
        self.run_within(LONGEST);
    }

    /// Runs the case, which hangs if it has not ended in this time.
    pub(super) fn run_within(&self, longest: Duration) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("the system has threads to spare");
        let ended =
            runtime.block_on(async { tokio::time::timeout(longest, (self.case.run)(&*self.harness)).await });
        runtime.shutdown_timeout(FAREWELL);
        assert!(ended.is_ok(), "{} has not ended after {longest:?}", self.name);
        logs::check();
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
    ($($theme:ident, $worth:ident { $($case:ident: $($needs:ident)|+ $(=> $run:ident($($arg:expr),+))?,)* })*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$($(Case {
            name: stringify!($case),
            theme: stringify!($theme),
            needs: |capabilities| {
                $($needs(capabilities)?;)+
                Ok(())
            },
            worth: $worth,
            run: |harness| Box::pin(cases!(@run $theme harness $case $($run $($arg),+)?)),
        },)*)*];
    };
    (@run $theme:ident $harness:ident $case:ident) => { $theme::$case($harness) };
    (@run $theme:ident $harness:ident $case:ident $run:ident $($arg:expr),+) => { $theme::$run($harness, $($arg),+) };
}

cases! {
    exclusion, always {
        one_holder_at_a_time: every_backend,
        names_are_independent: every_backend,
        a_released_lock_can_be_taken_again: every_backend,
        try_on_a_held_lock: every_backend,
        a_hundred_tasks_lose_no_update: every_backend,
        two_clients_lose_no_update: every_backend,
    }
    waiting, always {
        a_deadline_is_kept: every_backend,
        a_passed_deadline_asks_once: every_backend,
        a_short_deadline_gets_the_first_answer: every_backend,
        a_waiter_gets_the_released_lock: every_backend,
        tasks_of_one_client_take_turns: every_backend,
        clients_take_turns: fair,
        waiters_learn_their_position: fair,
    }
    release, always {
        a_second_release_releases_nothing: every_backend,
        a_late_release_releases_nothing: every_backend,
        a_dropped_guard_releases: every_backend,
        a_guard_dropped_outside_a_runtime_releases: every_backend,
        a_guard_outlives_its_runtime: every_backend,
        a_panic_releases: every_backend,
        a_dropped_lease_ends_by_itself: every_backend,
    }
    lifetime, always {
        renewal_keeps_a_lock: every_backend,
        a_lease_ends_without_renewal: every_backend,
        a_forgotten_guard_ends_with_its_lease: every_backend,
        a_forgotten_guard_ends_with_its_session: sessions,
        an_extended_lease_lasts_longer: every_backend,
        a_lost_lock_is_not_extended: every_backend,
        a_lock_that_lasts_takes_another_ttl: every_backend,
        max_hold_ends_a_lock: every_backend,
        run_drops_the_work_of_a_lost_lock: every_backend,
        run_reports_a_body_that_ended_too_late: every_backend,
        signals_of_a_guard_outlive_it: every_backend,
        signals_of_a_guard_end_before_its_release_is_answered: with_a_server,
        validity_counts_from_the_request: with_a_server,
    }
    tokens, always {
        tokens_grow_from_holder_to_holder: every_backend,
        tokens_of_waiters_grow: every_backend,
        tasks_hand_over_among_themselves: every_backend,
        a_waiter_that_leaves_hands_over_to_the_next: every_backend,
        raised_tokens_are_not_granted_again: every_backend,
    }
    names, always {
        odd_names_are_distinct_locks: every_backend,
        bad_names_are_refused: every_backend,
    }
    inspection, always {
        inspect_shows_a_free_lock: every_backend,
        inspect_shows_the_holder: every_backend,
        inspect_takes_no_wait_for_a_hold: every_backend,
        inspect_counts_the_waiters: counting,
        inspect_lists_the_waiters_in_order: fair,
        held_locks_are_listed: every_backend,
        a_lock_is_broken_for_the_holder_that_was_seen: every_backend,
        verify_asks_the_server: every_backend,
        a_broken_lock_is_free_and_its_holder_is_notified: every_backend,
        a_lock_deleted_by_an_operator_is_noticed: every_backend,
    }
    options, always {
        capabilities_are_as_declared: every_backend,
        impossible_lease_options_are_refused: every_backend,
        an_impossible_extension_is_refused: every_backend,
    }
    closing, always {
        closed_locks_refuse: every_backend,
        closing_ends_a_wait: every_backend,
        closing_ends_what_nobody_polls: every_backend,
        closing_ends_what_is_held: every_backend,
        closed_locks_extend_nothing: every_backend,
        closing_leaves_other_clients_alone: every_backend,
        closing_waits_for_dropped_guards: every_backend,
        closing_waits_for_dropped_acquisitions: every_backend,
        closing_does_not_wait_for_a_silent_server_for_ever: with_a_server,
    }
    cancellation, always {
        a_cancelled_acquire_of_a_free_lock_leaves_nothing: every_backend,
        a_cancelled_wait_leaves_nothing: every_backend,
        a_wait_cancelled_during_the_hand_over_leaves_nothing: every_backend,
        a_cancelled_release_still_releases: every_backend,
        a_cancelled_extend_leaves_the_lease_usable: every_backend,
    }
    cancellation, once {
        a_waiter_that_is_not_polled_stops_nobody: every_backend,
        a_release_that_is_not_polled_stops_nobody: every_backend,
        a_waiter_in_the_store_that_is_not_polled_stops_nobody: with_a_server,
        a_waiter_that_is_not_polled_during_the_hand_over_stops_nobody: with_a_server,
    }
    faults, always {
        a_dead_server_is_reported_at_connect: with_a_server,
        a_dead_server_is_reported_at_acquire: with_a_server => fails_and_recovers(Fault::Cut),
        a_silent_server_is_reported_at_acquire: with_a_server => fails_and_recovers(Fault::Hold),
        a_lost_reply_leaves_nothing: with_a_server => fails_and_recovers(Fault::LoseReplies),
        a_reset_instead_of_a_reply_leaves_nothing: with_a_server => fails_and_recovers(Fault::CutAfterRequest),
        patience_ends_at_a_silent_server: with_a_server,
        a_waiter_at_a_server_that_falls_silent_gives_up_without_an_error: with_a_server,
        a_waiter_rides_out_a_short_outage: with_a_server,
        a_long_outage_ends_strict_waits_alone: with_a_server,
        a_waiter_cut_off_for_long_jumps_no_queue: with_a_server,
        a_holder_that_is_cut_off_suspects_a_loss_and_loses: with_a_server,
        a_holder_of_a_silent_server_loses: with_a_server,
        a_release_ends_during_an_outage: with_a_server,
        a_drop_during_an_outage_releases_in_the_end: with_a_server,
        a_restart_keeps_locks_and_tokens: with_a_server,
    }
    faults, once {
        a_forgotten_connection_is_replaced: with_a_server,
    }
    runtimes, once {
        a_holder_that_computes_keeps_a_lock_that_was_handed_over: with_a_server,
    }
    credentials, once {
        a_new_password_is_read_from_its_file: with_a_server,
        a_wrong_password_is_named_by_its_file: with_a_server,
        a_password_file_that_cannot_be_read_is_named_and_read_again: with_a_server,
        new_certificates_are_read_from_their_files: with_a_server,
    }
    refuses_writes, once {
        what_is_refused_says_what_to_do_and_leaves_nothing: with_a_server,
        guards_are_neither_extended_wrongly_nor_lost_early: with_a_server,
        waiters_get_the_lock_once_writes_are_allowed_or_need_none: with_a_server,
    }
    processes, once {
        eight_processes_lose_no_update: with_a_server,
        a_killed_holder_is_followed: with_a_server,
        a_killed_waiter_is_no_obstacle: with_a_server,
        a_stopped_holder_knows_that_it_lost: with_a_server,
    }
    revocation, always {
        revocation_can_be_requested_or_is_refused: every_backend,
        only_holders_are_asked_to_release: revocable,
    }
    election, once {
        observers_see_every_leader: every_backend,
        a_candidate_that_lost_the_leadership_campaigns_again: every_backend,
        leaders_that_resign_in_their_own_loops_are_followed: every_backend,
    }
    reentrant, once {
        an_owner_acquires_again_and_others_are_excluded: every_backend,
        tasks_of_one_owner_share_its_lock: every_backend,
        an_owner_that_lost_the_lock_acquires_nothing: every_backend,
    }
    multi, once {
        all_locks_are_acquired_or_none: every_backend,
        locks_in_opposite_orders_block_nobody: every_backend,
        one_lost_lock_loses_all: every_backend,
        the_same_lock_by_two_connections_is_refused: every_backend,
    }
    holding, once {
        a_lock_is_held_at_least_or_the_option_is_refused: every_backend,
        a_crashed_holder_holds_at_least_as_long: leases,
    }
    observe, once {
        a_lock_is_observed_from_its_request_to_its_end: every_backend,
        waits_are_observed_in_the_process_and_at_the_store: every_backend,
        a_loss_is_observed_before_the_release_and_once: every_backend,
        readers_are_observed_each: readers,
    }
    modes, once {
        modes_are_supported_or_refused: every_backend,
        a_mutex_and_a_write_lock_are_one: readers,
        modes_of_one_name_exclude_each_other: readers | permits,
        waiters_of_all_modes_take_turns: readers | permits | fair,
    }
    readers, once {
        readers_share_a_lock: readers,
        all_readers_that_try_at_once_get_the_lock: readers,
        a_writer_waits_for_all_readers: readers,
        readers_behind_a_waiting_writer_wait: readers | fair,
        readers_behind_a_writer_that_gave_up_go_on: readers,
        a_stream_of_readers_starves_no_writer: readers | fair,
        a_stream_of_writers_starves_no_reader: readers | fair,
        a_dead_reader_blocks_until_its_lease_ends: readers,
        a_released_reader_does_not_keep_the_lock: readers,
        readers_and_writers_are_not_exchanged: readers,
        readers_never_see_a_half_done_write: readers,
        a_cancelled_writer_lets_readers_in: readers,
    }
    downgrade, once {
        a_writer_becomes_a_reader: readers,
        a_downgrade_lets_waiting_readers_in_and_no_writer: readers,
        only_a_writer_becomes_a_reader: readers,
        a_lost_writer_becomes_no_reader: readers,
        a_writer_that_became_a_reader_is_renewed: readers,
        a_cancelled_downgrade_gives_nothing_up: readers,
        a_downgrade_without_an_answer_gives_nothing_up: readers | with_a_server,
    }
    permits, once {
        as_many_holders_as_permits: permits,
        all_clients_that_try_at_once_get_a_permit: permits,
        a_freed_permit_goes_to_the_next_waiter: permits,
        an_expired_permit_goes_to_the_next_waiter: permits,
        clients_may_disagree_about_the_permits: permits,
        a_smaller_number_of_permits_blocks_no_larger_one: permits,
        no_larger_number_of_permits_passes_a_writer: permits,
        a_semaphore_without_permits_is_refused: permits,
        permits_are_never_exceeded: permits,
    }
    sharers, once {
        readers_are_renewed_each: readers => renewed_each(Share::Reader),
        permits_are_renewed_each: permits => renewed_each(PERMIT),
        a_reader_extends_its_own_lease: readers => extends_its_own(Share::Reader),
        a_permit_extends_its_own_lease: permits => extends_its_own(PERMIT),
        a_late_release_of_a_reader_releases_nothing: readers => late_release(Share::Reader),
        a_late_release_of_a_permit_releases_nothing: permits => late_release(PERMIT),
        tokens_of_readers_grow_and_differ: readers => tokens_grow_and_differ(Share::Reader),
        tokens_of_permits_grow_and_differ: permits => tokens_grow_and_differ(PERMIT),
        inspect_shows_one_of_the_readers: readers => inspect_shows_one(Share::Reader),
        inspect_shows_one_of_the_permits: permits => inspect_shows_one(PERMIT),
        inspect_shows_all_of_the_readers: readers => inspect_shows_all(Share::Reader),
        inspect_shows_all_of_the_permits: permits => inspect_shows_all(PERMIT),
        one_of_the_readers_is_broken: readers | breaks_one => one_is_broken(Share::Reader),
        one_of_the_permits_is_broken: permits | breaks_one => one_is_broken(PERMIT),
        breaking_ends_all_readers: readers => all_end(Share::Reader, true),
        breaking_ends_all_permits: permits => all_end(PERMIT, true),
        readers_deleted_by_an_operator_notice: readers => all_end(Share::Reader, false),
        permits_deleted_by_an_operator_notice: permits => all_end(PERMIT, false),
        cancelled_readers_leave_nothing: readers => cancelled_leave_nothing(Share::Reader),
        cancelled_permits_leave_nothing: permits => cancelled_leave_nothing(Share::Permit(2)),
    }
    processes, once {
        a_killed_reader_is_followed: readers | with_a_server,
        a_killed_holder_holds_at_least_as_long: leases | with_a_server,
        processes_never_exceed_the_permits: permits | with_a_server,
    }
}

fn every_backend(_: &Capabilities) -> Result<(), &'static str> {
    Ok(())
}

fn sessions(capabilities: &Capabilities) -> Result<(), &'static str> {
    match capabilities.lease.is_session() {
        true => Ok(()),
        false => Err("every lock has its own ttl: there is no session"),
    }
}

fn leases(capabilities: &Capabilities) -> Result<(), &'static str> {
    match capabilities.lease.is_session() {
        false => Ok(()),
        true => Err("a session keeps the locks, and ends with its process"),
    }
}

fn fair(capabilities: &Capabilities) -> Result<(), &'static str> {
    if capabilities.fifo { Ok(()) } else { Err("the backend promises no order among processes") }
}

fn counting(capabilities: &Capabilities) -> Result<(), &'static str> {
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
        Err("the store is local to this process: no server, no other process")
    }
}

fn readers(capabilities: &Capabilities) -> Result<(), &'static str> {
    there(capabilities.shared)
}

fn permits(capabilities: &Capabilities) -> Result<(), &'static str> {
    there(capabilities.permits)
}

fn revocable(capabilities: &Capabilities) -> Result<(), &'static str> {
    there(capabilities.revocation)
}

fn breaks_one(capabilities: &Capabilities) -> Result<(), &'static str> {
    there(capabilities.breaks_one)
}

fn there(support: Support) -> Result<(), &'static str> {
    support.why_not().map_or(Ok(()), Err)
}

fn always(_: Handle) -> Result<(), &'static str> {
    Ok(())
}

fn once(handle: Handle) -> Result<(), &'static str> {
    match handle {
        Handle::Mutex => Ok(()),
        _ => Err("the case uses its own handles: once is enough"),
    }
}

/// The cases that say nothing about what stands in for a mutex.
const NOT_FOR: [(&str, Handle, &str); 3] = [
    (
        "odd_names_are_distinct_locks",
        Handle::MultiOfTwo,
        "the name of the second lock is longer than the longest of the names",
    ),
    ("held_locks_are_listed", Handle::MultiOfTwo, "the second locks are listed as well"),
    (
        "a_lock_is_broken_for_the_holder_that_was_seen",
        Handle::MultiOfTwo,
        "one token breaks one of the locks, and the holder keeps the other",
    ),
];

/// Much longer than any case.
const LONGEST: Duration = Duration::from_secs(120);
/// For background tasks at the end of a case.
const FAREWELL: Duration = Duration::from_secs(1);
