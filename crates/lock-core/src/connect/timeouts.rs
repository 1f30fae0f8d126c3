//! Checks the timeouts of a configuration.

use std::time::Duration;

use crate::{Error, ErrorKind, Result};

const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// Rejects a timeout of zero, or of more than an hour.
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`].
pub fn check_timeout(backend: &'static str, option: &str, timeout: Duration) -> Result<()> {
    let invalid = |what: String| Error::new(ErrorKind::InvalidConfig, backend).with_message(what);
    if timeout.is_zero() {
        return Err(invalid(format!("the timeout is zero: {option}"))
            .with_hint("give it at least a few milliseconds"));
    }
    if timeout > LONGEST_TIMEOUT {
        return Err(invalid(format!("{option} is too long: {timeout:?}"))
            .with_hint(format!("give it at most {LONGEST_TIMEOUT:?}")));
    }
    Ok(())
}
