//! The connection to one server: made when it is needed, kept, and replaced after the first failure.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::single_flight::SingleFlight;
use lock_core::{Error, ErrorKind, Finding, FindingLevel, Result};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, ConnectionInfo, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::dial::Settings;
use crate::error::{Endpoint, Failure, is_demoted};
use crate::examination::examine;
use crate::greeting::{Greeting, Identity};
use crate::script::{Call, Script};
use crate::sentinel::{Following, SentinelLink, masters};
use crate::topology::SentinelInfo;

/// An announcement of the sentinels is believed for this long; then all of them know.
const NEWS: Duration = Duration::from_secs(10);
/// So many connections for waiting are kept.
const MOST_WAITING: usize = 4;
/// The generation of a connection that is not the pinned one.
const NOT_PINNED: u64 = 0;

/// The one connection that all locks on a server share.
///
/// It is taken from the dialer once and kept, as a check-out of a pool for each operation would cost a
/// round trip more. All that one process sends about a lock goes over it in order, so that a release
/// never overtakes the acquisition that it undoes.
pub(crate) struct Link {
    pub(crate) endpoint: Endpoint,
    settings: Settings,
    route: Route,
    /// Counts the connections, those made and those given up, so that a late failure does not throw
    /// away the next one. The links of a cluster share it.
    epoch: Arc<AtomicU64>,
    pinned: Mutex<Pinned>,
    /// Connections on which replicas can be waited for.
    waiting: Mutex<Vec<MultiplexedConnection>>,
    /// Tells that the connection leads to another master than before.
    moves: watch::Sender<()>,
    /// One connection is made at a time.
    dialing: SingleFlight,
    checked: AtomicBool,
    /// Whether a task follows the sentinels.
    following: AtomicBool,
}

/// How the server is found.
pub(crate) enum Route {
    Fixed(ConnectionInfo),
    /// The sentinels are asked for the master each time.
    Sentinel(SentinelInfo),
}

/// A connection that was made.
struct Made {
    connection: MultiplexedConnection,
    /// Who greeted us, if that was asked.
    identity: Option<Arc<Identity>>,
    /// Where it leads to.
    at: ConnectionInfo,
}

#[derive(Default)]
struct Pinned {
    connection: Option<MultiplexedConnection>,
    /// Where the connection leads to, or the last one led to.
    at: Option<ConnectionInfo>,
    /// The master that the sentinels announced, and when.
    announced: Option<(Instant, ConnectionInfo)>,
    /// Who said that it is the server, the last time.
    identity: Option<Arc<Identity>>,
    generation: u64,
    /// The last connection was given up, as another server is the master.
    left: bool,
    closed: bool,
}

