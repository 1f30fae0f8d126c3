//! The backends under test, with their servers.

mod kv;
mod kv_server;
mod layers;
mod migrate;
mod own_store;
mod postgres;
mod redis;
mod zk;

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Locks;
use lock_testkit::conformance::{Connecting, Credential, Fault, Handle, Harness, MemoryHarness};
use lock_testkit::proxy::{Direction, FaultProxy};
use lock_testkit::{Certificates, EtcdServer, MariadbServer, S3Server};
use polylock::{MigrationConfig, PostgresConfig, Redis, RedisConfig, Rung, Zk, ZkConfig};
use tempfile::TempDir;

use crate::broken_locks::{self, Defect};

use kv::{KvMemoryHarness, SqliteHarness};
use kv_server::KvServerHarness;
pub use layers::Layers;
use layers::LayersHarness;
pub use migrate::MigrateHarness;
use own_store::OwnStoreHarness;
pub use postgres::PostgresHarness;
pub use redis::{Kind, RedisHarness, Servers};
pub use zk::ZkHarness;

/// The password of clients at every store that asks for one. No log may have it.
pub const PASSWORD: &str = "correct-horse-battery-staple";

/// What the clients of a secured store log in by.
#[derive(Clone, Debug)]
enum Login {
    Password(PathBuf),
    Certificates(Arc<Certificates>),
}

impl Login {
    /// The user of a password.
    const USER: &str = "worker";

    fn new(credential: Credential) -> Self {
        match credential {
            Credential::Password(file) => Self::Password(file),
            Credential::Certificates => {
                Self::Certificates(Arc::new(Certificates::new().expect("they can be made")))
            }
        }
    }

    /// The options of a URL, where those for certificates have these names.
    fn options(&self, [ca, cert, key]: [&str; 3]) -> String {
        match self {
            Self::Password(file) => format!("&password_file={}", file.display()),
            Self::Certificates(files) => {
                let (client_cert, client_key) = files.client();
                let (client_cert, client_key) = (client_cert.display(), client_key.display());
                format!("&{ca}={}&{cert}={client_cert}&{key}={client_key}", files.ca().display())
            }
        }
    }

    fn certificates(&self) -> Option<&Arc<Certificates>> {
        match self {
            Self::Password(_) => None,
            Self::Certificates(certificates) => Some(certificates),
        }
    }

    /// The password of the moment.
    fn password(&self) -> Option<String> {
        let Self::Password(file) = self else { return None };
        Some(fs::read_to_string(file).expect("it has the first password").trim_end().to_owned())
    }
}

/// A login and a handshake take long on a busy machine.
const PATIENT: &str = "&connect_timeout=20s";

/// The options of files with certificates, as most stores name them.
const TLS: [&str; 3] = ["tls_ca", "tls_cert", "tls_key"];

/// The first argument of a process that is a worker.
pub const WORKER: &str = "--worker";

/// The backends, by the scheme of their URL, `postgres` behind a pooler, recipes of `redis` and `zk` that are ones of their own, and the rungs of `migrate`.
pub const BACKENDS: [&str; 19] = [
    "memory",
    "kv-memory",
    "own-store",
    "postgres",
    "pgbouncer",
    "redis",
    "redlock",
    "setnx",
    "zk",
    "zk-ephemeral",
    "etcd",
    "mysql",
    "s3",
    "sqlite",
    "migrate-old",
    "migrate-shadow",
    "migrate-dual",
    "migrate-move",
    "migrate-new",
];

/// What the first tier leaves to the full one: etcd and MySQL, which take a minute of a processor, a recipe, all rungs but one that locks both stores, mixtures, and [`TOPOLOGIES`].
pub const IN_THE_FULL_TIER: [&str; 15] = [
    "etcd",
    "mysql",
    "own-store",
    "zk-ephemeral",
    "migrate-old",
    "migrate-shadow",
    "migrate-move",
    "migrate-new",
    "migrate-old-dual",
    "migrate-old-move",
    "migrate-dual-move",
    "migrate-shadow-move",
    "redis-cluster",
    "redis-polling",
    "redis-sentinel",
];

/// What the full tier leaves to the deep one. Memory has all flavours in the full tier, Redis those that differ most; the other
/// stores, which take long to start and to expire, have the one that most programs use; and migrations the rungs and the mixture
/// that differ most. The server like S3 is written in Python, and takes two minutes. Behind a pooler waiters poll, and their crowds last.
pub fn is_in_the_deep_tier(backend: &str, flavour: &str) -> bool {
    match backend {
        "memory" | "kv-memory" | "own-store" => false,
        "redis" => !matches!(flavour, "typed" | "dyn" | "multi-of-two"),
        "etcd" | "mysql" | "postgres" | "redlock" | "setnx" | "sqlite" | "zk" => flavour != "dyn",
        "zk-ephemeral" | "migrate-dual" | "migrate-move" | "migrate-new" | "migrate-dual-move" => {
            flavour != "dyn"
        }
        "redis-cluster" | "redis-polling" | "redis-sentinel" => false,
        _ => true,
    }
}

