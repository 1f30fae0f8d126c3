//! What a failed request means.

use std::error::Error as StdError;

use lock_core::{Error, ErrorKind, Outcome};
use tonic::{Code, ConnectError, Status};

use super::NAME;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The store has refused it, and would again.
    Refused,
    /// It was not executed, as this member could not do it now.
    NotExecuted,
    /// The member was not reached.
    NotSent,
    /// It was not executed: the login does not count any more.
    LoggedOut,
    /// It may be executed, now or later.
    Unknown,
}

/// What became of a request with this answer.
///
/// The store refuses requests before they are in its log, or when it executes them, with one exception: it reports that it is full also
/// for the transaction that filled it.
pub(crate) fn fate_of(status: &Status) -> Fate {
    match status.code() {
        Code::Unauthenticated => Fate::LoggedOut,
        _ if is_old_login(status) => Fate::LoggedOut,
        _ if is_unable(status) => Fate::NotExecuted,
        // None where one is wanted since.
        Code::InvalidArgument if status.message().contains("user name is empty") => Fate::LoggedOut,
        Code::ResourceExhausted if status.message().contains("too many requests") => Fate::NotExecuted,
        Code::ResourceExhausted if !is_full(status) => Fate::Unknown,
        // Made here, of an answer that says something else.
        _ if status.source().is_some() && !was_not_sent(status) => Fate::Unknown,
        Code::ResourceExhausted
        | Code::PermissionDenied
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::Unimplemented => Fate::Refused,
        Code::Unavailable if status.message() == "etcdserver: no leader" => Fate::NotExecuted,
        Code::Unavailable if was_not_sent(status) => Fate::NotSent,
        _ => Fate::Unknown,
    }
}

pub(crate) fn is_full(status: &Status) -> bool {
    status.message().contains("database space exceeded")
}

/// The login is older than a change of users or roles. Some releases answer this without a code.
fn is_old_login(status: &Status) -> bool {
    ["auth store is old", "revision in header is old"].iter().any(|why| status.message().contains(why))
}

/// The member is a learner, or of an older release than it has to be, or is starting. Releases differ in the code.
fn is_unable(status: &Status) -> bool {
    ["not supported for learner", "not capable"].iter().any(|why| status.message().contains(why))
}

/// The user or the password is wrong.
pub(crate) fn is_wrong_login(status: &Status) -> bool {
    status.message().contains("authentication failed")
}

/// The store wants no login.
pub(crate) fn is_open(status: &Status) -> bool {
    status.message().contains("authentication is not enabled")
}

/// The error of a request that failed like this at one of these members.
pub(crate) fn failed(members: &str, status: Status, outcome: Outcome) -> Error {
    let said = status.message().trim_start_matches("etcdserver: ").to_owned();
    let (kind, message, hint) = match status.code() {
        Code::ResourceExhausted if is_full(&status) => (
            ErrorKind::Exhausted,
            "the store is full".to_owned(),
            "compact and defragment it, or raise --quota-backend-bytes; then etcdctl alarm disarm",
        ),
        Code::PermissionDenied => (
            ErrorKind::Denied,
            format!("the user has no rights: {said}"),
            "grant its role readwrite on the prefix: etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/",
        ),
        Code::Unauthenticated => (
            ErrorKind::Denied,
            format!("the store refuses the login: {said}"),
            "check the user and the clocks of the members",
        ),
        Code::InvalidArgument if said.contains("user name is empty") => (
            ErrorKind::Denied,
            "the store wants a user and a password".to_owned(),
            "write them into the URL: etcd://user:password@host, or use password_file=",
        ),
        _ if is_old_login(&status) => (
            ErrorKind::Denied,
            "users and roles change while requests are under way".to_owned(),
            "try again when they stay the same",
        ),
        Code::InvalidArgument if is_wrong_login(&status) => (
            ErrorKind::Denied,
            "the user or the password is wrong".to_owned(),
            "check both: etcdctl --user USER user get USER",
        ),
        Code::InvalidArgument if said.contains("too large") => (
            ErrorKind::Exhausted,
            "the record is larger than a request may be".to_owned(),
            "let fewer share or wait for the lock, or raise --max-request-bytes",
        ),
        Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented if !is_unable(&status) => {
            (ErrorKind::Unexpected, format!("the store refuses the request: {said}"), "use etcd 3.4 or newer")
        }
        _ if was_not_sent(&status) => (
            ErrorKind::Unavailable,
            format!("no member of {members} can be reached"),
            "check that they run, and the hosts, the ports and TLS in the URL",
        ),
        _ => (
            ErrorKind::Unavailable,
            format!("no member of {members} answers: {said}"),
            "check that a majority of them runs and is not overloaded (etcdctl endpoint status --cluster), and that the URL has TLS where they want it",
        ),
    };
    Error::new(kind, NAME).with_message(message).with_hint(hint).with_outcome(outcome).caused_by(status)
}

fn was_not_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_what_became_of_a_request() {
        use Code::*;
        use {ErrorKind as K, Fate as F};
        for (code, message, fate, kind) in [
            (PermissionDenied, "etcdserver: permission denied", F::Refused, K::Denied),
            (Unauthenticated, "etcdserver: invalid auth token", F::LoggedOut, K::Denied),
            (InvalidArgument, "etcdserver: revision of auth store is old", F::LoggedOut, K::Denied),
            (Unknown, "auth: revision in header is old", F::LoggedOut, K::Denied),
            (Unavailable, "etcdserver: rpc not supported for learner", F::NotExecuted, K::Unavailable),
            (FailedPrecondition, "etcdserver: rpc not supported for learner", F::NotExecuted, K::Unavailable),
            (FailedPrecondition, "etcdserver: not capable", F::NotExecuted, K::Unavailable),
            (Unavailable, "etcdserver: not capable", F::NotExecuted, K::Unavailable),
            (InvalidArgument, "etcdserver: user name is empty", F::LoggedOut, K::Denied),
            (
                InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                F::Refused,
                K::Denied,
            ),
            (InvalidArgument, "etcdserver: request is too large", F::Refused, K::Exhausted),
            (Unimplemented, "unknown service", F::Refused, K::Unexpected),
            (ResourceExhausted, "etcdserver: mvcc: database space exceeded", F::Refused, K::Exhausted),
            (ResourceExhausted, "etcdserver: too many requests", F::NotExecuted, K::Unavailable),
            (Unavailable, "etcdserver: no leader", F::NotExecuted, K::Unavailable),
            (Unavailable, "etcdserver: leader changed", F::Unknown, K::Unavailable),
            (Unavailable, "etcdserver: request timed out", F::Unknown, K::Unavailable),
            (
                Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                F::Unknown,
                K::Unavailable,
            ),
            (Unavailable, "etcdserver: server stopped", F::Unknown, K::Unavailable),
            (DeadlineExceeded, "context deadline exceeded", F::Unknown, K::Unavailable),
            (Cancelled, "Timeout expired", F::Unknown, K::Unavailable),
            (Internal, "h2 protocol error", F::Unknown, K::Unavailable),
            (Unknown, "transport error", F::Unknown, K::Unavailable),
        ] {
            let status = Status::new(code, message);
            assert_eq!(fate_of(&status), fate, "{message}");
            let error = failed("h1,h2", status, Outcome::NotApplied);
            assert!(error.kind() == kind && error.hint().is_some(), "{message}: {error}");
        }
    }
}
