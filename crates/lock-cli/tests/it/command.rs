//! The command that `polylock run` runs: its streams, its exit code, its surroundings, and why it does not run at all.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{POLYLOCK, Run, Stage, has_ended, run, sh, shell};
use lock_testkit::{EtcdServer, RedisFive, RedisServer, ZooKeeper, give_back, take};
use rustix::process::{Signal, kill_process};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_its_streams_its_exit_code_and_its_token() {
    let (stage, _redis) = Stage::on_redis().await;
    let input: Vec<u8> = (0..1_048_576_u32).map(|n| b'a' + (n % 23) as u8).collect();
    let cat = Run::with_input(run(&stage.url, "", &["cat"]), input.clone()).await;
    assert!(cat.code == 0 && cat.stdout.as_bytes() == input, "{}: {}", cat.code, cat.stdout.len());

    for code in [0, 1, 64, 70, 75, 127, 255] {
        stage.sh("", &format!("echo out; echo err >&2; exit {code}")).await.is(code, &["out", "err"]);
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("USR2", 140)] {
        stage.sh("", &format!("kill -{signal} $$")).await.is(code, &[]);
    }
    let token = async || {
        let run = stage.sh("", "echo $POLYLOCK_NAME $POLYLOCK_TOKEN").await;
        run.stdout.trim().strip_prefix("job ").unwrap().parse::<u64>().unwrap()
    };
    assert!(token().await < token().await);

    // As a shell would: no shell is involved, nothing is left of the closed stream, and SIGPIPE is as ever.
    Run::of(run(&stage.url, "", &["echo", "$HOME", "a  b"])).await.is(0, &["$HOME a  b"]);
    for (line, parts) in [
        ("sh -c 'echo lost; exit 5' >&-; echo $?", &["5"][..]),
        ("sh -c 'yes; exit 9' | head -1; echo ${PIPESTATUS[0]}", &["y\n", "9"]),
        ("yes | head -1; echo ${PIPESTATUS[0]}", &["y\n", "141"]),
    ] {
        shell(&stage.url, &format!("{POLYLOCK} run job -- {line}")).await.is(0, parts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_that_swap_are_built_in() {
    let dir = tempfile::tempdir().unwrap();
    let mut urls = vec![format!("sqlite://{}/locks.db", dir.path().display())];
    let etcd = if EtcdServer::is_missing() { None } else { Some(EtcdServer::start().await.unwrap()) };
    urls.extend(etcd.as_ref().map(EtcdServer::url));
    for url in urls {
        sh(&url, "-n", "echo $POLYLOCK_NAME").await.is(0, &["job"]);
        sh(&url, "-n", &format!("{POLYLOCK} run --url '{url}' -n job -- echo twice"))
            .await
            .is(75, &["is busy"]);
        shell(&url, &format!("{POLYLOCK} doctor")).await.is(0, &[]);
        shell(&url, &format!("{POLYLOCK} holders job")).await.is(0, &["job"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_gets_no_lock_says_why() {
    let (stage, _redis) = Stage::on_redis().await;
    let guard = take(&stage.locks, "job").await;
    for (options, code) in [("-n", 75), ("-w 1.5", 75), ("-w 1500ms -E 9", 9), ("-n -E 0", 0)] {
        stage.sh(options, "echo ran").await.is(code, &["\"job\" is busy", "polylock holders job"]);
    }
    stage.sh("--shared -n", "echo ran").await.is(75, &["is busy"]);
    give_back(guard).await;
    let reader = stage.locks.rw("job").read().await.unwrap();
    stage.sh("--shared -n", "echo ran").await.is(0, &["ran"]);
    stage.sh("-n", "echo ran").await.is(75, &["is busy"]);
    give_back(reader).await;
    let permit = stage.locks.semaphore("job", 2).acquire().await.unwrap();
    stage.sh("--permits 2 -n", "echo ran").await.is(0, &["ran"]);
    stage.sh("--permits 1 -n", "echo ran").await.is(75, &["is busy"]);
    give_back(permit).await;

    for (url, options, code, part) in [
        ("", "", 64, "no store is named"),
        ("memory://", "", 64, "end with this process"),
        ("consul://a", "", 64, "consul:// is unknown"),
        (&*stage.url, "--json", 64, "leave out --json"),
        (&*stage.url, "--ttl soon", 64, "--ttl"),
        (&*stage.url, "-n -w 1", 64, "cannot be used with"),
        (&*stage.url, "--permits 0", 64, "--permits"),
        ("redis://127.0.0.1:1", "", 69, "way out: "),
    ] {
        let run = sh(url, options, "echo ran").await;
        run.is(code, &[part]);
        assert!(!run.stdout.contains("ran\n"), "{run:?}");
    }
    let mut unreadable = run(&stage.url, "--bad", &["cat", "--json"]);
    unreadable.arg(OsStr::from_bytes(b"\xff"));
    Run::of(unreadable).await.is(64, &["error: unexpected argument '--bad'"]);
    Run::of(run(&stage.url, "", &["no-such-command"])).await.is(127, &["does not exist", "sh -c"]);
    let text = stage.file("text");
    fs::write(&text, "").unwrap();
    let command = [text.to_str().unwrap()];
    Run::of(run(&stage.url, "", &command)).await.is(126, &["cannot be run", "chmod +x"]);
    assert!(!stage.is_held().await);
}

/// Fifty processes that start at once are slow to hear of any answer.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_runs_lose_no_increment() {
    let redis = RedisServer::start().await.unwrap();
    let stage = Stage::at(&format!("{}?command_timeout=5s&connect_timeout=10s", redis.url())).await;
    let file = stage.file("number");
    fs::write(&file, "0").unwrap();
    let script = format!("n=$(cat {0}); sleep 0.01; echo $((n+1)) > {0}", file.display());
    let runs = (0..50).map(|_| {
        let command = run(&stage.url, "", &["sh", "-c", &script]);
        tokio::spawn(async move { Run::of(command).await.code })
    });
    for run in Vec::from_iter(runs) {
        assert_eq!(run.await.unwrap(), 0);
    }
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), "50");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_can_be_kept_for_longer_than_the_command_runs() {
    let (stage, _redis) = Stage::on_redis().await;
    let keeps = "-n --ttl 1s --hold-at-least 10s";
    let began = Instant::now();
    stage.sh(keeps, "echo ran").await.is(0, &["ran"]);
    stage.sh(keeps, "echo ran").await.is(75, &["busy"]);
    stage.sh("-w 60s", "echo ran").await.is(0, &["ran"]);
    // The second polylock could begin before the lock of the first ended; not so the third.
    assert!(began.elapsed() >= Duration::from_secs(10), "{:?}", began.elapsed());
    let zk = ZooKeeper::start().await.unwrap();
    sh(&zk.url(), keeps, "echo ran").await.is(64, &["hold_at_least"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_kept_when_polylock_or_its_command_is_killed() {
    let (redis, masters) = (RedisServer::start().await.unwrap(), RedisFive::start().await.unwrap());
    for url in [redis.url(), masters.url()] {
        for is_polylock in [true, false] {
            let (stage, began) = (Stage::at(&url).await, Instant::now());
            let keeps = "-n --ttl 1s --hold-at-least 8s";
            let holder = stage.running(keeps, "echo running; exec sleep 60").await;
            let command = holder.command();
            if is_polylock {
                holder.process.kill();
                has_ended(command).await;
            } else {
                kill_process(command, Signal::KILL).unwrap();
                holder.ends_as(137, &[]).await;
            }
            stage.sh("-w 60s", "echo ran").await.is(0, &["ran"]);
            assert!(began.elapsed() >= Duration::from_secs(8), "{:?}", began.elapsed());
        }
    }
}

/// systemd names the process that it starts, and the library of a service compares that with itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_the_sockets_and_the_watchdog_of_its_service() {
    let (stage, _redis) = Stage::on_redis().await;
    let socket = stage.file("socket");
    fs::write(&socket, "of the socket").unwrap();
    let service = async |variables: &str, check: &str| {
        let run = format!("exec env {variables} {POLYLOCK} run job -- sh -c '{check}'");
        shell(&stage.url, &format!("{run} 3<{}", socket.display())).await
    };
    let ours = "LISTEN_PID=$$ LISTEN_FDS=1 WATCHDOG_PID=$$ WATCHDOG_USEC=30000000 LISTEN_PIDFDID=1";
    let check = "test $LISTEN_PID = $$ && test $WATCHDOG_PID = $$ && test -z \"$LISTEN_PIDFDID\" && cat <&3";
    service(ours, check).await.is(0, &["of the socket"]);
    // They are meant for another process.
    service("LISTEN_PID=1 WATCHDOG_PID=1", "test $LISTEN_PID$WATCHDOG_PID = 11").await.is(0, &[]);
    service("", "test -z \"$LISTEN_PID$WATCHDOG_PID\"").await.is(0, &[]);
}

/// In namespaces of its own; `None` where there are none.
async fn unshared(stage: &Stage, options: &str, words: &[&str]) -> Option<Run> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).args(options.split(' ')).args(words);
    command.env("POLYLOCK_URL", &stage.url);
    let run = Run::of(command).await;
    let lacks = run.stderr.starts_with("unshare:") || run.stderr.starts_with("mount:");
    if lacks {
        eprintln!("left out: no namespaces here");
    }
    (!lacks).then_some(run)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_of_processes_is_no_obstacle() {
    let (stage, _redis) = Stage::on_redis().await;
    let no_zombies = "! grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | grep .";
    for (namespace, check) in [
        // Its /proc is that of all processes.
        ("--pid --fork", "true"),
        // It is process 1 itself, and inherits all orphans.
        ("--pid --fork --mount-proc", no_zombies),
    ] {
        let orphans = format!("for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; sleep 0.5; {check} && exit 7");
        let words = [POLYLOCK, "run", "job", "--", "sh", "-c", &orphans];
        let Some(run) = unshared(&stage, namespace, &words).await else { return };
        run.is(7, &[]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_proc_says_so() {
    let (stage, _redis) = Stage::on_redis().await;
    let script = format!("mount -t tmpfs none /proc && exec {POLYLOCK} run job -- echo began");
    let Some(run) = unshared(&stage, "--mount", &["sh", "-c", &script]).await else { return };
    run.is(70, &["/proc is not mounted", "mount -t proc"]);
    assert!(!run.stdout.contains("began"), "{run:?}");
}
