//! What a failed statement means.

use std::io;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Outcome, Password};
use sqlx::mysql::MySqlDatabaseError;

pub(crate) const NAME: &str = "mysql";
/// The key exists.
pub(super) const DUPLICATE: u16 = 1062;
const WRONG_PASSWORD: u16 = 1045;
const LOCK_WAIT: u16 = 1205;
const DEADLOCK: u16 = 1213;
/// `read_only`, a transaction that only reads, and `innodb_read_only`.
const READ_ONLY: [u16; 3] = [1290, 1792, 1836];
/// The server leaves its cluster, shuts down, has ended the session, or its group has rolled back.
const LEAVES: [u16; 6] = [1047, 1053, 1927, 3100, 3101, 4031];

/// A statement that has failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// The number of the server's error; `None` if it is one of the connection.
    pub(super) code: Option<u16>,
    pub(super) spoilt: Spoilt,
    /// Whether another session may do better.
    pub(super) may_pass: bool,
}

/// What is no good any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoilt {
    /// Nothing: the server has refused to change this row.
    Nothing,
    Session,
    /// The session, and perhaps others: its connection has failed, or is silent.
    Connection,
    /// All sessions of this server.
    Server,
}

/// A session that cannot be opened. No statement on a lock was sent.
#[derive(Debug)]
pub(super) struct NotOpened(Error);

impl Failed {
    /// A statement that was sent, and failed like this in a session of a Galera cluster, or of another server.
    pub(super) fn new(error: sqlx::Error, is_cluster: bool) -> Self {
        let code = code_of(&error);
        let spoilt = spoilt(&error, code);
        let may_pass = matches!(spoilt, Spoilt::Connection | Spoilt::Server) || code == Some(DEADLOCK);
        let outcome = outcome_of(code, is_cluster);
        Self { error: describe(error, code).with_outcome(outcome), code, spoilt, may_pass }
    }

    /// A statement that was sent, and not answered.
    pub(super) fn silent(limit: Duration) -> Self {
        let error = crate::error::silent(NAME, limit, Outcome::Unknown);
        Self { error, code: None, spoilt: Spoilt::Connection, may_pass: true }
    }
}

/// Nothing was sent.
impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let error = error.with_outcome(Outcome::NotApplied);
        Self { error, code: None, spoilt: Spoilt::Nothing, may_pass: false }
    }
}

impl NotOpened {
    /// The server does not let this user in, who has this password.
    pub(super) fn login(error: sqlx::Error, password: Option<&Password>) -> Self {
        let refused = password.filter(|_| code_of(&error) == Some(WRONG_PASSWORD));
        let Self(error) = error.into();
        Self(match refused {
            Some(password) => password.refused(error),
            None => error,
        })
    }

    /// How much it tells: see [`weight`].
    pub(super) fn weight(&self) -> u8 {
        weight(&self.0)
    }

    /// The error for users, of this server.
    pub(super) fn at(self, host: &str) -> Error {
        let message = format!("{host}: {}", self.0.message());
        self.0.with_message(message).with_outcome(Outcome::NotApplied)
    }
}

