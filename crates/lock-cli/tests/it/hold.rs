//! `polylock hold`: a lock for several steps of one script.

use std::process::Command;
use std::time::Duration;

use crate::common::{POLYLOCK, Run, eventually};
use crate::run::{Background, sh, shell, waits};
use lock_testkit::RedisServer;
use polylock::Locks;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::sleep;

fn hold(url: &str, options: &str) -> Command {
    let mut hold = Command::new("env");
    hold.args(["--default-signal=INT,QUIT,HUP", POLYLOCK, "hold", "job"]).args(options.split_whitespace());
    hold.env("POLYLOCK_URL", url);
    hold
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_until_a_signal() {
    let (redis, folder) = (RedisServer::start().await.unwrap(), TempDir::new().unwrap());
    for url in [redis.url(), format!("flock://{}", folder.path().display())] {
        let (locks, folder) = (Locks::connect(&url).await.unwrap(), TempDir::new().unwrap());
        let token = async || locks.inspect("job").await.unwrap().holders[0].token.unwrap().to_string();
        // Two at once, as `timeout` sends them, are no impatience.
        let twice = &[Signal::TERM, Signal::INT][..];
        for signals in [&[Signal::TERM][..], &[Signal::INT], &[Signal::HUP], twice, twice, twice] {
            let held = Background::of(folder.path(), &hold(&url, ""));
            eventually("a token", async || held.text().ends_with('\n')).await;
            assert_eq!(held.text().trim(), token().await);
            sh(&url, "-n", "echo ran").await.is(75, &["is busy: held by pid", "(polylock hold)"]);
            Run::of(hold(&url, "-n -E 9")).await.is(9, &["is busy"]);
            signals.iter().for_each(|signal| held.signal(*signal));
            assert_eq!(held.ends().await.0, 0);
            assert!(!locks.inspect("job").await.unwrap().is_held());
        }
        let held = Background::of(folder.path(), &hold(&url, "--json"));
        held.prints("\"token\"").await;
        // A wait ends as that of any program.
        let waiter = Background::of(folder.path(), &hold(&url, ""));
        waiter.prints("waiting for the lock").await;
        waiter.signal(Signal::TERM);
        assert_eq!(waiter.ends().await.0, 143);
        held.signal(Signal::TERM);
        assert_eq!(held.ends().await.0, 0);
    }
    // The next renewal notices the loss.
    let held = Background::of(folder.path(), &hold(&redis.url(), "--ttl 2s"));
    let locks = Locks::connect(&redis.url()).await.unwrap();
    eventually("a token", async || held.text().ends_with('\n')).await;
    assert!(locks.break_lock("job").await.unwrap());
    let (code, text) = held.ends().await;
    assert!(code == 70 && text.contains("the lock \"job\" is lost"), "{code}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_holds_a_lock_for_its_steps_and_no_longer() {
    let redis = RedisServer::start().await.unwrap();
    let url = redis.url();
    let begin =
        format!("exec 3< <({POLYLOCK} hold job -w 10s --pid $$); lock=$!; read -r token <&3 || exit 9;");
    let steps =
        format!("{begin} {POLYLOCK} run job -n -- true; echo busy $?; kill $lock; wait $lock; echo code $?");
    shell(&url, &steps).await.is(0, &["busy 75", "code 0"]);
    sh(&url, "-n", "echo ran").await.is(0, &["ran"]);
    // A script that is killed releases nothing itself.
    shell(&url, &format!("bash -c '{begin} kill -KILL $$'; echo killed")).await.is(0, &["killed"]);
    sh(&url, "-w 30s --ttl 5s", "echo ran").await.is(0, &["ran"]);
    // Without a lock there is no token.
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.mutex("job").acquire().await.unwrap();
    shell(&url, &begin.replace("10s", "2s")).await.is(9, &["is busy"]);
    guard.release().await.unwrap();
    waits(&locks, 0).await;
    Run::of(hold(&url, "--pid 999999999")).await.is(64, &["cannot watch the process"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_lost_or_not_released_is_no_success() {
    let (redis, folder) = (RedisServer::start().await.unwrap(), TempDir::new().unwrap());
    let holds = async |options: &str| {
        let held = Background::of(folder.path(), &hold(&redis.url(), options));
        eventually("a token", async || held.text().ends_with('\n')).await;
        held
    };
    let fails = async |held: Background, code: i32, part: &str| {
        let (ended, text) = held.ends().await;
        assert!(ended == code && text.contains(part), "{ended}: {text}");
    };
    // Once it goes on, the signal and the loss are there.
    let paused = holds("--ttl 2s").await;
    paused.signal(Signal::STOP);
    sleep(Duration::from_secs(3)).await;
    paused.signal(Signal::TERM);
    paused.signal(Signal::CONT);
    fails(paused, 70, "the lock \"job\" is lost").await;
    // Only the release notices.
    let flushed = holds("").await;
    redis.command(&["FLUSHALL"]).await.unwrap();
    flushed.signal(Signal::TERM);
    fails(flushed, 70, "the lock \"job\" was lost before its release").await;
    for (signals, part) in [
        (&[Signal::TERM][..], "was not released: "),
        (&[Signal::TERM, Signal::INT], "ended the release before the store answered"),
    ] {
        let held = holds("").await;
        redis.stop();
        signals.iter().for_each(|signal| held.signal(*signal));
        fails(held, 69, part).await;
        redis.cont();
        redis.command(&["FLUSHALL"]).await.unwrap();
    }
}
