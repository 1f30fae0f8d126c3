//! The backend: acquire, wait, inspect.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use lock_core::renewal::{Renewer, Terms};
use lock_core::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, Clock, Error, ErrorKind, Holder, LeaseKind,
    LockName, LockState, OwnerId, Result, Token, ValidityCell, Wait,
};
use rand::Rng;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::config::{RedisConfig, WaitBy};
use crate::lease::{RedisLease, RenewOnServer, trusted_until};
use crate::push::{Listener, Push};
use crate::server::{Claim, Sent, ServerOptions, Sight, Verdict};
use crate::{Keys, Server};

pub(crate) const BACKEND: &str = "redis";
/// The shortest time to live: below it the drift margin and a round trip eat the lease up.
const MIN_TTL: Duration = Duration::from_millis(100);
/// A lost message, or a release by a client that publishes none, costs no more than this.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The backend for one Redis server.
///
/// A lock is as durable as that server: after a failover, or a restart without its data, two may hold
/// it. Fencing tokens still grow then, as they follow the server's clock.
#[derive(Debug)]
pub struct Redis {
    capabilities: Capabilities,
    server: Arc<Server>,
    push: Push,
    renewer: Renewer<RenewOnServer>,
    prefix: String,
    ttl: Duration,
    wait: WaitBy,
    clock: Clock,
}

impl Redis {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], [`ErrorKind::Unavailable`], or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        config.check()?;
        let mut capabilities =
            Capabilities::new(BACKEND, LeaseKind::Ttl { default: config.ttl, min: MIN_TTL });
        capabilities.counts_waiters = config.wait == WaitBy::Notify;
        let mut options = ServerOptions::new(BACKEND, config.info);
        (options.pool, options.dial) = (config.pool, config.dial);
        (options.connect_timeout, options.command_timeout) = (config.connect_timeout, config.command_timeout);
        options.clock = config.clock.clone();
        let server = Arc::new(Server::new(options)?);
        server.connect().await?;
        let renew = RenewOnServer { server: Arc::clone(&server), clock: config.clock.clone() };
        Ok(Self {
            capabilities,
            push: Push::new(Arc::clone(&server), config.connect_timeout),
            server,
            renewer: Renewer::new(renew, config.clock.clone()),
            prefix: config.prefix,
            ttl: config.ttl,
            wait: config.wait,
            clock: config.clock,
        })
    }
}

#[async_trait]
impl Backend for Redis {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let keys = Arc::new(Keys::new(&self.prefix, &request.name));
        let mut waiting = Waiting::new(self, &keys, request.wait);
        loop {
            waiting.about_to_ask();
            match self.attempt(&keys, &request).await {
                Ok(Attempt::Held(lease)) => return Ok(Acquired::Held(Box::new(lease))),
                Ok(Attempt::Busy { ends_in, foreign_type }) => waiting.busy(ends_in, foreign_type),
                Err(error) => waiting.failed(error)?,
            }
            if request.wait.is_over() || !waiting.wait().await {
                return waiting.give_up();
            }
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        Ok(state(&self.server.look(&Keys::new(&self.prefix, name)).await?))
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        match self.server.break_lock(&Keys::new(&self.prefix, name)).await?.as_str() {
            "string" => Ok(true),
            "none" => Ok(false),
            kind => Err(not_a_lock(BACKEND, kind)),
        }
    }

    async fn close(&self) -> Result<()> {
        self.renewer.stop_all();
        self.push.close();
        self.server.close();
        Ok(())
    }
}

enum Attempt {
    Held(RedisLease),
    Busy { ends_in: Option<Duration>, foreign_type: Option<String> },
}

impl Redis {
    /// Asks once, and once more if the connection was broken: it may have been idle for too long.
    async fn attempt(&self, keys: &Arc<Keys>, request: &AcquireRequest) -> Result<Attempt> {
        match self.ask(keys, request).await? {
            Some(attempt) => Ok(attempt),
            None => match self.ask(keys, request).await? {
                Some(attempt) => Ok(attempt),
                None => Err(self.server.broken()),
            },
        }
    }

