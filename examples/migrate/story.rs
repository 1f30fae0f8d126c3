//! The story: an operator walks the ladder up, down, and up again, while processes work, are killed and paused.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lock_testkit::process::Child;
use lock_testkit::{RedisServer, ZooKeeper};
use polylock::migrate::{FinishTerms, Gate, Progress};
use polylock::{Locks, Operator, Rung};
use tokio::time::sleep;

use super::clients::{RedisOnly, python, start};
use super::counters::{Counters, Seen};

/// Processes that use this library, and clients that only know Redis: together twelve.
const FLEET: usize = 9;
const REDIS_ONLY: usize = 3;
/// How long the operator looks at each rung.
const LOOK: Duration = Duration::from_secs(3);
/// Of leases and sessions: longer than a busy machine keeps a process that is not paused from running.
const LEASE: &str = "8s";
/// Longer than that.
const PAUSE: Duration = Duration::from_secs(9);
const PATIENCE: Duration = Duration::from_secs(60);

/// How the story ended.
#[derive(Debug)]
pub(crate) struct Report {
    seen: Seen,
    redis_only: Vec<BTreeMap<String, u64>>,
    stopped_by: Option<String>,
    killed: usize,
    paused: usize,
}

/// Tells the story, and says what was noticed.
pub(crate) async fn tell() -> Report {
    let mut stage = Stage::build().await;
    let walked = stage.walk().await;
    stage.report(walked.err())
}

struct Stage {
    redis: RedisServer,
    zk: ZooKeeper,
    counters: Counters,
    address: SocketAddr,
    fleet: Vec<Child>,
    redis_only: Vec<RedisOnly>,
    python: Option<PathBuf>,
    killed: usize,
    paused: usize,
}

/// The users of Redis: what the gate to `new` takes away, and what the operator keeps.
const USERS: [&[&str]; 3] = [
    &["ACL", "SETUSER", "fleet", "on", ">fleet", "~*", "&*", "+@all"],
    &["ACL", "SETUSER", "legacy", "on", ">legacy", "~*", "&*", "+@all"],
    &["ACL", "SETUSER", "operator", "on", ">operator", "~*", "&*", "+@all"],
];
/// What closes Redis: nobody but the operator has a key any more, and the operator may only look at them.
const CLOSING: [&[&str]; 4] = [
    &["ACL", "SETUSER", "fleet", "resetkeys"],
    &["ACL", "SETUSER", "legacy", "resetkeys"],
    &["ACL", "SETUSER", "operator", "resetkeys", "%R~*"],
    &["ACL", "SETUSER", "default", "resetkeys"],
];

impl Stage {
    async fn build() -> Self {
        let (redis, zk) = tokio::join!(RedisServer::start(), ZooKeeper::start());
        let (redis, zk) = (redis.expect("redis-server is installed"), zk.expect("ZooKeeper is installed"));
        for words in USERS {
            redis.command(words).await.expect("Redis knows users since version 6");
        }
        let (counters, python) = (Counters::default(), python());
        let address = counters.serve().await;
        if python.is_none() {
            println!("redis-py cannot be installed: the story is told without clients that only know Redis");
        }
        let (fleet, redis_only) = (Vec::new(), Vec::new());
        Self { redis, zk, counters, address, fleet, redis_only, python, killed: 0, paused: 0 }
    }

    /// The steps of the operator.
    async fn walk(&mut self) -> Result<(), String> {
        self.start_all();
        let operator = self.operator().await?;
        self.look("old: Redis alone").await;
        self.set(&operator, Rung::Shadow, "*").await?;
        self.set(&operator, Rung::Dual, "reports/*").await?;
        self.set(&operator, Rung::Dual, "*").await?;
        self.set(&operator, Rung::Move, "reports/*").await?;
        self.set(&operator, Rung::Move, "*").await?;
        self.go_back(&operator).await?;
        self.set(&operator, Rung::Shadow, "*").await?;
        self.set(&operator, Rung::Old, "*").await?;
        self.set(&operator, Rung::Dual, "*").await?;
        self.set(&operator, Rung::Move, "*").await?;
        self.finish(&operator).await?;
        self.look("new: ZooKeeper alone").await;
        operator.close().await.map_err(|error| error.to_string())
    }

    fn start_all(&mut self) {
        let (url, redis) = (self.url(), self.redis_as("legacy"));
        self.fleet = (0..FLEET).map(|_| start(&url, self.address)).collect();
        if let Some(python) = &self.python {
            self.redis_only =
                (0..REDIS_ONLY).map(|_| RedisOnly::start(python, &redis, self.address)).collect();
        }
    }

    fn redis_as(&self, user: &str) -> String {
        self.redis.url().replace("redis://", &format!("redis://{user}:{user}@"))
    }

    fn zk(&self) -> String {
        format!("{}?session_timeout={LEASE}", self.zk.url())
    }

    fn url(&self) -> String {
        let from = format!("{}?ttl={LEASE}", self.redis_as("fleet"));
        format!("migrate://shop?from={}&to={}", encoded(&from), encoded(&self.zk()))
    }

