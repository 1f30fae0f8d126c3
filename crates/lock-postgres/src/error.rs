//! The errors of the server and of the driver, for users.

use std::error::Error as _;
use std::io;
use std::iter::successors;
use std::time::Duration;

use lock_core::{Capabilities, Error, ErrorKind, LeaseKind, Outcome, Result};
use tokio_postgres::error::{DbError, Severity};

/// The name of this backend in errors.
pub(crate) const BACKEND: &str = "postgres";
/// The shortest ttl: below it, the drift margin and a commit use up the lease.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);

/// Rejects a ttl that is too short or too long.
pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    Capabilities::new(BACKEND, LeaseKind::ttl(ttl, MIN_TTL)).check_ttl(ttl, MIN_TTL)
}

/// An error of the configuration.
pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, BACKEND).with_message(message).with_hint(hint)
}

/// An answer that no version of the functions gives.
pub(crate) fn unexpected(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unexpected, BACKEND)
        .with_message(what)
        .with_hint("check that all clients and the schema are of this library")
        .with_outcome(Outcome::Unknown)
}

/// The code of the error for a schema that is missing.
pub(crate) const NOT_INSTALLED: &str = "not_installed";

/// The code of the error where somebody else has created the schema, or a part of it, meanwhile.
pub(crate) const CREATED_AT_ONCE: &str = "created_at_once";

/// The code of the error for a schema in which others may have left something.
pub(crate) const FOREIGN_SCHEMA: &str = "foreign_schema";

/// What the driver was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum During {
    /// Nothing was sent yet.
    Connecting,
    /// A function was called.
    Call,
}

/// The servers and the schema, as errors name them.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) servers: String,
    pub(crate) schema: String,
}

impl Endpoint {
    /// An error of this kind that names the servers.
    pub(crate) fn error(&self, kind: ErrorKind, what: impl AsRef<str>) -> Error {
        Error::new(kind, BACKEND).with_message(format!("{}: {}", self.servers, what.as_ref()))
    }

    /// No connection within the time.
    pub(crate) fn no_connection(&self, limit: Duration) -> Error {
        self.error(ErrorKind::Unavailable, format!("no connection within {limit:?}"))
            .with_code("timeout")
            .with_hint(REACH)
    }

    /// All connections of the pool were in use.
    pub(crate) fn pool_is_busy(&self, size: usize, limit: Duration) -> Error {
        self.error(ErrorKind::Unavailable, format!("all {size} connections were busy for {limit:?}"))
            .with_code("timeout")
            .with_hint("try again; raise pool= if that happens often, or find what makes the server slow")
    }

    /// A call was sent, and not answered within the time.
    pub(crate) fn silent(&self, limit: Duration) -> Error {
        self.error(ErrorKind::Unavailable, format!("no answer within {limit:?}"))
            .with_code("timeout")
            .with_hint("try again; check the load, the disk and the synchronous standbys of the server")
            .with_outcome(Outcome::Unknown)
    }

    /// Nobody waits for the answer to a call that was sent.
    pub(crate) fn sender_has_ended(&self) -> Error {
        self.error(ErrorKind::Unavailable, "the runtime that sent the request has ended")
            .with_code("broken")
            .with_hint("try again")
            .with_outcome(Outcome::Unknown)
    }

    /// The commit succeeded, but somebody has cancelled its wait for a standby.
    pub(crate) fn not_on_standby(&self) -> Error {
        self.error(ErrorKind::Unavailable, "the commit was cancelled while it waited for a standby")
            .with_code("timeout")
            .with_hint("try again; check the synchronous standbys, and who calls pg_cancel_backend")
            .with_outcome(Outcome::Unknown)
    }

    /// As many sessions as may be are open, and those that were given up have not ended.
    pub(crate) fn no_room(&self, sessions: usize, limit: Duration) -> Error {
        self.error(
            ErrorKind::Unavailable,
            format!("{sessions} sessions have not answered or ended for {limit:?}"),
        )
        .with_code("too_many_connections")
        .with_hint("try again; check what the server waits for: a lock of a table, the disk, or a standby")
    }

    /// Others may have put something into the schema: nothing of it is called.
    pub(crate) fn distrusted(&self, why: &str) -> Error {
        self.error(ErrorKind::Denied, format!("the schema {:?} {why}: its functions would run as this client", self.schema))
            .with_code(FOREIGN_SCHEMA)
            .with_hint(
                "if you trust that role, name it: owner=ROLE; else use another schema: schema=NAME, or let an administrator \
                 remove this one",
            )
    }

    /// The schema was made by a newer version of this library.
    pub(crate) fn too_new(&self, version: i32, known: i32) -> Error {
        let what =
            format!("the schema {:?} has version {version}, and this client knows {known}", self.schema);
        self.error(ErrorKind::Unsupported, what)
            .with_hint("upgrade this client, or give it a schema of its own: schema=NAME")
    }

    fn too_new_to_install(&self, said: &str) -> Error {
        self.error(ErrorKind::Unsupported, said).with_hint("upgrade this client")
    }

