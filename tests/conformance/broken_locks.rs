//! Locks that are broken where servers and processes are concerned: each must be caught by its case.
//!
//! They are built upon the Redis backend. The testkit has the rest of the collection, built upon the memory backend.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::{Failed, Trial};
use lock_core::backend::{AcquireRequest, Acquired, Wait};
use lock_core::{
    Backend, BootInstant, Capabilities, Clock, DoctorReport, Error, ErrorKind, GuardState, Lease, LockName,
    LockState, Locks, OwnerId, Released, Result, Token, Validity, ValidityCell,
};
use lock_testkit::conformance::{self, Harness};
use tokio::time::sleep;

use crate::sites::{Flavour, Kind, RedisHarness, Servers};

/// Names the defects, and the cases that must catch them.
macro_rules! broken_locks {
    ($($defect:ident: [$($case:literal),+ $(,)?],)+) => {
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum Defect {
            $($defect,)+
        }

        const EXHIBITS: &[(Defect, &[&str])] = &[$((Defect::$defect, &[$($case),+])),+];
    };
}

broken_locks! {
    ConnectsLater: [
        "a_dead_server_is_reported_at_connect",
        "a_new_password_is_read_from_its_file",
        "a_wrong_password_is_named_by_its_file",
        "a_password_file_that_cannot_be_read_is_named_and_read_again",
    ],
    TakesOutagesForContention: [
        "a_dead_server_is_reported_at_acquire",
        "a_silent_server_is_reported_at_acquire",
        "what_is_refused_says_what_to_do_and_leaves_nothing",
    ],
    TakesContentionForOutages: ["a_waiter_at_a_server_that_falls_silent_gives_up_without_an_error"],
    GoesOnWhenDropped: ["patience_ends_at_a_silent_server"],
    ActsWhenNobodyWaits: ["a_lost_reply_leaves_nothing", "a_reset_instead_of_a_reply_leaves_nothing"],
    GivesUpAtOnce: ["a_waiter_rides_out_a_short_outage"],
    NeverGivesUp: ["a_long_outage_ends_strict_waits_alone"],
    InsistsAfterAnOutage: ["a_waiter_cut_off_for_long_jumps_no_queue"],
    NeverLoses: [
        "a_holder_that_is_cut_off_suspects_a_loss_and_loses",
        "a_holder_of_a_silent_server_loses",
        "a_stopped_holder_knows_that_it_lost",
    ],
    NeverDoubts: ["a_holder_that_is_cut_off_suspects_a_loss_and_loses"],
    ValidForTooLong: ["validity_counts_from_the_request"],
    ReleasesForEver: ["a_release_ends_during_an_outage"],
    ReleasesOnce: [
        "a_release_ends_during_an_outage",
        "a_drop_during_an_outage_releases_in_the_end",
        "closing_does_not_wait_for_a_silent_server_for_ever",
        "signals_of_a_guard_end_before_its_release_is_answered",
    ],
    ReleasesWhoeverHolds: ["a_stopped_holder_knows_that_it_lost"],
    TokensShrink: [
        "a_restart_keeps_locks_and_tokens",
        "a_killed_holder_is_followed",
        "waiters_get_the_lock_once_writes_are_allowed_or_need_none",
        "new_certificates_are_read_from_their_files",
    ],
    EveryProcessAlone: [
        "eight_processes_lose_no_update",
        "a_killed_holder_is_followed",
        "a_killed_reader_is_followed",
        "processes_never_exceed_the_permits",
    ],
    WaitersBarTheWay: [
        "a_killed_waiter_is_no_obstacle",
        "a_waiter_in_the_store_that_is_not_polled_stops_nobody",
        "a_waiter_that_is_not_polled_during_the_hand_over_stops_nobody",
    ],
    DowngradesByRelease: ["a_downgrade_without_an_answer_gives_nothing_up"],
    IgnoresTtl: [
        "a_killed_holder_holds_at_least_as_long",
        "guards_are_neither_extended_wrongly_nor_lost_early",
    ],
    TrustsItsConnection: ["a_forgotten_connection_is_replaced"],
    LeasesForAMoment: ["a_holder_that_computes_keeps_a_lock_that_was_handed_over"],
}

thread_local! {
    /// Whether panics of this thread are what is wanted.
    static WANTED: Cell<bool> = const { Cell::new(false) };
}

