//! A timer that goes on while the host is suspended: the lock ends meanwhile, and the command has to end at once after that.
//!
//! The timers of tokio stop with `CLOCK_MONOTONIC`, and a sleep of the [`Clock`] looks at the lease clock once a second.

use std::io::ErrorKind;

use polylock::{BootInstant, Clock};
use rustix::io::Result;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// Wakes its task at a time of the lease clock.
pub(super) struct Alarm {
    clock: Clock,
    /// `None` where the kernel has no such timer.
    timer: Option<Receiver>,
}

impl Alarm {
    /// Needs a runtime.
    pub(super) fn new() -> Self {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags).ok();
        // It is no pipe, but becomes readable as one does.
        let timer = timer.and_then(|timer| Receiver::from_owned_fd_unchecked(timer).ok());
        Self { clock: Clock::boot(), timer }
    }

    /// Waits until this time. It is cancel safe.
    pub(super) async fn at(&self, deadline: BootInstant) {
        if let Some(timer) = &self.timer
            && deadline != BootInstant::NEVER
            && set(timer, deadline).is_ok()
        {
            let mut count = [0; 8];
            while self.clock.now() < deadline && timer.readable().await.is_ok() {
                // An earlier setting may have left it readable.
                if timer.try_read(&mut count).is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
                    break;
                }
            }
        }
        self.clock.sleep_until(deadline).await;
    }
}

fn set(timer: &Receiver, deadline: BootInstant) -> Result<()> {
    let since_boot = deadline.since_boot();
    let it_value = Timespec {
        tv_sec: since_boot.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: since_boot.subsec_nanos().into(),
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::{AsFd, AsRawFd};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn it_rings_at_its_last_setting() {
        let (alarm, clock) = (Alarm::new(), Clock::boot());
        let began = clock.now();
        assert!(timeout(Duration::from_millis(20), alarm.at(began + Duration::from_secs(60))).await.is_err());
        alarm.at(began).await;
        for milliseconds in [30, 60] {
            let deadline = began + Duration::from_millis(milliseconds);
            timeout(Duration::from_secs(30), alarm.at(deadline)).await.unwrap();
            assert!(clock.now() >= deadline);
        }
        assert!(timeout(Duration::from_millis(20), alarm.at(BootInstant::NEVER)).await.is_err());
    }

    #[tokio::test]
    async fn it_counts_suspension() {
        const CLOCK_BOOTTIME: &str = "clockid: 7";
        let alarm = Alarm::new();
        let timer = alarm.timer.as_ref().unwrap().as_fd().as_raw_fd();
        let information = fs::read_to_string(format!("/proc/self/fdinfo/{timer}")).unwrap();
        assert!(information.contains(CLOCK_BOOTTIME), "{information}");
    }
}
