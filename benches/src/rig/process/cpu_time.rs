//! The CPU time of processes.

use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

use super::{children, stat};
use crate::data::{Failure, Outcome};

/// The CPU time of this process, with all its threads.
pub(crate) fn of_this_process() -> Outcome<Duration> {
    of_one(std::process::id())
}

/// The sum of the CPU times of these servers, with all their threads and the processes that they have started, also those that
/// have ended.
pub(crate) fn of(servers: &[u32]) -> Outcome<Duration> {
    servers.iter().map(|pid| of_family(*pid)).sum()
}

fn of_family(pid: u32) -> Outcome<Duration> {
    loop {
        let ended = of_ended_children(pid)?;
        // One that has just ended has no time any more.
        let running: Duration = children(pid).into_iter().filter_map(|child| of_one(child).ok()).sum();
        // Otherwise one that has ended meanwhile counts twice, or not at all.
        if of_ended_children(pid)? == ended {
            return Ok(of_one(pid)? + running + ended);
        }
    }
}

/// The kernel adds it up for each process, and shows hundredths of a second.
fn of_ended_children(pid: u32) -> Outcome<Duration> {
    let missing = || Failure::new(format!("no CPU time of process {pid}: /proc does not have it"));
    let fields = stat(pid).ok_or_else(missing)?;
    let ticks = |field: usize| fields.get(field).and_then(|ticks| ticks.parse::<u64>().ok());
    let (user, system) = ticks(CUTIME).zip(ticks(CUTIME + 1)).ok_or_else(missing)?;
    Ok(TICK * u32::try_from(user + system)?)
}

fn of_one(pid: u32) -> Outcome<Duration> {
    let id = Pid::from_raw(i32::try_from(pid)?);
    let spent = ClockId::pid_cpu_clock_id(id).and_then(ClockId::now);
    Ok(spent.map_err(|error| Failure::new(format!("no CPU time of process {pid}: {error}")))?.into())
}

/// The place of `cutime` behind the name of the program, see proc(5); `cstime` follows.
const CUTIME: usize = 13;
const TICK: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_takes_time() {
        let doubled = of(&[std::process::id(); 2]).unwrap();
        compute(Duration::from_millis(50));
        assert!(of(&[std::process::id(); 2]).unwrap() - doubled >= Duration::from_millis(90));
        assert!(of(&[]).unwrap().is_zero());
    }

    #[test]
    fn children_count_while_they_run_and_after_their_end() {
        let shell =
            "for i in 1 2 3; do sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; done; read line";
        let mut parent = Command::new("sh");
        let mut parent = parent.args(["-c", shell]).stdin(Stdio::piped()).spawn().unwrap();
        let (mut last, began) = (Duration::ZERO, Instant::now());
        while children(parent.id()).is_empty() && began.elapsed() < Duration::from_secs(10) {}
        let mut seen = 0;
        while !children(parent.id()).is_empty() && began.elapsed() < Duration::from_secs(30) {
            let now = of(&[parent.id()]).unwrap();
            // Hundredths are rounded down.
            assert!(now + 2 * TICK >= last, "{last:?}, then {now:?}");
            (last, seen) = (now, seen + 1);
        }
        let after = of(&[parent.id()]).unwrap();
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(seen > 0 && after + 2 * TICK >= last && after > 3 * TICK, "{last:?}, then {after:?}");
    }

    fn compute(span: Duration) {
        let (began, mut sum) = (of_this_process().unwrap(), 0_u64);
        while of_this_process().unwrap() - began < span {
            sum = std::hint::black_box(sum + 1);
        }
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_time() {
        // Larger than any process id of the kernel.
        let failure = of(&[5_000_000]).unwrap_err().to_string();
        assert!(failure.starts_with("no CPU time of process 5000000: "), "{failure}");
    }
}
