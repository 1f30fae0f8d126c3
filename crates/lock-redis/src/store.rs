//! What a server answers to one request.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::backend::MAX_LISTED;
use lock_core::engine::{Answer, Answered, Ask, Changed, Extension, Hold, LeaseStore, Release};
use lock_core::migration::Tombstone;
use lock_core::{DoctorReport, Error, LockName, LockState, Outcome, OwnerId, Result, Token};
use redis_link::dispatch::Dispatch;
use redis_link::key_watch::KeyWatch;
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::owner_cache::OwnerCache;
use redis_link::proof::Secret;
use redis_link::push::Pushes;

use crate::config::{LeaveFree, RedisWait};
use crate::error::{BACKEND, moved, perhaps_applied};
use crate::mailbox::WaiterMailbox;
use crate::order::OnConnection;
use crate::recent_names::RecentNames;
use crate::recipes::request::{self, Claimed, Entry, ReleaseKind};
use crate::server::Server;

/// The locks of one server, of a master behind sentinels, or of a cluster.
#[derive(Debug)]
pub struct RedisStore {
    pub(crate) server: Arc<Server>,
    pub(crate) push: Arc<Pushes>,
    pub(crate) prefix: String,
    /// The servers and the prefix, as a URL without credentials.
    pub(crate) identity: String,
    pub(crate) wait: RedisWait,
    /// Whether a request says when its lease ends.
    pub(crate) says_the_end: bool,
    /// How many replicas must have a lock before it counts as granted, and how long to wait for them.
    pub(crate) wait_replicas: Option<(u32, Duration)>,
    pub(crate) leave_free: Option<LeaveFree>,
    pub(crate) owners: OwnerCache,
    /// Where a claim by plain commands would probably be in vain.
    pub(crate) busy: RecentNames,
    /// Whose last token has a ttl.
    pub(crate) kept: RecentNames,
    /// The generation of the last connection on which a script granted a lock.
    pub(crate) worked: AtomicU64,
}

impl LeaseStore for RedisStore {
    type Place = Arc<Keys>;
    type Order = OnConnection;
    type Mailbox = WaiterMailbox;

    fn place(&self, name: &LockName) -> Result<Arc<Keys>> {
        self.keys(name).map(Arc::new)
    }

    async fn order(&self, keys: &Arc<Keys>) -> Result<OnConnection> {
        let client = &self.server.client;
        let on = OnConnection::new(client, keys, self.says_the_end);
        if on.connection.is_some() {
            return Ok(on);
        }
        // Boxed, to keep the future of an acquisition small.
        Box::pin(client.reach(keys)).await?;
        Ok(OnConnection::new(client, keys, self.says_the_end))
    }

    async fn ask(&self, on: &OnConnection, keys: &Arc<Keys>, ask: &Ask<'_, WaiterMailbox>) -> Result<Answer> {
        let token = match self.answer(on, keys, ask).await? {
            LockAnswer::Granted(token) => token,
            LockAnswer::Busy { ends_in, foreign_type, position } => {
                self.busy.note(keys, self.now());
                return self
                    .busy(keys, ask, foreign_type)
                    .map(|()| Answer::Busy { ahead: position, ends_in });
            }
            LockAnswer::Broken => return Err(self.server.client.broken()),
        };
        self.replicated(keys, ask).await?;
        Ok(Answer::Granted(token))
    }

    async fn release(
        &self,
        on: &OnConnection,
        keys: &Arc<Keys>,
        owner: OwnerId,
        what: Release<'_, WaiterMailbox>,
    ) -> Result<Changed> {
        let now = self.now();
        let (ours, leaves_unkept) = match what {
            Release::Acquisition(mailbox) => {
                let entry = mailbox.and_then(WaiterMailbox::entry);
                // Boxed, to keep the future of a release small.
                (Box::pin(self.server.release(keys, owner, entry.as_deref())).await?, false)
            }
            Release::Lock { hold, is_contended } => {
                let is_kept = hold == Hold::Alone && self.kept.has(keys, now);
                let how = match self.leave_free.filter(|leave_free| leave_free.draw()) {
                    Some(LeaveFree { moment, .. }) => ReleaseKind::LeaveFree(moment),
                    None if is_contended => ReleaseKind::ToNext,
                    None if is_kept => ReleaseKind::Unwanted,
                    None => ReleaseKind::WANTED,
                };
                let ours = self.server.release_by(keys, owner, how, &on.dispatch).await?;
                (ours, how == ReleaseKind::WANTED)
            }
        };
        if ours == Some(true) && leaves_unkept {
            self.kept.note(keys, now);
        }
        Ok(match ours {
            Some(true) => Changed::Done(()),
            Some(false) => Changed::NotHeld,
            None => Changed::NotHeldAnyMore,
        })
    }

