//! One engine for all stores of leases.
//!
//! A store answers single requests: [`LeaseStore`]. [`Engine`] makes a [`Backend`] of it: attempts and their outcomes, roll-backs, waits
//! and their outages, grants that are notified, leases and their validity, renewals in batches, hand-overs within a process.
//!
//! | file | role |
//! |---|---|
//! | `store` | what a store answers |
//! | `attempt` | one owner id: its requests, and what is known of them |
//! | `wait` | the wait for a busy lock |
//! | `lease`, `renew` | a lock that is held |
//! | `rollback` | removes what an acquisition may have left |
//! | `round_trip` | how slowly the store answers |
//! | `blocked` | pauses while something else has the record of a lock |
//!
//! **A request that was given up may be executed at any later time.** So every acquisition has an owner id of its own, which is given up
//! after the first request with an unknown outcome, and is rolled back by a request that is executed after it: on the same
//! [`Order`], or repeated for as long as a lease lasts.
//!
//! # A walk through the code
//!
//! **An uncontended `acquire`**: `handle.rs` takes the turn of the lock within the process, and calls [`Backend::acquire`] below. `attempt`
//! draws an owner id, asks the store for its order, arms the roll-back and sends [`LeaseStore::ask`]. It computes the deadline of the grant,
//! rejects one that came too late, and `lease` begins: the lease is added to the renewer of its server.
//!
//! **A release**: `guard.rs` ends the guard's signals. `lease` stops the renewal, waits until none is in flight, skips the request if the lock
//! was removed or has expired by now, and sends [`LeaseStore::release`].
//!
//! **A wait and its hand-over**: `wait` goes on with an answer that the lock is busy, and sleeps until its [`Mailbox`] has a message or it is
//! time to ask again. A grant that is notified, and of whose grace enough is surely left, becomes a lease at once; the first renewal confirms
//! it in the background. Else the waiter asks the store to confirm it.

mod attempt;
mod blocked;
mod lease;
mod release;
mod renew;
mod rollback;
mod round_trip;
mod store;
#[cfg(test)]
mod tests;
mod wait;

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::Rng;
use tokio::time::sleep;

use self::attempt::Acquisition;
use self::blocked::until_free;
use self::lease::EngineLease;
use self::renew::Renewers;
use self::round_trip::RoundTrip;
pub use self::store::{
    Answer, Ask, Blocker, Changed, Extension, Hold, Kept, LeaseStore, Mailbox, Message, Order, QueueUp,
    Release, Unnotified,
};
use self::wait::Waiting;
use crate::process::tasks::background::Background;
use crate::process::waiting::pause_between;
pub use crate::renewal::Answered;
use crate::seam::migration::MigrationSource;
use crate::{
    AcquireRequest, Acquired, Backend, Capabilities, Clock, DoctorReport, Error, ErrorKind, Lease,
    LeasePolicy, LockName, LockState, Outcome, OwnerId, Result, Token, random,
};

/// A [`Backend`] over a store of leases.
#[derive(Debug)]
pub struct Engine<S: LeaseStore>(Arc<Core<S>>);

/// A backend that consists of an engine. It gets [`Backend`] by this.
pub trait OnEngine: Debug + Send + Sync + 'static {
    /// The store.
    type Store: LeaseStore;

    /// The engine.
    fn engine(&self) -> &Engine<Self::Store>;

    /// See [`Backend::migration_source`].
    fn migration_source(&self) -> Option<&dyn MigrationSource> {
        None
    }
}

/// What an engine has to know of its store.
///
/// ```
/// # use std::time::Duration;
/// use lock_core::engine::EngineOptions;
///
/// let mut options = EngineOptions::new(Duration::from_secs(5));
/// options.poll = Duration::from_millis(50);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// After this time, a request ends without an answer.
    pub command_timeout: Duration,
    /// How long the store keeps a lock that it has granted to a waiter, until that confirms; longer if the store answers slowly. The usual
    /// is 2.5 s.
    pub grace: Duration,
    /// How long the first waiter pauses at most before it asks again, if it is not notified; those behind it up to four times as long.
    /// The usual is 250 ms.
    pub poll: Duration,
    /// How many tasks of one process may have a lock in a row before the store chooses the next holder. The usual is 1. More only for
    /// a store whose grants reserve a [block](crate::TokenBlock) each: the tasks use up its tokens.
    pub local_handovers: u32,
    /// Whether a task may have the lock of another one, with the next token of its block, that has shown its token to others.
    pub passes_on_shown_tokens: bool,
    /// How much shorter than its time to live a lease is, where the clocks of the clients decide when it ends. The usual is zero.
    pub skew: Duration,
    /// The clock of the leases.
    pub clock: Clock,
}

/// What acquisitions and leases share.
#[derive(Debug)]
struct Core<S: LeaseStore> {
    store: Arc<S>,
    capabilities: Capabilities,
    options: EngineOptions,
    renewers: Renewers<S>,
    round_trip: RoundTrip,
    /// The roll-backs that are under way.
    cleanup: Background,
}