const RUNGS: [(&str, &[Rung]); 5] = [
    ("migrate-old", &[Rung::Old]),
    ("migrate-shadow", &[Rung::Shadow]),
    ("migrate-dual", &[Rung::Dual]),
    ("migrate-move", &[Rung::Move]),
    ("migrate-new", &[Rung::New]),
];

/// Rungs side by side.
pub const MIXTURES: [(&str, &[Rung]); 4] = [
    ("migrate-old-dual", &[Rung::Old, Rung::Dual]),
    ("migrate-old-move", &[Rung::Old, Rung::Move]),
    ("migrate-dual-move", &[Rung::Dual, Rung::Move]),
    ("migrate-shadow-move", &[Rung::Shadow, Rung::Move]),
];

/// Other servers of `redis`, and clients that poll, with the themes that run code of their own there. No proxy stands before
/// the servers that sentinels and clusters name.
pub const TOPOLOGIES: [(&str, Kind, &[&str]); 3] = [
    (
        "redis-cluster",
        Kind::Cluster,
        &["exclusion", "waiting", "inspection", "cancellation", "readers", "multi"],
    ),
    ("redis-polling", Kind::Polling, &["waiting", "cancellation", "readers", "permits", "election"]),
    ("redis-sentinel", Kind::Sentinel, &["exclusion", "waiting"]),
];

/// Every case.
pub const ALL_THEMES: &[&str] = &[];

/// The cases that several clients or processes may run on different rungs.
pub const THEMES_OF_MIXTURES: &[&str] = &[
    "exclusion",
    "waiting",
    "release",
    "lifetime",
    "tokens",
    "cancellation",
    "faults",
    "processes",
    "modes",
    "readers",
    "permits",
];

/// How clients are made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Flavour {
    /// By the backend's own configuration.
    Typed,
    /// By the facade, from nothing but a URL.
    Dyn,
    /// As `Dyn`, and locks for one at a time are write locks.
    Write,
    /// As `Dyn`, and locks for one at a time are semaphores of one permit.
    Permit,
    /// As `Dyn`, and locks for one at a time are acquired twice by one owner.
    Reentrant,
    /// As `Dyn`, and locks for one at a time are the only one of several.
    MultiOfOne,
    /// As `Dyn`, and locks for one at a time are acquired with another.
    MultiOfTwo,
    /// As `Dyn`, through layers.
    Layers(Layers),
    /// For the broken locks.
    Broken(Defect),
}

impl Flavour {
    /// The ways that users have.
    pub const ALL: [Self; 7] = [
        Self::Typed,
        Self::Dyn,
        Self::Write,
        Self::Permit,
        Self::Reentrant,
        Self::MultiOfOne,
        Self::MultiOfTwo,
    ];

    const LAYERS: [Self; 5] = [
        Self::Layers(Layers::All),
        Self::Layers(Layers::Tracing),
        Self::Layers(Layers::Metrics),
        Self::Layers(Layers::Prefix),
        Self::Layers(Layers::Chaos),
    ];

