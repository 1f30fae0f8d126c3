//! The backend: acquire, wait, inspect.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::renewal::{Renewer, Terms};
use lock_core::{
    AcquireRequest, Acquired, Backend, BootInstant, Capabilities, Clock, Error, ErrorKind, Finding,
    LeaseKind, Level, LockName, LockState, Outcome, Report, Result, Support, Token, ValidityCell,
};
use lock_redis::server::{ServerOptions, Sight};
use lock_redis::{Keys, Server, WallClock, state, trusted_until};
use rand::Rng;
use tokio::time::{Instant, sleep};

use crate::RedlockConfig;
use crate::campaign::{Busy, Campaign, Vote};
use crate::lease::{RedlockLease, RenewOnQuorum};
use crate::master::Master;
use crate::quorum::{Wave, quorum};

pub(crate) const BACKEND: &str = "redlock";
/// The shortest time to live: below it the drift margin and the round trips eat the lease up.
const MIN_TTL: Duration = Duration::from_millis(100);
const NO_READERS: &str =
    "the masters have no queue in common, so that readers who follow each other would keep every writer out";
/// With two permits and five masters, three clients can have three votes each.
const NO_PERMITS: &str = "every master would let in its own choice of holders, and more of them than there are permits can have a quorum";

/// The backend for a quorum of independent Redis servers.
///
/// It goes on while a minority of the masters is down. Two may hold a lock after a master lost its
/// data, or when clocks jump: let the resource check the fencing token. It grows as
/// long as a majority keeps its data, and beyond that as long as the clients' clocks agree.
#[derive(Debug)]
pub struct Redlock {
    capabilities: Capabilities,
    masters: Arc<[Arc<Master>]>,
    renewer: Renewer<RenewOnQuorum>,
    prefix: String,
    ttl: Duration,
    patience: Duration,
    clock: Clock,
    wall_clock: WallClock,
}

impl Redlock {
    fn keys(&self, name: &LockName) -> Result<Arc<Keys>> {
        let keys = Keys::new(&self.prefix, name);
        keys.check(BACKEND).map(|()| Arc::new(keys))
    }

    /// Connects to the masters; a minority of them may be down.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], [`ErrorKind::Unavailable`], or [`ErrorKind::Denied`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connections are closed.
    pub async fn connect(config: RedlockConfig) -> Result<Self> {
        config.check()?;
        let masters = config.masters.into_iter().map(|master| {
            let mut options = ServerOptions::new(BACKEND, master.info);
            (options.pool, options.dial) = (master.pool, master.dial);
            options.connect_timeout = config.connect_timeout;
            options.command_timeout = config.master_timeout;
            options.clock = config.clock.clone();
            Server::new(options).map(Master::new)
        });
        let masters: Arc<[_]> = masters.collect::<Result<Vec<_>>>()?.into();
        connect_quorum(&masters).await?;
        let renew = RenewOnQuorum { masters: Arc::clone(&masters), clock: config.clock.clone() };
        let mut capabilities =
            Capabilities::new(BACKEND, LeaseKind::Ttl { default: config.ttl, min: MIN_TTL });
        (capabilities.shared, capabilities.permits) = (Support::No(NO_READERS), Support::No(NO_PERMITS));
        Ok(Self {
            capabilities,
            masters,
            renewer: Renewer::new(renew, config.clock.clone()),
            prefix: config.prefix,
            ttl: config.ttl,
            patience: (config.connect_timeout + config.master_timeout) * 2,
            clock: config.clock,
            wall_clock: config.wall_clock,
        })
    }
}