impl<S: LeaseStore> Engine<S> {
    /// An engine over this store, whose leases last as the capabilities say.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if that is too short or too long.
    pub fn new(store: S, capabilities: Capabilities, options: EngineOptions) -> Result<Self> {
        capabilities.check_lease_ttl(capabilities.lease.default_ttl())?;
        let store = Arc::new(store);
        let renewers = Renewers::new(&store, &capabilities, &options.clock);
        let (round_trip, cleanup) = (RoundTrip::default(), Background::default());
        Ok(Self(Arc::new(Core { store, capabilities, options, renewers, round_trip, cleanup })))
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Ends a lease of this engine by another request than a release. `None`, from the request, if the owner did not have the lock.
    ///
    /// # Errors
    ///
    /// Those of the request; the lease is not renewed after that. [`Unexpected`](crate::ErrorKind::Unexpected) for a lease of another
    /// engine.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the outcome is unknown, and the lease is not renewed.
    pub async fn end<T, F>(
        &self,
        lease: &mut dyn Lease,
        request: impl FnOnce(S::Place, OwnerId) -> F + Send,
    ) -> Result<Option<T>>
    where
        F: Future<Output = Result<Option<T>>> + Send,
    {
        let lease: &mut dyn Any = lease;
        match lease.downcast_mut::<EngineLease<S>>() {
            Some(lease) => lease.end(request).await,
            None => Err(Error::new(ErrorKind::Unexpected, self.0.backend())
                .with_message("the lease is not one of this backend")),
        }
    }
}

impl EngineOptions {
    /// The usual ones.
    #[must_use]
    pub fn new(command_timeout: Duration) -> Self {
        Self {
            command_timeout,
            grace: Duration::from_millis(2_500),
            poll: Duration::from_millis(250),
            local_handovers: 1,
            passes_on_shown_tokens: true,
            skew: Duration::ZERO,
            clock: Clock::boot(),
        }
    }
}

impl<S: LeaseStore> Core<S> {
    fn backend(&self) -> &'static str {
        self.capabilities.backend
    }

    /// The initial ttl of a lease.
    fn ttl_of(&self, policy: &LeasePolicy) -> Duration {
        let ttl = policy.ttl.unwrap_or_else(|| self.capabilities.lease.default_ttl());
        let (ttl, shortest) = (self.without_skew(ttl), self.without_skew(self.capabilities.lease.min_ttl()));
        policy.max_hold.map_or(ttl, |hold| ttl.min(hold).max(shortest))
    }

    fn without_skew(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(self.options.skew)
    }

    async fn break_lock(&self, name: &LockName, only: Option<Token>) -> Result<bool> {
        let place = self.store.place(name)?;
        let only = match only {
            Some(token) => BTreeSet::from([token]),
            None => match self.store.break_lock(&place, None).await? {
                Changed::Done(()) => return Ok(true),
                Changed::NotHeld | Changed::NotHeldAnyMore => return Ok(false),
                // It is repeated for those alone that have it now: a later holder is not to be broken.
                Changed::Blocked => {
                    let now = self.store.inspect(&place).await?;
                    now.holders.iter().filter_map(|holder| holder.token).chain(now.last_token()).collect()
                }
            },
        };
        let mut is_broken = false;
        for token in only {
            let broken = until_free(self, &place, || self.store.break_lock(&place, Some(token))).await;
            let outcome = |error: Error| if is_broken { error.with_outcome(Outcome::Applied) } else { error };
            is_broken |= broken.map_err(outcome)?.is_some();
        }
        Ok(is_broken)
    }
}

impl<S: LeaseStore> OnEngine for Engine<S> {
    type Store = S;

    fn engine(&self) -> &Self {
        self
    }
}

#[async_trait]
impl<E: OnEngine> Backend for E {
    fn capabilities(&self) -> &Capabilities {
        &self.engine().0.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let what = Acquisition::new(&self.engine().0, &request)?;
        let mut attempt = what.attempt();
        let (sent, answer) = attempt.ask(&what, false).await;
        match answer {
            Ok(Answer::Granted(token)) => {
                attempt.granted(&what, sent, token, false).map(|lease| Acquired::Held(Box::new(lease)))
            }
            // Boxed, to keep the future of an acquisition small.
            answer => Box::pin(Waiting::new(what).go_on(attempt, sent, answer)).await,
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let store = &self.engine().0.store;
        store.inspect(&store.place(name)?).await
    }

    async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let Core { store, capabilities, .. } = &*self.engine().0;
        let place = store.place(name)?;
        loop {
            // Armed before the look, so that no change falls between.
            let change = store.next_change(&place).await?;
            let state = store.inspect(&place).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            // The end of a lease is not reported, nor is a change while the connection is open no longer.
            let ends = state.holders.iter().filter_map(|holder| holder.remaining).min();
            let longest = capabilities.lease.default_ttl();
            match change {
                Some(change) => tokio::select! {
                    () = change => {}
                    () = sleep(ends.map_or(longest, |left| left.min(longest)) + pause_between(1, 50)) => {}
                },
                None => {
                    let pause = store.look_every().max(LOOK_EVERY);
                    sleep(pause.mul_f64(random::rng().random_range(1.0..2.0))).await;
                }
            }
        }
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        self.engine().0.break_lock(name, None).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        self.engine().0.break_lock(name, Some(token)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let Core { store, capabilities, .. } = &*self.engine().0;
        capabilities.check_listing()?;
        match store.list(prefix).await? {
            Some(names) => capabilities.check_listed(names.len()).map(|()| names),
            None => Err(capabilities.not_implemented("list")),
        }
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.engine().0.store.doctor().await
    }

    fn migration_source(&self) -> Option<&dyn MigrationSource> {
        OnEngine::migration_source(self)
    }

    async fn settle(&self) {
        self.engine().0.cleanup.settled().await;
    }

    async fn close(&self) -> Result<()> {
        self.engine().0.renewers.stop_all();
        self.engine().0.store.close();
        Ok(())
    }
}

/// How often an observer looks where a look costs little.
const LOOK_EVERY: Duration = Duration::from_millis(250);
