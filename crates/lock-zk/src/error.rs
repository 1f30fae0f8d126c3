//! The errors of this backend: what a request to ZooKeeper can fail with, and the texts for users.

use std::fmt;

use lock_core::{Error, ErrorKind, Outcome};
use zookeeper_client as zk;

/// The name of this backend in errors, capabilities and results.
pub const BACKEND: &str = "zk";

/// The answer to the creation of an ephemeral node in a local session, which the driver does not know.
const LOCAL_SESSION: i32 = -120;

/// Why a request failed.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The session ended. Its ephemeral nodes are deleted, now or once the servers let it expire.
    SessionEnded,
    /// The server refused: the request had no effect.
    Refused(zk::Error),
    /// The ACL of this node does not grant this right.
    Denied { right: Right, path: String },
    /// The request was not sent, as servers would end the connection at one of so many bytes.
    TooLarge { bytes: usize, most: usize },
    /// The request may or may not have had an effect.
    Unknown(zk::Error),
    /// The last request had no effect, but an earlier one of the same operation had one, or may have.
    Doubted(Box<Self>),
}

/// A right that an ACL grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Write,
    /// To create children.
    Create,
    /// To delete children.
    Delete,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::Delete => "delete",
        })
    }
}

impl Fault {
    /// Classifies an error of the driver.
    ///
    /// The driver gives its I/O error to all requests in flight: a lost connection is `ConnectionLoss` after a FIN, but
    /// `Custom` after a reset or a timeout. So the definite errors are listed, and all others are unknown outcomes.
    pub(crate) fn of(error: zk::Error) -> Self {
        use zk::Error as E;
        match error {
            E::SessionExpired | E::ClientClosed | E::AuthFailed => Self::SessionEnded,
            E::NoNode
            | E::NoAuth
            | E::BadVersion
            | E::NodeExists
            | E::NotEmpty
            | E::InvalidAcl
            | E::NoChildrenForEphemerals
            | E::NotReadOnly
            | E::QuotaExceeded
            | E::Throttled
            | E::MarshallingError
            | E::Unimplemented
            | E::BadArguments(_)
            | E::UnexpectedErrorCode(LOCAL_SESSION) => Self::Refused(error),
            _ => Self::Unknown(error),
        }
    }

    /// Names the right, and the node, that a request needed.
    pub(crate) fn needing(self, right: Right, path: &str) -> Self {
        match self {
            Self::Refused(zk::Error::NoAuth) => Self::Denied { right, path: path.to_owned() },
            fault => fault,
        }
    }

    /// The fault of an operation of which an earlier request may have had an effect, if this holds.
    pub(crate) fn doubted_if(self, in_doubt: bool) -> Self {
        match self {
            fault @ (Self::Refused(_) | Self::Denied { .. } | Self::TooLarge { .. }) if in_doubt => {
                Self::Doubted(Box::new(fault))
            }
            fault => fault,
        }
    }

    /// Whether the request may have had an effect.
    pub(crate) const fn is_in_doubt(&self) -> bool {
        matches!(self, Self::SessionEnded | Self::Unknown(_) | Self::Doubted(_))
    }

    pub(crate) const fn is_no_node(&self) -> bool {
        matches!(self, Self::Refused(zk::Error::NoNode))
    }

    /// Whether a read was refused because of the ACL of the node. Servers from 3.7.3, 3.8.4 and 3.9.2 on refuse its stat, too,
    /// and so show that it exists (ZOOKEEPER-2590).
    pub(crate) const fn forbids_reading(&self) -> bool {
        matches!(self, Self::Refused(zk::Error::NoAuth) | Self::Denied { right: Right::Read, .. })
    }

    /// The error for users, about this path.
    pub(crate) fn on(self, path: &str) -> Error {
        match self {
            Self::SessionEnded => unavailable("the session ended"),
            Self::Unknown(error) => {
                let unanswered = unavailable(&format!("the server did not answer a request for {path}"));
                match error {
                    zk::Error::Timeout => unanswered.with_code("timeout"),
                    zk::Error::ConnectionLoss => unanswered.with_code("broken"),
                    _ => unanswered,
                }
                .caused_by(error)
            }
            Self::Denied { right, path } => denied(right, &path),
            Self::TooLarge { bytes, most } => too_large(bytes, most, path),
            Self::Refused(error) => refused(error, path),
            Self::Doubted(fault) => doubted_if(true, fault.on(path)),
        }
    }
}

