//! The connection to one server: opened on first use, kept, and replaced after the first failure.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::single_flight::SingleFlight;
use lock_core::{BootInstant, Error, ErrorKind, Finding, FindingLevel, Result};
use redis::{Cmd, ConnectionInfo, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::connect::connection::Connection;
use crate::connect::dial::Settings;
use crate::connect::greeting::{Greeting, Identity};
use crate::connect::server_clock::ServerClock;
use crate::connect::topology::SentinelInfo;
use crate::error::{Endpoint, Failure, is_demoted, is_of_proxy, is_of_replica, is_refusal};
use crate::operate::examination::examine;
use crate::route::commands::Commands;
use crate::route::dispatch::Dispatch;
use crate::route::sentinel::{Following, SentinelLink, masters};
use crate::route::unwritten::Unwritten;
use crate::scripts::last_tokens;
use crate::scripts::script::{Call, Script};
use crate::scripts::wire;

/// How long an announcement of a sentinel takes precedence; by then all sentinels know.
const ANNOUNCEMENT_TTL: Duration = Duration::from_secs(10);
/// How many idle connections for WAIT are kept.
const MAX_WAIT_CONNECTIONS: usize = 4;
/// The pauses before a connection that has ended is opened again, where restarts have to be noticed.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// The generation of a connection other than the shared one.
const SEPARATE_CONNECTION: u64 = 0;

/// The one connection that all locks on a server share.
///
/// It is kept, as a check-out from a pool for each operation would cost another round trip. All requests of a process
/// for a lock go over it in order, so that a release never overtakes the acquisition that it undoes.
pub(crate) struct Link {
    pub(crate) endpoint: Endpoint,
    settings: Settings,
    route: Route,
    /// Incremented whenever a connection is opened or dropped, so that a late failure does not drop the next connection.
    /// The links of a cluster share it.
    epoch: Arc<AtomicU64>,
    state: Mutex<LinkState>,
    /// Idle connections for WAIT.
    wait_connections: Mutex<Vec<Connection>>,
    /// Notified of each new connection but the first: it may lead to another server than before.
    moves: watch::Sender<()>,
    /// Only one connection is opened at a time.
    dialing: SingleFlight,
    checked: AtomicBool,
    /// Whether a task follows the sentinels.
    following: AtomicBool,
    server_clock: ServerClock,
}

/// How the server is found.
pub(crate) enum Route {
    Fixed(ConnectionInfo),
    /// The sentinels are asked for the master each time.
    Sentinel(SentinelInfo),
}

/// A connection that was just opened.
struct NewConnection {
    connection: Connection,
    /// The identity of the server, if it was requested.
    identity: Option<Identity>,
    /// The server's clock, and when it was read.
    time: Option<(Duration, BootInstant)>,
    /// The server that it leads to.
    at: ConnectionInfo,
}

#[derive(Default)]
struct LinkState {
    connection: Option<Connection>,
    /// The server that this connection, or the last one, leads to.
    at: Option<ConnectionInfo>,
    /// The master that a sentinel announced, and when.
    announced: Option<(Instant, ConnectionInfo)>,
    /// The identity of the server, as last read.
    identity: Option<Arc<Identity>>,
    /// Changes when the server is seen as a replica, and when it is a master after that.
    demotions: u64,
    /// Whether it was a replica when it was last seen.
    is_demoted: bool,
    generation: u64,
    closed: bool,
}

impl LinkState {
    fn leads_to(&self, server: &ConnectionInfo) -> bool {
        self.at.as_ref().is_some_and(|at| at.addr() == server.addr())
    }

    /// Notes that the server is a replica now. Also requests that are in flight may be answered when it is a master again, with the
    /// data of another one.
    fn note_demotion(&mut self) {
        self.is_demoted = true;
        self.demotions += 1;
        if let Some(identity) = &mut self.identity {
            let identity = Arc::make_mut(identity);
            (identity.demotions, identity.at) = (self.demotions, Instant::now());
        }
    }

    /// The identity of the server of a new connection, which is a master.
    fn master(&mut self, identity: Identity) -> Arc<Identity> {
        self.demotions += u64::from(mem::take(&mut self.is_demoted));
        Arc::new(Identity { demotions: self.demotions, ..identity })
    }
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint, settings: Settings, route: Route, epoch: Arc<AtomicU64>) -> Self {
        let dialing = SingleFlight::at(settings.home.clone());
        Self {
            endpoint,
            settings,
            route,
            epoch,
            state: Mutex::default(),
            wait_connections: Mutex::default(),
            moves: watch::Sender::default(),
            dialing,
            checked: AtomicBool::new(false),
            following: AtomicBool::new(false),
            server_clock: ServerClock::default(),
        }
    }

    pub(crate) const fn route(&self) -> &Route {
        &self.route
    }

    /// Sends a call. If the server has become a replica, finds the new master and resends the call to it.
    pub(crate) async fn send(
        self: &Arc<Self>,
        call: &Call,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Value, Failure> {
        match self.send_once(call, false, dispatch).await {
            Err(Failure::Refused(error)) if is_demoted(&error) => {
                Box::pin(self.send_once(call, false, dispatch)).await
            }
            answer => answer,
        }
    }

    /// Sends a call with ASKING, to the node that imports the slot of its keys.
    pub(crate) async fn send_asking(
        self: &Arc<Self>,
        call: &Call,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Value, Failure> {
        self.send_once(call, true, dispatch).await
    }

    async fn send_once(
        self: &Arc<Self>,
        call: &Call,
        asking: bool,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Value, Failure> {
        self.on_connection(|mut connection, generation| async move {
            let mut answer = if asking {
                let asking = [redis::cmd("ASKING")];
                Box::pin(run(&mut connection, &call.command, &asking, dispatch)).await.and_then(last)
            } else {
                let answer = self.request(&mut connection, generation, call, dispatch).await;
                answer.and_then(Value::extract_error)
            };
            if answer.as_ref().is_err_and(is_no_script) {
                answer = Box::pin(run_unloaded(&mut connection, call, asking, dispatch)).await;
            }
            answer
        })
        .await
    }

    /// Sends these commands in one round trip; the server may run commands of other clients between them. If it refuses
    /// the first, the answers to the others are dropped.
    pub(crate) async fn send_each(
        self: &Arc<Self>,
        commands: &Pipeline,
        dispatch: &Arc<Dispatch>,
    ) -> Result<Vec<Value>, Failure> {
        let refused = |answers: Vec<Value>| match answers.first() {
            Some(Value::ServerError(error)) => Err(error.clone().into()),
            _ => Ok(answers),
        };
        self.on_connection(|mut connection, _| async move {
            connection.send_all(commands, dispatch).await.and_then(of_server).and_then(refused)
        })
        .await
    }

    /// Sends the call, with the command ahead of it, whose answer is ignored; and asks for the server's clock in the same write if
    /// that is wanted.
    async fn request(
        &self,
        connection: &mut Connection,
        generation: u64,
        call: &Call,
        dispatch: &Arc<Dispatch>,
    ) -> RedisResult<Value> {
        let asks = self.server_clock.is_wanted();
        if call.ahead.is_none() && !asks {
            return connection.send(&call.command, dispatch).await;
        }
        // Boxed, to keep the future of every request small.
        Box::pin(self.request_with(connection, generation, call, asks, dispatch)).await
    }

    async fn request_with(
        &self,
        connection: &mut Connection,
        generation: u64,
        call: &Call,
        asks: bool,
        dispatch: &Arc<Dispatch>,
    ) -> RedisResult<Value> {
        let mut pipeline = redis::pipe();
        if asks {
            pipeline.cmd("TIME");
        }
        if let Some(ahead) = &call.ahead {
            pipeline.add_command(Cmd::clone(ahead));
        }
        pipeline.add_command(call.command.clone());
        let mut answers = connection.send_all(&pipeline, dispatch).await?;
        let answer = answers.pop().unwrap_or(Value::Nil);
        if asks && let Some(time) = answers.first() {
            self.note_answer(generation, time);
        }
        Ok(answer)
    }

    /// Sends the commands that are made from a lower bound of the server's clock, in one round trip; `None` if nothing is
    /// sent. The server may run commands of other clients between them.
    pub(crate) async fn send_by_clock(
        &self,
        commands: impl FnOnce(u64) -> Option<Commands> + Send,
        dispatch: &Arc<Dispatch>,
    ) -> Option<Result<Vec<Value>, Failure>> {
        let (mut connection, generation) = self.current().ok()??;
        let now = self.settings.clock.now();
        let time = self.server_clock.now(generation, now)?;
        let mut commands = commands(time.micros)?;
        if time.is_too_old {
            self.server_clock.want();
            return None;
        }
        let asks = self.server_clock.is_to_be_asked(generation, now);
        if asks {
            commands.add(&["TIME"]);
        }
        let answers = connection.send_packed(commands, dispatch).await;
        let mut answers = match answers.and_then(of_server) {
            Ok(answers) => {
                self.look_for_demotion(&answers);
                answers
            }
            Err(error) if self.is_unsent(&error, generation) => return None,
            Err(error) => return Some(Err(self.failure(error, generation))),
        };
        if let Some(answer) = asks.then(|| answers.pop()).flatten() {
            self.note_answer(generation, &answer);
        }
        Some(Ok(answers))
    }

    /// Notes an answer to TIME that has just arrived.
    fn note_answer(&self, generation: u64, answer: &Value) {
        self.note_time(generation, wire::time(answer).map(|time| (time, self.settings.clock.now())));
    }

    fn note_time(&self, generation: u64, time: Option<(Duration, BootInstant)>) {
        if let Some((time, at)) = time {
            self.server_clock.note(generation, u64::try_from(time.as_micros()).unwrap_or(u64::MAX), at);
        }
    }

    /// Sends the calls in one round trip, before what is less urgent, and those whose script the server lacks once more.
    pub(crate) async fn run_all(
        self: &Arc<Self>,
        calls: &[&Call],
    ) -> Result<Vec<RedisResult<Value>>, Failure> {
        if let [call] = calls {
            return match self.send_once(call, false, &Dispatch::urgent()).await {
                Err(Failure::Refused(error)) => Ok(vec![Err(error)]),
                answer => Ok(vec![Ok(answer?)]),
            };
        }
        Box::pin(self.run_several(calls)).await
    }

    async fn run_several(self: &Arc<Self>, calls: &[&Call]) -> Result<Vec<RedisResult<Value>>, Failure> {
        let dispatch = Dispatch::urgent();
        let mut is_second = false;
        // One connection for both rounds: on another one, the outcome of the second round would be unknown.
        let (mut connection, generation, mut answers) = loop {
            let (mut connection, generation) = self.connection().await.map_err(Failure::Unreached)?;
            let commands = calls.iter().map(|call| call.command.clone());
            match run_once(&mut connection, commands, &dispatch).await {
                Ok(answers) => break (connection, generation, answers),
                Err(error) if !is_second && self.is_unsent(&error, generation) => is_second = true,
                Err(error) => return Err(self.failure(error, generation)),
            }
        };
        // The first round was carried out, whether or not this one was sent.
        let failure = |error: RedisError| match self.failure(error, generation) {
            Failure::Unreached(_) => Failure::Dropped,
            failure => failure,
        };
        let is_forgotten = |answer: &RedisResult<Value>| answer.as_ref().is_err_and(is_no_script);
        let forgotten: Vec<usize> =
            (0..answers.len()).filter(|&number| is_forgotten(&answers[number])).collect();
        if !forgotten.is_empty() {
            let calls: Vec<&Call> = forgotten.iter().map(|&number| calls[number]).collect();
            let again = match load(&mut connection, &calls, &dispatch).await {
                Ok(()) => {
                    let commands = calls.iter().map(|call| call.command.clone());
                    run_once(&mut connection, commands, &dispatch).await
                }
                Err(error) if is_answer(&error) => {
                    run_once(&mut connection, calls.iter().map(|call| call.by_source()), &dispatch).await
                }
                Err(error) => Err(error),
            };
            let again = again.map_err(failure)?;
            forgotten.into_iter().zip(again).for_each(|(number, answer)| answers[number] = answer);
        }
        if answers.iter().any(|answer| answer.as_ref().is_err_and(is_of_replica)) {
            self.state().note_demotion();
        }
        if answers.iter().any(|answer| answer.as_ref().is_err_and(is_demoted)) {
            self.drop_connection(generation);
        }
        // Of the other calls it is not known either, once the connection behind a proxy broke.
        match answers.iter().find_map(|answer| answer.as_ref().err().filter(|error| is_of_proxy(error))) {
            Some(error) => Err(failure(error.clone())),
            None => Ok(answers),
        }
    }

    /// The connection and its generation; a new one is made if there is none.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<(Connection, u64)> {
        if matches!(self.route, Route::Sentinel(_)) {
            // Each time: the runtime of the last task may have ended.
            Following::begin(self);
        }
        match self.current()? {
            Some(state) => Ok(state),
            // Boxed, to keep the future of every request small.
            None => Box::pin(self.connect()).await,
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<(Connection, u64)> {
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
            if let Some(state) = self.current()? {
                return Ok(state);
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
    fn pin(self: &Arc<Self>, made: NewConnection, began: Instant) -> Result<()> {
        let mut state = self.state();
        if state.closed {
            return Err(Error::closed(self.endpoint.backend));
        }
        let mut news = state.announced.iter().filter(|(since, _)| *since >= began);
        if state.connection.is_some() || news.any(|(_, master)| master.addr() != made.at.addr()) {
            return Ok(());
        }
        state.generation = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        if self.endpoint.asks_identity {
            self.keep_open(&made.connection, state.generation);
        }
        state.identity = made.identity.map(|identity| state.master(identity));
        state.connection = Some(made.connection);
        self.note_time(state.generation, made.time);
        // Also to the same address: behind it may be another server by now.
        if state.at.replace(made.at).is_some() {
            self.moves.send_replace(());
        }
        Ok(())
    }

    /// Opens the next connection when this one ends, also while nothing is sent: the sooner the server says who it is, the more is
    /// known of when it has restarted.
    fn keep_open(self: &Arc<Self>, connection: &Connection, generation: u64) {
        let Some(ended) = connection.ended() else { return };
        let (link, opened) = (Arc::downgrade(self), Instant::now());
        drop(tokio::spawn(async move {
            ended.await;
            if let Some(link) = link.upgrade() {
                link.drop_connection(generation);
            }
            // Not again and again, to a server that accepts connections and ends them.
            sleep_until(opened + LAST_PAUSE).await;
            reopen(&link).await;
        }));
    }

    /// The generation of the connection that is in use, `None` without one.
    pub(crate) fn generation(&self) -> Option<u64> {
        let state = self.state();
        state.connection.as_ref().map(|_| state.generation)
    }

    /// The identity of the server, as last read.
    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        self.state().identity.clone()
    }

    /// Sends a command that changes nothing.
    pub(crate) async fn query(self: &Arc<Self>, command: &Cmd) -> Result<Value, Failure> {
        let dispatch = &self.dispatch();
        self.on_connection(|mut connection, _| async move {
            connection.send(command, dispatch).await.and_then(Value::extract_error)
        })
        .await
    }

    /// Sends commands that change nothing in one round trip, and returns the answer to each.
    pub(crate) async fn query_each(
        self: &Arc<Self>,
        commands: &Pipeline,
    ) -> Result<Vec<RedisResult<Value>>, Failure> {
        let mut commands = commands.clone();
        let commands = &*commands.ignore_errors();
        self.on_connection(|mut connection, _| async move { commands.query_async(&mut connection).await })
            .await
    }

    /// Makes a request over the connection, or over the next one if it was not sent.
    async fn on_connection<T, F>(
        self: &Arc<Self>,
        request: impl Fn(Connection, u64) -> F + Send,
    ) -> Result<T, Failure>
    where
        F: Future<Output = RedisResult<T>> + Send,
    {
        let mut is_second = false;
        loop {
            let (connection, generation) = self.connection().await.map_err(Failure::Unreached)?;
            match request(connection, generation).await {
                Err(error) if !is_second && self.is_unsent(&error, generation) => is_second = true,
                answer => return answer.map_err(|error| self.failure(error, generation)),
            }
        }
    }

    /// Of a request whose lease counts by the clock of this link.
    pub(crate) fn dispatch(&self) -> Arc<Dispatch> {
        Dispatch::new(&self.settings.clock)
    }

    /// Whether a request was not sent because this connection is of no use, which is dropped then: another one may serve.
    fn is_unsent(&self, error: &RedisError, generation: u64) -> bool {
        let is_of_no_use = matches!(Unwritten::of(error), Some(Unwritten::Closed | Unwritten::Silent));
        if is_of_no_use {
            self.drop_connection(generation);
        }
        is_of_no_use
    }

    /// Classifies an error, and drops a connection that it makes unusable.
    fn failure(&self, error: RedisError, generation: u64) -> Failure {
        if is_answer(&error) {
            if is_of_replica(&error) {
                self.state().note_demotion();
            }
            if is_demoted(&error) {
                self.drop_connection(generation);
            }
            return Failure::Refused(error);
        }
        let unwritten = Unwritten::of(&error);
        if unwritten != Some(Unwritten::Withdrawn) {
            self.drop_connection(generation);
        }
        if unwritten.is_some() {
            return Failure::Unreached(self.endpoint.unsent(&error));
        }
        if error.is_connection_dropped() { Failure::Dropped } else { Failure::Silent(error) }
    }

    /// Notes that the server is a replica, if one of these answers says so.
    fn look_for_demotion(&self, answers: &[Value]) {
        let says_so = |answer: &Value| matches!(answer, Value::ServerError(error) if is_of_replica(&error.clone().into()));
        if answers.iter().any(says_so) {
            self.state().note_demotion();
        }
    }

    fn drop_connection(&self, generation: u64) {
        let mut state = self.state();
        if state.generation == generation && state.connection.take().is_some() {
            self.epoch.fetch_add(1, Ordering::AcqRel);
            // They may lead to a server that is no longer the master.
            self.wait_connections().clear();
        }
    }

    /// Reports when the connection is replaced; push connections may still lead to the server before then.
    pub(crate) fn moves(&self) -> watch::Receiver<()> {
        self.moves.subscribe()
    }

    /// Examines the server, for the doctor.
    pub(crate) async fn examine(self: &Arc<Self>) -> Result<Vec<Finding>> {
        let found = self.on_connection(|mut connection, _| async move {
            let mut findings = examine(&mut connection, &self.endpoint).await?;
            findings.push(last_tokens::count(&mut connection, &self.endpoint.address).await?);
            Ok(findings)
        });
        found.await.map_err(|failure| self.endpoint.failed(failure))
    }

    /// Sends a call, waits until this many replicas have applied it, and returns the answer and how many have.
    ///
    /// Uses a separate connection, as WAIT blocks later commands. It waits for the writes of its own connection only; but
    /// replicas get all writes in order, and so have all earlier ones too.
    pub(crate) async fn replicate(
        self: &Arc<Self>,
        call: &Call,
        replicas: u32,
        wait_timeout: Duration,
    ) -> Result<(Value, u32), Failure> {
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg(u64::try_from(wait_timeout.as_millis()).unwrap_or(u64::MAX));
        loop {
            let (generation, idle) = (self.generation(), self.wait_connections().pop());
            let was_idle = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.dial_wait_connection(wait_timeout).await.map_err(Failure::Unreached)?,
            };
            match run_and_wait(&mut connection, call, &wait, &self.dispatch()).await {
                Ok(answer) => {
                    self.keep_wait_connection(connection, generation);
                    return Ok(answer);
                }
                // The server may have closed it as idle; the call is idempotent.
                Err(error) if was_idle && error.is_connection_dropped() => {}
                Err(error) => return Err(self.failure(error, SEPARATE_CONNECTION)),
            }
        }
    }

    /// Keeps a connection for the next WAIT, unless another server may be in use by now.
    fn keep_wait_connection(&self, connection: Connection, generation: Option<u64>) {
        let state = self.state();
        let mut wait_connections = self.wait_connections();
        if state.connection.is_some()
            && Some(state.generation) == generation
            && wait_connections.len() < MAX_WAIT_CONNECTIONS
        {
            wait_connections.push(connection);
        }
    }

    async fn dial_wait_connection(self: &Arc<Self>, wait_timeout: Duration) -> Result<Connection> {
        let at = self.at().await?;
        let limit = self.settings.connect_timeout;
        let dialer = Arc::clone(&self.settings.dialer);
        // Later callers are on other runtimes.
        let dialing = async move { timeout(limit, dialer.commands(&at)).await };
        let dialing = self.settings.home.driver().spawn(dialing);
        let mut connection = match timeout(limit, dialing).await {
            Ok(Ok(Ok(dialed))) => dialed.map_err(|error| self.endpoint.unreachable(&error))?,
            Ok(Err(_ended)) => return Err(self.endpoint.dropped()),
            Ok(Ok(Err(_))) | Err(_) => return Err(self.endpoint.connect_timeout(limit)),
        };
        connection.set_response_timeout(wait_timeout + self.settings.command_timeout);
        Ok(connection)
    }

    fn wait_connections(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.wait_connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the server: where the connection leads to, or, without one, what is found now.
    pub(crate) async fn at(self: &Arc<Self>) -> Result<ConnectionInfo> {
        if let Route::Fixed(to) = &self.route {
            return Ok(to.clone());
        }
        self.connection().await?;
        self.state().at.clone().ok_or_else(|| self.endpoint.dropped())
    }

    /// Closes the connection for good.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.connection = None;
        self.wait_connections().clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn current(&self) -> Result<Option<(Connection, u64)>> {
        let state = self.state();
        if state.closed {
            return Err(Error::closed(self.endpoint.backend));
        }
        Ok(state.connection.clone().map(|connection| (connection, state.generation)))
    }

    /// The master that a sentinel announced a moment ago: other sentinels, and the old master, may not know of it yet.
    fn announced(&self) -> Option<ConnectionInfo> {
        let state = self.state();
        let fresh = state.announced.as_ref().filter(|(since, _)| since.elapsed() < ANNOUNCEMENT_TTL);
        fresh.map(|(_, master)| master.clone())
    }

    /// Finds the server, and opens a connection to it.
    async fn find(&self) -> Result<NewConnection> {
        let until = Instant::now() + self.settings.connect_timeout;
        if let Some(to) = self.announced()
            && let Ok(made) = self.open_within(self.settings.connect_timeout / 3, &to).await
        {
            return Ok(made);
        }
        let mut last = None;
        let candidates = self.candidates().await?;
        for (to, left) in candidates.iter().zip((1..=candidates.len() as u32).rev()) {
            // A candidate that hangs leaves enough time for the next ones.
            let share = until.saturating_duration_since(Instant::now()) / left;
            match self.open_within(share, to).await {
                Ok(made) => return Ok(made),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            self.endpoint.error(ErrorKind::Unavailable, "no server was found").with_hint("try again")
        }))
    }

    async fn candidates(&self) -> Result<Vec<ConnectionInfo>> {
        match &self.route {
            Route::Fixed(to) => Ok(vec![to.clone()]),
            Route::Sentinel(sentinels) => {
                // Half of the time; the rest is for the connection to the master.
                let Settings { sentinel_dialer, connect_timeout, .. } = &self.settings;
                masters(sentinels, &**sentinel_dialer, *connect_timeout / 2, &self.endpoint).await
            }
        }
    }

    async fn open_within(&self, limit: Duration, to: &ConnectionInfo) -> Result<NewConnection> {
        let opened = timeout(limit, self.open(to)).await;
        opened.unwrap_or_else(|_| Err(self.endpoint.connect_timeout(limit)))
    }

    async fn open(&self, to: &ConnectionInfo) -> Result<NewConnection> {
        let dialed = self.settings.dialer.commands(to).await;
        let mut connection = dialed.map_err(|error| self.endpoint.unreachable(&error))?;
        // The greeting is part of opening the connection, and counts towards its timeout.
        connection.set_response_timeout(self.settings.connect_timeout);
        let (identity, time) = self.greet(&mut connection).await?;
        if !self.checked.swap(true, Ordering::Relaxed) {
            self.warn(&mut connection).await;
        }
        connection.set_response_timeout(self.settings.command_timeout);
        Ok(NewConnection { connection, identity, time, at: to.clone() })
    }

    /// Reads version, role and clock of the server, and its identity if requested, and loads the scripts: one round trip.
    async fn greet(
        &self,
        connection: &mut Connection,
    ) -> Result<(Option<Identity>, Option<(Duration, BootInstant)>)> {
        let unreachable = |error: RedisError| self.endpoint.unreachable(&error);
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors().cmd("HELLO").cmd("TIME");
        if self.endpoint.asks_identity {
            pipeline.cmd("INFO").arg("server").cmd("DBSIZE").cmd("INFO").arg("replication");
        }
        for script in self.endpoint.scripts {
            pipeline.add_command(script.load());
        }
        let answers = pipeline.query_async::<Vec<RedisResult<Value>>>(connection).await;
        let now = self.settings.clock.now();
        let mut answers = answers.map_err(unreachable)?.into_iter();
        if let Some(hello) = answers.next() {
            let greeting = Greeting::read(hello, connection).await.map_err(unreachable)?;
            self.check(&greeting)?;
        }
        // Not every user may ask for it.
        let time = answers.next().and_then(|answer| wire::time(&answer.ok()?));
        let asks = self.endpoint.asks_identity;
        let identity = asks.then(|| identity(&mut answers)).flatten();
        if let Err(refused) = answers.try_for_each(|answer| answer.map(drop)) {
            match run_without_loading(connection).await {
                Err(error) if is_refusal(&error) => return Err(unreachable(refused)),
                answer => answer.map_err(unreachable)?,
            }
        }
        Ok((identity, time.map(|time| (time, now))))
    }

    fn check(&self, greeting: &Greeting) -> Result<()> {
        if greeting.is_too_old() {
            return Err(self.endpoint.too_old(&greeting.version));
        }
        if greeting.mode == "sentinel" {
            return Err(self.endpoint.is_sentinel());
        }
        if greeting.is_replica() {
            self.state().note_demotion();
            return Err(self.endpoint.is_replica());
        }
        Ok(())
    }

    /// Logs what endangers locks on this server.
    async fn warn(&self, connection: &mut Connection) {
        // Without the rights there are no findings.
        let findings = examine(connection, &self.endpoint).await.unwrap_or_default();
        for finding in findings.iter().filter(|finding| finding.level >= FindingLevel::Warning) {
            tracing::warn!(server = finding.server, "{}; {}", finding.what, finding.advice);
        }
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SentinelLink for Link {
    fn sentinels(&self) -> Option<(SentinelInfo, Settings)> {
        match &self.route {
            Route::Sentinel(sentinels) if !self.state().closed => {
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
            let mut state = self.state();
            let is_connected = state.leads_to(&master);
            state.announced = Some((Instant::now(), master));
            if is_connected {
                return;
            }
            state.generation
        };
        self.drop_connection(generation);
    }

    fn leave_if_elsewhere(&self, generation: u64, master: &ConnectionInfo) {
        let is_current = self.announced().is_none_or(|announced| announced.addr() == master.addr());
        if is_current && !self.state().leads_to(master) {
            self.drop_connection(generation);
        }
    }
}

/// Opens the connection again, for as long as the link lives and is not closed.
async fn reopen(link: &Weak<Link>) {
    let mut pause = FIRST_PAUSE;
    while let Some(link) = link.upgrade() {
        match link.connection().await {
            Err(error) if error.kind() != ErrorKind::Closed => drop(link),
            _ => return,
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// The identity of a server, from its answers to the greeting.
fn identity(answers: &mut impl Iterator<Item = RedisResult<Value>>) -> Option<Identity> {
    let (server, keys, replication) = (answers.next(), answers.next(), answers.next());
    let identity = Identity::read(server, keys)?;
    let history = replication.and_then(Result::ok).and_then(|answer| wire::text(&answer));
    Some(match history {
        Some(history) => identity.with_history(&history),
        None => identity,
    })
}

/// Runs these commands and then the call, in one round trip.
async fn run(
    connection: &mut Connection,
    call: &Cmd,
    before: &[Cmd],
    dispatch: &Arc<Dispatch>,
) -> RedisResult<Vec<RedisResult<Value>>> {
    run_once(connection, before.iter().chain([call]).cloned(), dispatch).await
}

/// Loads the script of a call, which the server lacks, and runs the call, in one round trip. Where the server loads no scripts,
/// the call brings its own.
async fn run_unloaded(
    connection: &mut Connection,
    call: &Call,
    asking: bool,
    dispatch: &Arc<Dispatch>,
) -> RedisResult<Value> {
    let asking: Vec<_> = asking.then(|| redis::cmd("ASKING")).into_iter().collect();
    let before = [&[call.script.load()], &asking[..]].concat();
    let mut answers = run(connection, &call.command, &before, dispatch).await?;
    if answers.last().is_some_and(|answer| answer.as_ref().is_err_and(is_no_script)) {
        answers = run(connection, &call.by_source(), &asking, dispatch).await?;
    }
    last(answers)
}

/// Runs a call, and then WAIT, in one round trip. Returns both answers.
async fn run_and_wait(
    connection: &mut Connection,
    call: &Call,
    wait: &Cmd,
    dispatch: &Arc<Dispatch>,
) -> RedisResult<(Value, u32)> {
    let commands = [call.script.load(), call.command.clone(), wait.clone()];
    let mut answers = run_once(connection, commands.into_iter(), dispatch).await?;
    if answers.get(1).is_some_and(|answer| answer.as_ref().is_err_and(is_no_script)) {
        answers = run_once(connection, [call.by_source(), wait.clone()].into_iter(), dispatch).await?;
    }
    let replicas = answers.pop().unwrap_or(Ok(Value::Nil));
    // The error of the call comes first, as it was sent.
    let answer = last(answers)?;
    Ok((answer, redis::from_redis_value(replicas?)?))
}

/// Tries whether the server runs scripts that it did not load.
async fn run_without_loading(connection: &mut Connection) -> RedisResult<()> {
    // With a key, as proxies route by that.
    let mut eval = redis::cmd("EVAL");
    match eval.arg("return 1").arg(1).arg("polylock:doctor").query_async::<Value>(connection).await {
        // Another node of the cluster has the slot of this key: the rights were checked before that.
        Err(error) if error.is_cluster_error() => Ok(()),
        answer => answer.map(drop),
    }
}

/// The last answer: that of the call.
fn last(mut answers: Vec<RedisResult<Value>>) -> RedisResult<Value> {
    answers.pop().unwrap_or(Ok(Value::Nil))
}

/// Runs these commands in one round trip.
async fn run_once(
    connection: &mut Connection,
    commands: impl Iterator<Item = Cmd>,
    dispatch: &Arc<Dispatch>,
) -> RedisResult<Vec<RedisResult<Value>>> {
    let mut pipeline = redis::pipe();
    commands.for_each(|command| {
        pipeline.add_command(command);
    });
    let answers = connection.send_all(&pipeline, dispatch).await?;
    Ok(answers.into_iter().map(Value::extract_error).collect())
}

/// Loads the scripts of these calls, in one round trip.
async fn load(connection: &mut Connection, calls: &[&Call], dispatch: &Arc<Dispatch>) -> RedisResult<()> {
    let mut scripts: Vec<&Script> = calls.iter().map(|call| call.script).collect();
    scripts.dedup_by(|one, other| std::ptr::eq(*one, *other));
    let loads = scripts.into_iter().map(Script::load);
    run_once(connection, loads, dispatch).await?.into_iter().try_for_each(|answer| answer.map(drop))
}

/// Whether the error is an error reply of the server.
fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension) && !is_of_proxy(error)
}

/// The answers, unless a proxy gave one of them in the place of the server.
fn of_server(answers: Vec<Value>) -> RedisResult<Vec<Value>> {
    let errors = answers.iter().filter_map(|answer| match answer {
        Value::ServerError(error) => Some(RedisError::from(error.clone())),
        _ => None,
    });
    match errors.into_iter().find(is_of_proxy) {
        Some(error) => Err(error),
        None => Ok(answers),
    }
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}
