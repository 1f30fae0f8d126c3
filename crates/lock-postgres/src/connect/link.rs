//! Connections to the server.

use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use futures_util::TryStreamExt as _;
use lock_core::runtime::Home;
use lock_core::secret::Unreadable;
use lock_core::{Error, ErrorKind, Password, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Row};

use crate::connect::hosts::{self, Failed};
use crate::connect::statements::{Statements, is_of_another_session};
use crate::connect::tls::{Connector, Tls};
use crate::error::{BACKEND, Endpoint};

/// What a session of ours needs, whatever the role, the database and the server have for others: a level of isolation at which a request
/// waits for nobody and fails for nobody, no limits but our own, and nothing of a search path. The server ends a session that has lost
/// its client, also one that waits for a lock. Read-only transactions stay: a switchover keeps clients off the old primary by them.
const SETTINGS: &str = "-c default_transaction_isolation=read\\ committed \
    -c default_transaction_deferrable=off -c search_path=pg_catalog -c client_min_messages=warning -c row_security=on \
    -c standard_conforming_strings=on -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0";
/// The same, but older servers and some platforms lack one of them.
const NEW_SETTINGS: &str = "-c idle_session_timeout=0 -c client_connection_check_interval=1s";
/// The last number of [`Dialer::settings`].
const NO_SETTINGS: usize = 2;
/// A session that was given up keeps its place until the server has answered. So there may be twice as many as are in use.
const SESSIONS_PER_PLACE: usize = 2;
/// How long a session that is used no more has its place while its last call is not answered.
const LINGER: Duration = Duration::from_secs(30);
/// Where the server warns that a commit does not wait for a standby any more.
const WAITS_FOR_STANDBYS: &str = "SyncRepWaitForLSN";
/// Between two times that all connections are given up.
const DISTRUST_EVERY: Duration = Duration::from_secs(1);

/// Opens connections, with the password and the certificates of the moment.
#[derive(Clone)]
pub(crate) struct Dialer {
    /// Those of which one is the primary.
    pub(crate) targets: Vec<Config>,
    pub(crate) password: Option<Password>,
    pub(crate) tls: Tls,
    pub(crate) connect_timeout: Duration,
    pub(crate) endpoint: Endpoint,
    /// The runtime that drives the connections.
    pub(crate) home: Home,
    trust: watch::Sender<Trust>,
    /// How many of the settings are taken: all, the old ones, or none, as by a pooler.
    settings: Arc<AtomicUsize>,
    /// Room for sessions, also for those that were given up and have not ended.
    sessions: Arc<Semaphore>,
    /// Room for those that have lost their place, as they have not ended for long.
    overdue: Arc<Semaphore>,
    places: usize,
}

/// Which connections are still used.
#[derive(Clone, Copy, Debug, Default)]
struct Trust {
    /// Those that were opened before are not: one of them has shown that the server ended them, or has a successor.
    distrusted: Option<Instant>,
    /// Those that were opened before are probably silent: one of them was.
    silent: Option<Instant>,
    /// Whether one that was opened since the last distrust has been answered.
    later_answers: bool,
}

/// Who is notified of what the server says on a connection. It is not to block.
pub(crate) trait Notified: Send {
    fn notified(&self, payload: &str);
}

/// A connection, and the task that drives it.
pub struct Link {
    pub(crate) client: Client,
    statements: Statements,
    /// A call was not answered in time, or the server is ending it: nothing else is sent.
    is_given_up: AtomicBool,
    /// When its opening began: what was distrusted since may be the server that it was opened to.
    opened: Instant,
    trust: watch::Sender<Trust>,
    /// The number of calls, and that of the last one that was answered: after it, all before it were.
    called: AtomicU64,
    answered: AtomicU64,
    /// Tells the driver when the connection is used no more.
    _used: oneshot::Sender<()>,
    /// Whether the server has warned during the last call.
    is_warned: Arc<AtomicBool>,
}

