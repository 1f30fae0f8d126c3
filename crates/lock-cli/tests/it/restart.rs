//! What `polylock run --restart` begins again, what ends it, and a store that starts later.

use std::fs;
use std::time::Duration;

use crate::common::{Background, POLYLOCK, Stage, sh, shell};
use lock_testkit::{RedisServer, until};
use rustix::process::{Signal, kill_process};
use tokio::time::sleep;

/// A campaign with this command, which prints `leads`, and does.
async fn leads(stage: &Stage, script: &str) -> Background {
    let leader = stage.runs("--restart", script);
    leader.prints("leads").await;
    leader
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_command_leads_again() {
    let (stage, _redis) = Stage::on_redis().await;
    let script = "echo leads $POLYLOCK_TOKEN; while :; do sleep 0.02; done";
    let [one, two] = [(); 2].map(|()| stage.runs("--ttl 2s --restart", script));
    let lead = async |times| {
        let leads = || one.text().matches("leads").count() + two.text().matches("leads").count();
        until("one leads", async || leads() == times).await;
    };
    for round in 1..=3 {
        lead(round).await;
        stage.waits(1).await;
        // Killed as if it had crashed, or the lock is lost.
        if round == 1 {
            stage.breaks().await;
        } else {
            let leader = stage.holder().await.unwrap();
            let is_one = one.process.pid() as i32 == leader.as_raw_nonzero().get();
            let leader = if is_one { &one } else { &two };
            kill_process(leader.command(), Signal::KILL).unwrap();
        }
    }
    lead(4).await;
    for run in [one, two] {
        run.signal(Signal::TERM);
        run.ends_as(143, &[]).await;
    }
    assert!(!stage.is_held().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_wrong_for_a_while_ends_no_standby_and_no_waiter() {
    let redis = RedisServer::builder().user("app", "on >right ~* &* +@all").start().await.unwrap();
    let (stage, url) = (Stage::at(&redis.url()).await, format!("redis://app:right@{}", redis.addr()));
    let script = "echo has it; while :; do sleep 0.02; done";
    let start = |options| stage.runs_at(&url, options, script);
    let leader = start("--ttl 2s --restart");
    leader.prints("has it").await;
    let [standby, waiter, strict] = ["--ttl 2s --restart", "--ttl 2s", "--ttl 2s --strict"].map(start);
    stage.waits(3).await;
    let set_password = async |password: &str| {
        redis.call(&["ACL", "SETUSER", "app", "resetpass", password]).await;
        redis.call(&["CLIENT", "KILL", "USER", "app"]).await;
    };
    set_password(">wrong").await;
    strict.ends_as(70, &["refused the user name or password"]).await;
    for run in [&standby, &waiter, &leader] {
        run.prints("going on until that passes").await;
    }
    // Time: they are refused again and again, and say so once.
    sleep(Duration::from_secs(2)).await;
    for run in [&standby, &waiter] {
        assert_eq!(run.text().matches("refused the user name").count(), 1, "{}", run.text());
    }
    set_password(">right").await;
    let has_it = |run: &Background, times| run.text().matches("has it").count() == times;
    until("one has it", async || has_it(&standby, 1) || has_it(&waiter, 1) || has_it(&leader, 2)).await;
    // Whoever ends is followed by the next one.
    for run in [leader, standby, waiter] {
        run.signal(Signal::TERM);
        run.ends_as(143, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_reload_ends_no_campaign_and_one_to_end_says_so() {
    let (stage, _redis) = Stage::on_redis().await;
    let script = "trap 'echo reloads' HUP; echo leads; while :; do sleep 0.02; done";
    let leader = leads(&stage, script).await;
    let standby = stage.runs("--restart", script);
    stage.waits(1).await;
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2] {
        // A standby has no command that could read its configuration again.
        standby.signal(signal);
    }
    leader.signal(Signal::HUP);
    leader.prints("reloads").await;
    kill_process(leader.command(), Signal::KILL).unwrap();
    // The standby was not ended, and the leader stands by.
    standby.prints("leads").await;
    stage.waits(1).await;
    for run in [leader, standby] {
        run.signal(Signal::TERM);
        run.ends_as(143, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_says_which_signal_ends_it() {
    let (stage, _redis) = Stage::on_redis().await;
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM"), (Signal::QUIT, "SIGQUIT")] {
        let script = "trap 'exit 3' INT TERM QUIT; echo leads; while :; do sleep 0.02; done";
        let leader = leads(&stage, script).await;
        leader.signal(signal);
        leader.ends_as(3, &[&format!("{name} ends --restart for the lock \"job\"")]).await;
    }
    // Whoever dies of SIGHUP begins again.
    let leader = stage.runs("--restart", "echo leads; exec sleep 60");
    leader.prints("leads").await;
    leader.signal(Signal::HUP);
    leader.prints_often("leads", 2).await;
    leader.signal(Signal::TERM);
    leader.ends_as(143, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_ends_a_campaign_by_its_keys_and_with_itself() {
    let (stage, _redis) = Stage::on_redis().await;
    let open = |script: &str| stage.terminal(&format!("{POLYLOCK} run job --restart -- bash -c '{script}'"));
    // The command has the terminal, and so it alone gets the key.
    let mut terminal =
        open("stty -echo; trap \"stty echo; exit 130\" INT; echo ready; while :; do sleep 0.02; done");
    terminal.shows("ready", 1).await;
    terminal.types("\u{3}");
    terminal.ends_as(130, &["SIGINT ends --restart"]).await;

    // A command that has the terminal is hung up alone, unless polylock is the first process there.
    for (before, does, after) in [
        ("", "exec sleep 60", ""),
        ("", "read line </dev/tty", "; true"),
        ("nohup ", "read line </dev/tty; sleep 0.5", " >/dev/null 2>&1; true"),
    ] {
        let log = stage.file(&format!("log{}", fs::read_dir(stage.folder()).unwrap().count()));
        let script = format!("echo leads >> {}; {does}", log.display());
        let line = format!("{before}{POLYLOCK} run job --restart -- bash -c \"{script}\"{after}");
        let starts = || fs::read_to_string(&log).map_or(0, |text| text.matches("leads").count());
        let terminal = stage.terminal(&format!("bash -c '{line}'"));
        until("one leads", async || starts() > 0).await;
        // Time: it has the terminal soon after.
        sleep(Duration::from_millis(500)).await;
        drop(terminal);
        if before.is_empty() {
            until("the lock is released", async || !stage.is_held().await).await;
            // Time: it could start again.
            sleep(Duration::from_secs(3)).await;
            assert_eq!(starts(), 1);
        } else {
            until("it starts again", async || starts() > 3).await;
            let ended = async || {
                let holder = stage.holder().await;
                holder.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok())
            };
            until("it ends", ended).await;
            until("the lock is released", async || !stage.is_held().await).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_starts_later_is_waited_for() {
    let (stage, redis) = Stage::on_redis().await;
    redis.kill();
    for options in ["", "-n", "-w 60s --strict", "--restart --strict"] {
        stage.sh(options, "echo ran").await.is(69, &["cannot connect"]);
    }
    let still_down = stage.sh("-w 2", "echo ran").await;
    still_down.is(69, &["going on until that passes", "cannot connect"]);
    let [waits, leads, leads_later] =
        ["-w 60s", "--restart", "--restart -w 3"].map(|options| stage.runs(options, "echo ran; sleep 0.2"));
    for run in [&waits, &leads, &leads_later] {
        run.prints("going on until that passes").await;
    }
    // Time: longer than the patience of the third.
    sleep(Duration::from_secs(4)).await;
    redis.start_again().await.unwrap();
    waits.ends_as(0, &[]).await;
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
        // Time: how long it tries.
        let url = format!("zk://{nobody}?connect_timeout=4s");
        shell(&url, &format!("{POLYLOCK} {command}")).await.is(69, &["does not answer yet", &refused]);
    }
    // Time: how long it tries.
    let run = sh(&format!("zk://{nobody}?connect_timeout=500ms"), "", "echo ran").await;
    run.is(69, &["no server opened a session", &refused]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_counts_while_a_store_that_hangs_delays_the_release() {
    let redis = RedisServer::start().await.unwrap();
    let stage = Stage::at(&format!("{}?ttl=60s", redis.url())).await;
    let go = stage.file("go");
    let script = format!("echo leads; while ! [ -e {} ]; do sleep 0.02; done; echo done", go.display());
    let leader = leads(&stage, &script).await;
    redis.stop();
    fs::write(&go, "").unwrap();
    leader.prints("done").await;
    // Time: the release is on its way.
    sleep(Duration::from_millis(500)).await;
    leader.signal(Signal::TERM);
    let (_, text) = leader.ends().await;
    redis.cont();
    assert!(text.contains("SIGTERM ends --restart"), "{text}");
}
