//! What `polylock run --restart` begins again, what ends it, and a store that starts later.

use std::fs;
use std::time::Duration;

use crate::common::{POLYLOCK, Terminal, eventually};
use crate::run::{Background, sh, shell, waits};
use lock_testkit::RedisServer;
use polylock::Locks;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::sleep;

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_reload_ends_no_campaign_and_one_to_end_says_so() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let locks = Locks::connect(&url).await.unwrap();
    let script = "trap 'echo reloads' HUP; echo leads; while :; do sleep 0.02; done";
    let leader = Background::start(folder.path(), &url, "--restart", script);
    leader.prints("leads").await;
    let standby = Background::start(folder.path(), &url, "--restart", script);
    waits(&locks, 1).await;
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2] {
        // A standby has no command that could read its configuration again.
        standby.signal(signal);
    }
    leader.signal(Signal::HUP);
    leader.prints("reloads").await;
    kill_process(leader.command(), Signal::KILL).unwrap();
    // The standby was not ended, and the leader stands by.
    standby.prints("leads").await;
    waits(&locks, 1).await;
    for run in [leader, standby] {
        run.signal(Signal::TERM);
        assert_eq!(run.ends().await.0, 143);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_says_which_signal_ends_it() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM"), (Signal::QUIT, "SIGQUIT")] {
        let script = "trap 'exit 3' INT TERM QUIT; echo leads; while :; do sleep 0.02; done";
        let leader = Background::start(folder.path(), &url, "--restart", script);
        leader.prints("leads").await;
        leader.signal(signal);
        let (code, text) = leader.ends().await;
        assert!(code == 3 && text.contains(&format!("{name} ends --restart for the lock \"job\"")), "{text}");
    }
    // Whoever dies of SIGHUP begins again.
    let leader = Background::start(folder.path(), &url, "--restart", "echo leads; exec sleep 60");
    leader.prints("leads").await;
    leader.signal(Signal::HUP);
    eventually("a second start", async || leader.text().matches("leads").count() == 2).await;
    leader.signal(Signal::TERM);
    assert_eq!(leader.ends().await.0, 143);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_ends_a_campaign_by_its_keys_and_with_itself() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    let variables = [("POLYLOCK_URL", &*url)];
    let open = |script: &str| {
        Terminal::open(&format!("{POLYLOCK} run job --restart -- bash -c '{script}'"), &variables)
    };
    // The command has the terminal, and so it alone gets the key.
    let mut terminal =
        open("stty -echo; trap \"stty echo; exit 130\" INT; echo ready; while :; do sleep 0.02; done");
    terminal.shows("ready", 1).await;
    terminal.types("\u{3}");
    let (code, screen) = terminal.ends().await;
    assert!(code == 130 && screen.contains("SIGINT ends --restart"), "{screen}");

    let locks = Locks::connect(&url).await.unwrap();
    // A command that has the terminal is hung up alone, unless polylock is the first process there.
    for (before, does, after) in [
        ("", "exec sleep 60", ""),
        ("", "read line </dev/tty", "; true"),
        ("nohup ", "read line </dev/tty; sleep 0.5", " >/dev/null 2>&1; true"),
    ] {
        let log = folder.path().join(format!("log{}", fs::read_dir(folder.path()).unwrap().count()));
        let script = format!("echo leads >> {}; {does}", log.display());
        let line = format!("{before}{POLYLOCK} run job --restart -- bash -c \"{script}\"{after}");
        let starts = || fs::read_to_string(&log).map_or(0, |text| text.matches("leads").count());
        let terminal = Terminal::open(&format!("bash -c '{line}'"), &variables);
        eventually("a leader", async || starts() > 0).await;
        // It has the terminal soon after.
        sleep(Duration::from_millis(500)).await;
        drop(terminal);
        if before.is_empty() {
            eventually("the release", async || !locks.inspect("job").await.unwrap().is_held()).await;
            sleep(Duration::from_secs(3)).await;
            assert_eq!(starts(), 1);
        } else {
            eventually("more starts", async || starts() > 3).await;
            let ended = async || {
                let holder = locks.inspect("job").await.unwrap().holders.first().cloned();
                let pid = holder.and_then(|holder| Pid::from_raw(holder.owner()?.pid as i32));
                pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok())
            };
            eventually("its end", ended).await;
            eventually("the release", async || !locks.inspect("job").await.unwrap().is_held()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_starts_later_is_waited_for() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (redis.url(), TempDir::new().unwrap());
    redis.kill();
    for options in ["", "-n", "-w 60s --strict", "--restart --strict"] {
        sh(&url, options, "echo ran").await.is(69, &["cannot connect"]);
    }
    let still_down = sh(&url, "-w 2", "echo ran").await;
    still_down.is(69, &["going on until that passes", "cannot connect"]);
    let [waits, leads, leads_later] = ["-w 60s", "--restart", "--restart -w 3"]
        .map(|options| Background::start(folder.path(), &url, options, "echo ran; sleep 0.2"));
    for run in [&waits, &leads, &leads_later] {
        run.prints("going on until that passes").await;
    }
    sleep(Duration::from_secs(4)).await;
    redis.start_again().await.unwrap();
    assert_eq!(waits.ends().await.0, 0);
    for run in [leads, leads_later] {
        run.prints("ran").await;
        run.signal(Signal::TERM);
        run.ends().await;
    }
    // A wrong URL does not get better.
    sh("redis://h?ttl=10", "--restart -w 60s", "echo ran").await.is(64, &["not valid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zookeeper_that_cannot_be_reached_is_named_while_it_is_tried() {
    let redis = RedisServer::start().await.unwrap();
    let nobody = redis.addr();
    redis.kill();
    let refused = format!("cannot connect to {nobody}: Connection refused");
    let run = sh(&format!("zk://{nobody}"), "-w 2s", "echo ran").await;
    run.is(69, &["does not answer yet", "still trying", "did not answer within the time of --wait"]);
    assert_eq!(run.stderr.matches(&refused).count(), 2, "{run:?}");
    // Those who ask see it too.
    for command in ["holders job --json", "doctor"] {
        let asks =
            shell(&format!("zk://{nobody}?connect_timeout=4s"), &format!("{POLYLOCK} {command}")).await;
        asks.is(69, &["does not answer yet", &refused]);
    }
    let run = sh(&format!("zk://{nobody}?connect_timeout=500ms"), "", "echo ran").await;
    run.is(69, &["no server opened a session", &refused]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_counts_while_a_store_that_hangs_delays_the_release() {
    let redis = RedisServer::start().await.unwrap();
    let (url, folder) = (format!("{}?ttl=30s", redis.url()), TempDir::new().unwrap());
    let go = folder.path().join("go");
    let script = format!("echo leads; while ! [ -e {} ]; do sleep 0.02; done; echo done", go.display());
    let leader = Background::start(folder.path(), &url, "--restart", &script);
    leader.prints("leads").await;
    redis.stop();
    fs::write(&go, "").unwrap();
    leader.prints("done").await;
    sleep(Duration::from_millis(500)).await;
    leader.signal(Signal::TERM);
    let (_, text) = leader.ends().await;
    redis.cont();
    assert!(text.contains("SIGTERM ends --restart"), "{text}");
}