impl Dialer {
    pub(crate) fn new(
        targets: Vec<Config>,
        (password, tls): (Option<Password>, Tls),
        connect_timeout: Duration,
        endpoint: Endpoint,
        home: Home,
    ) -> Self {
        let (trust, settings) = Default::default();
        let (sessions, overdue, places) =
            (Arc::new(Semaphore::new(SESSIONS_PER_PLACE)), Arc::new(Semaphore::new(1)), 1);
        Self {
            targets,
            password,
            tls,
            connect_timeout,
            endpoint,
            home,
            trust,
            settings,
            sessions,
            overdue,
            places,
        }
    }

    /// The same with room for so many connections, of its own.
    pub(crate) fn for_places(self, places: usize) -> Self {
        let (sessions, overdue) =
            (Arc::new(Semaphore::new(SESSIONS_PER_PLACE * places)), Arc::new(Semaphore::new(places)));
        Self { sessions, overdue, places, ..self }
    }

    /// Whether a session can be opened without waiting for the end of one that was given up.
    pub(crate) fn has_room(&self) -> bool {
        self.sessions.available_permits() > 0
    }

    /// Lets no connection that is open now be used again, as this one has ended, or is silent. Returns whether that is so: not if it
    /// was done a moment ago, nor if this one was not used any more.
    pub(crate) fn distrust_all(&self, link: &Link, is_silent: bool) -> bool {
        let mut distrusts = false;
        self.trust.send_if_modified(|trust| {
            let is_due = trust.distrusted.is_none_or(|before| before.elapsed() >= DISTRUST_EVERY);
            distrusts = is_due && trust.covers(link);
            if distrusts {
                (trust.distrusted, trust.later_answers) = (Some(Instant::now()), false);
            }
            let shows_silence = is_silent && !trust.covers(link);
            if shows_silence {
                trust.silent = trust.distrusted;
            }
            distrusts || shows_silence
        });
        distrusts
    }

    /// Refuses a password or certificates that cannot be read, which may pass only later.
    pub(crate) async fn check(&self) -> Result<()> {
        self.secrets().await.map(drop).map_err(|unread| unread.error(ErrorKind::InvalidConfig, BACKEND))
    }

    /// The certificates and the password of the moment.
    async fn secrets(&self) -> std::result::Result<(Connector, Option<String>), Unreadable> {
        let limit = self.connect_timeout;
        let read = timeout(limit, async {
            let connector = self.tls.connector().await?;
            match &self.password {
                Some(password) => Ok((connector, Some(password.read().await?))),
                None => Ok((connector, None)),
            }
        });
        read.await.unwrap_or_else(|_| Err(Unreadable::new(format!("not read within {limit:?}"))))
    }

    /// Opens a connection. What the server notifies it of goes to `notified`, which is dropped when the connection ends.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed, after the connect timeout at the latest.
    pub(crate) async fn open(&self, notified: Option<Box<dyn Notified>>) -> Result<Link> {
        self.open_as(self.targets.clone(), notified).await
    }

    /// As [`open`](Self::open), with another name in the list of sessions.
    pub(crate) async fn open_as(
        &self,
        mut targets: Vec<Config>,
        notified: Option<Box<dyn Notified>>,
    ) -> Result<Link> {
        let limit = self.connect_timeout;
        let Ok(Ok(place)) = timeout(limit, Arc::clone(&self.sessions).acquire_owned()).await else {
            return Err(self.endpoint.no_room(SESSIONS_PER_PLACE * self.places, limit));
        };
        let secrets = self.secrets().await;
        let (tls, password) = secrets.map_err(|unread| unread.error(ErrorKind::Unavailable, BACKEND))?;
        if let Some(password) = password {
            for target in &mut targets {
                target.password(&password);
            }
        }
        let (settings, trust) = (Arc::clone(&self.settings), self.trust.clone());
        let place = Place { place, overdue: Arc::clone(&self.overdue), users: self.trust.subscribe() };
        let opened = Instant::now();
        let connecting = self.home.driver().spawn(async move {
            let (client, connection) = loop {
                let without = settings.load(Ordering::Relaxed);
                let connected =
                    hosts::connect(with_settings(&targets, without), Connector::clone(&tls), limit).await;
                match connected {
                    Err(Failed::Driver(error)) if is_refusal_of_settings(&error) && without < NO_SETTINGS => {
                        settings.store(without + 1, Ordering::Relaxed);
                    }
                    connected => break connected?,
                }
            };
            let (is_warned, (used, unused)) = (Arc::<AtomicBool>::default(), oneshot::channel());
            let served = serve(connection, notified, Arc::clone(&is_warned));
            drop(tokio::spawn(place.through(served, unused)));
            let (statements, is_given_up, called, answered) = Default::default();
            let link = Link {
                client,
                statements,
                is_given_up,
                opened,
                trust,
                called,
                answered,
                _used: used,
                is_warned,
            };
            Ok::<_, Failed>(link)
        });
        match connecting.await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(failed)) => {
                let error = failed.error(&self.endpoint, limit);
                match &self.password {
                    Some(password) if error.kind() == ErrorKind::Denied => Err(password.refused(error)),
                    _ => Err(error),
                }
            }
            Err(ended) => Err(self
                .endpoint
                .error(ErrorKind::Unavailable, "the runtime that opened the connection has ended")
                .with_hint("try again")
                .caused_by(ended)),
        }
    }
}

