//! Broken locks: each must be caught by the cases that are listed for it.

use std::collections::BTreeSet;
use std::future::{pending, ready};
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{AcquireRequest, Acquired, Wait};
use lock_core::{
    Backend, BootInstant, Capabilities, Clock, Error, ErrorKind, GuardState, Holder, Lease, LeaseKind,
    LockName, LockState, Locks, Memory, MemoryConfig, Mode, OwnerId, Released, Result, Revocation, Token,
    Validity, ValidityCell,
};
use tokio::time::{Instant, sleep};

use super::memory_harness::{Connecting, MemoryHarness};
use super::{CASES, Harness, Trial, trials};

/// Names the defects, and the cases that must catch them.
macro_rules! broken_locks {
    ($($defect:ident: [$($case:literal),+ $(,)?],)+) => {
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        enum Defect {
            None,
            $($defect,)+
        }

        const BROKEN_LOCKS: &[(Defect, &[&str])] = &[$((Defect::$defect, &[$($case),+])),+];
    };
}

broken_locks! {
    EveryClientAlone: [
        "one_holder_at_a_time",
        "names_are_independent",
        "two_clients_lose_no_update",
        "a_waiter_gets_the_released_lock",
        "a_second_release_releases_nothing",
        "tokens_of_waiters_grow",
        "an_owner_acquires_again_and_others_are_excluded",
        "all_locks_are_acquired_or_none",
        "the_same_lock_by_two_connections_is_refused",
        "waits_are_observed_in_the_process_and_at_the_store",
    ],
    OneLockForAll: ["names_are_independent", "odd_names_are_distinct_locks"],
    FoldsCase: ["odd_names_are_distinct_locks"],
    EndsNamesAtNul: ["odd_names_are_distinct_locks"],
    TryTakesTheLockAway: ["try_on_a_held_lock"],
    ContentionIsAnError: [
        "try_on_a_held_lock",
        "one_holder_at_a_time",
        "a_lock_is_observed_from_its_request_to_its_end",
    ],
    GivesUpEarly: ["a_deadline_is_kept"],
    Overstays: ["a_deadline_is_kept", "a_passed_deadline_asks_once"],
    SkipsShortDeadlines: ["a_short_deadline_gets_the_first_answer", "a_passed_deadline_asks_once"],
    LastComesFirst: ["clients_take_turns"],
    SleepsLong: ["a_waiter_gets_the_released_lock"],
    NeverReleases: [
        "a_released_lock_can_be_taken_again",
        "a_dropped_guard_releases",
        "a_guard_dropped_outside_a_runtime_releases",
        "a_panic_releases",
        "closing_waits_for_dropped_guards",
        "inspect_shows_a_free_lock",
        "tasks_of_one_client_take_turns",
        "leaders_that_resign_in_their_own_loops_are_followed",
        "tasks_of_one_owner_share_its_lock",
        "locks_in_opposite_orders_block_nobody",
        "a_waiter_that_is_not_polled_stops_nobody",
        "a_release_that_is_not_polled_stops_nobody",
    ],
    ReleasesWhoeverHolds: [
        "a_second_release_releases_nothing",
        "a_late_release_releases_nothing",
        "a_late_release_of_a_reader_releases_nothing",
        "a_late_release_of_a_permit_releases_nothing",
    ],
    LeaksWhatWasDropped: ["a_dropped_lease_ends_by_itself"],
    PanicsOutsideOfRuntimes: ["a_guard_outlives_its_runtime"],
    NeverRenews: [
        "renewal_keeps_a_lock",
        "readers_are_renewed_each",
        "permits_are_renewed_each",
        "a_writer_that_became_a_reader_is_renewed",
    ],
    OverstatesValidity: ["a_lease_ends_without_renewal", "renewal_keeps_a_lock"],
    RenewsForEver: ["a_lease_ends_without_renewal", "a_forgotten_guard_ends_with_its_lease"],
    OnlySaysThatItExtends: [
        "an_extended_lease_lasts_longer",
        "a_lock_that_lasts_takes_another_ttl",
        "an_impossible_extension_is_refused",
        "closed_locks_extend_nothing",
        "a_reader_extends_its_own_lease",
        "a_permit_extends_its_own_lease",
    ],
    KeepsLeasesShort: [
        "a_lock_is_held_at_least_or_the_option_is_refused",
        "a_crashed_holder_holds_at_least_as_long",
    ],
    TakesAgainByExtend: ["a_lost_lock_is_not_extended"],
    IgnoresMaxHold: ["max_hold_ends_a_lock", "run_reports_a_body_that_ended_too_late"],
    NeverNoticesLoss: [
        "verify_asks_the_server",
        "a_broken_lock_is_free_and_its_holder_is_notified",
        "a_lock_deleted_by_an_operator_is_noticed",
        "run_drops_the_work_of_a_lost_lock",
        "signals_of_a_guard_outlive_it",
        "closing_ends_what_is_held",
        "breaking_ends_all_readers",
        "breaking_ends_all_permits",
        "readers_deleted_by_an_operator_notice",
        "permits_deleted_by_an_operator_notice",
        "a_candidate_that_lost_the_leadership_campaigns_again",
        "an_owner_that_lost_the_lock_acquires_nothing",
        "one_lost_lock_loses_all",
        "a_loss_is_observed_before_the_release_and_once",
    ],
    RepeatsTokens: [
        "tokens_grow_from_holder_to_holder",
        "tokens_of_waiters_grow",
        "tasks_hand_over_among_themselves",
        "a_waiter_that_leaves_hands_over_to_the_next",
        "tokens_of_readers_grow_and_differ",
        "tokens_of_permits_grow_and_differ",
    ],
    ShowsNoLabel: [
        "inspect_shows_the_holder",
        "inspect_shows_one_of_the_readers",
        "inspect_shows_one_of_the_permits",
        "observers_see_every_leader",
    ],
    NotifiesNoObserver: ["observers_see_every_leader"],
    CountsTheWaitAsHold: ["inspect_takes_no_wait_for_a_hold"],
    CountsNoWaiters: ["inspect_counts_the_waiters", "inspect_shows_one_of_the_readers"],
    ShowsOneHolder: ["inspect_shows_all_of_the_readers", "inspect_shows_all_of_the_permits"],
    ShowsTheLastWaiterFirst: ["inspect_lists_the_waiters_in_order"],
    ListsNothing: ["held_locks_are_listed"],
    ListsEverything: ["held_locks_are_listed"],
    BreaksWhoeverHolds: ["a_lock_is_broken_for_the_holder_that_was_seen"],
    OnlySaysThatItBreaks: [
        "a_lock_is_broken_for_the_holder_that_was_seen",
        "one_of_the_readers_is_broken",
        "one_of_the_permits_is_broken",
    ],
    BreaksAllWithOne: ["one_of_the_readers_is_broken", "one_of_the_permits_is_broken"],
    TakesAnyTtl: ["impossible_lease_options_are_refused"],
    SaysLessThanItCan: ["capabilities_are_as_declared"],
    NeverCloses: ["closed_locks_refuse", "closing_ends_a_wait"],
    WaitersOutliveClosing: ["closing_ends_what_nobody_polls"],
    ClosesTheStore: ["closing_leaves_other_clients_alone"],
    LeaksCancelledGrants: [
        "a_cancelled_acquire_of_a_free_lock_leaves_nothing",
        "closing_waits_for_dropped_acquisitions",
        "a_wait_cancelled_during_the_hand_over_leaves_nothing",
        "cancelled_readers_leave_nothing",
        "cancelled_permits_leave_nothing",
    ],
    ForgetsACancelledRelease: ["a_cancelled_release_still_releases"],
    DiesOfACancelledExtend: ["a_cancelled_extend_leaves_the_lease_usable"],
    LeavesWaiters: [
        "a_deadline_is_kept",
        "a_cancelled_wait_leaves_nothing",
        "readers_behind_a_writer_that_gave_up_go_on",
        "a_cancelled_writer_lets_readers_in",
    ],
    OnlySaysThatItRaises: ["raised_tokens_are_not_granted_again"],
    OnlySaysThatItAsks: ["revocation_can_be_requested_or_is_refused"],
    AsksWhoComesNext: ["only_holders_are_asked_to_release"],
    TellsNoPlace: ["waiters_learn_their_position"],
    PretendsToHaveModes: ["modes_are_supported_or_refused"],
    ReadersGoUnseen: [
        "readers_share_a_lock",
        "a_mutex_and_a_write_lock_are_one",
        "modes_of_one_name_exclude_each_other",
        "a_writer_waits_for_all_readers",
        "readers_and_writers_are_not_exchanged",
        "readers_never_see_a_half_done_write",
    ],
    DowngradesByRelease: [
        "a_downgrade_lets_waiting_readers_in_and_no_writer",
        "a_cancelled_downgrade_gives_nothing_up",
    ],
    OnlySaysThatItDowngrades: [
        "a_writer_becomes_a_reader",
        "a_downgrade_lets_waiting_readers_in_and_no_writer",
        "a_lost_writer_becomes_no_reader",
        "a_cancelled_downgrade_gives_nothing_up",
    ],
    ReadersFollowEachOther: [
        "readers_share_a_lock",
        "all_readers_that_try_at_once_get_the_lock",
        "readers_are_observed_each",
    ],
    WritersOnlyLookIn: [
        "readers_behind_a_waiting_writer_wait",
        "a_stream_of_readers_starves_no_writer",
        "no_larger_number_of_permits_passes_a_writer",
    ],
    ReadersOnlyLookIn: ["a_stream_of_writers_starves_no_reader", "waiters_of_all_modes_take_turns"],
    FirstToLeaveEndsAll: ["a_writer_waits_for_all_readers", "readers_share_a_lock"],
    FirstToDieEndsAll: ["a_dead_reader_blocks_until_its_lease_ends", "a_permit_extends_its_own_lease"],
    SharersStayForLong: [
        "a_dead_reader_blocks_until_its_lease_ends",
        "a_released_reader_does_not_keep_the_lock",
        "an_expired_permit_goes_to_the_next_waiter",
    ],
    OnePermitTooMany: [
        "as_many_holders_as_permits",
        "all_clients_that_try_at_once_get_a_permit",
        "clients_may_disagree_about_the_permits",
        "a_smaller_number_of_permits_blocks_no_larger_one",
        "permits_are_never_exceeded",
        "a_freed_permit_goes_to_the_next_waiter",
    ],
    OnePermitForAll: ["as_many_holders_as_permits", "permits_are_never_exceeded"],
}

