//! Maps Redis errors to lock errors.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::{fmt, io};

use lock_core::secret::Unreadable;
use lock_core::{Error, ErrorKind, Outcome, Password};
use redis::RedisError;

use crate::route::unwritten::{Unwritten, io_error};
use crate::scripts::script::{Script, ScriptList};

/// The server that errors name.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) backend: &'static str,
    pub(crate) address: String,
    /// The scripts that its user needs the rights for.
    pub(crate) scripts: ScriptList,
    /// Whether connections read the identity of the server.
    pub(crate) asks_identity: bool,
}

/// The reason why a request has no answer.
#[derive(Debug)]
pub enum Failure {
    /// The connection failed: nothing was sent.
    Unreached(Error),
    /// The connection was closed or reset before the answer.
    Dropped,
    /// No answer in time, or an unexpected one.
    Silent(RedisError),
    /// The server answered with an error: the request was not applied.
    Refused(RedisError),
}

impl Endpoint {
    /// The error for a connection that could not be opened: nothing was sent.
    pub(crate) fn unreachable(&self, error: &RedisError) -> Error {
        let error = &first_of_pipeline(error);
        if let Some(unreadable) = unreadable(self.backend, io_error(error)) {
            return unreadable;
        }
        if let Some(RefusedPassword { password, answer }) = inner(io_error(error)) {
            return password.refused(self.unreachable(answer));
        }
        if is_auth(error) {
            return self
                .error(ErrorKind::Denied, "the server refused the user name or password")
                .with_hint("check user and password in the URL")
                .caused_by(Cause::of(error));
        }
        if is_of_proxy(error) {
            return self
                .error(ErrorKind::Unavailable, &format!("cannot connect: {}", words_of_proxy(error)))
                .with_code("broken")
                .with_hint("check the server behind the proxy");
        }
        if matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension) {
            return self.refused(error);
        }
        if let Some((what, hint)) = tls_trouble(&error.to_string()) {
            return self
                .error(ErrorKind::InvalidConfig, what)
                .with_code("bad_certificate")
                .with_hint(hint)
                // Certificates expire and are renewed while processes run.
                .with_can_pass(true)
                .caused_by(Cause::of(error));
        }
        let (code, what, hint) = connect_trouble(error);
        self.error(ErrorKind::Unavailable, &format!("cannot connect: {what}"))
            .with_code(code)
            .with_hint(hint)
            .caused_by(Cause::of(error))
    }

    pub(crate) fn connect_timeout(&self, timeout: std::time::Duration) -> Error {
        self.error(ErrorKind::Unavailable, &format!("no connection within {timeout:?}"))
            .with_code("timeout")
            .with_hint(REACH)
    }

    /// A connection broke before anything was sent over it.
    pub(crate) fn lost_at_once(&self) -> Error {
        self.error(ErrorKind::Unavailable, "the connection broke as soon as it was made")
            .with_hint("try again; if the error persists, check the server and the network to it")
    }

    /// The server is older than the scripts require.
    pub(crate) fn too_old(&self, version: &str) -> Error {
        self.error(ErrorKind::Unsupported, &format!("the server is Redis {version}, which is too old"))
            .with_hint("use Redis 6.2 or later, or a server that is compatible with it")
    }

    /// The server is a sentinel, not a Redis server.
    pub(crate) fn is_sentinel(&self) -> Error {
        self.error(ErrorKind::InvalidConfig, "the server is a sentinel, which stores no locks")
            .with_code("wrong_server")
            .with_hint("write the URL as redis+sentinel://host:port/name, with the name of the master")
    }

    /// The server is not a sentinel, though the URL says so.
    pub(crate) fn is_no_sentinel(&self, error: &RedisError) -> Error {
        self.error(ErrorKind::InvalidConfig, "the server is not a sentinel")
            .with_code("wrong_server")
            .with_hint("name the sentinels in the URL, or write redis://host:port for the server itself")
            .caused_by(Cause::of(error))
    }

    /// The server is a replica.
    pub(crate) fn is_replica(&self) -> Error {
        self.error(ErrorKind::Unavailable, "the server is a read-only replica")
            .with_code("replica")
            .with_hint("name the master in the URL, or let sentinels name it (redis+sentinel://)")
    }

    /// The nodes of a cluster redirect a request in a circle.
    #[must_use]
    pub fn slot_moves(&self) -> Error {
        self.error(
            ErrorKind::Unavailable,
            "the slot of the lock is migrating, and the nodes disagree on its owner",
        )
        .with_hint("try again; if the error persists, check the cluster (redis-cli --cluster check)")
    }

    /// The reachable nodes of a cluster report that it is down.
    pub(crate) fn cluster_is_down(&self) -> Error {
        self.error(ErrorKind::Unavailable, "the reachable nodes report that the cluster is down")
            .with_hint("try again; if the error persists, check the cluster (redis-cli --cluster check)")
    }

    /// The keys of a lock would be in different slots of a cluster.
    pub(crate) fn cross_slot(&self, lock: &str) -> Error {
        self.error(
            ErrorKind::InvalidName,
            &format!("the helper keys of {lock:?} would be in other cluster slots than the lock"),
        )
        .with_hint(BRACES)
    }

    /// The error for a request without an answer.
    #[must_use]
    pub fn failed(&self, failure: Failure) -> Error {
        match failure {
            Failure::Unreached(error) => error,
            Failure::Dropped => self.dropped(),
            Failure::Silent(error) => self.no_answer(&error),
            Failure::Refused(error) => self.refused(&error),
        }
    }

    /// The error for a request that may have been sent and got no answer.
    pub(crate) fn no_answer(&self, error: &RedisError) -> Error {
        let (code, what) = match error.is_timeout() {
            true => ("timeout", "no answer in time".to_owned()),
            false if is_of_proxy(error) => ("broken", words_of_proxy(error)),
            false => ("broken", "the connection broke".to_owned()),
        };
        self.in_doubt(&what).with_code(code).caused_by(Cause::of(error))
    }

    /// The error for a connection that broke after the request may have been sent.
    #[must_use]
    pub fn dropped(&self) -> Error {
        self.in_doubt("the connection broke").with_code("broken")
    }

    /// The error for a request that was not sent, though there was a connection.
    pub(crate) fn unsent(&self, error: &RedisError) -> Error {
        let (reason, code) = match Unwritten::of(error) {
            Some(reason @ Unwritten::Silent) => (reason.to_string(), "timeout"),
            Some(reason) => (reason.to_string(), "broken"),
            None => ("the request was not sent".to_owned(), "broken"),
        };
        self.error(ErrorKind::Unavailable, &reason)
            .with_code(code)
            .with_hint("try again; if the error persists, check the server and the network to it")
    }

    fn in_doubt(&self, what: &str) -> Error {
        self.error(ErrorKind::Unavailable, what)
            .with_hint("the server may have run the request; a lock that it may have left is removed")
            .with_outcome(Outcome::Unknown)
    }

    /// The error for an error reply: the request was not applied.
    #[must_use]
    pub fn refused(&self, error: &RedisError) -> Error {
        let error = &first_of_pipeline(error);
        if is_of_proxy(error) {
            return self.no_answer(error);
        }
        let (kind, hint) = match code(error) {
            "NOPERM" => (
                ErrorKind::Denied,
                format!("give the user the rights{}: {}", self.missing(error), self.rights()),
            ),
            code => meaning(code, error),
        };
        let text = [error.code(), error.detail()].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let cause = Cause { wrote_nothing: self.wrote_nothing(error), ..Cause::of(error) };
        self.error(kind, &format!("the server refused: {}", shortened(&text)))
            .with_hint(hint)
            .caused_by(cause)
    }

    /// The right that is missing, where the server says only in which line of which script.
    fn missing(&self, error: &RedisError) -> String {
        let lacks_command = error.detail().is_some_and(|detail| detail.contains("can't run this command"));
        match self.refused_in(error).filter(|_| lacks_command) {
            Some((script, line)) => {
                let commands = script.commands_at(line).join(" or +").to_ascii_lowercase();
                if commands.is_empty() { commands } else { format!(", of which +{commands} is missing") }
            }
            None => String::new(),
        }
    }

    /// Whether nothing was written before a right was missing: to run the script, or its first command that writes.
    fn wrote_nothing(&self, error: &RedisError) -> bool {
        error.code() == Some("NOPERM")
            || code(error) == "NOPERM"
                && self.refused_in(error).is_some_and(|(script, line)| script.begins_with(line))
    }

    /// The script of which a command was refused, and its line.
    fn refused_in(&self, error: &RedisError) -> Option<(&'static Script, usize)> {
        let detail = error.detail()?;
        let script = self.scripts.iter().find(|script| detail.contains(script.hash()))?;
        let digits = detail.rsplit("@user_script:").next()?.trim_start();
        let end = digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len());
        Some((script, digits[..end].parse().ok()?))
    }

    /// The commands that the scripts call.
    pub(crate) fn commands_of_scripts(&self) -> BTreeSet<String> {
        let calls = self.scripts.iter().flat_map(|script| {
            let after = script.source().split("call('").skip(1);
            after.filter_map(|rest| rest.split('\'').next()).map(str::to_ascii_lowercase)
        });
        calls.collect()
    }

    /// The rights that the user needs, as a rule for ACL SETUSER: for the scripts and for the commands inside them.
    fn rights(&self) -> String {
        let commands: Vec<_> =
            self.commands_of_scripts().iter().map(|command| format!("+{command}")).collect();
        let identity =
            if self.asks_identity { " and to detect restarts of a master +info +dbsize" } else { "" };
        // No comma after a right: users copy them from here.
        format!(
            "ACL SETUSER ... +evalsha +script|load {} ~lock:* ~polylock:* (with another prefix, that one), \
             for waiting without polling {LISTEN_RIGHTS} {TRACK_RIGHTS} \
             and with a database (redis://host/1) +select and in a cluster +cluster|slots +cluster|info +asking \
             {SHARD_RIGHTS} and for wait_replicas +wait and to list locks +scan{identity}",
            commands.join(" ")
        )
    }

    /// The error for an answer of an unexpected form.
    #[must_use]
    pub fn unexpected(&self, answer: &redis::Value) -> Error {
        self.error(ErrorKind::Unexpected, &format!("the server sent an unexpected answer: {answer:?}"))
            .with_hint("check that the server is Redis 6.2 or later, or compatible")
            .with_outcome(Outcome::Unknown)
    }

    /// An error of this kind that names the server.
    #[must_use]
    pub fn error(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(kind, self.backend).with_message(format!("{what} ({})", self.address))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.backend, self.address)
    }
}