/// The servers with our settings, but for those that are not taken. The settings of the user count more.
fn with_settings(targets: &[Config], without: usize) -> Vec<Config> {
    let ours = match without {
        0 => format!("{SETTINGS} {NEW_SETTINGS}"),
        1 => SETTINGS.to_owned(),
        _ => return targets.to_vec(),
    };
    let mut targets = targets.to_vec();
    for target in &mut targets {
        let options = format!("{ours} {}", target.get_options().unwrap_or_default());
        target.options(options);
    }
    targets
}

/// Whether a pooler takes no settings, or the server does not know one of them.
fn is_refusal_of_settings(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|refusal| match refusal.code().code() {
        "08P01" => refusal.message().contains("startup"),
        code => matches!(code, "42704" | "22023"),
    })
}

/// The room that a session takes until it has ended.
struct Place {
    place: OwnedSemaphorePermit,
    overdue: Arc<Semaphore>,
    /// Closed when nobody can use a session any more.
    users: watch::Receiver<Trust>,
}

impl Place {
    /// Drives a session to its end: once it is `unused`, until its last call is answered. The server may run that call for as long as a
    /// standby is away. So some sessions get no more than room beside the places, which others can take, as after a failover.
    async fn through(self, served: impl Future<Output = ()> + Send, unused: oneshot::Receiver<()>) {
        let Self { place, overdue, mut users } = self;
        let mut served = pin!(served);
        let is_overdue = async {
            // It is dropped with its last user.
            let _ = unused.await;
            sleep(LINGER).await;
        };
        tokio::select! {
            () = &mut served => return,
            () = is_overdue => {}
        }
        let mut closed = pin!(async { while users.changed().await.is_ok() {} });
        let _room = tokio::select! {
            () = &mut served => return,
            () = &mut closed => return,
            room = overdue.acquire_owned() => room,
        };
        drop(place);
        tokio::select! {
            () = served => {}
            () = closed => {}
        }
    }
}

/// Takes what the server says, until the connection ends.
async fn serve<S, T>(
    mut connection: Connection<S, T>,
    notified: Option<Box<dyn Notified>>,
    is_warned: Arc<AtomicBool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let message = poll_fn(|context| connection.poll_message(context)).await;
        let Some(message) = message else { return };
        match message {
            Ok(AsyncMessage::Notification(notification)) => {
                if let Some(notified) = &notified {
                    notified.notified(notification.payload());
                }
            }
            Ok(AsyncMessage::Notice(notice)) => {
                is_warned.fetch_or(notice.routine() == Some(WAITS_FOR_STANDBYS), Ordering::Relaxed);
                tracing::debug!(%notice, "the server says");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection ended");
                return;
            }
        }
    }
}

/// A parameter that the driver does not log: an owner id or a key of a waiter is a right.
struct Hidden<'a>(&'a (dyn ToSql + Sync));

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl ToSql for Hidden<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql_checked(kind, out)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.to_sql(kind, out)
    }
}

