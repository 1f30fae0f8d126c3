//! The clock that leases are counted on.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// No sleep is longer than this: tokio's timers may stop while the host is suspended, the lease clock does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A point on the lease clock: the time since the machine booted, suspension included.
///
/// [`std::time::Instant`] stops while a laptop or a virtual machine is suspended; a server's lease
/// does not. Which clock it is, and what it does not see, stands with [`Clock`]. On Unix, points of the same boot can be
/// compared across processes of one machine; on Windows they count from a day before the first look of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// A point that is never reached: the deadline of what does not end by itself.
    pub const NEVER: Self = Self(Duration::MAX);

    /// The point at `since_boot` after the machine booted.
    #[must_use]
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// The time since the machine booted.
    #[must_use]
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this point, zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    /// Saturates at [`BootInstant::NEVER`].
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = Self;

    /// Saturates at the boot of the machine.
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }
}

impl fmt::Debug for BootInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER { f.write_str("never") } else { write!(f, "boot+{:?}", self.0) }
    }
}

/// Where a backend takes the time from.
///
/// A lease ends on the server while the host of its holder is suspended, so the default clock goes on then, where the
/// platform has one that does:
///
/// | platform | clock | suspended host |
/// |---|---|---|
/// | Linux, Android, Fuchsia, OpenBSD | `CLOCK_BOOTTIME` | counted |
/// | macOS, iOS | `CLOCK_MONOTONIC` | counted; to the microsecond |
/// | Windows | `QueryPerformanceCounter`, by [`std::time::Instant`] | counted |
/// | FreeBSD and other Unix | `CLOCK_MONOTONIC` | **perhaps not counted** |
///
/// What no clock of a guest sees is a virtual machine that its host stops and resumes (a snapshot, a live migration),
/// unless the host corrects the clock. After that, and where suspension is not counted, a guard says that it is valid for
/// as long as the machine stood still: let the resource check the [fencing token](crate::Token). The tests of this
/// library run on Linux; the others are built, not run.
///
/// [`Clock::tokio`] follows [`tokio::time`], so that tests can pause and advance it.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Copy, Debug, Default)]
enum Source {
    #[default]
    Boot,
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub const fn boot() -> Self {
        Self(Source::Boot)
    }

    /// A clock that starts at zero now and runs as tokio's does, virtual time included.
    #[must_use]
    pub fn tokio() -> Self {
        Self(Source::Tokio(tokio::time::Instant::now()))
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> BootInstant {
        match self.0 {
            Source::Boot => boot_time(),
            Source::Tokio(origin) => BootInstant(origin.elapsed()),
        }
    }

    /// Sleeps until `deadline`, at most a second late after the host was suspended.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
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

#[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia", target_os = "openbsd"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// Apple's goes on while the machine sleeps.
#[cfg(all(
    unix,
    not(any(target_os = "linux", target_os = "android", target_os = "fuchsia", target_os = "openbsd"))
))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

#[cfg(unix)]
fn boot_time() -> BootInstant {
    let now = rustix::time::clock_gettime(CLOCK);
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    BootInstant(Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds))
}

#[cfg(not(unix))]
fn boot_time() -> BootInstant {
    since_first_look()
}

/// The time since the first look, a day later: spans that are subtracted from a point end at zero.
#[cfg(any(not(unix), test))]
fn since_first_look() -> BootInstant {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BootInstant(Duration::from_secs(24 * 3600) + FIRST.get_or_init(std::time::Instant::now).elapsed())
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
        let earlier = since_first_look();
        std::thread::sleep(Duration::from_millis(2));
        assert!(since_first_look() >= earlier + Duration::from_millis(2));
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
        assert_eq!(
            BootInstant::from_boot(Duration::ZERO) - Duration::from_secs(1),
            BootInstant::from_boot(Duration::ZERO)
        );
    }
}