/// The error for breaking a key that is not a lock.
#[must_use]
pub fn not_a_lock(backend: &'static str, kind: &str) -> Error {
    Error::new(ErrorKind::Unsupported, backend)
        .with_message(format!("the key is {}, not a lock of this library", type_in_words(kind)))
        .with_hint(
            "remove it with the client that created it, or use another prefix in the URL (?prefix=...)",
        )
}

/// The type of a key that is no lock of this library, with the libraries whose locks are of that type.
pub(crate) fn type_in_words(kind: &str) -> String {
    match kind {
        "hash" => "a hash, as the locks of Redisson are".into(),
        "zset" => "a sorted set, as the locks of Symfony are".into(),
        _ => format!("a {kind}"),
    }
}

/// The first error of a pipeline, whose own error has no code and no detail.
pub(crate) fn first_of_pipeline(error: &RedisError) -> RedisError {
    match error.clone().into_server_errors().as_deref() {
        Some([(_, first), ..]) => RedisError::from(first.clone()),
        _ => error.clone(),
    }
}

/// Explains a failed connection: the code, the text and the hint.
fn connect_trouble(error: &RedisError) -> (&'static str, String, &'static str) {
    let (code, what, hint) = match io_kind(error) {
        _ if error.is_timeout() => ("timeout", "no answer in time", REACH),
        Some(io::ErrorKind::ConnectionRefused) => (
            "refused",
            "connection refused: no server listens on that port",
            "start the server, or check the port in the URL and the setting `bind` of the server",
        ),
        Some(io::ErrorKind::NotFound) => (
            "no_socket",
            "the socket file does not exist",
            "check that the server runs, its setting `unixsocket`, and the path in the URL",
        ),
        Some(io::ErrorKind::PermissionDenied) => (
            "no_socket",
            "no permission to open the socket file",
            "check the permissions of the socket file (the setting `unixsocketperm` of the server) and its folders",
        ),
        Some(io::ErrorKind::InvalidData) if error.to_string().contains("InvalidContentType") => (
            "no_tls",
            "the server does not speak TLS on that port",
            "name the TLS port of the server in the URL, or write redis:// or redlock:// without TLS",
        ),
        Some(_) if error.to_string().contains("lookup address") => (
            "dns",
            "the host name cannot be resolved",
            "check the host in the URL, and the DNS of this machine",
        ),
        _ if error.is_connection_dropped() => ("broken", "the server closed the connection at once", CLOSED),
        // The driver's category only says that it is an I/O error.
        Some(_) => return ("unavailable", Cause::of(error).text, REACH),
        None => ("unavailable", error.category(), REACH),
    };
    (code, what.to_owned(), hint)
}

