//! Keeps the cores from halting.
//!
//! Most of a hand-over between processes is wake-up latency: a halted core, above all one of a virtual machine, takes
//! longer to wake than the requests take. A busy core does not halt.

use std::process::Command;
use std::thread::available_parallelism;

use lock_testkit::process::{Child, Output};

use crate::data::Outcome;

/// Starts a busy loop of the lowest priority (`SCHED_IDLE`) for each core. It ends when it is dropped. Needs `chrt`.
pub(crate) fn keep_awake() -> Outcome<Vec<Child>> {
    let mut idle = Command::new("chrt");
    idle.args(["--idle", "0", "sh", "-c", "while :; do :; done"]);
    let cores = available_parallelism().map_or(1, usize::from);
    Ok((0..cores).map(|_| Child::spawn(&idle, &Output::Null)).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::rig::process::stat;

    #[test]
    fn the_loops_run_at_the_lowest_priority_and_end() {
        let loops = keep_awake().unwrap();
        let pids: Vec<u32> = loops.iter().map(Child::pid).collect();
        // The place of `policy` behind the name of the program, see proc(5).
        let policy = |pid: u32| stat(pid)?.into_iter().nth(38);
        let start = Instant::now();
        // SCHED_IDLE.
        while !pids.iter().all(|pid| policy(*pid).as_deref() == Some("5")) {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", pids.iter().map(|pid| policy(*pid)));
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(loops);
        assert!(pids.iter().all(|pid| policy(*pid).is_none()));
    }
}
