//! `polylock holders`, `break` and `doctor` on real servers, and what the command says about itself.

use std::process::Command;

use crate::common::{POLYLOCK, Run, Terminal};
use lock_testkit::{RedisCluster, RedisFive, RedisServer, ZooKeeper, give_back, take, until};
use polylock::{LockOptions, Locks};
use serde_json::Value;
use tempfile::TempDir;

async fn polylock(url: &str, words: &str) -> Run {
    let mut command = Command::new(POLYLOCK);
    command.args(words.split_whitespace()).env("POLYLOCK_URL", url);
    Run::of(command).await
}

async fn json(url: &str, words: &str) -> (i32, Value) {
    let run = polylock(url, &format!("{words} --json")).await;
    (run.code, run.document())
}

/// Waits until so many wait for the lock, as seen from outside.
async fn waits(locks: &Locks, waiters: usize) {
    let waiting = async || locks.inspect("orders/1").await.is_ok_and(|state| state.waiters == waiters);
    until("the number of waiters", waiting).await;
}

/// Whoever may write to a store chooses labels, values and the texts of tombstones.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_have_written_forges_no_line() {
    const FORGED: &str = "x\nfree\u{1b}[2K\u{9b}2K\u{202e}";
    let (redis, zk) = (RedisServer::start().await.unwrap(), ZooKeeper::start().await.unwrap());
    let folder = TempDir::new().unwrap();
    let is_printable = |text: &str| {
        let forges = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!text.contains(forges), "{text:?}");
    };
    for url in [redis.url(), zk.url(), format!("flock://{}", folder.path().display())] {
        let locks = Locks::connect(&url).await.unwrap();
        let guard = locks.mutex_with("orders/1", LockOptions::new().label(FORGED)).unwrap();
        let guard = guard.acquire().await.unwrap();
        for (words, code, lines) in [
            ("holders orders/1", 0, 2),
            ("holders --all", 0, 2),
            ("run -n orders/1 -- true", 75, 2),
            ("run -w 2s orders/1 -- true", 75, 3),
        ] {
            let run = polylock(&url, words).await;
            let text = format!("{}{}", run.stdout, run.stderr);
            assert!(run.code == code && text.lines().count() == lines, "{words}: {}: {text}", run.code);
            is_printable(&text);
        }
        let run = polylock(&url, "holders orders/1 --json").await;
        is_printable(&run.stdout);
        let label = &run.document()["locks"][0]["holders"][0]["holder"]["known"]["label"];
        assert_eq!(*label, Value::from(FORGED));
        give_back(guard).await;
    }
    // That of a migration, as no process of this library writes it.
    let to = "zk://h%0Afree%1B%5B2K%C2%9B%E2%80%AE";
    let tombstone = format!("polylock:moved to={to} namespace=a%0Ab lock=gone written=1 life=1 newest=1");
    redis.command(&["SET", "lock:gone", &tombstone]).await.unwrap();
    redis.command(&["SET", "lock:foreign", FORGED]).await.unwrap();
    for (words, code, lines) in [
        ("holders gone", 0, 2),
        ("run -n gone -- true", 70, 2),
        ("break --yes gone", 1, 1),
        ("holders foreign", 0, 2),
        ("run -n foreign -- true", 75, 2),
    ] {
        let run = polylock(&redis.url(), words).await;
        let text = format!("{}{}", run.stdout, run.stderr);
        assert!(run.code == code && text.lines().count() == lines, "{words}: {}: {text}", run.code);
        is_printable(&text);
    }
}