fn io_kind(error: &RedisError) -> Option<io::ErrorKind> {
    io_error(error).map(io::Error::kind)
}

/// The error for credentials that could not be read, if this is one: they may be readable at the next connect.
fn unreadable(backend: &'static str, error: Option<&io::Error>) -> Option<Error> {
    Some(inner::<Unreadable>(error)?.error(ErrorKind::Unavailable, backend))
}

fn inner<T: StdError + 'static>(error: Option<&io::Error>) -> Option<&T> {
    error?.get_ref()?.downcast_ref()
}

/// Whether the error says that the command is unknown or not allowed. Errors that pass, as while a password is changed or
/// the server loads its data, are no refusal.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    matches!(code(error), "NOPERM" | "ERR") && !is_of_proxy(error) || error.kind() == redis::ErrorKind::Client
}

/// Explains an error about certificates, which is not worth a retry.
fn tls_trouble(text: &str) -> Option<(&'static str, &'static str)> {
    if text.contains("CertificateRequired") {
        return Some((
            "the server requires a client certificate",
            "name the certificate and its key in the URL (?tls_cert=...&tls_key=...)",
        ));
    }
    if text.contains("fatal alert") && text.to_ascii_lowercase().contains("cert") {
        return Some(("the server rejected the client certificate", "check tls_cert and tls_key in the URL"));
    }
    text.contains("invalid peer certificate").then_some((
        "the certificate of the server is not trusted, or is for another host",
        "name the certificate authority that signed it in the URL (?tls_ca=...), and the host as in the certificate",
    ))
}