    async fn operator(&self) -> Result<Operator, String> {
        let connect = |url: &str| Locks::connect_lazy(url).map(|locks| Arc::clone(locks.backend()));
        let from = connect(&format!("{}?ttl={LEASE}", self.redis_as("operator")))
            .map_err(|error| error.to_string())?;
        let to = connect(&self.zk()).map_err(|error| error.to_string())?;
        Operator::connect("shop", from, to).await.map_err(|error| error.to_string())
    }

    async fn set(&mut self, operator: &Operator, rung: Rung, names: &str) -> Result<(), String> {
        operator.set(rung, names).await.map_err(|error| error.to_string())?;
        self.look(&format!("{rung}, for the names {names}")).await;
        Ok(())
    }

    async fn go_back(&mut self, operator: &Operator) -> Result<(), String> {
        println!("the way back: no name has moved any more");
        pass(operator.back(PATIENCE, |_| ()).await)?;
        pass(operator.clean(None, tell_progress).await)?;
        self.look("dual, for the names *").await;
        Ok(())
    }

    async fn finish(&self, operator: &Operator) -> Result<(), String> {
        let blocked = operator.finish(&FinishTerms::new(), |_| ()).await;
        match blocked.map_err(|error| error.to_string())? {
            Gate::Blocked(obstacles) => {
                println!("the gate to new, before Redis is closed:");
                obstacles.iter().for_each(|obstacle| println!("    {obstacle}"));
            }
            _ => return Err("the gate to new was open although Redis was".into()),
        }
        println!("closing Redis to all users");
        for words in CLOSING {
            self.redis.command(words).await.map_err(|error| error.to_string())?;
        }
        pass(operator.finish(&FinishTerms::new(), tell_progress).await)?;
        Ok(())
    }

    /// Lets the fleet work on a rung; one process is killed and replaced, another one is paused for longer than its leases.
    async fn look(&mut self, what: &str) {
        let before = self.counters.seen();
        sleep(LOOK / 3).await;
        let victim = self.killed % FLEET;
        self.fleet[victim].kill();
        self.fleet[victim] = start(&self.url(), self.address);
        self.killed += 1;
        let paused = (victim + 1) % FLEET;
        let pid = self.fleet[paused].pid();
        self.fleet[paused].stop();
        self.counters.pause(pid);
        sleep(PAUSE).await;
        self.fleet[paused].cont();
        sleep(LOOK / 3).await;
        self.counters.go_on(pid);
        self.paused += 1;
        let after = self.counters.seen();
        println!(
            "{what}: {} increments, {} lost, {} overlaps",
            after.writes - before.writes,
            after.lost_updates,
            after.overlaps
        );
    }

    fn report(self, stopped_by: Option<String>) -> Report {
        let redis_only = self.redis_only.iter().map(RedisOnly::seen).collect();
        Report {
            seen: self.counters.seen(),
            redis_only,
            stopped_by,
            killed: self.killed,
            paused: self.paused,
        }
    }
}

impl Report {
    /// Whether nothing happened that must not.
    pub(crate) fn is_right(&self) -> bool {
        let Seen { lost_updates, overlaps, inversions, writes, .. } = self.seen;
        self.stopped_by.is_none() && writes > 0 && (lost_updates, overlaps, inversions) == (0, 0, 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { lost_updates, overlaps, inversions, writes, refused, waits } = &self.seen;
        writeln!(f, "\nincrements           {writes}")?;
        writeln!(f, "lost updates         {lost_updates}")?;
        writeln!(f, "overlaps             {overlaps}")?;
        writeln!(f, "token inversions     {inversions}")?;
        writeln!(f, "writes refused       {refused} (late, by their tokens)")?;
        writeln!(f, "processes            {} killed, {} paused", self.killed, self.paused)?;
        writeln!(f, "time to acquire      p50, p99")?;
        for (rung, waits) in waits {
            let mut waits = waits.clone();
            waits.sort_unstable();
            let at = |share: usize| waits[(waits.len() - 1) * share / 100];
            writeln!(f, "    {rung:10} {:>10.1?} {:>10.1?}  ({} times)", at(50), at(99), waits.len())?;
        }
        for (at, seen) in self.redis_only.iter().enumerate() {
            let count = |what| seen.get(what).copied().unwrap_or_default();
            let (locked, busy, refused) = (count("locked"), count("busy"), count("refused"));
            writeln!(
                f,
                "redis-py client {at}: {locked} locks acquired, {busy} busy or moved, {refused} refused"
            )?;
        }
        match &self.stopped_by {
            Some(why) => writeln!(f, "the operator was stopped: {why}"),
            None => Ok(()),
        }
    }
}

fn pass(gate: Result<Gate, polylock::Error>) -> Result<(), String> {
    match gate.map_err(|error| error.to_string())? {
        Gate::Blocked(obstacles) => Err(obstacles.iter().map(|obstacle| format!("{obstacle}\n")).collect()),
        _ => Ok(()),
    }
}

fn tell_progress(progress: Progress) {
    match progress {
        Progress::Tombstones { removed, left } => println!("    {removed} tombstones removed, {left} left"),
        Progress::Leases(left) => println!("    leases may live for {left:.1?} more"),
        _ => {}
    }
}

/// A URL as the value of an option of another URL.
fn encoded(url: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte);
    url.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
