//! The CPU time of processes.

use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

use crate::failure::{Failure, Outcome};

/// The CPU time of this process.
pub(crate) fn of_this_process() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Duration::from_secs(part(spent.tv_sec)) + Duration::from_nanos(part(spent.tv_nsec))
}

/// The sum of the CPU times of these processes, to a hundredth of a second.
pub(crate) fn of(pids: &[u32]) -> Outcome<Duration> {
    let mut ticks = 0;
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        ticks += ticks_in(&stat).ok_or_else(|| Failure::new(format!("no times in /proc/{pid}/stat")))?;
    }
    Ok(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
}

/// User and system time. The name of the process, in parentheses, may contain spaces and parentheses.
fn ticks_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_process_names_are_skipped() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 5 0 730 270 9 9 20 0 4 0 1000 1 1";
        assert_eq!(ticks_in(stat), Some(1000));
        assert_eq!(ticks_in("42 (a) S 1 2"), None);
    }

    #[test]
    fn work_takes_time() {
        let (ours, kernels) = (of_this_process(), of(&[std::process::id()]).unwrap());
        let mut sum = 0_u64;
        while of_this_process() - ours < Duration::from_millis(50) {
            sum = std::hint::black_box(sum + 1);
        }
        let spent = of(&[std::process::id()]).unwrap() - kernels;
        assert!(spent >= Duration::from_millis(30), "{spent:?}");
        assert!(of(&[]).unwrap().is_zero());
    }
}