/// The kind and the hint for an error reply with this code.
fn meaning(code: &str, error: &RedisError) -> (ErrorKind, String) {
    let detail = error.detail().unwrap_or_default();
    let (kind, hint) = match code {
        "NOAUTH" | "WRONGPASS" => (ErrorKind::Denied, "check user and password in the URL"),
        "DENIED" => (ErrorKind::Denied, "give the server a password, or set its protected-mode to no"),
        "ERR" if detail.contains("max number of clients") => {
            (ErrorKind::Unavailable, "let the server accept more connections (maxclients), then try again")
        }
        "READONLY" => (
            ErrorKind::Unavailable,
            "the server is a replica now: try again after the failover, name the master in the URL, \
             or let sentinels name it (redis+sentinel://)",
        ),
        "NOREPLICAS" => (
            ErrorKind::Unavailable,
            "fewer replicas are in sync than min-replicas-to-write requires, and the request was not applied: \
             try again when they are back",
        ),
        "ERR" if detail.contains("cluster support disabled") => (
            ErrorKind::InvalidConfig,
            "the server is not part of a cluster: write the URL as redis://host:port",
        ),
        "ERR" if detail.contains("DB index is out of range") => {
            (ErrorKind::InvalidConfig, "name a database that the server has (see its setting `databases`)")
        }
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => {
            (ErrorKind::Unavailable, "the server is not ready, and the request was not applied: try again")
        }
        "CROSSSLOT" => (ErrorKind::InvalidName, BRACES),
        "TRYAGAIN" | "ASK" => (
            ErrorKind::Unavailable,
            "the slot of the lock is migrating to another node, and the request was not applied: try again",
        ),
        "MOVED" => (
            ErrorKind::InvalidConfig,
            "the server is a node of a cluster: write the URL as redis+cluster://host:port,host:port",
        ),
        "MISCONF" => (
            ErrorKind::Unavailable,
            "the server cannot save to disk and refuses writes: check its log, then try again",
        ),
        "BUSY" => (ErrorKind::Unavailable, "a script blocks the server; try again"),
        "OOM" => (ErrorKind::Exhausted, "the server is out of memory: raise maxmemory or free memory"),
        "WRONGTYPE" => (
            ErrorKind::Unexpected,
            "a key of the lock has another type: use another prefix in the URL (?prefix=...)",
        ),
        "ERR" if detail.contains("called from") && is_unknown_command(error) => {
            (ErrorKind::Unsupported, "`polylock doctor` names the commands that the server lacks")
        }
        "ERR" if is_unknown_command(error) => (ErrorKind::Unsupported, NAMES),
        _ => (ErrorKind::Unexpected, "check the version of the server: 6.2 or later is required"),
    };
    (kind, hint.to_owned())
}

