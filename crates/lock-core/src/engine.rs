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
//! | `blocked` | pauses while something else has the record of a lock |
//!
//! **A request that was given up may be executed at any later time.** So every acquisition has an owner id of its own, which is given up
//! after the first request with an unknown outcome, and is rolled back by a request that is executed after it: on the same
//! [`Order`], or repeated for as long as a lease lasts.

mod attempt;
mod blocked;
mod lease;
mod renew;
mod rollback;
mod store;
mod wait;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use self::attempt::Acquisition;
use self::blocked::until_free;
use self::renew::RenewOnStore;
pub use self::store::{
    Answer, Ask, Blocker, Break, Changed, Extension, LeaseStore, Mailbox, Message, Order, QueueUp, Unnotified,
};
use self::wait::Waiting;
use crate::background::Background;
use crate::renewal::Renewer;
use crate::waiting::pause_between;
use crate::{
    AcquireRequest, Acquired, Backend, Capabilities, Clock, DoctorReport, LeasePolicy, LockName, LockState,
    Result, Token,
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
    /// How long the store keeps a lock that it has granted to a waiter, until that confirms. The usual is 2.5 s.
    pub grace: Duration,
    /// How long the first waiter pauses at most before it asks again, if it is not notified; those behind it up to four times as long.
    /// The usual is 250 ms.
    pub poll: Duration,
    /// How many tasks of one process may have a lock in a row before the store chooses the next holder. The usual is 1. More only for
    /// a store whose grants reserve a [block](crate::TokenBlock) each: the tasks use up its tokens.
    pub local_handovers: u32,
    /// Whether a task may have the lock of another one, with the next token of its block, that has shown its token to others.
    pub passes_on_shown_tokens: bool,
    /// The clock of the leases.
    pub clock: Clock,
}

/// What acquisitions and leases share.
#[derive(Debug)]
struct Core<S: LeaseStore> {
    store: Arc<S>,
    capabilities: Capabilities,
    options: EngineOptions,
    renewer: Renewer<RenewOnStore<S>>,
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
        let renew = RenewOnStore::new(&store, &capabilities, options.clock.clone());
        let renewer = Renewer::new(renew, options.clock.clone());
        Ok(Self(Arc::new(Core { store, capabilities, options, renewer, cleanup: Background::default() })))
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
        policy.max_hold.map_or(ttl, |hold| ttl.min(hold).max(self.capabilities.lease.min_ttl()))
    }

    async fn break_holders(&self, place: &S::Place, which: Break) -> Result<bool> {
        Ok(until_free(self, place, || self.store.break_lock(place, which)).await?.is_some())
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
        let (sent, answer) = attempt.ask(&what).await;
        match answer {
            Ok(Answer::Granted(token)) => {
                attempt.granted(&what, sent, token).map(|lease| Acquired::Held(Box::new(lease)))
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
                None => sleep(pause_between(250, 500)).await,
            }
        }
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let core = &*self.engine().0;
        let place = core.store.place(name)?;
        // The last grant that there is now: no later one is broken, whenever the request is carried out.
        let state = core.store.inspect(&place).await?;
        let last = state.token.or_else(|| state.holders.iter().filter_map(|holder| holder.token).max());
        match last {
            Some(last) => core.break_holders(&place, Break::UpTo(last)).await,
            None => Ok(false),
        }
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let core = &*self.engine().0;
        core.break_holders(&core.store.place(name)?, Break::Only(token)).await
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

    async fn settle(&self) {
        self.engine().0.cleanup.settled().await;
    }

    async fn close(&self) -> Result<()> {
        self.engine().0.renewer.stop_all();
        self.engine().0.store.close();
        Ok(())
    }
}