    /// The schema is missing, or too old.
    pub(crate) fn not_installed(&self, what: &str) -> Error {
        self.error(ErrorKind::InvalidConfig, format!("the schema {:?} is not installed: {what}", self.schema))
            .with_hint(INSTALL)
            .with_code(NOT_INSTALLED)
            .with_can_pass(true)
    }

    /// The role may not install the schema.
    pub(crate) fn may_not_install(&self, refusal: Error) -> Error {
        let what = format!("this role may not create or upgrade the schema {:?}", self.schema);
        self.error(ErrorKind::InvalidConfig, what)
            .with_hint(INSTALL)
            .with_code(NOT_INSTALLED)
            .with_can_pass(true)
            .caused_by(refusal)
    }

    /// The error of a fence in a transaction of the caller.
    pub(crate) fn fence(&self, error: &tokio_postgres::Error) -> Error {
        match error.as_db_error() {
            Some(refusal) if refusal.code().code() == "PL001" => {
                let why = refusal.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
                self.error(ErrorKind::Lost, format!("{}{why}", refusal.message()))
                    .with_hint("roll the transaction back, acquire the lock again, and repeat the work")
            }
            _ => self.of(During::Call, error),
        }
    }

    /// The error of the driver.
    pub(crate) fn of(&self, during: During, error: &tokio_postgres::Error) -> Error {
        match error.as_db_error() {
            Some(refusal) => self.refused(during, refusal),
            None => self.broken(during, error),
        }
        .caused_by(Cause(text(error)))
    }

    /// The server is not the primary.
    pub(crate) fn standby(&self) -> Error {
        self.error(ErrorKind::Unavailable, "the server is a standby, or transactions are read-only there")
            .with_code("replica")
            .with_hint(PRIMARY)
    }

    /// What the server said.
    fn refused(&self, during: During, refusal: &DbError) -> Error {
        let code = refusal.code().code();
        let is_fatal = ends_connection(refusal);
        let said = |kind| self.error(kind, format!("{} (SQLSTATE {code})", refusal.message()));
        // A call that ends with an error was rolled back. One whose connection is ended may have been committed before.
        let outcome = match during {
            During::Call if is_fatal => Outcome::Unknown,
            _ => Outcome::NotApplied,
        };
        let error = match code {
            "55P03" => said(ErrorKind::Unavailable).with_hint(
                "try again: nothing was changed; another session has locked a table of the locks, as a migration, VACUUM FULL or \
                 LOCK TABLE does: see pg_locks",
            ),
            "40001" | "40P01" | "57014" => {
                said(ErrorKind::Unavailable).with_hint("try again: nothing was changed")
            }
            "23505" | "42P06" | "42P07" | "42723" | "XX000" if refusal.message().contains("already exists")
                || refusal.message().contains("concurrently")
                || code == "23505" =>
            {
                said(ErrorKind::Unavailable).with_code(CREATED_AT_ONCE).with_hint("try again")
            }
            "25006" => self.standby(),
            "53300" => said(ErrorKind::Unavailable).with_code("too_many_connections").with_hint(
                "raise max_connections, lower pool= (each process has so many connections, one to listen, and one for renewals), or use a \
                 pooler such as PgBouncer",
            ),
            "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => {
                said(ErrorKind::Unavailable).with_code("broken").with_hint(RESTARTS)
            }
            "28000" | "28P01" => said(ErrorKind::Denied).with_hint(
                "check user and password in the URL, and what pg_hba.conf allows from this host: it may ask for TLS \
                 (sslmode=require) or a client certificate (sslcert=, sslkey=)",
            ),
            "42501" => said(ErrorKind::Denied).with_hint(format!(
                "let the owner of the schema {:?} grant it: `polylock install --grant ROLE`, or --operator ROLE for a role that \
                 breaks locks",
                self.schema
            )),
            "3D000" => said(ErrorKind::InvalidConfig).with_hint(
                "name a database that exists: postgres://user@host/DATABASE; without a name it is that of the user",
            ),
            "3F000" | "42883" | "42P01" | "42703" => self.not_installed(refusal.message()),
            "PL002" => self.too_new_to_install(refusal.message()),
            "PL003" => said(ErrorKind::Denied)
                .with_code(FOREIGN_SCHEMA)
                .with_hint(refusal.hint().unwrap_or("name another schema: schema=NAME").to_owned()),
            "22023" => said(ErrorKind::InvalidConfig)
                .with_hint("shorten what the holder says of itself (label, info), or the ttl"),
            "22021" | "22P05" => said(ErrorKind::InvalidName)
                .with_hint("the database cannot store this name: use one with the encoding UTF8, or names in ASCII"),
            _ if code.starts_with("08") => {
                said(ErrorKind::Unavailable).with_code("broken").with_hint(RESTARTS)
            }
            _ if code.starts_with("53") || code == "54000" => {
                said(ErrorKind::Exhausted).with_hint("free disk or memory of the server, or raise its limit")
            }
            _ if is_fatal => said(ErrorKind::Unavailable).with_hint(RESTARTS),
            _ => said(ErrorKind::Unexpected).with_hint("see the log of the server"),
        };
        error.with_outcome(outcome)
    }

    /// What the driver found without the server.
    fn broken(&self, during: During, error: &tokio_postgres::Error) -> Error {
        let what = text(error);
        if during == During::Call {
            return self
                .error(ErrorKind::Unavailable, format!("the connection broke: {what}"))
                .with_code("broken")
                .with_hint("try again")
                .with_outcome(Outcome::Unknown);
        }
        if let Some(error) = self.refused_handshake(&what) {
            return error;
        }
        let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        let (code, hint) = match io.map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => ("refused", REACH),
            Some(io::ErrorKind::NotFound) => {
                ("no_socket", "check that the server runs, and the directory: ?host=/dir")
            }
            _ if is_no_primary(error) => {
                return self
                    .error(ErrorKind::Unavailable, "none of the servers is a primary that allows writes")
                    .with_code("replica")
                    .with_hint(PRIMARY);
            }
            _ => ("unavailable", REACH),
        };
        let error = self.error(ErrorKind::Unavailable, format!("cannot connect: {what}"));
        let error = if code == "unavailable" { error } else { error.with_code(code) };
        error.with_hint(hint)
    }

    /// Explains a handshake that another attempt does not mend, by what the driver says of it.
    fn refused_handshake(&self, what: &str) -> Option<Error> {
        let bad_certificate = |what: &str, hint: &str| {
            let error = self.error(ErrorKind::InvalidConfig, what).with_code("bad_certificate");
            // Certificates expire and are renewed while processes run.
            Some(error.with_hint(hint).with_can_pass(true))
        };
        if what.contains(NO_PASSWORD) {
            return Some(
                self.error(ErrorKind::Denied, "the server asks for a password")
                    .with_hint("give it in the URL, as user:password@host, or by password_file="),
            );
        }
        if what.contains(NO_TLS) {
            return Some(
                self.error(ErrorKind::Unavailable, "the server does not speak TLS")
                    .with_code("no_tls")
                    .with_hint("set ssl = on there, or leave sslmode= and its files out of the URL"),
            );
        }
        if what.contains(BAD_CERTIFICATE) {
            return bad_certificate(
                "the certificate of the server is not trusted, or is for another host",
                "name the file of the authority that signed it in the URL (sslrootcert=...), and the host as in the certificate",
            );
        }
        if what.contains(ALERT)
            && ["Cert", "UnknownCA", "DecryptError"].iter().any(|word| what.contains(word))
        {
            return bad_certificate(
                "the server rejected the client certificate",
                "check sslcert= and sslkey= in the URL",
            );
        }
        None
    }
}

