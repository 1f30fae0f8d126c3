//! The CPU time of processes.

use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use crate::data::{Failure, Outcome};

pub(crate) fn of_this_process() -> Outcome<Duration> {
    of(&[std::process::id()])
}

/// The sum of the CPU times of these processes, with all their threads, also those that have ended.
pub(crate) fn of(pids: &[u32]) -> Outcome<Duration> {
    pids.iter().map(|pid| of_one(*pid)).sum()
}

fn of_one(pid: u32) -> Outcome<Duration> {
    let id = Pid::from_raw(i32::try_from(pid)?);
    let spent = ClockId::pid_cpu_clock_id(id).and_then(ClockId::now);
    Ok(spent.map_err(|error| Failure::new(format!("no CPU time of process {pid}: {error}")))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time() {
        let (began, doubled) = (of_this_process().unwrap(), of(&[std::process::id(); 2]).unwrap());
        let mut sum = 0_u64;
        while of_this_process().unwrap() - began < Duration::from_millis(50) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(of(&[std::process::id(); 2]).unwrap() - doubled >= Duration::from_millis(90));
        assert!(of(&[]).unwrap().is_zero());
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_time() {
        // Larger than any process id of the kernel.
        let failure = of(&[5_000_000]).unwrap_err().to_string();
        assert!(failure.starts_with("no CPU time of process 5000000: "), "{failure}");
    }
}
