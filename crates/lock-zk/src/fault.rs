//! What a request to ZooKeeper can end with, and how it is told.

use lock_core::{Error, ErrorKind, Outcome};
use zookeeper_client as zk;

use crate::BACKEND;

/// Why a request gave no result.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The session is over, and so is every ephemeral node of it, now or as soon as the server notices.
    Over,
    /// The server refused: the request had no effect.
    Refused(zk::Error),
    /// Nobody knows whether the request had an effect.
    Unknown(zk::Error),
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
            E::SessionExpired | E::ClientClosed | E::AuthFailed => Self::Over,
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

    pub(crate) const fn is_no_node(&self) -> bool {
        matches!(self, Self::Refused(zk::Error::NoNode))
    }

    /// The error for the user, about this path.
    pub(crate) fn on(self, path: &str) -> Error {
        match self {
            Self::Over => unavailable("the session ended"),
            Self::Unknown(error) => unavailable("the server did not answer").caused_by(error),
            Self::Refused(error) => refused(error, path),
        }
    }
}

/// The server did not answer, and what we sent may have taken effect.
pub(crate) fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .message(message)
        .hint("check that a majority of the ensemble runs and can be reached")
        .with_outcome(Outcome::Unknown)
}

/// The chroot of the URL is not there.
pub(crate) fn no_chroot(chroot: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, BACKEND)
        .message(format!("the chroot {chroot} does not exist"))
        .hint(format!("create it once (zkCli.sh create {chroot}) or correct the path of the URL"))
}

fn refused(error: zk::Error, path: &str) -> Error {
    let (kind, message, hint) = match &error {
        zk::Error::NoAuth => (
            ErrorKind::Denied,
            format!("the ACL of {path} refuses us"),
            "grant read, create and delete on it (setAcl), or put user:password@ into the URL".to_owned(),
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
    let told = Error::new(kind, BACKEND).message(message).caused_by(error);
    if hint.is_empty() { told } else { told.hint(hint) }
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
        assert!(matches!(Fault::of(E::SessionExpired), Fault::Over));
    }

    #[test]
    fn refusals_name_the_path_and_the_way_out() {
        let error = Fault::of(zk::Error::NoAuth).on("/locks/a");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/locks/a") && error.to_string().contains("setAcl"), "{error}");
        assert_eq!(Fault::of(zk::Error::ConnectionLoss).on("/a").outcome(), Outcome::Unknown);
    }
}
