//! The command ends before its lock does, whatever is lost, cut off, killed or stopped.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Stage, has_ended, run, stubborn};
use lock_testkit::process;
use lock_testkit::proxy::{Direction, FaultProxy, Protocol};
use lock_testkit::{ZooKeeper, until};
use rustix::process::{Signal, kill_process};

/// How a command is stopped that ignores SIGTERM.
const STOPPED: [&str; 3] = ["gets SIGTERM", "terminated", "gets SIGKILL"];

fn cut(proxy: &FaultProxy) {
    proxy.black_hole(Direction::ToClient, true);
    proxy.black_hole(Direction::ToServer, true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_lost_stops_the_command() {
    let (stage, _redis) = Stage::on_redis().await;
    let (file, go) = (stage.file("file"), stage.file("go"));
    let polite = "trap 'echo cleaned; exit 0' TERM; echo running; while :; do sleep 0.02; done";
    // What a polite command leaves behind is killed as well.
    let leaves = format!(
        "exec 9>{}; flock -n 9; (trap '' TERM; echo running; while :; do sleep 0.05; done) & trap 'exit 0' TERM; wait",
        file.display()
    );
    for (options, script, says, is_terminated) in [
        ("--ttl 4s", polite, &["is lost: the lock was removed", "cleaned"][..], false),
        ("--ttl 4s --grace 60s", &*stubborn(&file), &STOPPED, true),
        ("--ttl 4s", &*leaves, &[], false),
        ("--ttl 4s --on-lost kill", &*stubborn(&file), &["gets SIGKILL"], false),
    ] {
        let run = stage.running(options, script).await;
        stage.breaks().await;
        let text = run.ends_as(70, says).await;
        assert_eq!(text.contains("terminated"), is_terminated, "{text}");
        let successor = format!("flock -n {} echo succeeded || echo OVERLAP", file.display());
        stage.runs("", &successor).takes_over().await;
    }
    let patient = format!(
        "trap 'echo terminated' TERM; echo running; while ! [ -e {} ]; do sleep 0.02; done; echo done",
        go.display()
    );
    let run = stage.running("--ttl 4s --on-lost warn", &patient).await;
    stage.breaks().await;
    run.prints("goes on without it").await;
    fs::write(go, "").unwrap();
    let text = run.ends_as(70, &["done"]).await;
    assert!(!text.contains("terminated"), "{text}");
}

/// The session goes on, and extends nothing that is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_lost_in_a_session_that_lives_stops_the_command_before_its_former_deadline() {
    let server = ZooKeeper::start().await.unwrap();
    let stage = Stage::at(&format!("{}?session_timeout=6s", server.url())).await;
    let run = stage.running("--grace 300s", &stubborn(&stage.file("file"))).await;
    stage.breaks().await;
    run.ends_as(70, &STOPPED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_only_the_release_finds_is_reported() {
    let (stage, redis) = Stage::on_redis().await;
    let go = stage.file("go");
    let script = format!("echo running; until [ -e {} ]; do sleep 0.02; done", go.display());
    let run = stage.running("", &script).await;
    redis.call(&["FLUSHALL"]).await;
    fs::write(go, "").unwrap();
    run.ends_as(70, &["was lost before its release"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_before_its_lock_when_redis_is_cut_off_or_paused() {
    let (stage, redis) = Stage::on_redis().await;
    let (file, proxy) = (stage.file("file"), FaultProxy::start(redis.addr(), Protocol::Redis).unwrap());
    let holder = stage.runs_at(&format!("redis://{}", proxy.addr()), "--ttl 3s", &stubborn(&file));
    holder.prints("running").await;
    let next = stage.successor(&file).await;
    cut(&proxy);
    next.takes_over().await;
    holder.ends_as(70, &["may be lost soon", "terminated"]).await;

    let holder = stage.running("--ttl 3s", &stubborn(&file)).await;
    let next = stage.successor(&file).await;
    redis.stop();
    holder.prints("gets SIGKILL").await;
    redis.cont();
    next.takes_over().await;
    holder.ends_as(70, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_before_its_lock_when_nobody_reads_the_messages() {
    let (stage, redis) = Stage::on_redis().await;
    let proxy = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
    let [file, started] = ["file", "started"].map(|name| stage.file(name));
    // The pipe of standard error is full before the lock is in danger.
    let script = format!(
        "trap '' TERM; exec 9>{}; flock -n 9 && yes >&2 & sleep 0.3; touch {}; while :; do sleep 0.05; done",
        file.display(),
        started.display()
    );
    let command = run(&format!("redis://{}", proxy.addr()), "--ttl 3s", &["bash", "-c", &script]);
    let mut holder = process::spawn(&command, Stdio::null(), Stdio::null(), Stdio::piped()).unwrap();
    until("it has started", async || started.exists()).await;
    let next = stage.successor(&file).await;
    cut(&proxy);
    next.takes_over().await;
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_before_its_lock_when_zookeeper_is_cut_off_or_killed() {
    // Time: the session ends.
    let (tick, session) = (Duration::from_millis(200), "?session_timeout=2s");
    let zk = ZooKeeper::builder().tick_time(tick).start().await.unwrap();
    let proxy = FaultProxy::start(zk.addr(), Protocol::ZooKeeper).unwrap();
    let stage = Stage::at(&format!("{}{session}", zk.url())).await;
    let file = stage.file("file");
    let holder = stage.runs_at(&format!("zk://{}{session}", proxy.addr()), "", &stubborn(&file));
    holder.prints("running").await;
    let next = stage.successor(&file).await;
    cut(&proxy);
    next.takes_over().await;
    holder.ends_as(70, &["terminated"]).await;

    let holder = stage.running("", &stubborn(&file)).await;
    zk.kill();
    holder.ends_as(70, &["gets SIGKILL"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_before_its_lock_when_polylock_is_killed_or_stopped() {
    let (stage, _redis) = Stage::on_redis().await;
    let file = stage.file("file");
    for signal in [Signal::KILL, Signal::STOP] {
        let holder = stage.running("--ttl 2s", &stubborn(&file)).await;
        let next = stage.successor(&file).await;
        holder.signal(signal);
        next.takes_over().await;
        if signal == Signal::STOP {
            holder.signal(Signal::CONT);
            holder.ends_as(70, &["is lost"]).await;
        }
    }
    // The kernel continues a watchdog that was stopped.
    let holder = stage.running("--ttl 60s", "echo running; exec sleep 60").await;
    let (watchdog, command) = (holder.watchdog(), holder.command());
    kill_process(watchdog, Signal::STOP).unwrap();
    holder.process.kill();
    has_ended(command).await;
    has_ended(watchdog).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_runs_for_too_long_is_stopped() {
    let (stage, _redis) = Stage::on_redis().await;
    let file = stage.file("file");
    for options in ["--max-run 2s --grace 2s", "--max-run 2s --on-lost warn --grace 2s"] {
        let holder = stage.running(options, &stubborn(&file)).await;
        let next = stage.successor(&file).await;
        holder.ends_as(124, &[&["--max-run"][..], &STOPPED].concat()).await;
        next.takes_over().await;
    }
    stage.sh("--max-run 60s", "exit 3").await.is(3, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_left_the_process_group_ends_before_the_lock_as_well() {
    let (stage, _redis) = Stage::on_redis().await;
    let file = stage.file("file");
    for signal in [None, Some(Signal::KILL), Some(Signal::STOP)] {
        let holder = stage.runs("--ttl 2s --grace 500ms", &away(&file));
        holder.prints_often("running", 2).await;
        let next = stage.successor(&file).await;
        if let Some(signal) = signal {
            holder.signal(signal);
            next.takes_over().await;
        } else {
            stage.breaks().await;
            holder.ends_as(70, &[]).await;
            // A lock that was broken is the next one's at once.
            next.ends_as(0, &[]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watchdog_that_was_killed_takes_the_command_with_it_and_one_that_was_stopped_goes_on() {
    let (stage, _redis) = Stage::on_redis().await;
    let file = stage.file("file");
    let holder = stage.running("--ttl 60s", &away(&file)).await;
    let next = stage.successor(&file).await;
    kill_process(holder.watchdog(), Signal::KILL).unwrap();
    holder.ends_as(137, &["the watchdog was killed"]).await;
    next.takes_over().await;

    let holder = stage.running("", "echo running; sleep 1; echo ends").await;
    kill_process(holder.watchdog(), Signal::STOP).unwrap();
    holder.ends_as(0, &[]).await;
}

/// A script whose processes leave its process group, ignore SIGTERM, and hold a file lock, as [`stubborn`] does.
fn away(file: &Path) -> String {
    let work = format!(
        "trap \"\" TERM; exec 9<{}; flock -s -n 9 || exit 99; echo running; while :; do sleep 0.05; done",
        file.display()
    );
    format!("touch {}; setsid bash -c '({work}) &' & timeout 1h bash -c '{work}'", file.display())
}
