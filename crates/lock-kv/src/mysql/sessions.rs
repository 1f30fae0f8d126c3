//! Sessions of the server that takes writes: each statement has one, and those that have failed are closed.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::dial::first_success;
use lock_core::poison::lock;
use lock_core::tls::TlsFiles;
use lock_core::{Error, ErrorKind, Finding, Outcome, Password, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};

use super::error::{Failed, NAME, Spoilt, not_connected};
use super::server::{SetUp, replication, set_up};
use crate::error::silent;
use crate::host::Host;

/// Commits that come together share a write to the disk. Each is a thread of the server.
const MOST: usize = 8;
/// A session that has been idle for longer may be one that the server, or the network, has forgotten.
const FRESH: Duration = Duration::from_secs(5);

/// Who logs in, and where to.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: Option<Password>,
    pub(crate) database: String,
    pub(crate) table: String,
    pub(crate) tls: Option<TlsFiles>,
}

/// The sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    hosts: Vec<Host>,
    login: Login,
    /// How long a statement may take, and a connection.
    limit: Duration,
    turns: Arc<Semaphore>,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    sessions: Vec<Session>,
    /// The server that they are of, which is asked first.
    preferred: usize,
    is_closed: bool,
}

/// A session, for one statement at a time.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) connection: MySqlConnection,
    host: usize,
    is_cluster: bool,
    used: Instant,
    /// While it is in use.
    turn: Option<OwnedSemaphorePermit>,
}