/// Why an acquisition cannot go on in its session.
#[derive(Clone, Debug)]
pub(crate) enum Stop {
    /// The own node was deleted before its turn, by somebody or with its session. A new attempt may succeed.
    StartOver,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Stop {
    pub(crate) fn of(fault: Fault, path: &str) -> Self {
        match fault {
            Fault::SessionEnded => Self::StartOver,
            fault => Self::Failed(fault.on(path)),
        }
    }
}

/// An error of this backend: what failed, and what to do next.
pub(crate) fn error(kind: ErrorKind, message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(kind, BACKEND).with_message(message).with_hint(hint)
}

/// The error of an operation of which an earlier request may have taken effect, if this holds.
pub(crate) fn doubted_if(in_doubt: bool, error: Error) -> Error {
    match error.outcome() {
        Outcome::NotApplied if in_doubt => error.with_outcome(Outcome::Unknown),
        _ => error,
    }
}

/// The server did not answer, and requests may have taken effect.
pub(crate) fn unavailable(message: &str) -> Error {
    let hint = "check that a majority of the ensemble runs and can be reached";
    error(ErrorKind::Unavailable, message, hint).with_outcome(Outcome::Unknown)
}

/// The chroot of the URL does not exist.
pub(crate) fn no_chroot(chroot: &str) -> Error {
    let hint = format!(
        "create it once (zkCli.sh create {chroot}), add create_chroot=true to the URL, or correct the path of the URL"
    );
    // Servers that lost their data get it again.
    error(ErrorKind::InvalidConfig, format!("the chroot {chroot} does not exist"), hint).with_can_pass(true)
}

/// The ACL of a node does not grant a right.
pub(crate) fn denied(right: Right, path: &str) -> Error {
    let hint = format!(
        "grant this client {right} on {path} (setAcl), or correct user:password@ in the URL: servers take a wrong \
         password for another user"
    );
    error(ErrorKind::Denied, format!("the ACL of {path} does not grant the right to {right}"), hint)
}

/// The server is too old; `version` is the one that it reports.
pub(crate) fn too_old(version: Option<&str>) -> Error {
    let found = version.unwrap_or("a version that it does not report");
    let hint =
        "upgrade the ensemble to 3.5 or later: tokens, and directories that the server removes, need it";
    error(ErrorKind::Unsupported, format!("the server is older than ZooKeeper 3.5: {found}"), hint)
}

fn too_large(bytes: usize, most: usize, path: &str) -> Error {
    let message = format!(
        "a request for {path} takes {bytes} bytes, and servers end the connection at one of more than {most}"
    );
    let hint =
        "write less at a time, or raise jute.maxbuffer on all servers and then jute_maxbuffer in the URL";
    error(ErrorKind::Unsupported, message, hint)
}

/// The servers have local sessions, and do not upgrade them.
fn local_session() -> Error {
    let hint = "set localSessionsUpgradingEnabled=true on all servers, or leave out localSessionsEnabled";
    let message = "the session is local to its server (localSessionsEnabled), where no lock can be held";
    error(ErrorKind::Unsupported, message, hint)
}

fn refused(cause: zk::Error, path: &str) -> Error {
    if cause == zk::Error::UnexpectedErrorCode(LOCAL_SESSION) {
        return local_session().caused_by(cause);
    }
    let (kind, message, hint) = match &cause {
        zk::Error::NoAuth => (
            ErrorKind::Denied,
            format!("the ACL of {path} denies access"),
            "grant this client read, create, write and delete on it (setAcl), or correct user:password@ in the URL",
        ),
        zk::Error::QuotaExceeded => {
            (ErrorKind::Exhausted, format!("the quota of {path} is used up"), "raise the quota (setquota)")
        }
        zk::Error::Throttled | zk::Error::NotReadOnly => (
            ErrorKind::Unavailable,
            format!("the server does not accept requests for {path}: {cause}"),
            "try again later",
        ),
        zk::Error::NoChildrenForEphemerals => (
            ErrorKind::InvalidConfig,
            format!("{path} is below an ephemeral node, which can have no children"),
            "choose another dir",
        ),
        _ => {
            return Error::new(ErrorKind::Unexpected, BACKEND)
                .with_message(format!("the server refused a request for {path}: {cause}"))
                .caused_by(cause);
        }
    };
    error(kind, message, hint).caused_by(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_listed_errors_are_definite() {
        use zk::Error as E;
        for error in [E::NoNode, E::NoAuth, E::NodeExists, E::NotEmpty, E::Throttled, E::Unimplemented] {
            assert!(matches!(Fault::of(error.clone()), Fault::Refused(_)), "{error}");
        }
        for error in [
            E::ConnectionLoss,
            E::Timeout,
            E::SessionMoved,
            E::RuntimeInconsistent,
            E::UnexpectedErrorCode(-122),
            E::UnexpectedError(String::new()),
        ] {
            assert!(matches!(Fault::of(error.clone()), Fault::Unknown(_)), "{error}");
        }
        assert!(matches!(Fault::of(E::SessionExpired), Fault::SessionEnded));
    }

    #[test]
    fn refusals_name_the_path_and_the_way_out() {
        let error = Fault::of(zk::Error::NoAuth).needing(Right::Create, "/locks/a").on("/locks/a/b");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(
            error.to_string().contains("the ACL of /locks/a does not grant the right to create"),
            "{error}"
        );
        assert!(error.to_string().contains("setAcl"), "{error}");
        let broken = Fault::of(zk::Error::ConnectionLoss).on("/a");
        assert_eq!((broken.outcome(), broken.code()), (Outcome::Unknown, "broken"));
        assert_eq!(Fault::of(zk::Error::Timeout).on("/a").code(), "timeout");
        assert_eq!(Fault::of(zk::Error::RuntimeInconsistent).on("/a").code(), "unavailable");
    }
}