    /// The layers over a backend: each alone over memory, where that is cheap, and all of them over a server of either kind.
    pub fn layers(backend: &str) -> &'static [Self] {
        match backend {
            "memory" => &Self::LAYERS,
            "postgres" | "redis" | "zk" => &Self::LAYERS[..1],
            _ => &[],
        }
    }

    /// The flavours of a backend. How a client is made does not depend on the rung: so one rung has those of a backend. What
    /// is made of mutexes alone depends on the backend only by them: so it is tested where those differ most.
    pub fn of(backend: &str) -> &'static [Self] {
        match backend {
            "kv-memory" | "own-store" | "pgbouncer" | "zk-ephemeral" | "migrate-old" | "migrate-shadow"
            | "migrate-dual" | "migrate-new" => &[Self::Dyn],
            "memory" | "postgres" | "redis" => &Self::ALL,
            "redlock" | "zk" => {
                &[Self::Typed, Self::Dyn, Self::Write, Self::Permit, Self::Reentrant, Self::MultiOfTwo]
            }
            _ => &[Self::Typed, Self::Dyn, Self::Write, Self::Permit],
        }
    }

    /// The flavour that is written so.
    pub fn parse(text: &str) -> Option<Self> {
        let all = Self::ALL.into_iter().chain(Self::LAYERS).chain(broken_locks::defects().map(Self::Broken));
        all.into_iter().find(|flavour| flavour.to_string() == text)
    }

    /// By what locks are taken that are for one at a time.
    pub fn handle(self) -> Handle {
        match self {
            Self::Write => Handle::Write,
            Self::Permit => Handle::Permit,
            Self::Reentrant => Handle::Reentrant,
            Self::MultiOfOne => Handle::MultiOfOne,
            Self::MultiOfTwo => Handle::MultiOfTwo,
            Self::Typed | Self::Dyn | Self::Layers(_) | Self::Broken(_) => Handle::Mutex,
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Typed => f.write_str("typed"),
            Self::Dyn => f.write_str("dyn"),
            Self::Write => f.write_str("write"),
            Self::Permit => f.write_str("permit"),
            Self::Reentrant => f.write_str("reentrant"),
            Self::MultiOfOne => f.write_str("multi-of-one"),
            Self::MultiOfTwo => f.write_str("multi-of-two"),
            Self::Layers(layers) => write!(f, "layers-{layers}"),
            Self::Broken(defect) => write!(f, "{defect:?}"),
        }
    }
}

/// Every backend in [its flavours](Flavour::of), which share its servers: those are started when the first needs them, and
/// end with the last.
///
/// `redis` are the servers of the backend of that name.
pub fn harnesses(redis: &Arc<Servers>) -> Vec<Arc<dyn Harness>> {
    let (redlock, zk, both, postgres) = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
    let (etcd, mysql, s3) = (Arc::default(), Arc::default(), Arc::default());
    let mut all: Vec<Arc<dyn Harness>> =
        vec![Arc::new(OwnStoreHarness::new()), Arc::new(KvMemoryHarness::default())];
    for &flavour in Flavour::layers("memory") {
        let memory = MemoryHarness::new(format!("memory::{flavour}"), move |url| connect(flavour, url));
        all.push(Arc::new(LayersHarness::new(flavour, Box::new(memory))));
    }
    let layers = Flavour::Layers(Layers::All);
    let over_redis = RedisHarness::new(Kind::Single, layers, Arc::clone(redis));
    all.push(Arc::new(LayersHarness::new(layers, Box::new(over_redis))));
    let over_postgres = PostgresHarness::new(layers, Arc::clone(&postgres));
    all.push(Arc::new(LayersHarness::new(layers, Box::new(over_postgres))));
    let over_zk = ZkHarness::new(layers, Arc::clone(&zk));
    all.push(Arc::new(LayersHarness::new(layers, Box::new(over_zk))));
    for flavour in Flavour::ALL {
        let name = format!("memory::{flavour}");
        let memory = match flavour {
            Flavour::Typed => MemoryHarness::new(name, |url| connect(Flavour::Typed, url)),
            _ => MemoryHarness::new(name, |url| connect(Flavour::Dyn, url)),
        };
        all.push(Arc::new(memory.by(flavour.handle())));
        all.push(Arc::new(RedisHarness::new(Kind::Single, flavour, Arc::clone(redis))));
        all.push(Arc::new(PostgresHarness::new(flavour, Arc::clone(&postgres))));
        if Flavour::of("pgbouncer").contains(&flavour) {
            all.push(Arc::new(PostgresHarness::pooled(flavour, Arc::clone(&postgres))));
        }
        if Flavour::of("etcd").contains(&flavour) {
            all.push(Arc::new(KvServerHarness::<EtcdServer>::new(flavour, &etcd)));
            all.push(Arc::new(KvServerHarness::<MariadbServer>::new(flavour, &mysql)));
            all.push(Arc::new(KvServerHarness::<S3Server>::new(flavour, &s3)));
            all.push(Arc::new(SqliteHarness::new(flavour)));
        }
        if Flavour::of("setnx").contains(&flavour) {
            all.push(Arc::new(RedisHarness::new(Kind::Setnx, flavour, Arc::clone(redis))));
        }
        if Flavour::of("redlock").contains(&flavour) {
            all.push(Arc::new(RedisHarness::new(Kind::Redlock, flavour, Arc::clone(&redlock))));
        }
        if Flavour::of("zk").contains(&flavour) {
            all.push(Arc::new(ZkHarness::new(flavour, Arc::clone(&zk))));
        }
        if Flavour::of("zk-ephemeral").contains(&flavour) {
            all.push(Arc::new(ZkHarness::ephemeral(flavour, Arc::clone(&zk))));
        }
        for (name, rungs) in RUNGS.into_iter().filter(|(name, _)| Flavour::of(name).contains(&flavour)) {
            all.push(Arc::new(MigrateHarness::new(name, rungs, flavour, Arc::clone(&both))));
        }
    }
    all
}