/// The code of an error. For an error inside a script, the code of the command that failed: before Redis 7 that is only
/// in the text, and a missing right has no code there in any version. Nor has one for which SELECT was refused.
pub(crate) fn code(error: &RedisError) -> &str {
    const INSIDE: [&str; 7] =
        ["READONLY", "NOREPLICAS", "OOM", "MISCONF", "WRONGTYPE", "NOPERM", "MASTERDOWN"];
    let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    // The error of a command that Redis 6.2 refuses has a line of the script in the place of a code, if the script returns it.
    let returned = code.starts_with("@user_script");
    let code = if returned { "ERR" } else { code };
    if code != "ERR" {
        return code;
    }
    if let Some((code, _)) = NOT_READY.iter().find(|(_, text)| detail.contains(text)) {
        return code;
    }
    if NO_RIGHT.iter().any(|text| detail.contains(text)) {
        return "NOPERM";
    }
    let of_script = returned || detail.contains("@user_script");
    let inside = |code: &&&str| of_script && detail.split([' ', '-']).any(|word| word == **code);
    INSIDE.iter().find(inside).copied().unwrap_or(code)
}

/// What a server says that is not ready. The driver keeps only the text of a refused SELECT.
const NOT_READY: [(&str, &str); 3] = [
    ("BUSY", "is busy running a script"),
    ("LOADING", "is loading the dataset"),
    ("MASTERDOWN", "Link with MASTER is down"),
];

/// What a server says without the code NOPERM when a right is missing: in a script of 6.2 and 7.0, in a script of later
/// versions and of Valkey, and for SELECT.
const NO_RIGHT: [&str; 3] =
    ["user executing the script can't", "ACL failure in script", "has no permissions to run"];

/// The advice about a name whose keys are in several slots of a cluster.
const BRACES: &str = "leave the brace } out of the name, or put a part of it in braces, as in {orders}/42";

/// The advice about a command that the server does not know.
pub(crate) const NAMES: &str = "take the command out of rename-command in the configuration of the server, \
                                or use Redis 6.2 or later, or a server that is compatible with it";

/// Whether the server does not know the command, or one that a script calls.
pub(crate) fn is_unknown_command(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
    detail.contains("unknown command") || detail.contains("unknown redis command")
}

/// Whether a proxy answered, as it lost its connection to the server, which may have run the request. Codes of Redis are words in
/// capitals, or name a script, and its own errors are about no connection. What a proxy does not support it has not sent.
pub(crate) fn is_of_proxy(error: &RedisError) -> bool {
    const LOST: [&str; 10] = [
        "conn reset",
        "temporary failure",
        "connection re",
        "connection close",
        "closed connection",
        "timed out",
        "broken pipe",
        "unreachable",
        "no route",
        "host is down",
    ];
    let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    let is_reply = matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension);
    const NOT_SENT: [&str; 3] = ["unsupported", "unknown command", "invalid request"];
    let is_of_redis = code.starts_with(OF_SCRIPT) || code.chars().all(|letter| letter.is_ascii_uppercase());
    // Without the arguments, which are those of a caller.
    let text = unquoted(&format!("{code} {detail}")).to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|words| text.contains(words));
    is_reply && !has(&NOT_SENT) && (!is_of_redis || code == "ERR" && has(&LOST))
}

/// How a script of Redis 6.2 begins what it returns as an error.
const OF_SCRIPT: &str = "@user_script";

/// The text up to what it quotes.
fn unquoted(text: &str) -> &str {
    text.split(['\'', '"', '`']).next().unwrap_or(text)
}

