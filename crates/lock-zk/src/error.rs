//! What a request to ZooKeeper can end with, and how it is told.

use std::fmt;

use lock_core::{Error, ErrorKind, Outcome};
use zookeeper_client as zk;

use crate::BACKEND;

/// Why a request gave no result.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The session is over, and so is every ephemeral node of it, now or as soon as the server notices.
    SessionEnded,
    /// The server refused: the request had no effect.
    Refused(zk::Error),
    /// The server refused, as the ACL of this node does not give us this right.
    Denied {
        /// The right.
        right: Right,
        /// The node.
        path: String,
    },
    /// Nobody knows whether the request had an effect.
    Unknown(zk::Error),
}

/// A right that an ACL gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Write,
    /// Of the nodes below.
    Create,
    /// Of the nodes below.
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
    /// What this error of the driver says about the request.
    ///
    /// The driver hands its own I/O error to everything that was in flight: a connection that ended gives
    /// `ConnectionLoss` after a FIN, but `Custom` after a reset or a time-out. So there is a list of the errors that
    /// are definite, and all others are not.
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
            | E::BadArguments(_) => Self::Refused(error),
            _ => Self::Unknown(error),
        }
    }

    /// The same, about a request that needed this right on this node.
    pub(crate) fn needing(self, right: Right, path: &str) -> Self {
        match self {
            Self::Refused(zk::Error::NoAuth) => Self::Denied { right, path: path.to_owned() },
            fault => fault,
        }
    }

    pub(crate) const fn is_no_node(&self) -> bool {
        matches!(self, Self::Refused(zk::Error::NoNode))
    }

    /// The error for the user, about this path.
    pub(crate) fn on(self, path: &str) -> Error {
        match self {
            Self::SessionEnded => unavailable("the session ended"),
            Self::Unknown(error) => {
                let told = unavailable("the server did not answer");
                match error {
                    zk::Error::Timeout => told.with_code("timeout"),
                    zk::Error::ConnectionLoss => told.with_code("broken"),
                    _ => told,
                }
                .caused_by(error)
            }
            Self::Denied { right, path } => denied(right, &path),
            Self::Refused(error) => refused(error, path),
        }
    }
}

/// The server did not answer, and what we sent may have taken effect.
pub(crate) fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(message)
        .with_hint("check that a majority of the ensemble runs and can be reached")
        .with_outcome(Outcome::Unknown)
}

/// The chroot of the URL is not there.
pub(crate) fn no_chroot(chroot: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, BACKEND)
        .with_message(format!("the chroot {chroot} does not exist"))
        .with_hint(format!(
            "create it once (zkCli.sh create {chroot}), let us do it (create_chroot=true), or correct the path of the URL"
        ))
}

/// The ACL of a node does not give us a right.
pub(crate) fn denied(right: Right, path: &str) -> Error {
    Error::new(ErrorKind::Denied, BACKEND)
        .with_message(format!("the ACL of {path} does not let us {right}"))
        .with_hint(format!(
            "grant us the right to {right} on {path} (setAcl), or correct user:password@ in the URL: a wrong \
             password is taken for somebody else"
        ))
}

/// The server is too old; `version` is what it says about itself.
pub(crate) fn too_old(version: Option<&str>) -> Error {
    let found = version.unwrap_or("one that does not tell its version");
    Error::new(ErrorKind::Unsupported, BACKEND)
        .with_message(format!("the server is older than ZooKeeper 3.5: {found}"))
        .with_hint(
            "upgrade the ensemble to 3.5 or later: tokens, and directories that go by themselves, need it",
        )
}

fn refused(error: zk::Error, path: &str) -> Error {
    let (kind, message, hint) = match &error {
        zk::Error::NoAuth => (
            ErrorKind::Denied,
            format!("the ACL of {path} refuses us"),
            "grant us read, create, write and delete on it (setAcl), or correct user:password@ in the URL"
                .to_owned(),
        ),
        zk::Error::QuotaExceeded => (
            ErrorKind::Exhausted,
            format!("the quota of {path} is used up"),
            "raise the quota (setquota)".to_owned(),
        ),
        zk::Error::Throttled | zk::Error::NotReadOnly => (
            ErrorKind::Unavailable,
            format!("the server does not take requests for {path}: {error}"),
            "try again later".to_owned(),
        ),
        zk::Error::NoChildrenForEphemerals => (
            ErrorKind::InvalidConfig,
            format!("{path} is below an ephemeral node, which can have no children"),
            "choose another dir".to_owned(),
        ),
        _ => (
            ErrorKind::Unexpected,
            format!("the server refused a request for {path}: {error}"),
            String::new(),
        ),
    };
    let told = Error::new(kind, BACKEND).with_message(message).caused_by(error);
    if hint.is_empty() { told } else { told.with_hint(hint) }
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
        assert!(error.to_string().contains("the ACL of /locks/a does not let us create"), "{error}");
        assert!(error.to_string().contains("setAcl"), "{error}");
        let broken = Fault::of(zk::Error::ConnectionLoss).on("/a");
        assert_eq!((broken.outcome(), broken.code()), (Outcome::Unknown, "broken"));
        assert_eq!(Fault::of(zk::Error::Timeout).on("/a").code(), "timeout");
        assert_eq!(Fault::of(zk::Error::RuntimeInconsistent).on("/a").code(), "unavailable");
    }
}