    async fn extend(&self, leases: &[Extension<'_, Arc<Keys>>], answered: impl Answered<Result<Changed>>) {
        let changed = |ours| if ours { Changed::Done(()) } else { Changed::NotHeld };
        let answered = |at, ours: Result<bool>| answered(at, ours.map(changed));
        // One that also notifies the next waiter needs more keys and rights. If it is refused, the lease is extended without that.
        let refused = Mutex::new(Vec::new());
        let is_refused = |error: &Error| error.outcome() != Outcome::Unknown;
        let first = |at: usize, ours: Result<bool>| match leases[at].hold {
            Hold::Granted if ours.as_ref().is_err_and(is_refused) => {
                refused.lock().unwrap_or_else(PoisonError::into_inner).push(at);
            }
            _ => answered(at, ours),
        };
        self.server.extend(self.server.moment(), leases, first).await;
        let refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
        if refused.is_empty() {
            return;
        }
        let mut alone: Vec<_> = refused.iter().map(|at| leases[*at]).collect();
        alone.iter_mut().for_each(|lease| lease.hold = Hold::Alone);
        let again = |at: usize, ours| answered(refused[at], ours);
        Box::pin(self.server.extend(self.server.moment(), &alone, again)).await;
    }

    async fn holds(&self, keys: &Arc<Keys>, owner: OwnerId) -> Result<bool> {
        Ok(self.server.inspect(keys, Some(owner)).await?.is_ours)
    }

    async fn raise(&self, keys: &Arc<Keys>, owner: OwnerId, floor: Token) -> Result<Changed> {
        // The last token of a lock with a long ttl is kept for longer already, and stays so: the script shortens nothing.
        let ours = self.server.raise(keys, owner, floor, Duration::ZERO).await?;
        Ok(if ours { Changed::Done(()) } else { Changed::NotHeld })
    }

    async fn hand_over(
        &self,
        on: &OnConnection,
        keys: &Arc<Keys>,
        from: OwnerId,
        to: &Ask<'_, WaiterMailbox>,
    ) -> Result<Changed<Token>> {
        let info = self.owners.of(to.info);
        let changed = self.server.rotate(from, &request(keys, to, &info), &on.dispatch).await?;
        if let Changed::Done(_) = changed {
            self.replicated(keys, to).await?;
        }
        Ok(changed)
    }

    async fn inspect(&self, keys: &Arc<Keys>) -> Result<LockState> {
        Ok(self.server.inspect(keys, None).await?.state())
    }

    async fn break_lock(&self, keys: &Arc<Keys>, only: Option<Token>) -> Result<Changed> {
        let broken = match only {
            Some(token) => self.break_one(keys, token).await?,
            None => self.break_seen(keys).await?,
        };
        Ok(if broken { Changed::Done(()) } else { Changed::NotHeld })
    }

    fn close(&self) {
        // First, as waiters that are no longer notified ask again.
        self.server.client.close();
        self.push.close();
    }

    fn mailbox(&self, keys: &Arc<Keys>) -> Option<WaiterMailbox> {
        let confirms = self.wait_replicas.is_some();
        (self.wait != RedisWait::Poll).then(|| WaiterMailbox::new(&self.push, keys, self.wait, confirms))
    }

    fn node(&self, keys: &Arc<Keys>) -> Option<String> {
        self.server.client.node_name(keys)
    }

    async fn next_change(
        &self,
        keys: &Arc<Keys>,
    ) -> Result<Option<Pin<Box<dyn Future<Output = ()> + Send>>>> {
        let watch = KeyWatch::arm(&self.push, keys).await;
        Ok(if watch.is_armed() { Some(Box::pin(watch.reported())) } else { None })
    }

    async fn list(&self, prefix: &str) -> Result<Option<Vec<LockName>>> {
        let beginning = format!("{}{prefix}", self.prefix);
        let keys = self.server.client.keys_that_begin(&beginning, MAX_LISTED).await?;
        Ok(Some(Keys::names(&self.prefix, keys)))
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        self.examined().await
    }
}

impl RedisStore {
    pub(crate) fn keys(&self, name: &LockName) -> Result<Keys> {
        let keys = Keys::new(&self.prefix, name);
        keys.check(BACKEND).map(|()| keys)
    }

    pub(crate) fn now(&self) -> lock_core::BootInstant {
        self.server.client.clock().now()
    }

