//! Why a request was not written, as the error of the driver carries it.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use redis::RedisError;

/// Why a request was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwritten {
    /// The connection was closed.
    Closed,
    /// The connection is full of requests, and the server has answered none of them for long.
    Silent,
    /// The sender has withdrawn it.
    Withdrawn,
}

impl Unwritten {
    /// The reason in this error, if the request was not written.
    pub(crate) fn of(error: &RedisError) -> Option<Self> {
        io_error(error)?.get_ref()?.downcast_ref().copied()
    }
}

impl From<Unwritten> for RedisError {
    fn from(reason: Unwritten) -> Self {
        let kind = match reason {
            Unwritten::Closed | Unwritten::Withdrawn => io::ErrorKind::BrokenPipe,
            Unwritten::Silent => io::ErrorKind::TimedOut,
        };
        io::Error::new(kind, reason).into()
    }
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the connection was closed before the request was sent",
            Self::Silent => "the server did not answer earlier requests in time, and this one was not sent",
            Self::Withdrawn => "the request was given up before it was sent",
        })
    }
}

impl Error for Unwritten {}

/// The cause of an error of the driver.
pub(crate) fn io_error(error: &RedisError) -> Option<&io::Error> {
    // The driver wraps its source in an `Arc`, and returns that as the source.
    let source = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    source.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_found_in_the_error() {
        for reason in [Unwritten::Closed, Unwritten::Silent, Unwritten::Withdrawn] {
            let error = RedisError::from(reason);
            assert_eq!(
                (Unwritten::of(&error), error.is_timeout()),
                (Some(reason), reason == Unwritten::Silent)
            );
        }
        assert_eq!(Unwritten::of(&io::Error::from(io::ErrorKind::BrokenPipe).into()), None);
    }
}
