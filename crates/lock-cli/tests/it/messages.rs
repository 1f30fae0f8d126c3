//! What `polylock run` says, and what it leaves unsaid: to cron, to people, and about its own mistakes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::common::{POLYLOCK, Run, Stage, run, sh, shell};
use lock_testkit::RedisServer;
use polylock::{LockOptions, Locks};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn busy_is_silent_or_says_who_holds_the_lock_and_unavailable_is_never_silent() {
    let (redis, folder) = (RedisServer::start().await.unwrap(), TempDir::new().unwrap());
    for url in [redis.url(), format!("flock://{}", folder.path().display())] {
        let locks = Locks::connect(&url).await.unwrap();
        let mutex = locks.mutex_with("job", LockOptions::new().label("nightly")).unwrap();
        let guard = mutex.acquire().await.unwrap();
        let holder = format!("held by pid {} on ", std::process::id());
        let busy = sh(&url, "-n", "echo ran").await;
        busy.is(75, &["\"job\" is busy", &holder, "(nightly) for ", "wait for it with -w"]);
        let busy = sh(&url, "-w 5", "echo ran").await;
        busy.is(75, &["waiting for the lock \"job\", held by pid", "\"job\" is busy", &holder]);
        assert!(!busy.stderr.contains("-w DURATION"), "{busy:?}");
        for (options, code) in [("-n -q -E 0", 0), ("-w 2 --quiet", 75)] {
            let busy = sh(&url, options, "echo ran").await;
            assert_eq!((busy.code, &*busy.stdout, &*busy.stderr), (code, "", ""));
        }
        guard.release().await.unwrap();
        let steps =
            ["connected", "acquired the lock \"job\" with token ", "exit code 3", "released the lock"];
        sh(&url, "-n --verbose", "exit 3").await.is(3, &steps);
        let free = sh(&url, "-n", "exit 3").await;
        assert_eq!((free.code, &*free.stderr), (3, ""));
    }
    redis.kill();
    sh(&redis.url(), "-n -q -E 0", "echo ran").await.is(69, &["cannot connect"]);
    sh(&redis.url(), "-n -q -v", "echo ran").await.is(64, &["cannot be used with"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_inside_another_does_not_wait_for_itself() {
    let (redis, folder) = (RedisServer::start().await.unwrap(), TempDir::new().unwrap());
    let files = |name: &str| format!("flock://{}/{name}", folder.path().display());
    let nested = |options: &str| format!("{POLYLOCK} run {options} job -- echo ran");
    for url in [redis.url(), files("one")] {
        let refuses = ["would wait for itself", "(sh)"];
        for inner in ["", "--shared", "--permits 2"] {
            let outer = sh(&url, "--keep-url", &nested(inner)).await;
            outer.is(64, &refuses);
        }
        // What does not wait for ever may wait.
        sh(&url, "--keep-url", &nested("-w 2 -E 9")).await.is(9, &["is busy: held by pid", "(sh)"]);
        let between = format!("{POLYLOCK} run --keep-url other -- {}", nested(""));
        sh(&url, "--keep-url", &between).await.is(64, &refuses);
        sh(&url, "--keep-url", &nested("-n")).await.is(75, &["is busy: held by pid", "(sh)"]);
        sh(&url, "--keep-url --shared", &nested("")).await.is(64, &refuses);
        sh(&url, "--keep-url --shared", &nested("--shared")).await.is(0, &["ran"]);
        let another_store = nested(&format!("--url {}", files("two")));
        sh(&url, "--keep-url", &another_store).await.is(0, &["ran"]);
        // What holds the lock beside it ends some time.
        let beside =
            format!("{POLYLOCK} run other -- sleep 1 & sleep 0.3; {POLYLOCK} run other -- echo ran; wait");
        sh(&url, "--keep-url", &beside).await.is(0, &["ran"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sharers_and_permits_are_nested_as_long_as_they_do_not_wait_for_themselves() {
    let (stage, _redis) = Stage::on_redis().await;
    let url = stage.url.clone();
    let nested = |options: &str| format!("{POLYLOCK} run {options} job -- echo ran");
    sh(&url, "--keep-url --permits 2", &nested("--permits 2")).await.is(0, &["ran"]);
    let refused = sh(&url, "--keep-url --permits 1", &nested("--permits 1")).await;
    refused.is(64, &["has all its permits (1) around this command", "would wait for itself"]);
    for options in ["--shared", "--permits 3"] {
        let queued = format!("until {POLYLOCK} holders job | grep -q waiter; do sleep 0.05; done");
        let [inner, bounded] = [nested(options), nested(&format!("{options} -w 3"))];
        let script = format!(
            "{POLYLOCK} hold -q -w 20 job & waiter=$!; {queued}; {bounded}; timeout 10 {inner}; code=$?; kill $waiter; exit $code"
        );
        let run = sh(&url, &format!("--keep-url {options}"), &script).await;
        run.is(64, &["\"job\" is busy", "would wait for itself", "has a waiter, pid "]);
        assert!(!run.stdout.contains("ran"), "{run:?}");
        stage.waits(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_does_not_see_the_password_of_the_store() {
    let redis = RedisServer::builder().password("s3cret").start().await.unwrap();
    let url = format!("redis://:s3cret@{}", redis.addr());
    let env = |options: &str| {
        let mut command = run(&url, options, &["env"]);
        command.env("POLYLOCK_MIGRATE_URL", format!("migrate://shop?from={url}"));
        Run::of(command)
    };
    let hidden = env("").await;
    hidden.is(0, &["POLYLOCK_TOKEN=", "POLYLOCK_NAME=job"]);
    assert!(!hidden.stdout.contains("s3cret"), "{hidden:?}");
    env("--keep-url").await.is(0, &["POLYLOCK_URL=redis://:s3cret@", "POLYLOCK_MIGRATE_URL="]);
    sh(&url, "", &format!("{POLYLOCK} run inner -- true")).await.is(64, &["no store is named", "--keep-url"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_is_answered_by_the_way_to_write_it() {
    let (redis, folder) = (RedisServer::start().await.unwrap(), TempDir::new().unwrap());
    let url = redis.url();
    let form = async |arguments: &str| shell(&url, &format!("{POLYLOCK} {arguments}")).await;
    for line in ["run a true", "run -n a true -l", "run true true", "run a true --url redis://:s3cret@h"] {
        let part = "way out: write the command after --: polylock run NAME -- true ...";
        form(line).await.is(64, &[part]);
    }
    form("run a").await.is(64, &["polylock run NAME -- COMMAND"]);
    // What the command line has besides may be secret.
    for line in
        ["run a mysql -ps3cret", "run a mysql --url redis:/me:s3cret@h", "run a mysql --json -ps3cret"]
    {
        let hint = form(line).await;
        hint.is(64, &["polylock run NAME -- mysql ..."]);
        assert!(!format!("{hint:?}").contains("s3cret"), "{hint:?}");
    }
    let same = format!("exec -a polylock {POLYLOCK} run a polylock run b");
    shell(&url, &same).await.is(64, &["polylock run NAME -- polylock ..."]);
    form("list").await.is(64, &["way out: polylock holders --all"]);
    form("unlock a").await.is(64, &["way out: polylock break NAME"]);
    form("doctor true").await.is(64, &["unexpected argument"]);
    for (url, part) in [
        ("localhost:6379", "the URL \"localhost:6379\" is malformed: it has no ://"),
        ("redsi://h", "did you mean redis://?"),
        ("redis://h?ttl=10", "10s for seconds"),
    ] {
        sh(url, "", "true").await.is(64, &[part]);
    }
    let help = form("run --help").await;
    assert!(help.stdout.contains("-- <COMMAND>") && !help.stdout.contains("--json"), "{help:?}");
    let pages = folder.path().display();
    form(&format!("man --dir {pages}")).await.is(0, &[]);
    let page = fs::read_to_string(folder.path().join("polylock-run.1")).unwrap();
    assert!(page.contains("<NAME> \\-\\- <COMMAND>"), "{page}");

    let script = folder.path().join("script");
    for (line, interpreter) in
        [("#! /no/such/interpreter -x\n", "/no/such/interpreter"), ("#!/bin/sh\r\n", "/bin/sh\\r")]
    {
        fs::write(&script, line).unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        let missing = format!("needs the interpreter \"{interpreter}\", which does not exist");
        Run::of(run(&url, "", &[script.to_str().unwrap()])).await.is(127, &[&missing]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_has_to_read_what_it_prints() {
    let redis = RedisServer::start().await.unwrap();
    let url = redis.url();
    // A pipe whose reader is gone.
    let unread = "exec 3> >(exec true); wait $!; ";
    for command in ["holders --all", "man", "completions bash", "run --help", "run job -- true -v", "doctor"]
    {
        let piped = shell(&url, &format!("{unread} {POLYLOCK} {command} >&3 2>&3")).await;
        assert!(![101, 134].contains(&piped.code), "{command}: {piped:?}");
    }
    shell(&url, &format!("{POLYLOCK} run job -- / 2>&-")).await.is(126, &[]);
}