    /// Asks by plain commands, if the lock is probably free, and by the script.
    async fn answer(
        &self,
        on: &OnConnection,
        keys: &Arc<Keys>,
        ask: &Ask<'_, WaiterMailbox>,
    ) -> Result<LockAnswer> {
        let info = self.owners.of(ask.info);
        let mut request = request(keys, ask, &info);
        // A claim acquired the lock, or may have, and the script has not said more yet.
        let mut is_untokened = false;
        if ask.is_first && on.connection.is_some_and(|on| self.scripts_work(on)) {
            match self.claim(&request, &on.dispatch).await? {
                Claimed::Granted(token) => return Ok(LockAnswer::Granted(token)),
                Claimed::Broken => return Ok(LockAnswer::Broken),
                Claimed::OutOfTurn => {
                    // As after a broken connection: the lock is taken back, which passes it on, and another owner asks, by the
                    // script. A late copy of that release must not find this owner with the lock again.
                    self.busy.note(keys, self.now());
                    return Ok(LockAnswer::Broken);
                }
                Claimed::Untokened => is_untokened = true,
                Claimed::NotGranted => {}
            }
        }
        let entry = ask.queue.as_ref().and_then(|queue| {
            let (&Ask { owner, mode, ttl, .. }, grace) = (ask, queue.grace);
            let token_ttl = self.server.token_ttl;
            let entry = |secret: &Secret, inbox: &str| {
                Entry { owner, secret, mode, grace, ttl, token_ttl, inbox, info: &info }.to_string()
            };
            queue.mailbox?.queue_up(owner, entry)
        });
        request.entry = entry.as_deref();
        // Boxed, to keep the future of an acquisition small: a claim is usually enough.
        let answer = Box::pin(self.server.ask(self.server.moment(), &request, &on.dispatch)).await;
        if let (Ok(LockAnswer::Granted(_)), Some(on)) = (&answer, on.connection) {
            self.note_scripts_work(on);
        }
        answer.map_err(|error| match is_untokened && error.outcome() == Outcome::NotApplied {
            true => error.with_outcome(Outcome::Applied),
            false => perhaps_applied(error),
        })
    }

    /// Claims the lock by plain commands, if it is probably free.
    async fn claim(&self, request: &request::Ask<'_>, dispatch: &Arc<Dispatch>) -> Result<Claimed> {
        let now = self.now();
        let keeps = !self.kept.has(request.keys, now);
        if self.busy.has(request.keys, now) || keeps && !self.server.claims_keep() {
            return Ok(Claimed::NotGranted);
        }
        self.server.claim(request, keeps, dispatch).await
    }

    /// Waits until the configured number of replicas have a granted lock.
    async fn replicated(&self, keys: &Arc<Keys>, ask: &Ask<'_, WaiterMailbox>) -> Result<()> {
        let Some((wanted, timeout)) = self.wait_replicas else { return Ok(()) };
        let mut lease = Extension::new(keys, ask.owner, ask.ttl);
        lease.hold = Hold::of(ask.mode);
        // Boxed, to keep the future of an acquisition small.
        let replicated = Box::pin(self.server.await_replicas(&lease, wanted, timeout)).await;
        replicated.map_err(|error| error.with_outcome(Outcome::Applied))
    }

    /// Logs that the key is no lock, and fails if it has moved.
    fn busy(&self, keys: &Keys, ask: &Ask<'_, WaiterMailbox>, foreign_type: Option<String>) -> Result<()> {
        let Some(kind) = foreign_type else { return Ok(()) };
        if Tombstone::is_one(&kind) {
            return Err(moved(&kind));
        }
        // Once for each acquisition.
        if ask.is_first {
            tracing::warn!(
                key = keys.lock(),
                kind,
                "the key of a lock has another type: the lock is busy until the key is removed"
            );
        }
        Ok(())
    }

    /// Whether a script has granted a lock on this connection. Who may not run scripts could acquire locks by plain
    /// commands, but never release them.
    fn scripts_work(&self, connection: u64) -> bool {
        connection == self.worked.load(Ordering::Relaxed)
    }

    fn note_scripts_work(&self, connection: u64) {
        self.worked.store(connection, Ordering::Relaxed);
    }
}

fn request<'a>(keys: &'a Keys, ask: &Ask<'_, WaiterMailbox>, info: &'a str) -> request::Ask<'a> {
    let &Ask { owner, mode, ttl, is_confirmation, .. } = ask;
    request::Ask { keys, owner, mode, ttl, info, entry: None, is_confirmation }
}