impl Link {
    /// Sends nothing else.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Calls a function: by a prepared statement where the session is our own, else unnamed and typed, so that a pooler may choose another
    /// session for each call.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the call may be run all the same. The connection is not used for another one before that is
    /// answered.
    pub(crate) async fn call(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
        self.answered(self.call_by_name(sql, params)).await
    }

    async fn call_by_name(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
        let types = params.iter().map(|(_, kind)| kind.clone());
        let called = match self.statements.for_call(&self.client, sql, types).await {
            Ok(Some(statement)) => {
                let values = params.iter().map(|(value, _)| Hidden(*value));
                let rows = self.client.query_raw(&statement, values).await;
                Some(async { rows?.try_collect().await }.await)
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        };
        match called {
            // Nothing was executed.
            Some(Err(error)) if is_of_another_session(&error) && self.statements.forget() => {}
            Some(called) => return called,
            None => {}
        }
        self.client.query_typed(sql, params).await
    }

    /// Runs statements without parameters.
    ///
    /// # Cancel safety
    ///
    /// As [`call`](Self::call).
    pub(crate) async fn batch(&self, sql: &str) -> std::result::Result<(), tokio_postgres::Error> {
        self.answered(self.client.batch_execute(sql)).await
    }

    /// The answer to a request; until it is there, the connection is busy.
    async fn answered<T, E>(
        &self,
        request: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        let number = self.called.fetch_add(1, Ordering::Relaxed) + 1;
        self.is_warned.store(false, Ordering::Relaxed);
        let answer = request.await;
        self.answered.fetch_max(number, Ordering::Relaxed);
        if answer.is_ok() && self.trust.borrow().awaits(self) {
            self.trust.send_if_modified(|trust| {
                let awaited = trust.awaits(self);
                trust.later_answers |= awaited;
                awaited
            });
        }
        answer
    }

    /// The output of a call, if it comes within this time, or how long it was waited for. A call on a connection that is probably silent
    /// has only a part of the time once a later connection has been answered: where a router has forgotten all connections, each would
    /// keep its place in the pool for the whole time, and so would the call after it that rolls it back.
    pub(crate) async fn in_time<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = T>,
    ) -> std::result::Result<T, Duration> {
        let began = Instant::now();
        let outlived = async {
            // Its sender lives as long as this.
            let _ =
                self.trust.subscribe().wait_for(|trust| trust.later_answers && trust.silences(self)).await;
            sleep((limit / 4).saturating_sub(began.elapsed())).await;
        };
        tokio::select! {
            biased;
            answer = timeout(limit, call) => answer.map_err(|_| limit),
            () = outlived => Err(Duration::from_millis(began.elapsed().as_millis() as u64)),
        }
    }

    /// Whether this connection is used on, as far as others have shown.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trust.borrow().covers(self)
    }

    /// Whether the server has warned during the last call: its commit does not wait for a standby any more, and has succeeded.
    pub(crate) fn is_warned(&self) -> bool {
        self.is_warned.load(Ordering::Relaxed)
    }

    /// Whether a call has no answer yet, perhaps as its future was dropped.
    fn is_busy(&self) -> bool {
        self.answered.load(Ordering::Relaxed) < self.called.load(Ordering::Relaxed)
    }

    /// Whether requests can be sent.
    pub(crate) fn is_open(&self) -> bool {
        !self.client.is_closed() && !self.is_given_up.load(Ordering::Relaxed) && self.is_trusted()
    }
}

impl Trust {
    /// Whether an answer on this connection would be the first on a later one.
    fn awaits(&self, link: &Link) -> bool {
        self.distrusted.is_some() && !self.later_answers && self.covers(link)
    }

    fn covers(&self, link: &Link) -> bool {
        self.distrusted.is_none_or(|before| link.opened > before)
    }

    fn silences(&self, link: &Link) -> bool {
        self.silent.is_some_and(|before| link.opened <= before)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}

impl Manager for Dialer {
    type Type = Link;
    type Error = Error;

    async fn create(&self) -> Result<Link> {
        self.open(None).await
    }

