//! `polylock migrate` on real servers: what it prints, what it changes, and how it ends.

use std::process::Command;

use crate::common::{POLYLOCK, Run, Terminal};
use lock_testkit::{RedisServer, ZooKeeper, give_back, migration_url, take, until};
use polylock::{Locks, LossReason};
use serde_json::Value;

struct Servers {
    redis: RedisServer,
    zk: ZooKeeper,
}

impl Servers {
    /// Servers about which preflight warns of nothing.
    async fn start() -> Self {
        Self::with(RedisServer::builder().appendonly(true).maxmemory_policy("noeviction")).await
    }

    async fn with(redis: lock_testkit::redis::RedisOptions) -> Self {
        let (redis, zk) = tokio::join!(redis.start(), ZooKeeper::start());
        Self { redis: redis.unwrap(), zk: zk.unwrap() }
    }

    fn url(&self) -> String {
        self.url_from(&self.redis.url())
    }

    fn url_from(&self, from: &str) -> String {
        let to = format!("{}?session_timeout=10s&session=private", self.zk.url());
        migration_url("shop", &format!("{from}?ttl=5s"), &to, "")
    }

    /// A process of the fleet.
    async fn process(&self) -> Locks {
        Locks::connect(&self.url()).await.unwrap()
    }

    /// Runs `polylock migrate` with these words.
    async fn run(&self, words: &str) -> Run {
        run(&self.url(), words).await
    }

    /// Runs it with `--json`, and parses what it prints.
    async fn json(&self, words: &str) -> (i32, Value) {
        let run = self.run(&format!("{words} --json")).await;
        (run.code, run.document())
    }

    async fn value(&self, name: &str) -> Option<String> {
        let value = self.redis.command(&["GET", &format!("lock:{name}")]).await.unwrap();
        value.text().map(ToOwned::to_owned)
    }
}

async fn run(url: &str, words: &str) -> Run {
    let mut command = Command::new(POLYLOCK);
    command.arg("migrate").args(words.split_whitespace()).env("POLYLOCK_MIGRATE_URL", url);
    Run::of(command).await
}