impl From<Error> for NotOpened {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<sqlx::Error> for NotOpened {
    fn from(error: sqlx::Error) -> Self {
        // As of a plugin that the driver lacks. Later, it is a connection that has failed.
        if let sqlx::Error::Protocol(what) = &error {
            let what = format!("the driver cannot speak with the server: {what}");
            let hint = "name a server of MySQL or MariaDB, and a user who logs in by mysql_native_password or caching_sha2_password";
            let refused = Error::new(ErrorKind::InvalidConfig, NAME).with_message(what).with_hint(hint);
            return Self(refused.caused_by(error));
        }
        let code = code_of(&error);
        Self(describe(error, code))
    }
}

/// Of the lookup of a name.
impl From<io::Error> for NotOpened {
    fn from(error: io::Error) -> Self {
        let what = format!("cannot connect: {error}");
        let error = Error::new(ErrorKind::Unavailable, NAME)
            .with_message(what)
            .with_hint("check the host in the URL, and the name servers of this host")
            .caused_by(error);
        Self(error)
    }
}

/// How much the error of a server tells: a replica beside a primary that is down is as it should be.
pub(super) fn weight(error: &Error) -> u8 {
    match (error.kind(), error.code()) {
        (ErrorKind::Unavailable, "read_only") => 0,
        (ErrorKind::Unavailable, _) => 1,
        _ => 2,
    }
}

fn code_of(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

fn spoilt(error: &sqlx::Error, code: Option<u16>) -> Spoilt {
    match code {
        // It was answered.
        None if matches!(error, sqlx::Error::ColumnDecode { .. }) => Spoilt::Session,
        None => Spoilt::Connection,
        Some(code) if READ_ONLY.contains(&code) || LEAVES.contains(&code) => Spoilt::Server,
        Some(DUPLICATE | LOCK_WAIT | DEADLOCK) => Spoilt::Nothing,
        Some(_) => Spoilt::Session,
    }
}

/// What became of the only statement of a transaction.
///
/// A server by itself has rolled it back before it answers so. In a cluster a deadlock may also be the answer of a member whose
/// transaction the others have certified.
fn outcome_of(code: Option<u16>, is_cluster: bool) -> Outcome {
    match code {
        Some(DEADLOCK) if is_cluster => Outcome::Unknown,
        // Refused before it is executed, for its row, its form, its rights, or the state of the server; the disk or the table is full.
        Some(
            DUPLICATE | LOCK_WAIT | DEADLOCK | 1044 | WRONG_PASSWORD | 1046 | 1048 | 1049 | 1054 | 1064
            | 1114 | 1142 | 1143 | 1146 | 1153 | 1227 | 1243 | 1290 | 1364 | 1406 | 1461 | 1665 | 1792 | 1836,
        ) => Outcome::NotApplied,
        _ => Outcome::Unknown,
    }
}

/// The error for users.
pub(super) fn describe(error: sqlx::Error, code: Option<u16>) -> Error {
    let said = error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
    let (kind, message, hint) = match (code, &error) {
        (Some(1044 | 1142 | 1143 | 1227), _) => (
            ErrorKind::Denied,
            format!("the user has no rights: {said}"),
            "grant SELECT, INSERT and UPDATE on the table, and CREATE if it is to be made",
        ),
        (Some(WRONG_PASSWORD | 1130 | 1251 | 1524 | 1698 | 1820 | 1862 | 3118 | 3159), _) => (
            ErrorKind::Denied,
            format!("the server refuses the login: {said}"),
            "check the user, the password and TLS",
        ),
        (Some(1046 | 1049), _) => (
            ErrorKind::InvalidConfig,
            format!("there is no such database: {said}"),
            "make it, or name another one: mysql://user:password@host/DATABASE",
        ),
        (Some(1146), _) => (
            ErrorKind::Unavailable,
            "the table is gone".to_owned(),
            "nobody may drop it while locks are in use",
        ),
        (Some(1040 | 1203 | 1226), _) => (
            ErrorKind::Exhausted,
            format!("there are too many connections: {said}"),
            "raise max_connections, or use fewer processes",
        ),
        (Some(1114 | 1021), _) => (ErrorKind::Exhausted, format!("there is no room: {said}"), "make some"),
        (Some(1153 | 1406), _) => (
            ErrorKind::Exhausted,
            "the record is larger than the server allows".to_owned(),
            "let fewer share or wait for the lock, or raise max_allowed_packet",
        ),
        (Some(1665), _) => (
            ErrorKind::InvalidConfig,
            "the server logs statements, which it cannot do for transactions that read committed data"
                .to_owned(),
            "set binlog_format to ROW or MIXED",
        ),
        (Some(LOCK_WAIT), _) => (
            ErrorKind::Unavailable,
            "another transaction, or a backup, has locked the row or the table for too long".to_owned(),
            "end it: only locks may use the table, and backups have to do without locks (--single-transaction)",
        ),
        (Some(code), _) if READ_ONLY.contains(&code) => return read_only(&said),
        (Some(code), _) => {
            (ErrorKind::Unavailable, format!("the server has failed: {code}: {said}"), "see the cause")
        }
        (None, sqlx::Error::Tls(_)) => (
            ErrorKind::Unavailable,
            "TLS has failed".to_owned(),
            "check the certificates, and that the server has TLS",
        ),
        (None, sqlx::Error::Io(error)) if error.kind() == io::ErrorKind::InvalidData => (
            ErrorKind::Unavailable,
            "TLS has failed".to_owned(),
            "check the certificates and the name of the host",
        ),
        (None, sqlx::Error::ColumnDecode { .. }) => (
            ErrorKind::Unexpected,
            format!("the table has a value that cannot be read: {error}"),
            "something else writes there: name another table by table=",
        ),
        (None, _) => (
            ErrorKind::Unavailable,
            "the connection has failed".to_owned(),
            "check that the server runs, and the host, the port and TLS in the URL",
        ),
    };
    Error::new(kind, NAME).with_message(message).with_hint(hint).caused_by(error)
}

/// The error of a server that takes no writes.
pub(super) fn read_only(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, NAME)
        .with_message(format!("the server takes no writes, as replicas do: {why}"))
        .with_hint(
            "name the primary, or all servers that may become it: mysql://user:password@h1,h2/DATABASE",
        )
        .with_code("read_only")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_what_became_of_a_statement() {
        let unknown = [1047, 1053, 1180, 1317, 1927, 1969, 3024, 3100, 3101, 4031].map(Some);
        for code in unknown.into_iter().chain([None]) {
            assert_eq!(outcome_of(code, false), Outcome::Unknown, "{code:?}");
        }
        for code in [1062, 1114, 1142, 1146, 1205, 1213, 1290, 1792, 1836].map(Some) {
            assert_eq!(outcome_of(code, false), Outcome::NotApplied, "{code:?}");
        }
        assert_eq!(outcome_of(Some(DEADLOCK), true), Outcome::Unknown);
    }

    #[test]
    fn only_what_concerns_the_server_ends_its_sessions() {
        let by = |code| spoilt(&sqlx::Error::WorkerCrashed, code);
        for code in [1290, 1836, 1047, 1053, 1927, 4031, 3101].map(Some) {
            assert_eq!(by(code), Spoilt::Server, "{code:?}");
        }
        assert_eq!(by(None), Spoilt::Connection);
        assert_eq!([1062, 1205, 1213].map(|code| by(Some(code))), [Spoilt::Nothing; 3]);
        assert_eq!([1142, 1146, 1317].map(|code| by(Some(code))), [Spoilt::Session; 3]);
    }
}