    /// Asks once; `None` when the connection broke.
    async fn ask(&self, keys: &Arc<Keys>, request: &AcquireRequest) -> Result<Option<Attempt>> {
        let ttl = request.lease.ttl.unwrap_or(self.ttl);
        let ttl = request.lease.max_hold.map_or(ttl, |hold| ttl.min(hold).max(MIN_TTL));
        let info = serde_json::to_string(&*request.owner).unwrap_or_default();
        let sent = self.clock.now();
        let undo = Undo::arm(&self.server, keys, ttl);
        let claim = Claim { keys, owner: undo.owner, ttl, info: &info, proposal: None };
        match self.server.claim(&claim).await {
            Ok(Verdict::Granted(token)) => {
                let until = trusted_until(sent, ttl);
                if self.clock.now() >= until {
                    return Err(too_late(ttl));
                }
                Ok(Some(Attempt::Held(self.lease(keys, request, undo.disarm(), token, sent, until, ttl))))
            }
            Ok(Verdict::Busy { ends_in, foreign_type }) => {
                undo.disarm();
                Ok(Some(Attempt::Busy { ends_in, foreign_type }))
            }
            Ok(Verdict::Broken) => {
                // At once, so that the next claim does not meet this one; the undo looks for what is late.
                // If this fails, the next claim fails as well, and tells why.
                if let Ok(Some(true)) = self.server.release(keys, undo.owner).await {
                    undo.disarm();
                }
                Ok(None)
            }
            Err(error) => {
                if error.outcome() == lock_core::Outcome::NotApplied {
                    undo.disarm();
                }
                Err(error)
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one lease, named by its fields")]
    fn lease(
        &self,
        keys: &Arc<Keys>,
        request: &AcquireRequest,
        owner: OwnerId,
        token: Token,
        sent: BootInstant,
        until: BootInstant,
        ttl: Duration,
    ) -> RedisLease {
        let hold_until = request.lease.max_hold.map_or(BootInstant::NEVER, |hold| sent + hold);
        let cell = ValidityCell::new(self.clock.clone(), until.min(hold_until));
        let terms = Terms { ttl, auto: request.lease.renewed, hold_until };
        RedisLease {
            server: Arc::clone(&self.server),
            clock: self.clock.clone(),
            keys: Arc::clone(keys),
            owner,
            token,
            validity: cell.validity(),
            renewal: self.renewer.add((Arc::clone(keys), owner), terms, cell.clone()),
            cell,
            releasing: None,
        }
    }
}

/// The wait of one acquisition.
struct Waiting<'a> {
    backend: &'a Redis,
    keys: &'a Arc<Keys>,
    wait: Wait,
    listener: Option<Listener>,
    pause: Duration,
    /// Whether the server has told us that the lock is busy.
    heard: bool,
    /// Since when the server does not answer, and what it said last.
    outage: Option<(Instant, Error)>,
    warned: bool,
}

impl<'a> Waiting<'a> {
    fn new(backend: &'a Redis, keys: &'a Arc<Keys>, wait: Wait) -> Self {
        let listens = backend.wait == WaitBy::Notify && wait != Wait::Never;
        let listener = listens.then(|| backend.push.listen_if_live(&keys.channel)).flatten();
        Self {
            backend,
            keys,
            wait,
            listener,
            pause: Duration::ZERO,
            heard: false,
            outage: None,
            warned: false,
        }
    }

    /// What is told from here on is news: the answer may not know of it yet.
    fn about_to_ask(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.mark_seen();
        }
    }

    fn busy(&mut self, ends_in: Option<Duration>, foreign_type: Option<String>) {
        (self.heard, self.outage) = (true, None);
        if let Some(kind) = foreign_type.filter(|_| !std::mem::replace(&mut self.warned, true)) {
            tracing::warn!(key = %self.keys.lock, kind, "the key of a lock is used for something else: the lock is busy until it goes");
        }
        let longest =
            if self.listener.as_ref().is_some_and(Listener::is_live) { LONGEST_SLEEP } else { poll_pause() };
        // A millisecond more, as the server rounds the time that is left.
        self.pause = ends_in.map_or(longest, |left| longest.min(left + Duration::from_millis(1)));
        if self.listener.is_none() && self.backend.wait == WaitBy::Notify && !self.wait.is_over() {
            self.listener = Some(self.backend.push.listen(&self.keys.channel));
        }
    }

    /// An outage while waiting is ridden out for as long as a lease lasts; the first answer is not
    /// waited for.
    fn failed(&mut self, error: Error) -> Result<()> {
        let since = self.outage.take().map_or_else(Instant::now, |(since, _)| since);
        let patient =
            self.heard && error.kind() == ErrorKind::Unavailable && since.elapsed() < self.backend.ttl;
        if !patient {
            return Err(error);
        }
        tracing::debug!(%error, "waiting goes on");
        self.outage = Some((since, error));
        self.pause = poll_pause();
        Ok(())
    }

    /// Sleeps until it makes sense to ask again, and says whether there is time to.
    async fn wait(&mut self) -> bool {
        let left = self.wait.left();
        let pause = left.map_or(self.pause, |left| left.min(self.pause));
        match &mut self.listener {
            Some(listener) => tokio::select! {
                () = listener.news() => {}
                () = sleep(pause) => {}
            },
            None => sleep(pause).await,
        }
        !self.wait.is_over()
    }

    fn give_up(self) -> Result<Acquired> {
        match self.outage {
            Some((_, error)) => Err(error),
            None => Ok(Acquired::Busy),
        }
    }
}

/// Takes back what an acquisition that was dropped or failed may have left on the server.
struct Undo {
    server: Arc<Server>,
    keys: Arc<Keys>,
    owner: OwnerId,
    ttl: Duration,
    sent: Sent,
    runtime: Option<Handle>,
}

impl Undo {
    fn arm(server: &Arc<Server>, keys: &Arc<Keys>, ttl: Duration) -> Self {
        Self {
            server: Arc::clone(server),
            keys: Arc::clone(keys),
            owner: OwnerId::random(),
            ttl,
            sent: Sent::InDoubt { connection: server.generation() },
            runtime: Handle::try_current().ok(),
        }
    }