/// Migrations whose clients and processes are on different rungs.
fn mixtures() -> Vec<Arc<dyn Harness>> {
    let both = Arc::default();
    let harness = |(name, rungs)| MigrateHarness::new(name, rungs, Flavour::Dyn, Arc::clone(&both));
    MIXTURES.into_iter().map(|mixture| Arc::new(harness(mixture)) as Arc<dyn Harness>).collect()
}

/// Harnesses that run some themes: migrations whose clients are on different rungs, and other [topologies](TOPOLOGIES).
pub fn partial(redis: &Arc<Servers>) -> Vec<(Arc<dyn Harness>, &'static [&'static str])> {
    let topologies = TOPOLOGIES.into_iter().map(|(_, kind, themes)| {
        let servers = if kind == Kind::Polling { Arc::clone(redis) } else { Arc::default() };
        (Arc::new(RedisHarness::new(kind, Flavour::Dyn, servers)) as Arc<dyn Harness>, themes)
    });
    mixtures().into_iter().map(|mixture| (mixture, THEMES_OF_MIXTURES)).chain(topologies).collect()
}

/// A client for the store of this URL.
pub fn connect(flavour: Flavour, url: String) -> Connecting {
    Box::pin(async move {
        let scheme = url.split(':').next().unwrap_or_default();
        match (flavour, scheme) {
            (Flavour::Typed, "memory") => polylock::MemoryConfig::from_url(&url)?.connect(),
            (Flavour::Typed, "postgres") => PostgresConfig::from_url(&url)?.connect().await,
            (Flavour::Typed, "redis" | "rediss") => RedisConfig::from_url(&url)?.connect().await,
            (Flavour::Typed, "redlock" | "redlocks") => {
                polylock::RedlockConfig::from_url(&url)?.connect().await
            }
            (Flavour::Typed, "etcd" | "etcds") => polylock::EtcdConfig::from_url(&url)?.connect().await,
            (Flavour::Typed, "mysql" | "mysqls") => polylock::MysqlConfig::from_url(&url)?.connect().await,
            (Flavour::Typed, "s3") => polylock::S3Config::from_url(&url)?.connect().await,
            (Flavour::Typed, "sqlite") => polylock::SqliteConfig::from_url(&url)?.connect().await,
            (Flavour::Typed, "zk" | "zks") => ZkConfig::from_url(&url)?.connect().await,
            (Flavour::Typed, "migrate") => {
                let (config, from, to) = MigrationConfig::from_url(&url)?;
                let from = Redis::connect(RedisConfig::from_url(&from)?).await?;
                let to = Zk::connect(ZkConfig::from_url(&to)?).await?;
                Ok(Locks::new(config.open(Arc::new(from), Arc::new(to)).await?))
            }
            (Flavour::Typed, _) => panic!("{scheme} is no backend"),
            (Flavour::Layers(layers), _) => {
                polylock::Locks::connect(&url).await.map(|locks| Locks::clone(&layers.over(locks)))
            }
            (_, "own-store") => own_store::open(&url),
            (Flavour::Broken(defect), _) => broken_locks::connect(defect, url).await,
            _ => polylock::Locks::connect(&url).await.map(|locks| Locks::clone(&locks)),
        }
    })
}

/// This program, as a worker with such a client.
pub fn worker(flavour: Flavour, url: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this program is known"));
    command.args([WORKER, &flavour.to_string(), url]);
    command
}

/// A time as URL options want it.
fn option(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

fn set_fault(proxies: &[FaultProxy], fault: Fault) {
    assert!(!proxies.is_empty(), "only a link has connections that {fault:?} could happen to");
    for proxy in proxies {
        proxy.heal();
        match fault {
            Fault::None => {}
            Fault::Cut => {
                proxy.refuse(true);
                proxy.rst();
            }
            Fault::CutAfterRequest => {
                proxy.cut_after_request(1);
                proxy.refuse(true);
            }
            Fault::Hold => {
                proxy.hold(Direction::ToServer);
                proxy.hold(Direction::ToClient);
            }
            Fault::Forget => proxy.forget(),
            Fault::LoseReplies => proxy.black_hole(Direction::ToClient, true),
            Fault::DelayReplies(delay) => proxy.delay(Direction::ToClient, delay),
            other => panic!("{other:?} is not known here"),
        }
    }
}

/// In memory where that is possible: every case writes to it, and each of its writes would wait for the disk.
fn directory_in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
    tempfile::tempdir_in(parent).expect("a directory can be made")
}