/// `polylock migrate` in a terminal.
fn in_terminal(url: &str, words: &str) -> Terminal {
    Terminal::open(&format!("{POLYLOCK} migrate {words}"), &[("POLYLOCK_MIGRATE_URL", url)])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_broken_on_both_stores() {
    let servers = Servers::start().await;
    // Of the holder, and of the command.
    for (rung, own) in [("old", "old"), ("dual", "old"), ("old", "dual"), ("dual", "dual"), ("move", "move")]
    {
        let at = |rung: &str| format!("{}&rung={rung}", servers.url());
        let locks = Locks::connect(&at(rung)).await.unwrap();
        let guard = take(&locks, "orders/1").await;
        let broken = |words: &str| {
            let mut command = Command::new(POLYLOCK);
            command.args(["break", "orders/1", "--yes"]).args(words.split_whitespace());
            command.env("POLYLOCK_URL", at(own));
            Run::of(command)
        };
        broken("--token 1").await.is(1, &["another one holds"]);
        broken("").await.is(0, &["is held by", "is broken"]);
        assert_eq!(guard.lost().await, LossReason::Removed, "{rung} {own}");
        give_back(take(&Locks::connect(&at(own)).await.unwrap(), "orders/1").await).await;
        broken("").await.is(1, &["is free"]);
    }
}

#[tokio::test]
async fn before_anything_began() {
    let servers = Servers::start().await;
    servers.run("status").await.is(0, &["migration shop: nobody has begun it", "set shadow"]);
    let (code, status) = servers.json("status").await;
    assert_eq!((code, &status["record"], &status["namespace"]), (0, &Value::Null, &"shop".into()));

    let (code, preflight) = servers.json("preflight").await;
    assert_eq!((code, &preflight["passed"]), (0, &true.into()), "{preflight}");
    servers.run("preflight").await.is(0, &["nobody has begun this migration yet", "No warning"]);

    // Without an answer nothing is changed.
    for words in ["set dual", "finish", "back", "clean"] {
        servers.run(words).await.is(64, &["standard input is not a terminal", "--yes"]);
    }
    for words in ["finish", "back", "clean", "set new"] {
        let (code, refused) = servers.json(&format!("{words} --yes")).await;
        assert_eq!((code, &refused["error"]["kind"]), (1, &"refused_step".into()), "{words}: {refused}");
    }
    assert_eq!(servers.json("status").await.1["record"], Value::Null);

    let (code, set) = servers.json("set shadow --yes").await;
    assert_eq!(
        (code, &set["record"]["rules"][0]["rung"], &set["sessions"]),
        (0, &"shadow".into(), &0.into())
    );
    servers.run("status").await.is(0, &["*      shadow", "no process takes part", "next step: dual"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_goes_to_move_and_back() {
    let servers = Servers::start().await;
    let fleet = [servers.process().await, servers.process().await];
    for locks in &fleet {
        give_back(take(locks, "orders/1").await).await;
    }
    let (_, status) = servers.json("status").await;
    let sessions = status["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2, "{status}");
    assert!(sessions.iter().all(|session| session["member"]["rung"] == "old"), "{status}");
    let pid = std::process::id().to_string();
    servers.run("status").await.is(0, &["HOST", &pid, "open, generation 1", "next step: shadow"]);

    let set = servers.run("set dual --yes").await;
    set.is(0, &["2 sessions: 2 on old", "sets all names to dual", "Preflight: no warning"]);
    set.is(0, &["2 of 2 sessions have followed"]);
    let (_, status) = servers.json("status").await;
    let is_dual = |session: &Value| session["member"]["rung"] == "dual";
    assert!(status["sessions"].as_array().unwrap().iter().all(is_dual), "{status}");
    assert_eq!((&status["next"], &status["obstacles"]), (&"move".into(), &Value::Array(Vec::new())));

    // The last step is no rule, but a gate.
    servers.run("set new --yes").await.is(1, &["has a gate", "polylock migrate finish"]);
    servers
        .run("finish --yes")
        .await
        .is(1, &["some names are on dual", "way out: use `polylock migrate set move`"]);

    let (code, set) = servers.json("set move --names orders/* --yes").await;
    assert_eq!((code, &set["followed"], &set["sessions"]), (0, &2.into(), &2.into()), "{set}");
    give_back(take(&fleet[0], "orders/1").await).await;
    give_back(take(&fleet[1], "reports/1").await).await;
    let (_, status) = servers.json("status").await;
    assert_eq!((&status["moved"], &status["tombstones"]["count"]), (&1.into(), &1.into()), "{status}");
    servers.run("status").await.is(0, &["orders/*  move", "the shortest lives 29 days more"]);
    assert!(servers.value("orders/1").await.unwrap().starts_with("polylock:moved"));

    servers.run("clean --yes").await.is(1, &["has not begun", "polylock migrate back"]);
    let back = servers.run("back --yes").await;
    back.is(0, &["move becomes dual", "all sessions have seen it", "polylock migrate clean"]);
    servers.run("status").await.is(0, &["on the way back", "next step: `polylock migrate clean`"]);
    let clean = servers.run("clean --yes").await;
    clean.is(0, &["1 name noted as moved", "The way back has ended", "removing tombstones: 1 removed"]);
    assert_eq!(servers.value("orders/1").await, None);
    let (_, status) = servers.json("status").await;
    assert_eq!((&status["record"]["phase"], &status["moved"]), (&"open".into(), &0.into()), "{status}");
    for locks in fleet {
        give_back(take(&locks, "orders/1").await).await;
        locks.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_asked_and_watches() {
    let servers = Servers::start().await;
    let url = servers.url();
    let _locks = servers.process().await;
    for (answer, code, text, rung) in
        [("n\n", 1, "nothing was changed", "old"), ("y\n", 0, "shadow is set for *", "shadow")]
    {
        let mut terminal = in_terminal(&url, "set shadow");
        terminal.shows("Set it? [y/N]", 1).await;
        terminal.types(answer);
        terminal.ends_as(code, &[text]).await;
        let (_, status) = servers.json("status").await;
        assert_eq!(status["sessions"][0]["member"]["rung"], rung, "{status}");
    }
    let pinned = Locks::connect(&format!("{url}&rung=dual")).await.unwrap();
    let guard = pinned.mutex("orders/1").acquire().await.unwrap();
    servers.run("set shadow --yes").await.is(0, &["stays on dual, as its URL says"]);
    servers.redis.command(&["SET", "lock:reports/\u{1b}[2J", "someone", "PX", "60000"]).await.unwrap();
    servers.run("set dual --names reports/* --yes").await.is(0, &["names like reports/*"]);
    let shown = ["reports/*", "dual", "a client of another library", "way out: find the clients"];
    let screen = in_terminal(&url, "status").ends_as(0, &shown).await;
    assert!(screen.lines().all(|line| line.trim_end().chars().count() <= 100), "{screen}");
    assert!(!screen.contains('\u{1b}'), "{screen:?}");
    give_back(guard).await;

    let mut terminal = in_terminal(&url, "status --watch 1");
    terminal.shows("\u{1b}[2J", 2).await;
    terminal.types("\u{3}");
    terminal.ends_as(0, &[]).await;
    // A question that is not answered keeps nobody from leaving.
    let mut terminal = in_terminal(&url, "set old");
    terminal.shows("Set it?", 1).await;
    terminal.types("\u{3}");
    terminal.ends_as(130, &["interrupted"]).await;
}

#[tokio::test]
async fn a_warning_stops_dual_unless_it_is_forced() {
    // A server that evicts has a limit.
    let evicts = RedisServer::builder().maxmemory_policy("allkeys-lru").config("maxmemory", "100mb");
    let servers = Servers::with(evicts).await;
    servers.run("preflight").await.is(1, &["allkeys-lru", "way out: ", "repair that before names move"]);
    let (code, findings) = servers.json("preflight").await;
    let is_warning = |finding: &Value| finding["level"] == "warning";
    assert!(findings["findings"].as_array().unwrap().iter().any(is_warning), "{findings}");
    assert_eq!(code, 1);

    servers.run("set dual --yes").await.is(1, &["allkeys-lru", "Nothing was changed", "--force"]);
    let (code, set) = servers.json("set dual --yes").await;
    assert_eq!((code, &set["passed"]), (1, &false.into()), "{set}");
    assert_eq!(servers.json("status").await.1["record"], Value::Null);
    servers.run("set dual --yes --force").await.is(0, &["overruled by --force", "dual is set for *"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_gone() {
    let servers = Servers::start().await;
    let locks = servers.process().await;
    servers.run("set move --yes").await.is(0, &["1 of 1 sessions have followed"]);
    give_back(take(&locks, "orders/1").await).await;
    servers.run("finish --gone --yes").await.is(1, &["is not gone: this connection reaches it"]);
    servers.redis.kill();

    servers.run("status").await.is(0, &["old store", "moved names", "way out: "]);
    servers.run("preflight").await.is(69, &["error: redis", "way out: "]);
    let (code, error) = servers.json("preflight").await;
    assert_eq!((code, &error["error"]["kind"]), (69, &"refused".into()), "{error}");
    servers.run("finish --yes").await.is(1, &["unknown whether the old store is closed", "use --gone"]);

    servers.run("finish --gone --servers h --yes").await.is(1, &["write it as host:port"]);
    until("the process sees that it is gone", async || {
        servers.json("status").await.1["sessions"][0]["member"]["reaches_old"] == false
    })
    .await;
    let (code, finish) = servers.json("finish --gone --longest-ttl 3s --yes").await;
    assert_eq!((code, &finish["record"]["phase"]), (0, &"sealed".into()), "{finish}");
    servers.run("finish --yes").await.is(0, &["is sealed", "The migration is finished"]);
    servers.run("status").await.is(0, &["sealed", "next step: none, the migration is finished"]);
    give_back(take(&locks, "orders/2").await).await;
    for words in ["set dual", "back"] {
        servers.run(&format!("{words} --yes")).await.is(1, &["sealed", "no way back"]);
    }
    locks.close().await.unwrap();

    servers.zk.kill();
    servers.run("status").await.is(69, &["error: zk"]);
    let (code, error) = servers.json("set dual --yes").await;
    assert_eq!((code, &error["error"]["kind"]), (69, &"unavailable".into()), "{error}");
}

#[tokio::test]
async fn what_is_wrong_is_said_without_secrets() {
    let secret = "s3cr3t-word";
    for (url, words, code, part) in [
        ("", "status", 64, "no migration is named"),
        ("redis://:s3cr3t-word@127.0.0.1", "status", 64, "not one of a migration"),
        ("migrate://shop?from=redis%3A%2F%2F%3As3cr3t-word%40a", "status", 64, "names both stores"),
        ("", "status --url migrate://shop --from redis://:s3cr3t-word@a", 64, "leave out"),
        ("", "status --from redis://:s3cr3t-word@a", 64, "missing: --namespace and --to"),
        (
            "",
            "--namespace shop status --from redis://:s3cr3t-word@a --to consul://b",
            64,
            "consul:// is unknown",
        ),
        ("", "set sideways", 64, "sideways"),
        ("", "statsu", 64, "statsu"),
        ("", "", 64, "command"),
        ("", "redis://:s3cr3t-word@a", 64, "unrecognized subcommand"),
        ("redis://:s3cr3t-word@a", "set --help", 0, "polylock migrate set shadow"),
        ("redis://:s3cr3t-word@a", "--help", 0, "Exit codes"),
    ] {
        let run = run(url, words).await;
        run.is(code, &[part]);
        assert!(!format!("{run:?}").contains(secret), "{run:?}");
        if code != 0 {
            let run = self::run(url, &format!("{words} --json")).await;
            assert_eq!((run.code, &run.document()["error"]["kind"].is_string()), (code, &true), "{run:?}");
            assert!(!run.document()["error"]["hint"].is_null(), "{run:?}");
        }
    }
    let redis = RedisServer::builder().password("another").appendonly(true);
    let servers = Servers::with(redis).await;
    let url = servers.url_from(&format!("redis://:{secret}@{}", servers.redis.addr()));
    for words in ["preflight", "set dual --yes", "status", "preflight --json", "status --watch=x"] {
        let run = run(&url, words).await;
        assert!(!format!("{run:?}").contains(secret), "{run:?}");
        assert!(words.starts_with("status") || run.code == 70, "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finish_waits_until_the_old_store_is_closed_to_all() {
    // It reads, and changes nothing. Redis before 7.2 does not know CLIENT SETINFO.
    let rights = "on >reads -@all +hello +ping +select +client|setname +client|list +acl|list +acl|dryrun +info +time \
                  +scan +type +get +pttl +zscore +script|load %R~*";
    let redis = RedisServer::builder().appendonly(true).user("migrator", rights);
    let servers = Servers::with(redis).await;
    let locks = servers.process().await;
    servers.run("set move --yes --force").await.is(0, &["have followed"]);
    give_back(take(&locks, "orders/1").await).await;
    let url = servers.url_from(&format!("redis://migrator:reads@{}", servers.redis.addr()));
    let open = ["the user \"default\" may still acquire locks", "way out: ", "ACL SETUSER default resetkeys"];
    run(&url, "finish --yes").await.is(1, &open);
    run(&url, "status").await.is(0, &open);

    servers.redis.command(&["ACL", "SETUSER", "default", "resetkeys"]).await.unwrap();
    run(&url, "status").await.is(0, &["nothing blocks it"]);
    run(&url, "finish --yes").await.is(0, &["The migration is finished"]);
    // The name that has moved, and one that has not.
    give_back(take(&locks, "orders/1").await).await;
    give_back(take(&locks, "orders/2").await).await;
    locks.close().await.unwrap();
}