/// A trial of every exhibit, which passes when the case fails.
pub fn trials(servers: &Arc<Servers>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for &(defect, cases) in EXHIBITS {
        let harness = RedisHarness::new(Kind::Single, Flavour::Broken(defect), Arc::clone(servers));
        let harness: Arc<dyn Harness> = Arc::new(harness);
        let (all, left_out) = (conformance::trials(&harness), conformance::left_out(&*harness));
        // What a backend does not have cannot be broken; `the_matrix_is_complete` prints why it is left out.
        for case in cases.iter().filter(|case| left_out.iter().all(|(left_out, _)| left_out.name != **case)) {
            let trial = all.iter().find(|trial| trial.case().name == *case).cloned();
            trials.push(Trial::test(format!("broken_locks::{defect:?}::{case}"), move || {
                let trial = trial.ok_or("there is no such case")?;
                WANTED.set(true);
                let caught = catch_unwind(AssertUnwindSafe(|| trial.run())).is_err();
                WANTED.set(false);
                if caught { Ok(()) } else { Err("the case did not see what is wrong".into()) }
            }));
        }
    }
    trials.push(Trial::test(
        "broken_locks::every_case_with_a_server_has_been_seen_to_fail",
        every_case_has_been_seen_to_fail,
    ));
    trials
}

/// The defects that a worker may be started with.
pub fn defects() -> impl Iterator<Item = Defect> {
    EXHIBITS.iter().map(|(defect, _)| *defect)
}

/// Keeps the panics that are wanted from the eyes of those who look for the others.
pub fn hide_wanted_panics() {
    let show = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !WANTED.get() {
            show(info);
        }
    }));
}

/// A client that is broken in this way.
pub async fn connect(defect: Defect, url: String) -> Result<Locks> {
    let url = match defect {
        Defect::EveryProcessAlone => format!("{url}&prefix=lock:{}:", process::id()),
        _ => url,
    };
    match polylock::Locks::connect(&url).await {
        Ok(locks) => Ok(Locks::new(Broken { inner: Arc::clone(locks.backend()), defect })),
        Err(_) if defect == Defect::ConnectsLater => polylock::MemoryConfig::new().connect(),
        Err(error) => Err(error),
    }
}

fn every_case_has_been_seen_to_fail() -> Result<(), Failed> {
    let shown: BTreeSet<_> = EXHIBITS.iter().flat_map(|(_, cases)| *cases).copied().collect();
    let memory = polylock::MemoryConfig::new().connect().expect("the defaults are valid");
    // What the memory backend is excused from is what it takes a server to see.
    let cases = conformance::CASES.iter().filter(|case| (case.needs)(memory.capabilities()).is_err());
    let redis = RedisHarness::new(Kind::Single, Flavour::Typed, Arc::default()).capabilities();
    let missing: Vec<_> = cases
        .filter(|case| (case.needs)(&redis).is_ok() && !shown.contains(case.name))
        .map(|case| case.name)
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no exhibit for {missing:?}").into()) }
}

#[derive(Clone, Debug)]
struct Broken {
    inner: Arc<dyn Backend>,
    defect: Defect,
}

