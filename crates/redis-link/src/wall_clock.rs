//! The wall clock of the client.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of the time since 1970: the machine's clock, or a function of a test.
///
/// # Examples
///
/// A clock that runs one minute ahead:
///
/// ```
/// # use redis_link::wall_clock::WallClock;
/// use std::time::{Duration, SystemTime};
///
/// let clock = WallClock::new(|| SystemTime::now() + Duration::from_secs(60));
/// assert!(clock.now() > WallClock::default().now());
/// ```
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// A clock that shows the result of `now`, for tests.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time since 1970.
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.0)().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

impl Default for WallClock {
    /// The machine's clock.
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WallClock({:?})", self.now())
    }
}