    /// What is sent on a busy connection would wait for the answer to another caller's call. That is not cancelled on the server: what
    /// lasts there is a commit, and its cancellation grants a lock that the standbys may lack. The connection stays open until then:
    /// else each call that is given up would leave a session more.
    async fn recycle(&self, link: &mut Link, _: &Metrics) -> RecycleResult<Error> {
        if link.is_open() && !link.is_busy() {
            return Ok(());
        }
        Err(RecycleError::message(
            "the connection ended, is busy, or is one to a server that may have a successor",
        ))
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("servers", &self.endpoint.servers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A server, and a dialer of it.
    async fn server() -> (TcpListener, Dialer) {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let target = format!("host=127.0.0.1 port={port} user=app dbname=app sslmode=disable");
        let endpoint = Endpoint { servers: "one".into(), schema: "polylock".into() };
        let secrets = (None, Tls::default());
        let dialer = Dialer::new(vec![target.parse().unwrap()], secrets, LIMIT, endpoint, Home::here());
        (server, dialer.for_places(8))
    }

    /// Accepts a connection, and reads what begins it.
    async fn accepted(server: &TcpListener) -> TcpStream {
        let mut session = server.accept().await.unwrap().0;
        let length = session.read_u32().await.unwrap() as usize;
        session.read_exact(&mut vec![0; length - 4]).await.unwrap();
        session
    }

    /// Ends the handshake: the login is accepted, and the server is ready.
    async fn admit(session: &mut TcpStream) {
        session.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
    }

    async fn opened(server: &TcpListener, dialer: &Dialer) -> (Link, TcpStream) {
        let admitted = async {
            let mut session = accepted(server).await;
            admit(&mut session).await;
            session
        };
        let (link, session) = tokio::join!(dialer.open(None), admitted);
        (link.unwrap(), session)
    }

    /// A call that is answered.
    async fn call(link: &Link, session: &mut TcpStream) {
        let answered = async {
            assert_eq!(session.read_u8().await.unwrap(), b'Q');
            session.write_all(b"C\0\0\0\x05\0Z\0\0\0\x05I").await.unwrap();
        };
        tokio::join!(link.batch("SELECT"), answered).0.unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_was_being_opened_is_distrusted_as_well() {
        let (server, dialer) = server().await;
        let (ended, _session) = opened(&server, &dialer).await;
        let distrusted = async {
            let mut session = accepted(&server).await;
            assert!(dialer.distrust_all(&ended, false));
            admit(&mut session).await;
            session
        };
        let (link, _session) = tokio::join!(dialer.open(None), distrusted);
        assert!(!link.unwrap().is_trusted());
        let (later, _session) = opened(&server, &dialer).await;
        assert!(later.is_trusted());
    }

    #[tokio::test]
    async fn only_silence_shortens_the_calls_of_other_connections() {
        for (is_silent, is_short) in [(false, false), (true, true)] {
            let (server, dialer) = server().await;
            let (one, _one) = opened(&server, &dialer).await;
            let (other, _other) = opened(&server, &dialer).await;
            assert!(dialer.distrust_all(&one, is_silent));
            let (later, mut session) = opened(&server, &dialer).await;
            call(&later, &mut session).await;
            tokio::time::pause();
            let waited = other.in_time(LIMIT, pending::<()>()).await.unwrap_err();
            assert_eq!(waited < LIMIT, is_short, "{waited:?}");
            // Later ones have their whole time.
            assert_eq!(later.in_time(LIMIT, pending::<()>()).await, Err(LIMIT));
            tokio::time::resume();
        }
    }

    #[tokio::test]
    async fn what_is_silent_after_it_was_distrusted_shortens_the_calls_of_those_that_were_as_well() {
        let (server, dialer) = server().await;
        let (ended, _ended) = opened(&server, &dialer).await;
        let (one, _one) = opened(&server, &dialer).await;
        let (other, _other) = opened(&server, &dialer).await;
        assert!(dialer.distrust_all(&ended, false));
        let (later, mut session) = opened(&server, &dialer).await;
        call(&later, &mut session).await;
        assert!(!dialer.distrust_all(&one, true));
        tokio::time::pause();
        assert!(other.in_time(LIMIT, pending::<()>()).await.unwrap_err() < LIMIT);
        assert_eq!(later.in_time(LIMIT, pending::<()>()).await, Err(LIMIT));
    }
}
