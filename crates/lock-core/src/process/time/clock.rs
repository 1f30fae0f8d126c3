//! The lease clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest single sleep: tokio's timers may stop while the host is suspended, the lease clock does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A point on the lease clock: the time since the machine booted, suspension included.
///
/// [`std::time::Instant`] stops while a laptop or a virtual machine is suspended; a server's lease does not. [`Clock`]
/// lists the clock of each platform and its limits. On Unix, points of one boot can be compared across processes of one
/// machine; on Windows they count from a day before the first reading of the process.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::{BootInstant, Clock};
/// let deadline = Clock::boot().now() + Duration::from_secs(10);
/// assert!(deadline < BootInstant::NEVER);
/// assert!(deadline.saturating_duration_since(Clock::boot().now()) <= Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootInstant(
    /// In nanoseconds, which suffice for five centuries: half the size of a `Duration`.
    u64,
);

impl BootInstant {
    /// A point that is never reached: the deadline of what has no end.
    pub const NEVER: Self = Self(u64::MAX);

    /// The point at `since_boot` after the machine booted.
    #[must_use]
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(nanos(since_boot))
    }

    /// The time since the machine booted.
    #[must_use]
    pub const fn since_boot(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to this point, zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    /// Saturates at [`BootInstant::NEVER`].
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = Self;

    /// Saturates at the boot of the machine.
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER { f.write_str("never") } else { write!(f, "boot+{:?}", self.since_boot()) }
    }
}

/// The span in nanoseconds; saturates.
const fn nanos(span: Duration) -> u64 {
    let nanos = span.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

/// The clock of leases.
///
/// A lease expires on the server even while the host of its holder is suspended. So the default clock counts suspension,
/// where the platform has such a clock:
///
/// | platform | clock | suspended host |
/// |---|---|---|
/// | Linux, Android, Fuchsia, OpenBSD | `CLOCK_BOOTTIME` | counted |
/// | macOS, iOS | `CLOCK_MONOTONIC` | counted; to the microsecond |
/// | Windows | `QueryPerformanceCounter`, by [`std::time::Instant`] | counted |
/// | FreeBSD and other Unix | `CLOCK_MONOTONIC` | **perhaps not counted** |
///
/// No clock of a guest counts the time for which its host stops a virtual machine (a snapshot, a live migration), unless the
/// host corrects the clock. After that, and where suspension is not counted, a guard is valid for too long, by the time for
/// which the machine was paused: let the resource check the [fencing token](crate::Token). The tests of this library run on
/// Linux; for the other platforms it is built, not tested.
///
/// [`Clock::tokio`] follows [`tokio::time`], so that tests can pause and advance it.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::{Clock, LockOptions, LossReason, MemoryConfig, Result};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = MemoryConfig::new().clock(Clock::tokio()).connect()?;
/// let options = LockOptions::new().fixed_ttl(Duration::from_millis(50));
/// let guard = locks.mutex_with("a", options)?.acquire().await?;
/// // With a paused tokio clock (`start_paused = true`) this takes no time.
/// assert_eq!(guard.lost().await, LossReason::DeadlinePassed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    Boot,
    Tokio(tokio::time::Instant),
    Function(Arc<dyn Fn() -> BootInstant + Send + Sync>),
}

impl Clock {
    /// The clock of the machine.
    #[must_use]
    pub const fn boot() -> Self {
        Self(Source::Boot)
    }

    /// A clock that starts at zero now and follows tokio's, virtual time included.
    #[must_use]
    pub fn tokio() -> Self {
        Self(Source::Tokio(tokio::time::Instant::now()))
    }

    /// A clock that shows the result of `now`, which must not fall.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::Clock;
    /// let machine = Clock::boot();
    /// let ahead = Clock::from_fn(move || machine.now() + Duration::from_secs(60));
    /// assert!(ahead.now() > Clock::boot().now());
    /// ```
    #[must_use]
    pub fn from_fn(now: impl Fn() -> BootInstant + Send + Sync + 'static) -> Self {
        Self(Source::Function(Arc::new(now)))
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> BootInstant {
        match &self.0 {
            Source::Boot => boot_time(),
            Source::Tokio(origin) => BootInstant::from_boot(origin.elapsed()),
            Source::Function(now) => now(),
        }
    }

    /// Sleeps until `deadline`; after a suspension of the host at most a second longer.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn sleep_until(&self, deadline: BootInstant) {
        if deadline == BootInstant::NEVER {
            return std::future::pending().await;
        }
        loop {
            let left = deadline.saturating_duration_since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boot => "Boot",
            Self::Tokio(_) => "Tokio",
            Self::Function(_) => "Function",
        })
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia", target_os = "openbsd"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On Apple platforms it counts suspension.
#[cfg(all(
    unix,
    not(any(target_os = "linux", target_os = "android", target_os = "fuchsia", target_os = "openbsd"))
))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

#[cfg(unix)]
fn boot_time() -> BootInstant {
    let now = rustix::time::clock_gettime(CLOCK);
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    BootInstant(seconds * 1_000_000_000 + nanoseconds)
}

#[cfg(not(unix))]
fn boot_time() -> BootInstant {
    since_first_reading()
}

/// The time since the first reading, plus a day, so that earlier points do not saturate at zero.
#[cfg(any(not(unix), test))]
fn since_first_reading() -> BootInstant {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let passed = FIRST.get_or_init(std::time::Instant::now).elapsed();
    BootInstant::from_boot(Duration::from_secs(24 * 3600) + passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_clock_moves_forward() {
        let clock = Clock::boot();
        let earlier = clock.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now() >= earlier + Duration::from_millis(2));
    }

    #[test]
    fn a_clock_without_a_boot_moves_forward_and_has_a_past() {
        let earlier = since_first_reading();
        std::thread::sleep(Duration::from_millis(2));
        assert!(since_first_reading() >= earlier + Duration::from_millis(2));
        let hour = Duration::from_secs(3600);
        assert_eq!(earlier.saturating_duration_since(earlier - hour), hour);
    }

    #[tokio::test(start_paused = true)]
    async fn tokio_clock_follows_virtual_time() {
        let clock = Clock::tokio();
        let start = clock.now();
        clock.sleep_until(start + Duration::from_secs(3600)).await;
        let passed = clock.now().saturating_duration_since(start);
        assert!(passed >= Duration::from_secs(3600) && passed < Duration::from_secs(3602), "{passed:?}");
    }

    #[test]
    fn never_is_beyond_every_sum() {
        assert_eq!(BootInstant::NEVER + Duration::from_secs(1), BootInstant::NEVER);
        assert_eq!(BootInstant::from_boot(Duration::MAX), BootInstant::NEVER);
        let hour = Duration::from_secs(3600);
        assert_eq!(BootInstant::from_boot(hour).since_boot(), hour);
        assert_eq!(
            BootInstant::from_boot(Duration::ZERO) - Duration::from_secs(1),
            BootInstant::from_boot(Duration::ZERO)
        );
    }
}