    fn disarm(mut self) -> OwnerId {
        self.runtime = None;
        self.owner
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let (server, keys, owner) = (Arc::clone(&self.server), Arc::clone(&self.keys), self.owner);
        let (ttl, sent) = (self.ttl, self.sent);
        drop(runtime.spawn(async move { server.undo(&keys, owner, ttl, sent).await }));
    }
}

pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    Capabilities::new(BACKEND, LeaseKind::Ttl { default: ttl, min: MIN_TTL }).check_ttl(ttl, MIN_TTL)
}

/// The error for a key that cannot be broken, as it is used for something else.
#[must_use]
pub fn not_a_lock(backend: &'static str, kind: &str) -> Error {
    Error::new(ErrorKind::Unsupported, backend)
        .message(format!("the key holds a {kind}, which is no lock of this protocol"))
        .hint("remove it with the client that made it, or use another prefix in the URL (?prefix=...)")
}

/// What a sight of the server means, for users.
#[must_use]
pub fn state(sight: &Sight) -> LockState {
    let mut state = match (sight.kind.as_str(), sight.value == sight.owner) {
        ("none", _) => LockState::free(),
        ("string", true) => match serde_json::from_str(&sight.info) {
            Ok(owner) => LockState::held(Holder::Known(owner)),
            Err(_) => LockState::held(Holder::Foreign(format!("a client with the value {:?}", sight.value))),
        },
        ("string", false) => {
            LockState::held(Holder::Foreign(format!("a client with the value {:?}", sight.value)))
        }
        (kind, _) => LockState::held(Holder::Foreign(format!("a key of type {kind}"))),
    };
    if let Some(Holder::Known(_)) = state.holder {
        state.since = sight
            .since
            .map(|micros| UNIX_EPOCH + Duration::from_micros(micros))
            .filter(|at| *at > SystemTime::UNIX_EPOCH);
    }
    (state.token, state.waiters) = (sight.token, sight.waiters);
    state
}

fn too_late(ttl: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .message(format!("the server granted the lock, but its answer took longer than the ttl of {ttl:?}"))
        .hint("use a longer ttl; the lock is given back")
        .with_outcome(lock_core::Outcome::Applied)
}

fn poll_pause() -> Duration {
    Duration::from_millis(lock_core::random::rng().random_range(50..=250))
}