/// What a proxy said.
fn words_of_proxy(error: &RedisError) -> String {
    let words: Vec<_> = [error.code(), error.detail()].into_iter().flatten().collect();
    format!("a proxy lost its connection to the server: {}", unquoted(shortened(&words.join(" "))).trim_end())
}

/// Whether the server has become a replica.
pub(crate) fn is_demoted(error: &RedisError) -> bool {
    code(error) == "READONLY"
}

/// Whether only a replica gives this error.
pub(crate) fn is_of_replica(error: &RedisError) -> bool {
    matches!(code(error), "READONLY" | "MASTERDOWN")
}

/// The hint for a failed connection.
const REACH: &str = "check that the server runs, that the address in the URL is right, and that it speaks TLS if and only \
                     if the URL says so (rediss:// or redlocks://)";

/// The hint for a connection that was closed at once.
const CLOSED: &str = "check that the server speaks TLS if and only if the URL says so (rediss:// or redlocks://), and that no \
                      proxy before it closes connections at a command that it does not forward (HELLO, CLIENT, TIME, SCRIPT)";

/// The rights that waiters need in order not to poll: all waiters, those in a queue too, and those of a cluster too.
pub(crate) const LISTEN_RIGHTS: &str = "+subscribe +unsubscribe +ping &polylock:*";
pub(crate) const TRACK_RIGHTS: &str = "+client|tracking";
pub(crate) const SHARD_RIGHTS: &str = "+ssubscribe +sunsubscribe +spublish";

/// Whether the server refused the login, or requires one.
pub(crate) fn wants_login(error: &RedisError) -> bool {
    matches!(code(&first_of_pipeline(error)), "NOAUTH" | "WRONGPASS")
}

pub(crate) fn is_auth(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
        || matches!(error.kind(), redis::ErrorKind::Server(_)) && error.to_string().contains("AUTH")
}

/// The text of a driver error. Keeps the driver's type out of the API, and quoted arguments out of logs.
#[derive(Debug)]
pub(crate) struct Cause {
    text: String,
    /// Whether a right was missing before anything was written.
    wrote_nothing: bool,
}

impl Cause {
    pub(crate) fn of(error: &RedisError) -> Self {
        Self { text: shortened(&error.to_string()).to_owned(), wrote_nothing: false }
    }
}

/// Whether a script was refused for want of a right, and has surely written nothing before.
#[must_use]
pub fn wrote_nothing(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<Cause>());
    cause.is_some_and(|cause| cause.wrote_nothing)
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Cause {}

/// Strips the arguments that a server quotes from an unknown command, which may contain a password, and the ten lines of advice
/// about its protected mode.
fn shortened(text: &str) -> &str {
    let end = [", with args beginning with", ". In this mode connections are only accepted"];
    end.iter().fold(text, |text, end| text.split(end).next().unwrap_or(text))
}

/// A server refuses the password of the moment.
#[derive(Debug)]
pub(crate) struct RefusedPassword {
    pub(crate) password: Password,
    pub(crate) answer: RedisError,
}

impl fmt::Display for RefusedPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.answer.fmt(f)
    }
}

impl std::error::Error for RefusedPassword {}

#[cfg(test)]
impl Endpoint {
    /// An endpoint for tests.
    pub(crate) fn of_test(address: &str) -> Self {
        Self { backend: "redis", address: address.to_owned(), scripts: &[], asks_identity: false }
    }
}

#[cfg(test)]
mod tests {
    use redis::make_extension_error;

    use super::*;

    #[test]
    fn arguments_that_a_server_quotes_are_not_shown() {
        let text = "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'me' 's3cret' ";
        let quoted = make_extension_error("ERR".into(), Some(text.into()));
        let endpoint = Endpoint::of_test("a:1");
        for error in [endpoint.refused(&quoted), endpoint.unreachable(&quoted)] {
            let shown =
                format!("{error} {error:?} {:?}", std::error::Error::source(&error).map(ToString::to_string));
            assert!(!shown.contains("s3cret"), "{shown}");
            assert!(shown.contains("HELLO"), "{shown}");
        }
    }