impl Pinned {
    fn leads_to(&self, server: &ConnectionInfo) -> bool {
        self.at.as_ref().is_some_and(|at| at.addr() == server.addr())
    }
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint, settings: Settings, route: Route, epoch: Arc<AtomicU64>) -> Self {
        Self {
            endpoint,
            settings,
            route,
            epoch,
            pinned: Mutex::default(),
            waiting: Mutex::default(),
            moves: watch::Sender::default(),
            dialing: SingleFlight::default(),
            checked: AtomicBool::new(false),
            following: AtomicBool::new(false),
        }
    }

    pub(crate) const fn route(&self) -> &Route {
        &self.route
    }

    /// Sends a call. After a failover the server may follow another one; then the master is found anew
    /// and the call is sent to it.
    pub(crate) async fn send(self: &Arc<Self>, call: &Call) -> Result<Value, Failure> {
        match self.send_once(call, false).await {
            Err(Failure::Refused(error)) if is_demoted(&error) => Box::pin(self.send_once(call, false)).await,
            answer => answer,
        }
    }

    /// Sends a call to a node that is about to get the slot of its keys.
    pub(crate) async fn send_asking(self: &Arc<Self>, call: &Call) -> Result<Value, Failure> {
        self.send_once(call, true).await
    }

    async fn send_once(self: &Arc<Self>, call: &Call, asking: bool) -> Result<Value, Failure> {
        let (mut connection, generation) = self.connection().await.map_err(Failure::Unreached)?;
        let mut answer = if asking {
            Box::pin(run(&mut connection, call, &[redis::cmd("ASKING")])).await
        } else {
            request(&mut connection, call).await.and_then(Value::extract_error)
        };
        if answer.as_ref().is_err_and(is_no_script) {
            // The server forgot the scripts: this one is loaded in the same round trip.
            let mut before = vec![call.script.load()];
            before.extend(asking.then(|| redis::cmd("ASKING")));
            answer = Box::pin(run(&mut connection, call, &before)).await;
        }
        answer.map_err(|error| self.failure(error, generation))
    }

    /// Sends these commands in one round trip, one after the other; those of others may come between them. Where the
    /// first is refused, what became of the others is not told.
    pub(crate) async fn send_each(self: &Arc<Self>, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let (mut connection, generation) = self.connection().await.map_err(Failure::Unreached)?;
        let answers = connection.req_packed_commands(commands, 0, commands.len()).await;
        let refused = |answers: Vec<Value>| match answers.first() {
            Some(Value::ServerError(error)) => Err(error.clone().into()),
            _ => Ok(answers),
        };
        answers.and_then(refused).map_err(|error| self.failure(error, generation))
    }

    /// Sends the calls in one round trip; those of which the server has forgotten the script once more.
    pub(crate) async fn run_all(
        self: &Arc<Self>,
        calls: &[&Call],
    ) -> Result<Vec<RedisResult<Value>>, Failure> {
        if let [call] = calls {
            return match self.send_once(call, false).await {
                Err(Failure::Refused(error)) => Ok(vec![Err(error)]),
                answer => Ok(vec![Ok(answer?)]),
            };
        }
        Box::pin(self.run_several(calls)).await
    }

    async fn run_several(self: &Arc<Self>, calls: &[&Call]) -> Result<Vec<RedisResult<Value>>, Failure> {
        // One connection for both rounds: once a part has been carried out, a second is out of reach in doubt only.
        let (mut connection, generation) = self.connection().await.map_err(Failure::Unreached)?;
        let failure = |error: RedisError| self.failure(error, generation);
        let mut answers = run_once(&mut connection, calls).await.map_err(failure)?;
        let is_forgotten = |answer: &RedisResult<Value>| answer.as_ref().is_err_and(is_no_script);
        let forgotten: Vec<usize> =
            (0..answers.len()).filter(|&number| is_forgotten(&answers[number])).collect();
        if !forgotten.is_empty() {
            let calls: Vec<&Call> = forgotten.iter().map(|&number| calls[number]).collect();
            let again = match load(&mut connection, &calls).await {
                Ok(()) => run_once(&mut connection, &calls).await.map_err(failure)?,
                // What became of the others is known.
                Err(error) if is_answer(&error) => vec![Err(error); calls.len()],
                Err(error) => return Err(failure(error)),
            };
            forgotten.into_iter().zip(again).for_each(|(number, answer)| answers[number] = answer);
        }
        if answers.iter().any(|answer| answer.as_ref().is_err_and(is_demoted)) {
            self.leave(generation);
        }
        Ok(answers)
    }

    /// The connection and its generation; a new one is made if there is none.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<(MultiplexedConnection, u64)> {
        if matches!(self.route, Route::Sentinel(_)) {
            // Each time, as the runtime of who did may have ended.
            Following::begin(self);
        }
        match self.current()? {
            Some(pinned) => Ok(pinned),
            // Boxed, as what is rare here would make each request large that has a connection.
            None => Box::pin(self.connect()).await,
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<(MultiplexedConnection, u64)> {
        let limit = self.settings.connect_timeout;
        let dial = || {
            let link = Arc::clone(self);
            async move {
                let dialed = timeout(limit, link.dial()).await;
                dialed.unwrap_or_else(|_| Err(link.endpoint.connect_timeout(limit)))
            }
        };
        for _ in 0..2 {
            let dialed = self.dialing.join(limit + limit / 4, dial).await;
            dialed.unwrap_or_else(|| Err(self.endpoint.connect_timeout(limit)))?;
            // Another request may have found out by now that it is of no use.
            if let Some(pinned) = self.current()? {
                return Ok(pinned);
            }
        }
        Err(self.endpoint.lost_at_once())
    }

    async fn dial(self: &Arc<Self>) -> Result<()> {
        while self.current()?.is_none() {
            let began = Instant::now();
            self.pin(self.find().await?, began)?;
        }
        Ok(())
    }

    /// Has all requests go over this connection from now on, unless there is another one by now, or another master was
    /// announced since its making `began`.
    fn pin(&self, made: Made, began: Instant) -> Result<()> {
        let mut pinned = self.pinned();
        if pinned.closed {
            return Err(Error::closed(self.endpoint.backend));
        }
        let mut news = pinned.announced.iter().filter(|(since, _)| *since >= began);
        if pinned.connection.is_some() || news.any(|(_, master)| master.addr() != made.at.addr()) {
            return Ok(());
        }
        pinned.generation = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        (pinned.connection, pinned.identity) = (Some(made.connection), made.identity);
        let elsewhere = pinned.at.is_some() && !pinned.leads_to(&made.at);
        pinned.at = Some(made.at);
        if mem::take(&mut pinned.left) || elsewhere {
            self.moves.send_replace(());
        }
        Ok(())
    }

    /// Which connection is in use, `None` without one.
    pub(crate) fn generation(&self) -> Option<u64> {
        let pinned = self.pinned();
        pinned.connection.as_ref().map(|_| pinned.generation)
    }

    /// Who the server was when it was last greeted.
    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        self.pinned().identity.clone()
    }

    /// Sends a command that changes nothing.
    pub(crate) async fn query(self: &Arc<Self>, command: &Cmd) -> Result<Value, Failure> {
        let (mut connection, generation) = self.connection().await.map_err(Failure::Unreached)?;
        let answer = connection.req_packed_command(command).await.and_then(Value::extract_error);
        answer.map_err(|error| self.failure(error, generation))
    }

    /// What the error means; a connection that it makes useless is dropped.
    fn failure(&self, error: RedisError, generation: u64) -> Failure {
        if is_answer(&error) {
            if is_demoted(&error) {
                self.leave(generation);
            }
            return Failure::Refused(error);
        }
        self.drop_connection(generation);
        if error.is_connection_dropped() { Failure::Dropped } else { Failure::Silent(error) }
    }

    fn drop_connection(&self, generation: u64) {
        self.give_up(&mut self.pinned(), generation);
    }

    /// Drops a connection to a server that is no master any more.
    fn leave(&self, generation: u64) {
        let mut pinned = self.pinned();
        pinned.left |= pinned.generation == generation;
        self.give_up(&mut pinned, generation);
    }

    fn give_up(&self, pinned: &mut Pinned, generation: u64) {
        if pinned.generation == generation && pinned.connection.take().is_some() {
            self.epoch.fetch_add(1, Ordering::AcqRel);
            // They may lead to a server that is no master any more.
            self.waiting().clear();
        }
    }

    /// Tells when the connection leads to another master than before; those for pushes still lead to the old one.
    pub(crate) fn moves(&self) -> watch::Receiver<()> {
        self.moves.subscribe()
    }

    /// What about the server is good to know.
    pub(crate) async fn examine(self: &Arc<Self>) -> Result<Vec<Finding>> {
        let (mut connection, generation) = self.connection().await?;
        let findings = examine(&mut connection, &self.endpoint.address).await;
        findings.map_err(|error| self.endpoint.failed(self.failure(error, generation)))
    }

    /// Sends a call on a connection of its own, waits until so many replicas have carried it out, and
    /// gives the answer and how many have.
    ///
    /// On a connection of its own, as WAIT holds up all that comes after it. It waits for the writes of
    /// its connection; but replicas get all writes in their order, so that they have those before too.
    pub(crate) async fn replicate(
        self: &Arc<Self>,
        call: &Call,
        replicas: u32,
        patience: Duration,
    ) -> Result<(Value, u32), Failure> {
        let mut pipeline = redis::pipe();
        pipeline.add_command(call.script.load()).ignore().add_command(call.command.clone());
        pipeline.cmd("WAIT").arg(replicas).arg(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        loop {
            let (generation, idle) = (self.generation(), self.waiting().pop());
            let was_idle = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.dial_waiting(patience).await.map_err(Failure::Unreached)?,
            };
            match pipeline.query_async(&mut connection).await {
                Ok(answer) => {
                    self.keep_waiting(connection, generation);
                    return Ok(answer);
                }
                // It may have been closed for being idle, and the call does no more when it is carried out twice.
                Err(error) if was_idle && error.is_connection_dropped() => {}
                Err(error) => return Err(self.failure(error, NOT_PINNED)),
            }
        }
    }

    /// Keeps a connection on which replicas were waited for, unless another server may be in use by now.
    fn keep_waiting(&self, connection: MultiplexedConnection, generation: Option<u64>) {
        let pinned = self.pinned();
        let mut waiting = self.waiting();
        if pinned.connection.is_some()
            && Some(pinned.generation) == generation
            && waiting.len() < MOST_WAITING
        {
            waiting.push(connection);
        }
    }

    async fn dial_waiting(self: &Arc<Self>, patience: Duration) -> Result<MultiplexedConnection> {
        let at = self.at().await?;
        let limit = self.settings.connect_timeout;
        let mut connection = match timeout(limit, self.settings.dialer.commands(&at)).await {
            Ok(dialed) => dialed.map_err(|error| self.endpoint.unreachable(&error))?,
            Err(_) => return Err(self.endpoint.connect_timeout(limit)),
        };
        connection.set_response_timeout(patience + self.settings.command_timeout);
        Ok(connection)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the server is: what the connection leads to, or, without one, what is found now.
    pub(crate) async fn at(self: &Arc<Self>) -> Result<ConnectionInfo> {
        if let Route::Fixed(to) = &self.route {
            return Ok(to.clone());
        }
        self.connection().await?;
        self.pinned().at.clone().ok_or_else(|| self.endpoint.dropped())
    }

    /// Closes the connection for good.
    pub(crate) fn close(&self) {
        let mut pinned = self.pinned();
        pinned.closed = true;
        pinned.connection = None;
        self.waiting().clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.pinned().closed
    }

    fn current(&self) -> Result<Option<(MultiplexedConnection, u64)>> {
        let pinned = self.pinned();
        if pinned.closed {
            return Err(Error::closed(self.endpoint.backend));
        }
        Ok(pinned.connection.clone().map(|connection| (connection, pinned.generation)))
    }

    /// The master that was announced a moment ago: not every sentinel may know it yet, and the old one
    /// may not know either that it is none.
    fn announced(&self) -> Option<ConnectionInfo> {
        let pinned = self.pinned();
        let fresh = pinned.announced.as_ref().filter(|(since, _)| since.elapsed() < NEWS);
        fresh.map(|(_, master)| master.clone())
    }

    /// Finds the server, and makes a connection to it.
    async fn find(&self) -> Result<Made> {
        let until = Instant::now() + self.settings.connect_timeout;
        if let Some(to) = self.announced()
            && let Ok(made) = self.open_within(self.settings.connect_timeout / 3, &to).await
        {
            return Ok(made);
        }
        let mut last = None;
        let candidates = self.candidates().await?;
        for (to, left) in candidates.iter().zip((1..=candidates.len() as u32).rev()) {
            // One that hangs leaves their share of the time to those behind it.
            let share = until.saturating_duration_since(Instant::now()) / left;
            match self.open_within(share, to).await {
                Ok(made) => return Ok(made),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            self.endpoint.error(ErrorKind::Unavailable, "there is no server").with_hint("try again")
        }))
    }

    async fn candidates(&self) -> Result<Vec<ConnectionInfo>> {
        match &self.route {
            Route::Fixed(to) => Ok(vec![to.clone()]),
            Route::Sentinel(sentinels) => {
                // Half of the time, so that there is some left for the master itself.
                masters(sentinels, &*self.settings.dialer, self.settings.connect_timeout / 2, &self.endpoint)
                    .await
            }
        }
    }

    async fn open_within(&self, limit: Duration, to: &ConnectionInfo) -> Result<Made> {
        let opened = timeout(limit, self.open(to)).await;
        opened.unwrap_or_else(|_| Err(self.endpoint.connect_timeout(limit)))
    }

    async fn open(&self, to: &ConnectionInfo) -> Result<Made> {
        let dialed = self.settings.dialer.commands(to).await;
        let mut connection = dialed.map_err(|error| self.endpoint.unreachable(&error))?;
        // All of this is the making of a connection, and has the time of one.
        connection.set_response_timeout(self.settings.connect_timeout);
        let identity = self.greet(&mut connection).await?.map(Arc::new);
        if !self.checked.swap(true, Ordering::Relaxed) {
            self.warn(&mut connection).await;
        }
        connection.set_response_timeout(self.settings.command_timeout);
        Ok(Made { connection, identity, at: to.clone() })
    }

    /// Asks the server what it is, and who if that is wanted, and loads the usual scripts, in one round trip.
    async fn greet(&self, connection: &mut MultiplexedConnection) -> Result<Option<Identity>> {
        let unreachable = |error: RedisError| self.endpoint.unreachable(&error);
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors().cmd("HELLO");
        if self.endpoint.asks_identity {
            pipeline.cmd("INFO").arg("server").cmd("DBSIZE");
        }
        for script in self.endpoint.scripts {
            pipeline.add_command(script.load());
        }
        let answers = pipeline.query_async::<Vec<RedisResult<Value>>>(connection).await;
        let mut answers = answers.map_err(unreachable)?.into_iter();
        if let Some(hello) = answers.next() {
            let greeting = Greeting::read(hello, connection).await.map_err(unreachable)?;
            self.judge(&greeting)?;
        }
        let asks = self.endpoint.asks_identity;
        let identity = asks.then(|| Identity::read(answers.next(), answers.next())).flatten();
        answers.try_for_each(|answer| answer.map(drop)).map_err(unreachable)?;
        Ok(identity)
    }

    fn judge(&self, greeting: &Greeting) -> Result<()> {
        if greeting.is_too_old() {
            return Err(self.endpoint.too_old(&greeting.version));
        }
        if greeting.mode == "sentinel" {
            return Err(self.endpoint.is_sentinel());
        }
        if greeting.is_replica() {
            return Err(self.endpoint.is_replica());
        }
        Ok(())
    }

    /// Tells once what about the server is a danger to locks.
    async fn warn(&self, connection: &mut MultiplexedConnection) {
        // Without the right to ask there is nothing to tell.
        let findings = examine(connection, &self.endpoint.address).await.unwrap_or_default();
        for finding in findings.iter().filter(|finding| finding.level >= FindingLevel::Warning) {
            tracing::warn!(server = finding.server, "{}; {}", finding.what, finding.advice);
        }
    }

    fn pinned(&self) -> MutexGuard<'_, Pinned> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SentinelLink for Link {
    fn sentinels(&self) -> Option<(SentinelInfo, Settings)> {
        match &self.route {
            Route::Sentinel(sentinels) if !self.pinned().closed => {
                Some((sentinels.clone(), self.settings.clone()))
            }
            _ => None,
        }
    }

    fn is_following(&self) -> &AtomicBool {
        &self.following
    }

    fn generation(&self) -> Option<u64> {
        Self::generation(self)
    }

    fn leave_for(&self, master: ConnectionInfo) {
        let generation = {
            let mut pinned = self.pinned();
            let is_there = pinned.leads_to(&master);
            pinned.announced = Some((Instant::now(), master));
            if is_there {
                return;
            }
            pinned.generation
        };
        self.leave(generation);
    }

    fn leave_if_elsewhere(&self, generation: u64, master: &ConnectionInfo) {
        let is_news = self.announced().is_none_or(|announced| announced.addr() == master.addr());
        if is_news && !self.pinned().leads_to(master) {
            self.leave(generation);
        }
    }
}

