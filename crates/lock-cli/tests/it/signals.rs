//! Signals to `polylock run`, to its watchdog and to its command.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::common::{Background, POLYLOCK, Run, Stage};
use lock_testkit::{RedisFive, RedisServer, ZooKeeper, give_back, take, until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_wait_and_leaves_no_waiter() {
    let (redis, zk) = (RedisServer::start().await.unwrap(), ZooKeeper::start().await.unwrap());
    for url in [redis.url(), zk.url()] {
        let stage = Stage::at(&url).await;
        let guard = take(&stage.locks, "job").await;
        for (signal, code) in [
            (Signal::INT, 130),
            (Signal::TERM, 143),
            (Signal::HUP, 129),
            (Signal::QUIT, 131),
            (Signal::USR1, 138),
            (Signal::USR2, 140),
        ] {
            let run = stage.runs("", "echo ran");
            stage.waits(1).await;
            run.signal(signal);
            let text = run.ends_as(code, &[]).await;
            assert!(!text.contains("ran"), "{text}");
            stage.waits(0).await;
        }
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_goes_to_the_process_group_of_the_command() {
    let (stage, _redis) = Stage::on_redis().await;
    let traps = "for s in INT HUP QUIT USR1 USR2; do trap \"echo outer $s\" $s; done; trap 'exit 3' TERM; \
                 (trap 'echo inner USR1' USR1; trap 'echo inner TERM; exit' TERM; trap '' INT HUP QUIT USR2; echo inner; \
                 while :; do sleep 0.02; done) & echo outer; while :; do sleep 0.02; done";
    let run = stage.runs("", traps);
    run.prints("outer\n").await;
    run.prints("inner\n").await;
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        run.signal(signal);
        run.prints(&format!("outer {name}")).await;
    }
    run.prints("inner USR1").await;
    run.signal(Signal::TERM);
    run.ends_as(3, &[]).await;

    // What nohup ignores is ignored by both.
    let mut command = Command::new("nohup");
    command.args([POLYLOCK, "run", "job", "--", "sh", "-c", "kill -HUP 0; echo alive"]);
    command.env("POLYLOCK_URL", &stage.url);
    Run::of(command).await.is(0, &["alive"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_as_it_wants_to_whatever_else_is_signalled() {
    let (stage, _redis) = Stage::on_redis().await;
    let cleans = "trap 'sleep 0.3; echo cleaned; exit 5' TERM; echo running; while :; do sleep 0.02; done";
    let holder = stage.running("", cleans).await;
    // As at the end of a service, whose processes are all signalled.
    kill_process(holder.watchdog(), Signal::TERM).unwrap();
    holder.signal(Signal::TERM);
    holder.ends_as(5, &["cleaned"]).await;

    stage.sh("", "kill -34 $$").await.is(128 + 34, &[]);
    let orphan = "(setsid sh -c 'sleep 0.1; kill -34 $$' &); sleep 0.5; exit 3";
    stage.sh("", orphan).await.is(3, &[]);
    let mut deaf = Command::new("env");
    deaf.args(["--ignore-signal=CHLD", POLYLOCK, "run", "job", "--", "sh", "-c", "exit 3"]);
    deaf.env("POLYLOCK_URL", &stage.url);
    Run::of(deaf).await.is(3, &[]);

    // The grace is that of all processes.
    let worker = "trap 'sleep 0.5; echo cleaned; exit' TERM; while :; do sleep 0.02; done";
    let script = format!("sh -c \"{worker}\"; echo after");
    stage.sh("--max-run 3s --grace 10s", &script).await.is(124, &["cleaned"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_stopped_runs_nothing_under_a_lock_of_the_past() {
    let (stage, _redis) = Stage::on_redis().await;
    let [file, go] = ["file", "go"].map(|name| stage.file(name));
    let guard = take(&stage.locks, "job").await;
    let stopped = stage.successor(&file).await;
    stopped.process.stop();
    give_back(guard).await;
    // It gets the lock once that of the stopped waiter has expired.
    let script = format!(
        "exec 9>{}; flock -n 9 && echo running; while ! [ -e {} ]; do sleep 0.02; done",
        file.display(),
        go.display()
    );
    let next = stage.running("", &script).await;
    stopped.process.cont();
    stage.waits(1).await;
    fs::write(go, "").unwrap();
    stopped.takes_over().await;
    next.ends_as(0, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_does_not_keep_a_command_that_has_ended() {
    let (redis, masters) = (RedisServer::start().await.unwrap(), RedisFive::start().await.unwrap());
    let zk = ZooKeeper::start().await.unwrap();
    // Far longer than it takes to end.
    for url in [
        format!("{}?ttl=60s", redis.url()),
        format!("{}?ttl=60s&longest_ttl=60s", masters.url()),
        format!("{}?session_timeout=30s", zk.url()),
    ] {
        let stage = Stage::at(&url).await;
        let go = stage.file("go");
        let script = format!("echo running; while ! [ -e {} ]; do sleep 0.02; done; exit 4", go.display());
        let run = stage.running("", &script).await;
        redis.stop();
        masters.servers().iter().for_each(RedisServer::stop);
        zk.stop();
        fs::write(&go, "").unwrap();
        let began = Instant::now();
        run.ends_as(4, &["was not released", "ends with its lease or session, in about "]).await;
        // Time: 5 s on an idle machine, and far less than the lease or session.
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        redis.cont();
        masters.servers().iter().for_each(RedisServer::cont);
        zk.cont();
    }
}

/// Signals the watchdog of a process again and again, as soon as there is one, until that process has ended, which is waited
/// for. A child that is not yet the watchdog is left alone: stopped there, it would stop its parent in the system call.
fn signal_watchdog(of: &Background, signal: Signal) -> impl Future<Output = ()> + use<> {
    let pid = of.process.pid();
    let signals = thread::spawn(move || {
        while let Ok(children) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
            let is_watchdog = |pid: &&str| {
                fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|name| name.starts_with(b"polylock-watchdog\0"))
            };
            let watchdogs = children.split_whitespace().filter(is_watchdog);
            let watchdogs = watchdogs.filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
            watchdogs.for_each(|watchdog| _ = kill_process(watchdog, signal));
            // Time: between the fork and the first report.
            thread::sleep(Duration::from_micros(200));
        }
    });
    async { spawn_blocking(|| signals.join().unwrap()).await.unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_watchdog_dies_at_its_start_ends_with_an_error() {
    let (stage, _redis) = Stage::on_redis().await;
    loop {
        let run = stage.runs("-v", "echo began");
        let killer = signal_watchdog(&run, Signal::KILL);
        let (code, text) = run.ends().await;
        killer.await;
        assert!(!stage.is_held().await);
        if !text.contains("the command runs") {
            assert!(code == 70 && text.contains("its watchdog has ended"), "{code}: {text}");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_run_whose_watchdog_does_not_report() {
    let (stage, _redis) = Stage::on_redis().await;
    loop {
        let run = stage.runs("-v", "echo began; sleep 60");
        let stopper = signal_watchdog(&run, Signal::STOP);
        until("it has the lock", async || stage.is_held().await).await;
        let had_begun = run.text().contains("the command runs");
        run.signal(Signal::TERM);
        let text = run.ends_as(143, &[]).await;
        stopper.await;
        assert!(!stage.is_held().await);
        if !had_begun {
            assert!(!text.contains("the command runs"), "{text}");
            return;
        }
    }
}