impl Sessions {
    pub(crate) fn new(hosts: Vec<Host>, login: Login, command_timeout: Duration) -> Self {
        let (turns, idle) = (Arc::new(Semaphore::new(MOST)), Mutex::default());
        Self { hosts, login, limit: command_timeout * 3 / 10, turns, idle }
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether there is a server that can be used. A password that cannot be read now is a mistake.
    pub(super) async fn check(&self) -> Result<()> {
        self.password(ErrorKind::InvalidConfig).await?;
        let session = self.take().await.map_err(|failed| failed.error)?;
        self.keep(session);
        Ok(())
    }

    /// What there is to know of the server.
    pub(super) async fn doctor(&self) -> Result<Vec<Finding>> {
        let mut session = self.take().await.map_err(|failed| failed.error)?;
        // What it was set to when the session began is of no use.
        let server = self.hosts[session.host].to_string();
        let asked = async {
            let facts = set_up(&mut session.connection, &self.login.table).await?;
            Ok::<_, SetUp>((facts, replication(&mut session.connection, &server).await))
        };
        let asked = timeout(self.limit, asked).await;
        let asked = asked.map_err(|_| silent(NAME, self.limit, Outcome::NotApplied))?;
        let (facts, replication) = asked.map_err(|error| refused(&server, error))?;
        self.keep(session);
        let mut findings = facts.findings(&server);
        findings.push(replication);
        Ok(findings)
    }

    /// A session of its own for a statement.
    pub(super) async fn take(&self) -> Result<Session, Failed> {
        let turn = timeout(self.limit, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| no_turn())?.map_err(|_| Error::closed(NAME))?;
        while let Some(mut session) = self.next_idle()? {
            let is_fresh = session.used.elapsed() < FRESH;
            if is_fresh || matches!(timeout(self.limit, session.connection.ping()).await, Ok(Ok(()))) {
                session.turn = Some(turn);
                return Ok(session);
            }
            // The others are as old, or older.
            self.drop_idle();
        }
        let mut session = self.connect().await?;
        session.turn = Some(turn);
        Ok(session)
    }

    /// Ends the use of a session. It is used again only if the statement was answered, and not if that concerns more than the row.
    pub(super) fn settle<T>(
        &self,
        session: Session,
        answered: Result<Result<T, sqlx::Error>, Elapsed>,
    ) -> Result<T, Failed> {
        let failed = match answered {
            Ok(Ok(answer)) => {
                self.keep(session);
                return Ok(answer);
            }
            Ok(Err(error)) => Failed::new(error, session.is_cluster),
            Err(_) => Failed::silent(self.limit),
        };
        match failed.spoilt() {
            Spoilt::Nothing => self.keep(session),
            Spoilt::Session => drop(session),
            Spoilt::Server => self.drop_idle(),
        }
        Err(failed)
    }

    pub(super) async fn close(&self) {
        let idle = {
            let mut idle = lock(&self.idle);
            idle.is_closed = true;
            mem::take(&mut idle.sessions)
        };
        self.turns.close();
        for session in idle {
            // A server that does not answer learns of it by the end of the connection.
            let _ = timeout(self.limit, session.connection.close()).await;
        }
    }

    fn next_idle(&self) -> Result<Option<Session>> {
        let mut idle = lock(&self.idle);
        if idle.is_closed { Err(Error::closed(NAME)) } else { Ok(idle.sessions.pop()) }
    }

    /// Keeps a session for the next statement, unless others are of another server by now.
    fn keep(&self, mut session: Session) {
        (session.turn, session.used) = (None, Instant::now());
        let mut idle = lock(&self.idle);
        if !idle.is_closed && session.host == idle.preferred {
            idle.sessions.push(session);
        }
    }

    fn drop_idle(&self) {
        let spoilt = mem::take(&mut lock(&self.idle).sessions);
        drop(spoilt);
    }

    /// A new session, of the first server that takes writes: the others are asked if one fails, or is slow.
    async fn connect(&self) -> Result<Session> {
        let password = self.password(ErrorKind::Unavailable).await?;
        let (preferred, count) = (lock(&self.idle).preferred, self.hosts.len());
        let order = (0..count).map(|at| (preferred + at) % count);
        let attempts = order.map(|at| self.attempt(at, password.as_deref()));
        let session = first_success(attempts, self.limit, weight).await;
        let session = session
            .map_err(|error| error.unwrap_or_else(|| silent(NAME, self.limit, Outcome::NotApplied)))?;
        let spoilt = {
            let mut idle = lock(&self.idle);
            let is_other = mem::replace(&mut idle.preferred, session.host) != session.host;
            if is_other { mem::take(&mut idle.sessions) } else { Vec::new() }
        };
        drop(spoilt);
        Ok(session)
    }

    /// The password, as it is now. One that cannot be read is an error of this kind.
    async fn password(&self, kind: ErrorKind) -> Result<Option<String>> {
        let Some(password) = &self.login.password else { return Ok(None) };
        let read = timeout(self.limit, password.read()).await.map_err(|_| {
            Error::new(ErrorKind::Unavailable, NAME)
                .with_message(format!("the password was not returned within {:?}", self.limit))
                .with_outcome(Outcome::NotApplied)
        })?;
        read.map(Some).map_err(|unreadable| unreadable.error(kind, NAME))
    }

    async fn attempt(&self, at: usize, password: Option<&str>) -> Result<Session> {
        let host = &self.hosts[at];
        let attempt = async {
            let mut connection = self.options(host, password).connect().await?;
            let facts = set_up(&mut connection, &self.login.table).await?;
            let is_cluster = facts.is_cluster();
            Ok(Session { connection, host: at, is_cluster, used: Instant::now(), turn: None })
        };
        let attempted = timeout(self.limit, attempt).await;
        let attempted = attempted.map_err(|_| silent(NAME, self.limit, Outcome::NotApplied))?;
        attempted.map_err(|error| refused(&host.to_string(), error))
    }

    fn options(&self, host: &Host, password: Option<&str>) -> MySqlConnectOptions {
        let login = &self.login;
        let mut options = MySqlConnectOptions::new()
            .host(&host.name)
            .port(host.port)
            .username(&login.user)
            .database(&login.database)
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .set_names(false)
            .disable_statement_logging();
        if let Some(password) = password {
            options = options.password(password);
        }
        let Some(files) = &login.tls else { return options.ssl_mode(MySqlSslMode::Disabled) };
        options = options.ssl_mode(MySqlSslMode::VerifyIdentity);
        if let Some(ca) = &files.ca {
            options = options.ssl_ca(ca);
        }
        if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
            options = options.ssl_client_cert(cert).ssl_client_key(key);
        }
        options
    }
}

fn refused(host: &str, error: SetUp) -> Error {
    match error {
        SetUp::Failed(error) => not_connected(host, error),
        SetUp::Refused(error) => {
            let message = format!("{host}: {}", error.message());
            error.with_message(message)
        }
    }
}

/// How much an error tells: a replica beside a primary that is down is as it should be.
fn weight(error: &Error) -> u8 {
    match (error.kind(), error.code()) {
        (ErrorKind::Unavailable, "read_only") => 1,
        (ErrorKind::Unavailable, _) => 0,
        _ => 2,
    }
}

fn no_turn() -> Error {
    Error::new(ErrorKind::Unavailable, NAME)
        .with_message("all connections are in use, and this request was not sent")
        .with_hint("see whether the server is slow")
        .with_outcome(Outcome::NotApplied)
}