/// Sends the call, and what goes ahead of it: nobody asks for the answer to that.
async fn request(connection: &mut MultiplexedConnection, call: &Call) -> RedisResult<Value> {
    let Some(ahead) = &call.ahead else { return connection.req_packed_command(&call.command).await };
    let mut pipeline = redis::pipe();
    pipeline.add_command(ahead.clone()).add_command(call.command.clone());
    let mut answers = connection.req_packed_commands(&pipeline, 1, 1).await?;
    Ok(answers.pop().unwrap_or(Value::Nil))
}

/// Runs the call behind these commands, in one round trip. The first error counts, as the server tells it.
async fn run(connection: &mut MultiplexedConnection, call: &Call, before: &[Cmd]) -> RedisResult<Value> {
    let mut pipeline = redis::pipe();
    pipeline.ignore_errors();
    for command in before {
        pipeline.add_command(command.clone());
    }
    pipeline.add_command(call.command.clone());
    let answers = pipeline.query_async::<Vec<RedisResult<Value>>>(connection).await?;
    let mut answers = answers.into_iter().collect::<RedisResult<Vec<_>>>()?;
    Ok(answers.pop().unwrap_or(Value::Nil))
}

/// Runs these calls in one round trip.
async fn run_once(
    connection: &mut MultiplexedConnection,
    calls: &[&Call],
) -> RedisResult<Vec<RedisResult<Value>>> {
    let mut pipeline = redis::pipe();
    pipeline.ignore_errors();
    for call in calls {
        pipeline.add_command(call.command.clone());
    }
    pipeline.query_async(connection).await
}

/// Loads the scripts of these calls, in one round trip.
async fn load(connection: &mut MultiplexedConnection, calls: &[&Call]) -> RedisResult<()> {
    let mut scripts: Vec<&Script> = calls.iter().map(|call| call.script).collect();
    scripts.dedup_by(|one, other| std::ptr::eq(*one, *other));
    let mut pipeline = redis::pipe();
    for script in scripts {
        pipeline.add_command(script.load()).ignore();
    }
    pipeline.query_async(connection).await
}

/// Whether the server has told the error.
fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension)
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}