/// Cases that no lock built upon the memory backend can fail: they test code that all backends share.
const NEVER_FAILING: [&str; 4] = [
    "a_hundred_tasks_lose_no_update",
    "bad_names_are_refused",
    "a_semaphore_without_permits_is_refused",
    "only_a_writer_becomes_a_reader",
];

#[test]
fn the_memory_backend_passes() {
    in_parallel(16, trials_of(Defect::None), |trial| {
        trial.run();
    });
}

#[test]
fn every_broken_lock_is_caught_by_its_case() {
    let mut shown = Vec::new();
    for &(defect, cases) in BROKEN_LOCKS {
        let mut trials = trials_of(defect);
        trials.retain(|trial| cases.contains(&trial.case().name));
        assert_eq!(trials.len(), cases.len(), "{defect:?} names an unknown case");
        shown.extend(trials);
    }
    // Most of them only wait, until their patience ends.
    in_parallel(64, shown, |trial| {
        // Some look for a moment, which passes by on a busy machine.
        let caught = (0..3).any(|_| catch_unwind(AssertUnwindSafe(|| trial.run_within(HANGS))).is_err());
        assert!(caught, "{} did not catch the defect", trial.name());
    });
}

/// Several times longer than any case takes on the memory backend.
const HANGS: Duration = Duration::from_secs(40);