#[async_trait]
impl Backend for Redlock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        let keys = self.keys(&request.name)?;
        let info: Arc<str> = serde_json::to_string(&*request.owner).unwrap_or_default().into();
        let mut waiting = Waiting::new(self, &keys);
        loop {
            match self.attempt(&keys, &request, &info).await {
                Ok(Attempt::Held(lease)) => return Ok(Acquired::Held(Box::new(lease))),
                Ok(Attempt::Busy(busy)) => waiting.busy(busy),
                Ok(Attempt::Broken(error)) | Err(error) => waiting.failed(error)?,
            }
            if request.wait.is_over() {
                return waiting.give_up();
            }
            let left = request.wait.left();
            sleep(left.map_or(waiting.pause, |left| left.min(waiting.pause))).await;
            if request.wait.is_over() {
                return waiting.give_up();
            }
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let keys = self.keys(name)?;
        let sights = self.ask_all(|master| {
            let keys = Arc::clone(&keys);
            async move { master.server.look(&keys, None).await }
        });
        Ok(state(&agreed(sights.await?, self.masters.len())))
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let keys = self.keys(name)?;
        let kinds = self.ask_all(|master| {
            let keys = Arc::clone(&keys);
            async move { master.server.break_lock(&keys).await }
        });
        let kinds = kinds.await?;
        if let Some(kind) = kinds.iter().find(|kind| !matches!(kind.as_str(), "string" | "none")) {
            return Err(lock_redis::not_a_lock(BACKEND, kind));
        }
        let broken = kinds.iter().filter(|kind| *kind == "string").count();
        Ok(broken >= quorum(self.masters.len()))
    }

    async fn doctor(&self) -> Result<Report> {
        let mut wave = Wave::new(self.masters.iter().map(|master| {
            let master = Arc::clone(master);
            async move { master.server.examine().await }
        }));
        let mut report = Report::default();
        while let Some((master, answer)) = wave.next().await {
            match answer {
                Ok(findings) => report.findings.extend(findings),
                Err(error) => report.findings.push(Finding {
                    level: Level::Warning,
                    server: self.masters[master].server.address().to_owned(),
                    what: format!("the master is not there: {error}"),
                    advice: String::from("bring it back: until then fewer others may fail"),
                }),
            }
        }
        report.findings.sort_by(|one, other| one.server.cmp(&other.server));
        Ok(report)
    }

    async fn close(&self) -> Result<()> {
        self.renewer.stop_all();
        self.masters.iter().for_each(|master| master.server.close());
        Ok(())
    }
}

enum Attempt {
    Held(RedlockLease),
    Busy(Busy),
    /// There was no quorum, as connections broke.
    Broken(Error),
}

impl Redlock {
    /// Asks once, and once more if there was no quorum for broken connections: they may have been idle
    /// for too long.
    async fn attempt(&self, keys: &Arc<Keys>, request: &AcquireRequest, info: &Arc<str>) -> Result<Attempt> {
        match self.ask(keys, request, info).await? {
            Attempt::Broken(_) => self.ask(keys, request, info).await,
            attempt => Ok(attempt),
        }
    }

    async fn ask(&self, keys: &Arc<Keys>, request: &AcquireRequest, info: &Arc<str>) -> Result<Attempt> {
        let ttl = request.lease.ttl.unwrap_or(self.ttl);
        let ttl = request.lease.max_hold.map_or(ttl, |hold| ttl.min(hold).max(MIN_TTL));
        let sent = self.clock.now();
        let mut campaign = Campaign::start(&self.masters, keys, ttl, info, proposal(&self.wall_clock));
        let token = match campaign.count().await {
            Vote::Won => campaign.token().await?,
            Vote::Busy(busy) => return Ok(Attempt::Busy(busy)),
            Vote::Broken(error) => return Ok(Attempt::Broken(error)),
            Vote::NoQuorum(error) => return Err(error),
        };
        if self.clock.now() >= trusted_until(sent, ttl) {
            return Err(too_late(ttl));
        }
        Ok(Attempt::Held(self.lease(campaign, request, token, sent, ttl)))
    }

    fn lease(
        &self,
        campaign: Campaign,
        request: &AcquireRequest,
        token: Token,
        sent: BootInstant,
        ttl: Duration,
    ) -> RedlockLease {
        let hold_until = request.lease.max_hold.map_or(BootInstant::NEVER, |hold| sent + hold);
        let cell = ValidityCell::new(self.clock.clone(), trusted_until(sent, ttl).min(hold_until));
        let terms = Terms { ttl, auto: request.lease.renewed, hold_until };
        let footprint = campaign.keep();
        RedlockLease {
            renewal: self.renewer.add((Arc::clone(&footprint.keys), footprint.owner), terms, cell.clone()),
            patience: self.patience,
            footprint,
            token,
            validity: cell.validity(),
            cell,
            releasing: Mutex::default(),
        }
    }

    /// The answers of all masters that give one, at least a quorum.
    async fn ask_all<T, F>(&self, ask: impl Fn(Arc<Master>) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut wave = Wave::new(self.masters.iter().map(|master| ask(Arc::clone(master))));
        let (mut answers, mut failed) = (Vec::new(), None);
        while let Some((_, answer)) = wave.next().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => failed = Some(error),
            }
        }
        if answers.len() < quorum(self.masters.len()) {
            return Err(no_quorum(self.masters.len(), answers.len(), failed));
        }
        Ok(answers)
    }
}