/// Whether the server is a standby, and a primary is wanted: the driver's error for `target_session_attrs`.
pub(crate) fn is_no_primary(error: &tokio_postgres::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|io| io.kind() == io::ErrorKind::PermissionDenied && io.raw_os_error().is_none())
}

/// Whether the connection ends with this refusal. PostgreSQL says so in the field `V`, which PgBouncer leaves out, and in `S`, in the
/// language of the server. Old versions of PgBouncer always send `ERROR` there, so the class of the code counts as well.
pub(crate) fn ends_connection(refusal: &DbError) -> bool {
    matches!(refusal.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
        || matches!(refusal.severity(), "FATAL" | "PANIC")
        || refusal.code().code().starts_with("08")
}

/// Whether the server answers, and another attempt fails as well: the handshake has to be mended.
pub(crate) fn refuses_handshake(error: &tokio_postgres::Error) -> bool {
    let what = text(error);
    [NO_PASSWORD, NO_TLS, BAD_CERTIFICATE, ALERT].iter().any(|word| what.contains(word))
}

/// What the drivers of the protocol and of TLS say.
const NO_PASSWORD: &str = "password missing";
const NO_TLS: &str = "server does not support TLS";
const BAD_CERTIFICATE: &str = "invalid peer certificate";
const ALERT: &str = "fatal alert";

/// The hint for a schema that is missing or too old.
const INSTALL: &str = "connect once as the role that owns the schema, or that may create it (install=auto), or let it run what \
                       `polylock install --url URL --print` prints; check the database and schema= in the URL";
/// The hint for a failed connection.
const REACH: &str = "check that the server runs, that host, port and sslmode in the URL are right, and that listen_addresses \
                     and pg_hba.conf let this host in";
/// The hint when no server accepts writes.
const PRIMARY: &str = "wait for the failover to end; name all servers in the URL (postgres://h1,h2/db), so that the client finds \
                       the primary";
/// The hint for a server that ends connections.
const RESTARTS: &str = "try again: the server or a pooler restarts, or an administrator ended the connection";

/// The text of a driver error with those of its causes, which it leaves out.
fn text(error: &tokio_postgres::Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The text of a driver error, without its type.
#[derive(Debug)]
struct Cause(String);

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}