#[test]
fn every_case_of_the_memory_backend_has_been_seen_to_fail() {
    let shown: BTreeSet<_> =
        BROKEN_LOCKS.iter().flat_map(|(_, cases)| *cases).chain(&NEVER_FAILING).copied().collect();
    let cases: BTreeSet<_> = trials_of(Defect::None).iter().map(|trial| trial.case().name).collect();
    assert_eq!(cases.difference(&shown).collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn cases_have_distinct_names_and_reasons_to_be_left_out() {
    let names: BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), CASES.len());
    let harness: Arc<dyn Harness> =
        Arc::new(MemoryHarness::new("memory", |url| Box::pin(ready(connect(url, Defect::None)))));
    let left_out = super::left_out(&*harness);
    assert_eq!(left_out.len() + trials(&harness).len(), CASES.len());
    assert!(left_out.iter().all(|(_, why)| !why.is_empty()));
}

fn trials_of(defect: Defect) -> Vec<Trial> {
    let connect = move |url| -> Connecting { Box::pin(ready(connect(url, defect))) };
    let harness: Arc<dyn Harness> = Arc::new(MemoryHarness::new(format!("{defect:?}"), connect));
    trials(&harness)
}

/// Runs the trials on so many threads.
fn in_parallel(threads: usize, trials: Vec<Trial>, run: impl Fn(&Trial) + Sync) {
    let next = AtomicU64::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    if catch_unwind(AssertUnwindSafe(|| run(trial))).is_err() {
                        failed.lock().unwrap().push(trial.name().to_owned());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn connect(url: String, defect: Defect) -> Result<Locks> {
    let url = if defect == Defect::EveryClientAlone {
        url.replacen("//", &format!("//{}", super::helpers::fresh()), 1)
    } else {
        url
    };
    let inner = Memory::open(MemoryConfig::from_url(&url)?)?;
    let mut capabilities = inner.capabilities().clone();
    match (defect, &mut capabilities.lease) {
        (Defect::TakesAnyTtl, LeaseKind::Ttl { min, .. }) => *min = Duration::from_nanos(1),
        (Defect::SaysLessThanItCan, _) => capabilities.fifo = false,
        _ => {}
    }
    let store = url.split('?').next().unwrap_or_default().to_owned();
    Ok(Locks::new(Broken { inner, capabilities, defect, store }))
}

#[derive(Clone, Debug)]
struct Broken {
    inner: Memory,
    capabilities: Capabilities,
    defect: Defect,
    store: String,
}

/// The time to live of a defect.
const SHORT: Duration = Duration::from_secs(1);

/// The stores that the defect has closed for all of their clients.
static CLOSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

#[async_trait]
impl Backend for Broken {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, mut request: AcquireRequest) -> Result<Acquired> {
        if CLOSED.lock().unwrap().contains(&self.store) {
            return Err(Error::new(ErrorKind::Closed, "memory").with_message("somebody closed the store"));
        }
        match (self.defect, &mut request.lease, &mut request.wait) {
            (Defect::NeverRenews, lease, _) => lease.renewed = false,
            (Defect::KeepsLeasesShort, lease, _) => lease.ttl = Some(SHORT),
            (Defect::RenewsForEver, lease, _) => lease.renewed = true,
            (Defect::IgnoresMaxHold, lease, _) => lease.max_hold = None,
            (Defect::TryTakesTheLockAway, _, Wait::Never) => {
                self.inner.break_lock(&request.name).await?;
            }
            (Defect::GivesUpEarly, _, Wait::Until(deadline)) => *deadline -= Duration::from_millis(60),
            (Defect::Overstays, _, Wait::Until(deadline)) => {
                *deadline = Instant::now().max(*deadline) + Duration::from_secs(3);
            }
            (Defect::TellsNoPlace, ..) => request.on_queued = None,
            (Defect::SkipsShortDeadlines, _, Wait::Until(deadline))
                if *deadline < Instant::now() + Duration::from_millis(1) =>
            {
                return Ok(Acquired::Busy);
            }
            (Defect::LastComesFirst, ..) => return self.last_comes_first(request).await,
            (Defect::SleepsLong, ..) => return self.by_sleeping(request).await,
            (Defect::LeaksCancelledGrants, ..) => return self.regardless(request).await,
            (Defect::LeavesWaiters, ..) => return self.waiting_on(request).await,
            (Defect::WaitersOutliveClosing, ..) => {
                let this = self.clone();
                return tokio::spawn(async move { this.take(request).await }).await.unwrap();
            }
            (Defect::PretendsToHaveModes, ..) if request.mode != Mode::Exclusive => {
                return Err(
                    Error::new(ErrorKind::Unsupported, "memory").with_message("there are only mutexes")
                );
            }
            (Defect::WritersOnlyLookIn, _, Wait::Forever) if request.mode == Mode::Exclusive => {
                return self.looking_in(request).await;
            }
            (Defect::ReadersOnlyLookIn, _, Wait::Forever | Wait::Until(_))
                if request.mode == Mode::Shared =>
            {
                return self.looking_in(request).await;
            }
            (Defect::SharersStayForLong, lease, _) if request.mode != Mode::Exclusive => {
                lease.ttl = Some(Duration::from_secs(60));
            }
            _ => {}
        }
        self.take(request).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let mut state = self.inner.inspect(&self.rename(name)).await?;
        match self.defect {
            Defect::ShowsNoLabel => {
                for holder in &mut state.holders {
                    if let Holder::Known(owner) = &mut holder.holder {
                        owner.label = None;
                    }
                }
            }
            Defect::CountsTheWaitAsHold => {
                for holder in &mut state.holders {
                    holder.since = holder.since.map(|since| since - Duration::from_secs(1));
                }
            }
            Defect::CountsNoWaiters => state.waiters = 0,
            Defect::ShowsOneHolder => state.holders.truncate(1),
            Defect::ShowsTheLastWaiterFirst => state.queue.reverse(),
            _ => {}
        }
        Ok(state)
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        match self.defect {
            Defect::NotifiesNoObserver => pending().await,
            Defect::None => self.inner.await_change(name, seen).await,
            // What they break shows in what they inspect.
            _ => loop {
                let state = self.inspect(name).await?;
                if !state.has_holders_of(seen) {
                    return Ok(state);
                }
                sleep(Duration::from_millis(5)).await;
            },
        }
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let name = self.rename(name);
        let holds = async || {
            let state = self.inner.inspect(&name).await?;
            Ok(state.holders.iter().any(|holder| holder.token == Some(token)))
        };
        match self.defect {
            Defect::BreaksWhoeverHolds => self.inner.break_lock(&name).await,
            Defect::OnlySaysThatItBreaks => holds().await,
            Defect::BreaksAllWithOne => Ok(holds().await? && self.inner.break_lock(&name).await?),
            _ => self.inner.break_lock_if(&name, token).await,
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        match self.defect {
            Defect::ListsNothing => Ok(Vec::new()),
            Defect::ListsEverything => self.inner.list("").await,
            _ => self.inner.list(prefix).await,
        }
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.inner.break_lock(&self.rename(name)).await
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        let name = self.rename(name);
        match self.defect {
            Defect::OnlySaysThatItAsks => Ok(self.inner.inspect(&name).await?.is_held()),
            Defect::AsksWhoComesNext => {
                let (inner, again) = (self.inner.clone(), name.clone());
                tokio::spawn(async move {
                    for _ in 0..50 {
                        sleep(Duration::from_millis(10)).await;
                        let _ = inner.request_revocation(&again).await;
                    }
                });
                self.inner.request_revocation(&name).await
            }
            _ => self.inner.request_revocation(&name).await,
        }
    }

    async fn settle(&self) {
        self.inner.settle().await;
    }

    async fn close(&self) -> Result<()> {
        match self.defect {
            Defect::NeverCloses | Defect::WaitersOutliveClosing => Ok(()),
            Defect::ClosesTheStore => {
                CLOSED.lock().unwrap().insert(self.store.clone());
                Ok(())
            }
            _ => self.inner.close().await,
        }
    }
}

impl Broken {
    fn rename(&self, name: &LockName) -> LockName {
        let name = name.as_str();
        let renamed = match self.defect {
            Defect::OneLockForAll => "the lock".to_owned(),
            Defect::FoldsCase => name.to_lowercase(),
            Defect::EndsNamesAtNul => {
                name.split('\0').next().filter(|start| !start.is_empty()).unwrap_or(name).to_owned()
            }
            _ => name.to_owned(),
        };
        LockName::new(renamed).unwrap()
    }

    async fn take(&self, request: AcquireRequest) -> Result<Acquired> {
        let (name, mode) = self.remode(self.rename(&request.name), request.mode);
        let mut request = request.in_mode(mode);
        request.name = name;
        match self.inner.acquire(request.clone()).await? {
            Acquired::Busy if self.defect == Defect::ContentionIsAnError => {
                Err(Error::new(ErrorKind::Unavailable, "memory")
                    .with_message("another client holds the lock"))
            }
            Acquired::Held(inner) => {
                if self.defect == Defect::FirstToDieEndsAll && mode != Mode::Exclusive {
                    tokio::spawn(self.clone().end_all(request.clone()));
                }
                Ok(Acquired::Held(Box::new(BrokenLease::new(self.clone(), request, inner))))
            }
            busy => Ok(busy),
        }
    }

    fn remode(&self, name: LockName, mode: Mode) -> (LockName, Mode) {
        let permits = |max| Mode::Permit { max: NonZeroU32::new(max).unwrap() };
        match (self.defect, mode) {
            (Defect::ReadersGoUnseen, Mode::Shared) => {
                (LockName::new(format!("{name} is read")).unwrap(), mode)
            }
            (Defect::ReadersFollowEachOther, Mode::Shared) => (name, permits(1)),
            (Defect::OnePermitTooMany, Mode::Permit { max }) => (name, permits(max.get() + 1)),
            (Defect::OnePermitForAll, Mode::Permit { .. }) => (name, permits(1)),
            _ => (name, mode),
        }
    }

    /// As a lock that keeps all sharers under one key with one ttl.
    async fn end_all(self, request: AcquireRequest) {
        if let Some(ttl) = request.lease.ttl {
            sleep(ttl).await;
            let _ = self.inner.break_lock(&request.name).await;
        }
    }

    /// Polls without a place in the wait queue.
    async fn looking_in(&self, request: AcquireRequest) -> Result<Acquired> {
        let once = with_wait(&request, Wait::Never);
        loop {
            if let Acquired::Held(lease) = self.take(once.clone()).await? {
                return Ok(Acquired::Held(lease));
            }
            if request.wait.is_expired() {
                return Ok(Acquired::Busy);
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// A stack instead of a queue.
    async fn last_comes_first(&self, request: AcquireRequest) -> Result<Acquired> {
        static STACK: Mutex<Vec<(LockName, u64)>> = Mutex::new(Vec::new());
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let place = (request.name.clone(), NEXT.fetch_add(1, Ordering::Relaxed));
        STACK.lock().unwrap().push(place.clone());
        let once = with_wait(&request, Wait::Never);
        loop {
            let top = STACK.lock().unwrap().iter().rfind(|(name, _)| *name == request.name) == Some(&place);
            if top && let Acquired::Held(lease) = self.take(once.clone()).await? {
                STACK.lock().unwrap().retain(|waiting| *waiting != place);
                return Ok(Acquired::Held(lease));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn by_sleeping(&self, request: AcquireRequest) -> Result<Acquired> {
        let once = with_wait(&request, Wait::Never);
        loop {
            if let Acquired::Held(lease) = self.take(once.clone()).await? {
                return Ok(Acquired::Held(lease));
            }
            sleep(Duration::from_secs(7)).await;
        }
    }

    /// Continues the acquisition when the future is dropped.
    async fn regardless(&self, request: AcquireRequest) -> Result<Acquired> {
        let acquired = std::mem::ManuallyDrop::new(self.take(request).await);
        sleep(Duration::from_millis(1)).await;
        std::mem::ManuallyDrop::into_inner(acquired)
    }

    /// Leaves the waiter in the queue after the deadline.
    async fn waiting_on(&self, request: AcquireRequest) -> Result<Acquired> {
        let Wait::Until(deadline) = request.wait else { return self.take(request).await };
        let (this, request) = (self.clone(), with_wait(&request, Wait::Forever));
        let asked = tokio::spawn(async move { this.take(request).await });
        match tokio::time::timeout_at(deadline, asked).await {
            Ok(acquired) => acquired.unwrap(),
            Err(_) => Ok(Acquired::Busy),
        }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        if self.defect == Defect::PanicsOutsideOfRuntimes {
            // As a lock that closes its connection in a task.
            drop(tokio::runtime::Handle::current());
        }
    }
}

fn with_wait(request: &AcquireRequest, wait: Wait) -> AcquireRequest {
    let mut request = request.clone();
    request.wait = wait;
    request
}

#[derive(Debug)]
struct BrokenLease {
    backend: Broken,
    request: AcquireRequest,
    inner: Option<Box<dyn Lease>>,
    retaken: Mutex<Option<Box<dyn Lease>>>,
    validity: Validity,
    released: bool,
    extended: AtomicBool,
}

impl BrokenLease {
    fn new(backend: Broken, request: AcquireRequest, inner: Box<dyn Lease>) -> Self {
        let validity = match backend.defect {
            Defect::OverstatesValidity => {
                let until = inner.validity().until() + Duration::from_millis(500);
                ValidityCell::new(Clock::boot(), until).validity()
            }
            Defect::NeverNoticesLoss => ValidityCell::new(Clock::boot(), BootInstant::NEVER).validity(),
            _ => inner.validity().clone(),
        };
        let (retaken, extended) = (Mutex::new(None), AtomicBool::new(false));
        Self { backend, request, inner: Some(inner), retaken, validity, released: false, extended }
    }

    fn inner(&self) -> &dyn Lease {
        &**self.inner.as_ref().expect("taken on drop only")
    }
}

#[async_trait]
impl Lease for BrokenLease {
    fn token(&self) -> Token {
        if self.backend.defect == Defect::RepeatsTokens { Token::new(7) } else { self.inner().token() }
    }

    fn owner(&self) -> OwnerId {
        self.inner().owner()
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    fn revocation(&self) -> Option<&Revocation> {
        self.inner().revocation()
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        match self.backend.defect {
            Defect::OnlySaysThatItExtends => Ok(Clock::boot().now() + ttl),
            Defect::KeepsLeasesShort => self.inner().extend(SHORT).await,
            Defect::TakesAgainByExtend => {
                let extended = self.inner().extend(ttl).await;
                if extended.is_err()
                    && let Acquired::Held(lease) = self.backend.inner.acquire(self.request.clone()).await?
                {
                    *self.retaken.lock().unwrap() = Some(lease);
                }
                extended
            }
            Defect::DiesOfACancelledExtend => {
                if self.extended.swap(true, Ordering::SeqCst) {
                    return pending().await;
                }
                let extended = self.inner().extend(ttl).await;
                tokio::task::yield_now().await;
                self.extended.store(false, Ordering::SeqCst);
                extended
            }
            _ => self.inner().extend(ttl).await,
        }
    }

    async fn downgrade(&mut self) -> Result<()> {
        match self.backend.defect {
            Defect::OnlySaysThatItDowngrades => Ok(()),
            Defect::DowngradesByRelease => {
                let inner = self.inner.as_mut().expect("taken on drop only");
                inner.release().await?;
                tokio::task::yield_now().await;
                let request = with_wait(&self.request, Wait::Forever).in_mode(Mode::Shared);
                if let Acquired::Held(lease) = self.backend.inner.acquire(request).await? {
                    self.validity = lease.validity().clone();
                    self.inner = Some(lease);
                }
                Ok(())
            }
            _ => self.inner.as_mut().expect("taken on drop only").downgrade().await,
        }
    }

    async fn raise_token(&self, floor: Token) -> Result<()> {
        match self.backend.defect {
            Defect::OnlySaysThatItRaises => Ok(()),
            _ => self.inner().raise_token(floor).await,
        }
    }

    async fn verify(&self) -> Result<GuardState> {
        if self.backend.defect == Defect::NeverNoticesLoss {
            Ok(GuardState::Valid)
        } else {
            self.inner().verify().await
        }
    }

    async fn release(&mut self) -> Result<Released> {
        match self.backend.defect {
            Defect::NeverReleases => return Ok(Released::Released),
            Defect::FirstToLeaveEndsAll => {
                self.backend.inner.break_lock(&self.request.name).await?;
                return Ok(Released::Released);
            }
            Defect::ReleasesWhoeverHolds => {
                self.backend.inner.break_lock(&self.request.name).await?;
            }
            Defect::ForgetsACancelledRelease => {
                if std::mem::replace(&mut self.released, true) {
                    return Ok(Released::Released);
                }
                tokio::task::yield_now().await;
            }
            _ => {}
        }
        self.inner.as_mut().expect("taken on drop only").release().await
    }
}

impl Drop for BrokenLease {
    fn drop(&mut self) {
        let leaks = [Defect::LeaksWhatWasDropped, Defect::NeverReleases].contains(&self.backend.defect);
        if leaks {
            std::mem::forget(self.inner.take());
        }
    }
}