/// The wait of one acquisition.
struct Waiting<'a> {
    backend: &'a Redlock,
    keys: &'a Keys,
    pause: Duration,
    /// Whether the masters have told us that the lock is busy.
    heard: bool,
    /// Since when there is no quorum, and what was said last.
    outage: Option<(Instant, Error)>,
    warned: bool,
}

impl<'a> Waiting<'a> {
    const fn new(backend: &'a Redlock, keys: &'a Keys) -> Self {
        Self { backend, keys, pause: Duration::ZERO, heard: false, outage: None, warned: false }
    }

    fn busy(&mut self, busy: Busy) {
        (self.heard, self.outage) = (true, None);
        if let Some(kind) = busy.foreign_type.filter(|_| !std::mem::replace(&mut self.warned, true)) {
            tracing::warn!(key = %self.keys.lock, kind, "the key of a lock is used for something else: the lock is busy until it goes");
        }
        // Those who split the vote ask again soon, but not together; a holder is given more time.
        self.pause = if busy.split { random_millis(1, 25) } else { random_millis(10, 100) };
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
        self.pause = random_millis(50, 250);
        Ok(())
    }

    fn give_up(self) -> Result<Acquired> {
        match self.outage {
            Some((_, error)) => Err(error),
            None => Ok(Acquired::Busy),
        }
    }
}

pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    Capabilities::new(BACKEND, LeaseKind::Ttl { default: ttl, min: MIN_TTL }).check_ttl(ttl, MIN_TTL)
}

/// The error of a vote that no quorum took part in.
pub(crate) fn no_quorum(masters: usize, votes: usize, last: Option<Error>) -> Error {
    let kind = last.as_ref().map_or(ErrorKind::Unavailable, Error::kind);
    let reason = last.as_ref().map_or_else(String::new, |error| format!(": {error}"));
    let error = Error::new(kind, BACKEND)
        .message(format!("only {votes} of {masters} masters agreed, {} are needed{reason}", quorum(masters)))
        .with_outcome(Outcome::Unknown);
    match last {
        Some(last) => error.caused_by(last),
        None => error.hint("check that the masters run"),
    }
}

fn too_late(ttl: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .message(format!(
            "the masters granted the lock, but their answers took longer than the ttl of {ttl:?}"
        ))
        .hint("use a longer ttl; the lock is given back")
        .with_outcome(Outcome::Applied)
}

async fn connect_quorum(masters: &Arc<[Arc<Master>]>) -> Result<()> {
    let mut wave = Wave::new(masters.iter().map(|master| {
        let master = Arc::clone(master);
        async move { master.server.connect().await }
    }));
    let (mut connected, mut failed) = (0, Vec::new());
    while let Some((master, answer)) = wave.next().await {
        match answer {
            Ok(()) => connected += 1,
            Err(error) => {
                tracing::warn!(master = masters[master].server.address(), %error, "a master is not there");
                failed.push(error);
            }
        }
    }
    if connected >= quorum(masters.len()) {
        return Ok(());
    }
    // A wrong password is more worth telling than a host that is down.
    failed.sort_by_key(|error| error.kind() == ErrorKind::Denied);
    Err(no_quorum(masters.len(), connected, failed.pop()))
}

/// What a quorum of the masters sees alike, and the largest token of all.
fn agreed(sights: Vec<Sight>, masters: usize) -> Sight {
    let token = sights.iter().filter_map(|sight| sight.token).max();
    let mut votes: HashMap<(String, String), Vec<Sight>> = HashMap::new();
    for sight in sights {
        votes.entry((sight.kind.clone(), sight.value.clone())).or_default().push(sight);
    }
    let winner = votes.into_values().find(|sights| sights.len() >= quorum(masters));
    let free = Sight { kind: "none".into(), ..Sight::default() };
    Sight { token, ..winner.and_then(|mut sights| sights.pop()).unwrap_or(free) }
}

/// The clock in microseconds, as the tokens of a single server are. A clock that is behind costs a
/// round trip, not the order.
fn proposal(clock: &WallClock) -> Token {
    Token::new(u64::try_from(clock.now().as_micros()).unwrap_or(0))
}

fn random_millis(least: u64, most: u64) -> Duration {
    Duration::from_millis(lock_core::random::rng().random_range(least..=most))
}