/// A name that this library refuses may be that of another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_cannot_be_inspected_hides_no_other_one() {
    let cluster = RedisCluster::start_n(1, false).await.unwrap();
    let server = &cluster.masters()[0];
    server.command(&["SET", "lock:a}b", "foreign", "PX", "60000"]).await.unwrap();
    for url in [server.url(), cluster.url()] {
        polylock(&url, "holders a}b").await.is(64, &["slot", "way out"]);
        polylock(&url, "holders --all").await.is(64, &["slot", "way out"]);
        let guard = Locks::connect(&url).await.unwrap().mutex("good").acquire().await.unwrap();
        polylock(&url, "holders --all").await.is(0, &["good", "exclusive", "a}b", "slot"]);
        let (code, document) = json(&url, "holders --all").await;
        assert_eq!((code, &document["locks"][0]["name"]), (0, &Value::from("good")), "{document}");
        assert_eq!(document["refused"][0]["name"], "a}b", "{document}");
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_and_waiters_on_redis() {
    let redis = RedisServer::start().await.unwrap();
    holders_and_waiters(&redis.url(), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_and_waiters_on_zookeeper() {
    let zk = ZooKeeper::start().await.unwrap();
    // Each of them is a process of its own.
    holders_and_waiters(&format!("{}?session=private", zk.url()), false).await;
}

async fn holders_and_waiters(url: &str, expires: bool) {
    let (observer, holder) = (Locks::connect(url).await.unwrap(), Locks::connect(url).await.unwrap());
    polylock(url, "holders orders/1").await.is(0, &["the lock \"orders/1\" is free"]);
    polylock(url, "holders --all").await.is(0, &["no lock is held"]);
    let labelled = |label: &str| LockOptions::new().label(label);
    let mutex = holder.mutex_with("orders/1", labelled("nightly \u{1b}[2J")).unwrap();
    let guard = mutex.acquire().await.unwrap();
    let mut waiters = Vec::new();
    for label in ["first", "second"] {
        let locks = Locks::connect(url).await.unwrap();
        let mutex = locks.rw_with("orders/1", labelled(label)).unwrap();
        waiters.push(tokio::spawn(async move { mutex.read().await }));
        waits(&observer, waiters.len()).await;
    }
    let pid = std::process::id().to_string();
    let token = guard.token().to_string();
    let all = polylock(url, "holders --all").await;
    all.is(0, &["LOCK", "orders/1", "exclusive", "nightly \\u{1b}[2J", &pid, "s ago", &token]);
    let lines: Vec<_> = all.stdout.lines().collect();
    assert!(
        lines[2].contains("waiter 1") && lines[2].contains("first") && lines[2].contains("shared"),
        "{lines:?}"
    );
    assert!(lines[3].contains("waiter 2") && lines[3].contains("second"), "{lines:?}");

    let (code, document) = json(url, "holders orders/1").await;
    let lock = &document["locks"][0];
    assert_eq!((code, &lock["name"], &lock["waiters"]), (0, &"orders/1".into(), &2.into()), "{document}");
    let first = &lock["holders"][0];
    assert_eq!((&first["token"], &first["mode"]), (&guard.token().get().into(), &"exclusive".into()));
    assert_eq!(first["holder"]["known"]["pid"], std::process::id(), "{document}");
    assert_eq!(first["remaining_ms"].is_u64(), expires, "{document}");
    assert_eq!(lock["queue"][1]["waiter"]["known"]["label"], "second", "{document}");
    give_back(guard).await;
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_master_is_shown() {
    let masters = RedisFive::start().await.unwrap();
    let locks = Locks::connect(&masters.url()).await.unwrap();
    let guard = take(&locks, "orders/1").await;
    masters.servers()[4].kill();
    let pid = format!("held by pid {}", std::process::id());
    let run = polylock(&masters.url(), "holders orders/1").await;
    run.is(0, &["exclusive", "unknown: ", &pid]);
    assert_eq!(run.stdout.matches(&pid).count(), 4, "{run:?}");
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_that_was_shown_loses_its_lock() {
    let redis = RedisServer::start().await.unwrap();
    let zk = ZooKeeper::start().await.unwrap();
    for url in [redis.url(), zk.url()] {
        polylock(&url, "break orders/1").await.is(64, &["not a terminal", "--yes"]);
        let locks = Locks::connect(&url).await.unwrap();
        polylock(&url, "break orders/1 --yes").await.is(1, &["is free"]);
        let earlier = take(&locks, "orders/1").await;
        let old = earlier.token();
        give_back(earlier).await;
        let guard = take(&locks, "orders/1").await;
        let stale = polylock(&url, &format!("break orders/1 --yes --token {old}")).await;
        stale.is(1, &["another one holds"]);
        assert!(guard.verify().await.unwrap() == polylock::GuardState::Valid);

        let variables = [("POLYLOCK_URL", &*url)];
        for (answer, code, text) in [("n\n", 1, "nothing was changed"), ("y\n", 0, "the lock is broken")] {
            let mut terminal = Terminal::open(&format!("{POLYLOCK} break orders/1"), &variables);
            terminal.shows("Break its lock? [y/N]", 1).await;
            assert!(guard.is_valid());
            terminal.types(answer);
            terminal.ends_as(code, &[text]).await;
        }
        assert!(guard.verify().await.unwrap() != polylock::GuardState::Valid);

        let guard = take(&locks, "orders/1").await;
        let (code, broken) = json(&url, &format!("break orders/1 --yes --token {}", guard.token())).await;
        assert_eq!((code, &broken["broken"]), (0, &true.into()), "{broken}");
        let readers =
            [locks.rw("orders/1").read().await.unwrap(), locks.rw("orders/1").read().await.unwrap()];
        polylock(&url, "break orders/1 --yes").await.is(64, &["2 holders share", "--token"]);
        let last = readers[1].token();
        polylock(&url, &format!("break orders/1 --yes --token {last}")).await.is(0, &["is broken"]);
        assert_eq!(locks.inspect("orders/1").await.unwrap().holders.len(), 1);
    }
    // A client of another library has no token.
    redis.command(&["SET", "lock:orders/2", "someone", "PX", "60000"]).await.unwrap();
    let foreign = polylock(&redis.url(), "break orders/2 --yes").await;
    foreign.is(0, &["someone", "keeps no token", "is broken"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_files_are_broken_too() {
    let folder = TempDir::new().unwrap();
    let url = format!("flock://{}", folder.path().display());
    let locks = Locks::connect(&url).await.unwrap();
    let guard = take(&locks, "orders/1").await;
    polylock(&url, "break orders/1 --yes --token 1").await.is(1, &["another one holds"]);
    polylock(&url, "break orders/1 --yes").await.is(0, &["is held by", "is broken"]);
    assert!(guard.verify().await.unwrap() != polylock::GuardState::Valid);
    let readers = [locks.rw("orders/1").read().await.unwrap(), locks.rw("orders/1").read().await.unwrap()];
    polylock(&url, "break orders/1 --yes").await.is(64, &["2 holders share", "--all"]);
    let one = format!("break orders/1 --yes --token {}", readers[0].token());
    polylock(&url, &one).await.is(64, &["2 holders share", "end the process"]);
    polylock(&url, "break orders/1 --yes --all").await.is(0, &["is broken"]);
    polylock(&url, "break orders/1 --yes --all").await.is(1, &["is free"]);
    for reader in readers {
        assert!(reader.verify().await.unwrap() != polylock::GuardState::Valid);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_run_makes_a_directory() {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("mistyped");
    let url = format!("flock://{}", dir.display());
    let missing = ["mistyped does not exist"];
    for (words, code) in
        [("holders orders/1", 0), ("holders --all", 0), ("break orders/1 --yes", 1), ("doctor", 1)]
    {
        polylock(&url, words).await.is(code, &missing);
        assert!(!dir.exists(), "{words}");
    }
    polylock(&url, "run orders/1 -- true").await.is(0, &missing);
    let again = polylock(&url, "run orders/1 -- true").await;
    assert!(dir.is_dir() && again.stderr.is_empty(), "{again:?}");
    polylock(&url, "doctor").await.is(0, &["No warning"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_examines_the_servers() {
    let evicts = RedisServer::builder().maxmemory_policy("allkeys-lru").config("maxmemory", "100mb");
    let redis = evicts.start().await.unwrap();
    polylock(&redis.url(), "doctor").await.is(1, &["warning", "allkeys-lru", "way out: "]);
    let (code, document) = json(&redis.url(), "doctor").await;
    assert_eq!((code, &document["passed"]), (1, &false.into()), "{document}");
    let zk = ZooKeeper::start().await.unwrap();
    let (code, document) = json(&zk.url(), "doctor").await;
    assert_eq!(code == 0, document["passed"] == true, "{document}");
    redis.kill();
    for words in ["doctor", "holders orders/1", "holders --all", "break orders/1 --yes"] {
        polylock(&redis.url(), words).await.is(69, &["error: redis", "way out: "]);
    }
    for (words, part) in [("holders", "<NAME|--all>"), ("break", "<NAME>"), ("holders a --all", "--all")] {
        polylock(&redis.url(), words).await.is(64, &[part]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shells_and_manuals_know_all_commands() {
    let commands = ["run", "holders", "break", "doctor", "migrate"];
    polylock("", "--version").await.is(0, &["polylock 0."]);
    for shell in ["bash", "zsh", "fish"] {
        let run = polylock("", &format!("completions {shell}")).await;
        run.is(0, &commands);
        run.is(0, &["on-lost", "busy-exit-code"]);
    }
    polylock("", "man").await.is(0, &commands);
    let folder = TempDir::new().unwrap();
    let dir = folder.path().to_str().unwrap();
    polylock("", &format!("man --dir {dir}/man1")).await.is(0, &[]);
    for page in ["polylock", "polylock-run", "polylock-holders", "polylock-break", "polylock-migrate-set"] {
        let text = std::fs::read_to_string(format!("{dir}/man1/{page}.1")).unwrap();
        assert!(text.contains(".SH"), "{page}");
    }
    for command in commands {
        polylock("", &format!("{command} --help")).await.is(0, &["Examples:", "polylock "]);
    }
    // A bash that loads the completions completes an option.
    let mut complete = Command::new("bash");
    let script = format!(
        "source <({POLYLOCK} completions bash); COMP_WORDS=(polylock run --on-); COMP_CWORD=2; _polylock polylock --on- run; \
         echo ${{COMPREPLY[@]}}"
    );
    complete.args(["-c", &script]);
    Run::of(complete).await.is(0, &["--on-lost"]);
}