#[async_trait]
impl Backend for Broken {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        match (self.defect, request.wait) {
            (Defect::TakesOutagesForContention, _) => match self.take(request).await {
                Err(error) if error.can_pass() => Ok(Acquired::Busy),
                other => other,
            },
            (Defect::TakesContentionForOutages, Wait::Until(_)) => match self.take(request).await? {
                Acquired::Busy => {
                    Err(Error::new(ErrorKind::Unavailable, "redis").with_message("not in time"))
                }
                held => Ok(held),
            },
            (Defect::GoesOnWhenDropped, _) => {
                let mut goes_on = GoesOn(Some((self.clone(), request.clone())));
                let acquired = self.take(request).await;
                goes_on.0 = None;
                acquired
            }
            (Defect::ActsWhenNobodyWaits, _) => {
                let acquired = self.take(request.clone()).await;
                if acquired.is_err() {
                    tokio::spawn(self.clone().act_later(request));
                }
                acquired
            }
            (Defect::GivesUpAtOnce | Defect::NeverGivesUp | Defect::InsistsAfterAnOutage, Wait::Forever) => {
                self.ask_again_and_again(request).await
            }
            (Defect::WaitersBarTheWay, Wait::Forever) => {
                let gate = LockName::new(format!("{}:gate", request.name))?;
                let mut lease = request.lease;
                (lease.ttl, lease.renewed) = (Some(Duration::from_secs(60)), false);
                let gate = AcquireRequest::exclusive(gate, Wait::Forever, lease, Arc::clone(&request.owner));
                let gate = self.inner.acquire(gate).await?;
                let acquired = self.take(request).await;
                if let Acquired::Held(mut gate) = gate {
                    gate.release().await?;
                }
                acquired
            }
            (Defect::TrustsItsConnection, _) => {
                // Time: shorter than it takes to give a connection up, and longer than a server takes for an answer.
                let answered = tokio::time::timeout(Duration::from_millis(500), self.take(request)).await;
                answered.unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::Unavailable, "redis").with_message("not at once"))
                })
            }
            _ => self.take(request).await,
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.inner.inspect(name).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.inner.break_lock(name).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.inner.break_lock_if(name, token).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        self.inner.list(prefix).await
    }

    async fn request_revocation(&self, name: &LockName) -> Result<bool> {
        self.inner.request_revocation(name).await
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.inner.doctor().await
    }

    async fn settle(&self) {
        self.inner.settle().await;
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

impl Broken {
    async fn take(&self, mut request: AcquireRequest) -> Result<Acquired> {
        let name = request.name.clone();
        if self.defect == Defect::IgnoresTtl {
            request.lease.ttl = None;
        }
        if self.defect == Defect::LeasesForAMoment {
            // Time: shorter than the holder computes.
            request.lease.ttl = Some(Duration::from_secs(1));
        }
        match self.inner.acquire(request).await? {
            Acquired::Held(lease) => {
                Ok(Acquired::Held(Box::new(BrokenLease::new(self.clone(), name, lease))))
            }
            busy => Ok(busy),
        }
    }

    async fn ask_again_and_again(&self, request: AcquireRequest) -> Result<Acquired> {
        let mut once = request;
        once.wait = Wait::Never;
        let mut outage = false;
        loop {
            match self.take(once.clone()).await {
                Ok(Acquired::Held(lease)) => return Ok(Acquired::Held(lease)),
                Ok(Acquired::Busy) if outage && self.defect == Defect::InsistsAfterAnOutage => {
                    self.inner.break_lock(&once.name).await?;
                }
                Err(error) if self.defect == Defect::GivesUpAtOnce => return Err(error),
                Ok(_) => {}
                Err(_) => outage = true,
            }
            // Time: it asks again.
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn act_later(self, mut request: AcquireRequest) {
        request.wait = Wait::Forever;
        request.lease.ttl = Some(Duration::from_secs(60));
        loop {
            if let Ok(acquired) = self.inner.acquire(request.clone()).await {
                return std::mem::forget(acquired);
            }
            // Time: it asks again.
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// An acquisition that goes on once its caller has gone.
struct GoesOn(Option<(Broken, AcquireRequest)>);

impl Drop for GoesOn {
    fn drop(&mut self) {
        if let Some((locks, request)) = self.0.take() {
            tokio::spawn(locks.act_later(request));
        }
    }
}

#[derive(Debug)]
struct BrokenLease {
    backend: Broken,
    name: LockName,
    inner: Box<dyn Lease>,
    token: Token,
    validity: Validity,
}

impl BrokenLease {
    fn new(backend: Broken, name: LockName, inner: Box<dyn Lease>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(u32::MAX as u64);
        let token = match backend.defect {
            Defect::TokensShrink => Token::new(LAST.fetch_sub(1, Ordering::SeqCst)),
            _ => inner.token(),
        };
        let cell = |until| ValidityCell::new(Clock::boot(), until);
        let validity = match backend.defect {
            Defect::NeverLoses => cell(BootInstant::NEVER).validity(),
            // Time: the defect.
            Defect::ValidForTooLong => cell(inner.validity().until() + Duration::from_millis(300)).validity(),
            Defect::NeverDoubts => sure(inner.validity().clone()),
            _ => inner.validity().clone(),
        };
        Self { backend, name, inner, token, validity }
    }
}

/// The same deadline, without the doubts.
fn sure(inner: Validity) -> Validity {
    let cell = ValidityCell::new(Clock::boot(), inner.until());
    let validity = cell.validity();
    tokio::spawn(async move {
        while inner.is_valid() {
            cell.set_until(inner.until());
            // Time: it follows the deadline soon.
            sleep(Duration::from_millis(2)).await;
        }
    });
    validity
}

#[async_trait]
impl Lease for BrokenLease {
    fn token(&self) -> Token {
        self.token
    }

    fn owner(&self) -> OwnerId {
        self.inner.owner()
    }

    fn validity(&self) -> &Validity {
        &self.validity
    }

    async fn extend(&self, ttl: Duration) -> Result<BootInstant> {
        match self.backend.defect {
            Defect::IgnoresTtl => Ok(self.validity.until()),
            _ => self.inner.extend(ttl).await,
        }
    }

    async fn verify(&self) -> Result<GuardState> {
        self.inner.verify().await
    }

    async fn downgrade(&mut self) -> Result<()> {
        if self.backend.defect == Defect::DowngradesByRelease {
            self.inner.release().await?;
        }
        self.inner.downgrade().await
    }

    async fn release(&mut self) -> Result<Released> {
        match self.backend.defect {
            Defect::ReleasesForEver => loop {
                match self.inner.release().await {
                    Ok(released) => return Ok(released),
                    // Time: it asks again.
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
            },
            Defect::ReleasesOnce => {
                let _ = self.inner.release().await;
                Ok(Released::Released)
            }
            Defect::ReleasesWhoeverHolds => {
                self.backend.inner.break_lock(&self.name).await?;
                self.inner.release().await
            }
            _ => self.inner.release().await,
        }
    }
}
