//! Runs test programs in lanes.
//!
//! Cargo runs test programs one after another, and most of them wait: for sessions, leases and servers. Here some of the
//! programs with real servers run at a time, each with more tests at a time than there are processors. Another lane, at a
//! lower priority, has the programs that only compute: they do not disturb tests that measure time. A
//! lane without jobs of its own takes from that one.
//!
//! The test programs end with this process, however it ends: a killed run leaves no servers.
//!
//! Each program is one process, as its tests share servers: with a process per test each would start a ZooKeeper.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::vec::IntoIter;
use std::{env, thread};

use super::results::Results;
use crate::command::{holds, seconds};
use crate::interrupt;

/// A run of a test program.
pub(super) struct Job {
    pub(super) program: String,
    pub(super) command: Command,
    pub(super) in_background: bool,
}

/// A command that runs the one in its arguments, at a lower priority in the background.
///
/// The kernel kills that when this process ends. It does so when the *thread* that started it ends, which must therefore wait for
/// it. The test kit does the same for servers (`process.rs`), but would make this program slow to build, and the standard library
/// can set a parent-death signal only by unsafe code.
pub(super) fn tied_to_us(in_background: bool) -> Command {
    let mut command = Command::new("env");
    if holds("command -v setpriv") {
        command.args(["setpriv", "--pdeathsig", "KILL", "--"]);
    }
    if in_background {
        // Low enough to give way, and high enough to make progress on a busy machine: 19 would not.
        command.args(["nice", "-n", "5"]);
    }
    if env::var_os(THREADS).is_none() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, (2 * processors).to_string());
    }
    command.stdin(Stdio::null());
    command
}

impl Job {
    /// Runs it to its end, and returns what it has printed, which is shown at once or else at the end, and whether it succeeded.
    fn run(self, streams: bool) -> (Vec<String>, bool) {
        let Self { program, mut command, in_background } = self;
        let (started, mut lines) = (Instant::now(), Vec::new());
        let run = || {
            let (output, input) = io::pipe()?;
            let mut child = command.stdout(input.try_clone()?).stderr(input).spawn()?;
            // The pipe ends when nobody can write to it.
            drop(command);
            for line in BufReader::new(output).split(b'\n') {
                lines.push(String::from_utf8_lossy(&line?).into_owned());
                lines.last().filter(|_| streams).inspect(|line| eprintln!("{line}"));
            }
            child.wait()
        };
        let ended = run().unwrap_or_else(|error: io::Error| panic!("cannot run {program}: {error}"));
        let lane = if in_background { ", in the background" } else { "" };
        let mut report = format!("\n    {program}{lane}, {}\n", seconds(started.elapsed()));
        lines.iter().filter(|_| !streams).for_each(|line| report += &format!("{line}\n"));
        // At once, so that those of other lanes do not come in between.
        eprint!("{report}");
        (lines, ended.success())
    }
}

/// Of foreground jobs: with more, programs take longer, and leases end.
pub(super) const MOST_AT_A_TIME: usize = 2;

/// Runs all jobs, even when one has failed: two foreground jobs at a time, or one beside other work, and more while there is room, up
/// to this number. The output of a single one is shown as it comes.
pub(super) fn run_in_lanes(jobs: Vec<Job>, at_most: usize) -> Results {
    let streams = jobs.len() == 1;
    // Tests that wait for each other would wait too long on a machine that is busy with other work.
    let at_least = if has_room(A_MOMENT) { 2 } else { 1 };
    let (behind, front): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.in_background);
    let [front, behind] = [front, behind].map(|jobs| Mutex::new(jobs.into_iter()));
    let (results, door) = (Mutex::new(Results::default()), Mutex::new(()));
    let run_lane = |queues: &[&Mutex<IntoIter<Job>>], waits_for_room: bool| {
        loop {
            let is_next = waits_for_room.then(|| locked(&door));
            let is_empty = || queues.iter().all(|queue| locked(queue).len() == 0);
            while waits_for_room && !is_empty() && interrupt::check().is_ok() && !has_room(A_WHILE) {}
            let job = queues.iter().find_map(|queue| locked(queue).next());
            drop(is_next);
            let Some(job) = job.filter(|_| interrupt::check().is_ok()) else { return };
            let program = job.program.clone();
            let (lines, succeeded) = job.run(streams);
            locked(&results).add(&program, &lines, succeeded);
        }
    };
    let (run_lane, front, behind) = (&run_lane, &front, &behind);
    thread::scope(|scope| {
        for lane in 0..at_most {
            scope.spawn(move || run_lane(&[front, behind], lane >= at_least));
        }
        scope.spawn(move || run_lane(&[behind], false));
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether half of the processors had nothing to do in this span, or what gives way; `true` where `/proc` does not tell.
fn has_room(span: Duration) -> bool {
    // Of all processors since the start of the machine: user, nice, system, idle, iowait, ...
    let times = || -> Option<Vec<u64>> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        stat.lines().next()?.split_whitespace().skip(1).map(|ticks| ticks.parse().ok()).collect()
    };
    let before = times();
    thread::sleep(span);
    let (Some(before), Some(after)) = (before, times()) else { return true };
    let past: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    past.len() <= 4 || 2 * (past[1] + past[3] + past[4]) >= past.iter().sum()
}

/// Long enough to tell a busy machine from a moment's work.
const A_MOMENT: Duration = Duration::from_millis(500);
/// Long enough for a program that has just begun to start its servers.
const A_WHILE: Duration = Duration::from_secs(4);
const THREADS: &str = "RUST_TEST_THREADS";

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn what_we_run_ends_with_us() {
        let mut us = Command::new(env::current_exe().unwrap());
        us.args(["--exact", "test::lanes::tests::runs_for_long", "--nocapture"]).env(RUNS_FOR_LONG, "1");
        let mut us = us.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(us.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("it runs") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "it did not start");
        }
        us.kill().unwrap();
        us.wait().unwrap();
        // It ends when all writers have ended.
        let (ended, end) = channel();
        thread::spawn(move || ended.send(io::copy(&mut output, &mut io::sink()).is_ok()));
        assert!(end.recv_timeout(Duration::from_secs(30)).expect("it goes on"));
    }

    /// The far end of the test above.
    #[test]
    fn runs_for_long() {
        if env::var_os(RUNS_FOR_LONG).is_some() {
            tied_to_us(true).args(["sh", "-c", "echo; echo it runs; exec sleep 600"]).status().unwrap();
        }
    }

    const RUNS_FOR_LONG: &str = "XTASK_RUNS_FOR_LONG";
}
