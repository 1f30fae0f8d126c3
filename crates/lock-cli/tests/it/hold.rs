//! `polylock hold`: a lock for several steps of one script.

use std::process::Command;

use crate::common::{Background, POLYLOCK, Run, Stage, shell};
use lock_testkit::{RedisServer, give_back, take, until};
use rustix::process::Signal;
use tempfile::TempDir;

fn hold(url: &str, options: &str) -> Command {
    let mut hold = Command::new("env");
    hold.args(["--default-signal=INT,QUIT,HUP", POLYLOCK, "hold", "job"]).args(options.split_whitespace());
    hold.env("POLYLOCK_URL", url);
    hold
}

impl Stage {
    /// `polylock hold` that has the lock.
    async fn holds(&self, options: &str) -> Background {
        let held = self.begin(&hold(&self.url, options));
        until("it prints the token", async || held.text().ends_with('\n')).await;
        held
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_until_a_signal() {
    let (redis, folder) = (RedisServer::start().await.unwrap(), TempDir::new().unwrap());
    for url in [redis.url(), format!("flock://{}", folder.path().display())] {
        let stage = Stage::at(&url).await;
        // Two at once, as `timeout` sends them, are no impatience.
        let twice = &[Signal::TERM, Signal::INT][..];
        for signals in [&[Signal::TERM][..], &[Signal::INT], &[Signal::HUP], twice, twice, twice] {
            let held = stage.holds("").await;
            let token = stage.locks.inspect("job").await.unwrap().holders[0].token.unwrap().to_string();
            assert_eq!(held.text().trim(), token);
            stage.sh("-n", "echo ran").await.is(75, &["is busy: held by pid", "(polylock hold)"]);
            Run::of(hold(&url, "-n -E 9")).await.is(9, &["is busy"]);
            signals.iter().for_each(|signal| held.signal(*signal));
            held.ends_as(0, &[]).await;
            assert!(!stage.is_held().await);
        }
        let held = stage.begin(&hold(&url, "--json"));
        held.prints("\"token\"").await;
        // A wait ends as that of any program.
        let waiter = stage.begin(&hold(&url, ""));
        waiter.prints("waiting for the lock").await;
        for (run, code) in [(waiter, 143), (held, 0)] {
            run.signal(Signal::TERM);
            run.ends_as(code, &[]).await;
        }
    }
    // The next renewal notices the loss.
    let stage = Stage::at(&redis.url()).await;
    let held = stage.holds("--ttl 2s").await;
    stage.breaks().await;
    held.ends_as(70, &["the lock \"job\" is lost"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_holds_a_lock_for_its_steps_and_no_longer() {
    let (stage, _redis) = Stage::on_redis().await;
    let url = &stage.url;
    let begin =
        format!("exec 3< <({POLYLOCK} hold job -w 10s --pid $$); lock=$!; read -r token <&3 || exit 9;");
    let steps =
        format!("{begin} {POLYLOCK} run job -n -- true; echo busy $?; kill $lock; wait $lock; echo code $?");
    shell(url, &steps).await.is(0, &["busy 75", "code 0"]);
    stage.sh("-n", "echo ran").await.is(0, &["ran"]);
    // A script that is killed releases nothing itself.
    shell(url, &format!("bash -c '{begin} kill -KILL $$'; echo killed")).await.is(0, &["killed"]);
    stage.sh("-w 30s --ttl 5s", "echo ran").await.is(0, &["ran"]);
    // Without a lock there is no token.
    let guard = take(&stage.locks, "job").await;
    shell(url, &begin.replace("10s", "2s")).await.is(9, &["is busy"]);
    give_back(guard).await;
    stage.waits(0).await;
    Run::of(hold(url, "--pid 999999999")).await.is(64, &["cannot watch the process"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_lost_or_not_released_is_no_success() {
    let (stage, redis) = Stage::on_redis().await;
    // Once it goes on, the signal and the loss are there.
    let paused = stage.holds("--ttl 2s").await;
    paused.signal(Signal::STOP);
    until("the lock expires", async || !stage.is_held().await).await;
    paused.signal(Signal::TERM);
    paused.signal(Signal::CONT);
    paused.ends_as(70, &["the lock \"job\" is lost"]).await;
    // Only the release notices.
    let flushed = stage.holds("").await;
    redis.call(&["FLUSHALL"]).await;
    flushed.signal(Signal::TERM);
    flushed.ends_as(70, &["the lock \"job\" was lost before its release"]).await;
    for (signals, part) in [
        (&[Signal::TERM][..], "was not released: "),
        (&[Signal::TERM, Signal::INT], "ended the release before the store answered"),
    ] {
        let held = stage.holds("").await;
        redis.stop();
        signals.iter().for_each(|signal| held.signal(*signal));
        held.ends_as(69, &[part]).await;
        redis.cont();
        redis.call(&["FLUSHALL"]).await;
    }
}
