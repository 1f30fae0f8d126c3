//! Sessions of the server that takes writes: each statement has one, and those that have failed are closed.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::poison::lock;
use lock_core::tls::TlsFiles;
use lock_core::{Error, ErrorKind, Finding, FindingLevel, Outcome, Password, Result, dial};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::{Failed, NAME, NotOpened, Spoilt, weight};
use super::server::{WAITS_FOR_A_ROW, examine, one_writer, set_up};
use crate::adapters::host::Host;
use crate::error::silent;

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
    /// How long a connection may take, and a statement that waits for no row; and one that may wait for a row.
    limit: Duration,
    limit_of_writes: Duration,
    turns: Arc<Semaphore>,
    idle: Mutex<Idle>,
    /// A session has become idle.
    is_back: Notify,
    /// By the one that opens a session: a server that is silent gets one login at a time.
    opens: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Idle {
    sessions: Vec<Session>,
    /// The server that they are of, which is asked first.
    preferred: usize,
    /// Sessions that were used last before this may be as bad as one that was bad then.
    doubted: Option<Instant>,
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
        let limit = command_timeout * 3 / 10;
        // A short timeout leaves the server no time to give up a row that others have locked.
        let limit_of_writes = limit.max(WAITS_FOR_A_ROW).min(command_timeout * 6 / 10);
        let (turns, idle) = (Arc::new(Semaphore::new(MOST)), Mutex::default());
        let (is_back, opens) = Default::default();
        Self { hosts, login, limit, limit_of_writes, turns, idle, is_back, opens }
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    pub(super) fn limit_of_writes(&self) -> Duration {
        self.limit_of_writes
    }

    /// How long it takes at most until a request goes to another server: a statement is not answered, nor is an idle session, and the
    /// next server counts once this one has used up its time to connect.
    pub(super) fn passes_over(&self) -> Duration {
        self.limit_of_writes + self.limit_of_ping() + self.limit
    }

    fn limit_of_ping(&self) -> Duration {
        self.limit / 3
    }

    /// Whether there is a server that can be used. A password that cannot be read now is a mistake.
    pub(super) async fn check(&self) -> Result<()> {
        self.password(ErrorKind::InvalidConfig).await?;
        let session = self.take().await.map_err(|failed| failed.error)?;
        self.keep(session);
        Ok(())
    }

    /// What there is to know of the servers, each of which is asked in a session of its own.
    pub(super) async fn doctor(&self) -> Result<Vec<Finding>> {
        let session = self.take().await.map_err(|failed| failed.error)?;
        let used = self.hosts[session.host].to_string();
        self.keep(session);
        let password = self.password(ErrorKind::Unavailable).await?;
        let (password, end) = (password.as_deref(), Instant::now() + self.limit);
        let examined = join_all(self.hosts.iter().map(async |host| {
            let server = host.to_string();
            let examined = self.ask(host, password, end, |session| examine(session, &server)).await;
            (server.clone(), examined)
        }));
        let note = "locks are kept here, in a table of InnoDB";
        let (mut servers, mut findings) =
            (Vec::new(), vec![Finding::new(FindingLevel::Note, used, note, "")]);
        for (server, examined) in examined.await {
            match examined {
                Ok((facts, found)) => {
                    findings.extend(found);
                    servers.push((server, facts));
                }
                Err(error) => {
                    let (what, advice) = (format!("cannot be examined: {error}"), error.hint());
                    let advice = advice.unwrap_or_default().to_owned();
                    findings.push(Finding::new(FindingLevel::Warning, server, what, advice));
                }
            }
        }
        findings.extend(one_writer(&servers));
        Ok(findings)
    }

    /// A session of its own for a statement.
    pub(super) async fn take(&self) -> Result<Session, Failed> {
        let end = Instant::now() + self.limit;
        let turn = timeout_at(end, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| no_turn())?.map_err(|_| Error::closed(NAME))?;
        let mut session = loop {
            if let Some(session) = self.next_good().await? {
                break session;
            }
            tokio::select! {
                biased;
                () = self.is_back.notified() => {}
                opens = timeout_at(end, self.opens.lock()) => {
                    let _opens = opens.map_err(|_| silent(NAME, self.limit, Outcome::NotApplied))?;
                    break self.connect().await?;
                }
            }
        };
        session.turn = Some(turn);
        Ok(session)
    }

    /// An idle session that can be relied on.
    async fn next_good(&self) -> Result<Option<Session>> {
        while let Some((mut session, is_good)) = self.next_idle()? {
            if is_good || matches!(timeout(self.limit_of_ping(), session.connection.ping()).await, Ok(Ok(())))
            {
                return Ok(Some(session));
            }
            // The others are as old, or older.
            self.drop_idle();
        }
        Ok(None)
    }

    /// Ends the use of a session. It is used again only if the statement was answered within its limit, and not if that concerns more than
    /// the row.
    pub(super) fn settle<T>(
        &self,
        session: Session,
        limit: Duration,
        answered: Result<Result<T, sqlx::Error>, Elapsed>,
    ) -> Result<T, Failed> {
        let failed = match answered {
            Ok(Ok(answer)) => {
                self.keep(session);
                return Ok(answer);
            }
            Ok(Err(error)) => Failed::new(error, session.is_cluster),
            Err(_) => Failed::silent(limit),
        };
        match failed.spoilt {
            Spoilt::Nothing => self.keep(session),
            Spoilt::Session => drop(session),
            Spoilt::Connection => lock(&self.idle).doubted = Some(Instant::now()),
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

    /// The session that was used last, and whether it needs no ping.
    fn next_idle(&self) -> Result<Option<(Session, bool)>> {
        let mut idle = lock(&self.idle);
        if idle.is_closed {
            return Err(Error::closed(NAME));
        }
        let Some(session) = idle.sessions.pop() else { return Ok(None) };
        let is_doubted = idle.doubted.is_some_and(|doubted| session.used <= doubted);
        let is_good = !is_doubted && session.used.elapsed() < FRESH;
        Ok(Some((session, is_good)))
    }

    /// Keeps a session for the next statement, unless others are of another server by now.
    fn keep(&self, mut session: Session) {
        (session.turn, session.used) = (None, Instant::now());
        let mut idle = lock(&self.idle);
        if !idle.is_closed && session.host == idle.preferred {
            idle.sessions.push(session);
            self.is_back.notify_one();
        }
    }

    fn drop_idle(&self) {
        let spoilt = mem::take(&mut lock(&self.idle).sessions);
        drop(spoilt);
    }

    /// The password, as it is now. One that cannot be read is an error of this kind.
    async fn password(&self, otherwise: ErrorKind) -> Result<Option<String>> {
        let Some(password) = &self.login.password else { return Ok(None) };
        let read = timeout(self.limit, password.read()).await.map_err(|_| {
            Error::new(ErrorKind::Unavailable, NAME)
                .with_message(format!("the password was not returned within {:?}", self.limit))
                .with_outcome(Outcome::NotApplied)
        })?;
        read.map(Some).map_err(|unreadable| unreadable.error(otherwise, NAME))
    }

    /// A new session, of the first server that takes writes. The others are asked if one fails, or is slow, and count once all before them have
    /// failed or used up their time: clients with the same servers use the same one.
    async fn connect(&self) -> Result<Session> {
        let password = self.password(ErrorKind::Unavailable).await?;
        let (password, end) = (password.as_deref(), Instant::now() + self.limit);
        let (preferred, count) = (lock(&self.idle).preferred, self.hosts.len());
        let attempts = (0..count).map(|at| (preferred + at) % count).map(|host| {
            let set_up = move |mut connection| async move {
                let facts = set_up(&mut connection, &self.login.table).await?;
                let is_cluster = facts.is_cluster();
                Ok(Session { connection, host, is_cluster, used: Instant::now(), turn: None })
            };
            self.ask(&self.hosts[host], password, end, set_up)
        });
        let session = dial::first_in_order(attempts, self.limit, weight).await;
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

    /// Logs in at a server, at the first of its addresses where what is to be asked then is answered.
    async fn ask<T: Send, F: Future<Output = Result<T, NotOpened>> + Send>(
        &self,
        host: &Host,
        password: Option<&str>,
        end: Instant,
        ask: impl Fn(MySqlConnection) -> F + Send + Sync,
    ) -> Result<T> {
        let (ask, limit) = (&ask, self.limit);
        let at = move |name: String| async move {
            let asked = async {
                let connected = self.options(&name, host.port, password).connect().await;
                let not_opened = |error| NotOpened::login(error, self.login.password.as_ref());
                ask(connected.map_err(not_opened)?).await
            };
            let silent = |_| Err(silent(NAME, limit, Outcome::NotApplied).into());
            timeout_at(end, asked).await.unwrap_or_else(silent)
        };
        let asked = if self.login.tls.is_some() {
            // The driver looks the name up, for which it checks the certificate.
            at(host.name.clone()).await
        } else {
            let left = end.saturating_duration_since(Instant::now());
            let host = (host.name.as_str(), host.port);
            dial::connect(host, left, NotOpened::weight, |address| at(address.ip().to_string())).await
        };
        asked.map_err(|failed| failed.at(&host.to_string()))
    }

    fn options(&self, host: &str, port: u16, password: Option<&str>) -> MySqlConnectOptions {
        let login = &self.login;
        let mut options = MySqlConnectOptions::new()
            .host(host)
            .port(port)
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

fn no_turn() -> Error {
    Error::new(ErrorKind::Unavailable, NAME)
        .with_message("all connections are in use, and this request was not sent")
        .with_hint("see whether the server is slow")
        .with_outcome(Outcome::NotApplied)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_server_that_is_silent_gets_one_login_at_a_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let [user, database, table] = ["me", "app", "polylock"].map(ToOwned::to_owned);
        let login = Login { user, password: None, database, table, tls: None };
        let sessions = Sessions::new(
            vec![Host { name: addr.ip().to_string(), port: addr.port() }],
            login,
            Duration::from_secs(1),
        );
        let (mut taken, mut logins) = (Box::pin(join_all((0..MOST).map(|_| sessions.take()))), Vec::new());
        let taken = loop {
            tokio::select! {
                taken = &mut taken => break taken,
                login = listener.accept() => logins.push(login.unwrap()),
            }
        };
        assert!(taken.iter().all(Result::is_err));
        // Another one when the first has given up.
        assert!(matches!(logins.len(), 1 | 2), "{}", logins.len());
    }
}