    #[test]
    fn what_a_proxy_says_of_its_connection_leaves_the_outcome_open() {
        for (code, detail, is_of_proxy) in [
            ("ERR", "handle response, backend conn reset", true),
            (
                "@user_script:",
                "49: The user executing the script can't run this command or subcommand",
                false,
            ),
            ("ERR", "wrong number of arguments for `lock:unreachable`", false),
            ("unsupported", "command 'EVALSHA'", false),
            ("upstream", "failure", true),
            ("no", "upstream host", true),
            ("ERR", "Connection reset by peer", true),
            ("ERR", "Connection timed out", true),
            ("ERR", "server closed connection", true),
            ("ERR", "max number of clients + cluster connections reached", false),
            ("ERR", "unknown command 'SUBSCRIBE'", false),
            ("MASTERDOWN", "Link with MASTER is down", false),
            ("OOM", "command not allowed when used memory > 'maxmemory'.", false),
        ] {
            let said = make_extension_error(code.into(), Some(detail.into()));
            let error = Endpoint::of_test("a:1").refused(&said);
            let is_open = (error.kind(), error.outcome()) == (ErrorKind::Unavailable, Outcome::Unknown);
            assert_eq!(is_open, is_of_proxy, "{error}");
            assert!(error.to_string().contains(detail), "{error}");
        }
    }

    #[test]
    fn errors_inside_scripts_count_as_what_they_are() {
        for (text, kind, inside) in [
            (
                "ERR Error running script (call to f_1): @user_script:12: @user_script: 12: -READONLY You can't write against a read only replica.",
                ErrorKind::Unavailable,
                "READONLY",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:12: NOREPLICAS Not enough good replicas to write.",
                ErrorKind::Unavailable,
                "NOREPLICAS",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:3: -OOM command not allowed when used memory > 'maxmemory'.",
                ErrorKind::Exhausted,
                "OOM",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:7.",
                ErrorKind::Denied,
                "NOPERM",
            ),
            (
                "ERR Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                ErrorKind::Unavailable,
                "BUSY",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: The user executing the script can't run this command or subcommand",
                ErrorKind::Denied,
                "NOPERM",
            ),
            (
                "@user_script: 49: The user executing the script can't run this command or subcommand",
                ErrorKind::Denied,
                "NOPERM",
            ),
            (
                "@user_script: 12: -READONLY You can't write against a read only replica.",
                ErrorKind::Unavailable,
                "READONLY",
            ),
            (
                "ERR ACL failure in script: User ann has no permissions to run the 'set' command script: 1, on @user_script:1.",
                ErrorKind::Denied,
                "NOPERM",
            ),
            (
                "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
                ErrorKind::Denied,
                "NOPERM",
            ),
            ("ERR User ann has no permissions to run the 'select' command", ErrorKind::Denied, "NOPERM"),
            ("ERR unknown command 'EVALSHA', with args beginning with: ", ErrorKind::Unsupported, "ERR"),
            (
                "ERR Unknown Redis command called from script script: 1, on @user_script:1.",
                ErrorKind::Unsupported,
                "ERR",
            ),
            (
                "ERR Unknown command called from script script: on @user_script:1.",
                ErrorKind::Unsupported,
                "ERR",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: Unknown Redis command called from Lua script",
                ErrorKind::Unsupported,
                "ERR",
            ),
            ("ERR a key named OOM", ErrorKind::Unexpected, "ERR"),
        ] {
            let (first, detail) = text.split_once(' ').unwrap();
            let error = make_extension_error(first.to_owned(), Some(detail.to_owned()));
            assert_eq!(code(&error), inside, "{text}");
            let endpoint = Endpoint::of_test("a:1");
            assert_eq!(endpoint.refused(&error).kind(), kind, "{text}");
        }
    }

    #[test]
    fn passing_errors_are_no_refusal() {
        let refused =
            |code: &str, detail: &str| is_refusal(&make_extension_error(code.into(), Some(detail.into())));
        assert!(refused("NOPERM", "this user has no permissions to run the 'subscribe' command"));
        assert!(refused("ERR", "unknown command 'SUBSCRIBE'"));
        assert!(!refused("ERR", "Connection reset by peer"));
        for passes in ["NOAUTH", "WRONGPASS", "LOADING", "MASTERDOWN", "BUSY", "CLUSTERDOWN"] {
            assert!(!refused(passes, "for now"), "{passes}");
        }
    }
}
