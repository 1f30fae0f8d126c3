//! Servers that can compare and swap: an etcd, a MariaDB, and one like S3.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lock_core::{Capabilities, ErrorKind, LockName, Locks, Outcome};
use lock_testkit::conformance::{Credential, Fault, Handle, Harness, Refusal, Still};
use lock_testkit::proxy::{FaultProxy, Protocol};
use lock_testkit::{Certificates, EtcdServer, MariadbServer, Result, S3Server};
use polylock::kv::object_store::aws::{AmazonS3, AmazonS3Builder};
use polylock::kv::object_store::path::Path as ObjectPath;
use polylock::kv::object_store::{ObjectStore, ObjectStoreExt};
use sqlx::mysql::MySqlPool;
use tokio::sync::OnceCell;

use super::kv::{capabilities, is_dead, parties_but};
use super::{Flavour, Login, PASSWORD, TLS, connect, option, set_fault, worker};

/// A server, and what its store has without this library.
#[async_trait]
pub trait KvServer: fmt::Debug + Send + Sync + Sized + 'static {
    const NAME: &'static str;
    const PROTOCOL: Protocol;
    /// The shortest lease that the store takes.
    const SHORTEST: Duration;
    /// Time: a lease that ends is the subject of many cases.
    const SHORT: Duration = Duration::from_secs(2);
    const LONGEST_NAME: usize = LockName::MAX_BYTES;
    /// Why its clients do not log in by something that changes.
    const ROTATES: Result<(), &'static str> = Ok(());
    /// The kind and a part of the hint of errors while it refuses writes, or why it never does.
    const REFUSAL: Result<(ErrorKind, &'static str), &'static str>;

    async fn launch(login: Option<&Login>) -> Result<Self>;

    async fn relaunch(&self) -> Result<()>;

    /// Why a case is left out.
    fn leaves_out(case: &str) -> Option<&'static str>;

    fn address(&self) -> SocketAddr;

    /// The URL of the store at this address, to which options are appended.
    fn store_at(&self, addr: SocketAddr, login: Option<&Login>) -> String;

    /// Ends all connections; the user has this password from then on, or the server these certificates.
    async fn rotate(&self, password: &str, certificates: Option<&Certificates>) -> Result<()>;

    /// The keys of locks that have this part, and their values.
    async fn records(&self, part: &str) -> Vec<(String, Vec<u8>)>;

    /// Deletes the record of a lock, and reports whether it existed.
    async fn forget(&self, name: &str) -> bool;

    async fn refuse(&self, refuses: bool) -> Result<()>;
}

/// A server, which is started when it is first needed.
#[derive(Debug)]
pub struct KvServerHarness<S> {
    name: String,
    flavour: Flavour,
    server: Arc<OnceCell<S>>,
    login: Option<Login>,
    proxy: Vec<FaultProxy>,
}

impl<S: KvServer> KvServerHarness<S> {
    pub fn new(flavour: Flavour, server: &Arc<OnceCell<S>>) -> Self {
        let (name, server) = (format!("{}::{flavour}", S::NAME), Arc::clone(server));
        Self { name, flavour, server, login: None, proxy: Vec::new() }
    }

    async fn server(&self) -> &S {
        let server = self.server.get_or_try_init(|| S::launch(self.login.as_ref())).await;
        server.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn url(&self, lease: Duration) -> String {
        let server = self.server().await;
        let addr = self.proxy.first().map_or_else(|| server.address(), FaultProxy::addr);
        // A renewal that nobody answers fails before its lease ends.
        let longest = if self.login.is_some() { lease } else { Duration::from_secs(5) };
        let timeout = (lease / 2).min(longest);
        let store = server.store_at(addr, self.login.as_ref());
        let login = self.login.as_ref().map(|login| login.options(TLS)).unwrap_or_default();
        format!("{store}ttl={}&command_timeout={}{login}", option(lease), option(timeout))
    }
}

#[async_trait]
impl<S: KvServer> Harness for KvServerHarness<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(S::NAME, true, S::SHORTEST)
    }

    fn longest_name(&self) -> usize {
        S::LONGEST_NAME
    }

    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        S::leaves_out(case)
    }

    fn short_lease(&self) -> Duration {
        S::SHORT
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        connect(self.flavour, self.url(lease).await).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        worker(self.flavour, &self.url(lease).await)
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        let records = self.server().await.records(part).await;
        // Only here are clients cut off for longer than their waiters live.
        records.iter().flat_map(|(key, value)| parties_but(key, value, is_dead)).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        assert!(self.server().await.forget(name).await, "the lock is held");
    }

    async fn link(&self) -> Box<dyn Harness> {
        let proxy = FaultProxy::start(self.server().await.address(), S::PROTOCOL);
        let proxy = vec![proxy.unwrap_or_else(|error| panic!("{error}"))];
        Box::new(Self { proxy, ..Self::new(self.flavour, &self.server) })
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::new(self.flavour, &Arc::default()))
    }

    async fn fault(&self, fault: Fault) {
        set_fault(&self.proxy, fault);
    }

    async fn restart(&self) {
        self.server().await.relaunch().await.unwrap_or_else(|error| panic!("{error}"));
    }

    fn rotates(&self, _: &Credential) -> Result<(), &'static str> {
        S::ROTATES
    }

    async fn secured(&self, credential: Credential) -> Box<dyn Harness> {
        let login = Some(Login::new(credential));
        Box::new(Self { login, ..Self::new(self.flavour, &Arc::default()) })
    }

    async fn rotate(&self, password: &str) {
        let certificates = self.login.as_ref().and_then(Login::certificates);
        if let Some(certificates) = certificates {
            certificates.replace().expect("they can be made");
        }
        let rotated = self.server().await.rotate(password, certificates.map(AsRef::as_ref)).await;
        rotated.unwrap_or_else(|error| panic!("{error}"));
    }

    fn refusal(&self) -> Result<Refusal, &'static str> {
        let (outcome, still) = (Outcome::NotApplied, Still::Nothing);
        S::REFUSAL.map(|(kind, advice)| Refusal { kind, advice, outcome, still })
    }

    async fn refuse_writes(&self, refuses: bool) {
        self.server().await.refuse(refuses).await.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A cluster of one member.
#[async_trait]
impl KvServer for EtcdServer {
    const NAME: &'static str = "etcd";
    const PROTOCOL: Protocol = Protocol::Http2;
    // Time: the store says so.
    const SHORTEST: Duration = Duration::from_millis(500);

    async fn launch(login: Option<&Login>) -> Result<Self> {
        match login {
            None => Self::start().await,
            Some(Login::Certificates(certificates)) => Self::builder().tls(certificates).start().await,
            Some(login) => {
                let server = Self::start().await?;
                let password = login.password().unwrap_or_default();
                server.demand_password(Login::USER, &password, "polylock/").await?;
                Ok(server)
            }
        }
    }

    async fn relaunch(&self) -> Result<()> {
        self.kill();
        self.start_again().await
    }

    fn leaves_out(_: &str) -> Option<&'static str> {
        static IS_MISSING: LazyLock<bool> = LazyLock::new(EtcdServer::is_missing);
        IS_MISSING.then_some("etcd is not installed")
    }

    fn address(&self) -> SocketAddr {
        self.addr()
    }

    fn store_at(&self, addr: SocketAddr, login: Option<&Login>) -> String {
        match login {
            None => format!("etcd://me:{PASSWORD}@{addr}?"),
            Some(Login::Password(_)) => format!("etcd://{}@{addr}?", Login::USER),
            Some(Login::Certificates(_)) => format!("etcds://{addr}?"),
        }
    }

    async fn rotate(&self, password: &str, certificates: Option<&Certificates>) -> Result<()> {
        if certificates.is_some() {
            return self.relaunch().await;
        }
        self.change_password(Login::USER, password).await
    }

    async fn records(&self, part: &str) -> Vec<(String, Vec<u8>)> {
        let values = self.values("polylock/lock/").await.expect("the server answers");
        values.into_iter().filter(|(key, _)| key.contains(part)).collect()
    }

    async fn forget(&self, name: &str) -> bool {
        self.delete(&format!("polylock/lock/{name}")).await.expect("the server answers")
    }

    const REFUSAL: Result<(ErrorKind, &'static str), &'static str> =
        Ok((ErrorKind::Exhausted, "alarm disarm"));

    async fn refuse(&self, refuses: bool) -> Result<()> {
        self.raise_alarm(refuses).await.map(drop)
    }
}

#[async_trait]
impl KvServer for MariadbServer {
    const NAME: &'static str = "mysql";
    const PROTOCOL: Protocol = Protocol::Mysql;
    // Time: the store says so.
    const SHORTEST: Duration = Duration::from_millis(250);

    async fn launch(login: Option<&Login>) -> Result<Self> {
        let Some(login) = login else { return Self::start().await };
        let Some(certificates) = login.certificates() else {
            let server = Self::start().await?;
            server.rotate(&login.password().unwrap_or_default(), None).await?;
            return Ok(server);
        };
        let server = Self::builder().tls(certificates).start().await?;
        server.sql(&format!("ALTER USER {} REQUIRE X509", Self::USER)).await?;
        Ok(server)
    }

    async fn relaunch(&self) -> Result<()> {
        self.kill();
        self.start_again().await
    }

    fn leaves_out(_: &str) -> Option<&'static str> {
        static IS_MISSING: LazyLock<bool> = LazyLock::new(MariadbServer::is_missing);
        IS_MISSING.then_some("MariaDB is not installed")
    }

    fn address(&self) -> SocketAddr {
        self.addr()
    }

    fn store_at(&self, addr: SocketAddr, login: Option<&Login>) -> String {
        let (user, database) = (Self::USER, Self::DATABASE);
        match login {
            None => self.url_at(addr) + "?",
            Some(Login::Password(_)) => format!("mysql://{user}@{addr}/{database}?"),
            Some(Login::Certificates(_)) => self.url_at(addr).replace("mysql:", "mysqls:") + "?",
        }
    }

    async fn rotate(&self, password: &str, certificates: Option<&Certificates>) -> Result<()> {
        let user = Self::USER;
        let change = match certificates {
            Some(_) => "FLUSH SSL".to_owned(),
            None => format!("SET PASSWORD FOR {user} = PASSWORD('{password}')"),
        };
        self.sql(&format!("{change}; KILL USER {user}")).await.map(drop)
    }

    async fn records(&self, part: &str) -> Vec<(String, Vec<u8>)> {
        let select = "SELECT name, value FROM polylock WHERE name LIKE 'lock/%' AND LOCATE(?, name) > 0";
        let rows = sqlx::query_as::<_, (Vec<u8>, _)>(select).bind(part.as_bytes());
        let rows = rows.fetch_all(&database(self).await).await.expect("the table can be read");
        rows.into_iter().map(|(key, value)| (String::from_utf8_lossy(&key).into_owned(), value)).collect()
    }

    async fn forget(&self, name: &str) -> bool {
        let delete =
            sqlx::query("DELETE FROM polylock WHERE name = ?").bind(format!("lock/{name}").into_bytes());
        let deleted = delete.execute(&database(self).await).await.expect("the table can be written");
        deleted.rows_affected() == 1
    }

    const REFUSAL: Result<(ErrorKind, &'static str), &'static str> =
        Ok((ErrorKind::Unavailable, "name the primary"));

    async fn refuse(&self, refuses: bool) -> Result<()> {
        self.sql(&format!("SET GLOBAL read_only = {refuses}")).await.map(drop)
    }
}

async fn database(server: &MariadbServer) -> MySqlPool {
    MySqlPool::connect(&server.url()).await.expect("the server answers")
}

/// A bucket of a server that keeps it in memory.
#[async_trait]
impl KvServer for S3Server {
    const NAME: &'static str = "s3";
    const PROTOCOL: Protocol = Protocol::Opaque;
    // Time: ten polls.
    const SHORTEST: Duration = Duration::from_secs(1);
    const SHORT: Duration = Duration::from_secs(5);
    /// A control character has three bytes in the name of an object.
    const LONGEST_NAME: usize = (1_024 - "polylock/lock/".len()) / 3;

    const ROTATES: Result<(), &'static str> = Err("its keys are those of the environment");

    async fn launch(_: Option<&Login>) -> Result<Self> {
        Self::start(target()).await
    }

    async fn relaunch(&self) -> Result<()> {
        unreachable!("the server keeps everything in memory")
    }

    fn leaves_out(case: &str) -> Option<&'static str> {
        static IS_MISSING: LazyLock<bool> = LazyLock::new(|| S3Server::is_missing(target()));
        match case {
            _ if *IS_MISSING => Some("the Python packages of the server are not installed"),
            "a_restart_keeps_locks_and_tokens" => Some("the server keeps everything in memory"),
            "eight_processes_lose_no_update"
            | "permits_are_never_exceeded"
            | "processes_never_exceed_the_permits" => {
                Some("the server takes two hundred requests a second, too few for a crowd")
            }
            "a_reset_instead_of_a_reply_leaves_nothing" => Some("the proxy does not know requests of HTTP"),
            _ => None,
        }
    }

    fn address(&self) -> SocketAddr {
        self.addr()
    }

    fn store_at(&self, addr: SocketAddr, _: Option<&Login>) -> String {
        // Time: it serves two hundred requests a second.
        Self::url(addr, "polylock") + "&poll=100ms&"
    }

    async fn rotate(&self, password: &str, _: Option<&Certificates>) -> Result<()> {
        unreachable!("its keys are those of the environment (asked for {password})")
    }

    async fn records(&self, part: &str) -> Vec<(String, Vec<u8>)> {
        let bucket = bucket(self);
        let objects: Vec<_> = bucket.list(Some(&ObjectPath::from("polylock/lock"))).collect().await;
        let mut records = Vec::new();
        for object in objects {
            let location = object.expect("the server answers").location;
            if location.as_ref().contains(part) {
                let found = bucket.get(&location).await.expect("objects stay");
                let value = found.bytes().await.expect("the server answers");
                records.push((location.to_string(), value.to_vec()));
            }
        }
        records
    }

    async fn forget(&self, name: &str) -> bool {
        let (bucket, object) = (bucket(self), ObjectPath::from(format!("polylock/lock/{name}")));
        let is_there = bucket.head(&object).await.is_ok();
        bucket.delete(&object).await.expect("the server answers");
        is_there
    }

    const REFUSAL: Result<(ErrorKind, &'static str), &'static str> = Err("a bucket is never full");

    async fn refuse(&self, refuses: bool) -> Result<()> {
        unreachable!("a bucket is never full (asked for {refuses})")
    }
}

fn bucket(server: &S3Server) -> AmazonS3 {
    let builder = AmazonS3Builder::new()
        .with_bucket_name("locks")
        .with_access_key_id("key")
        .with_secret_access_key("secret");
    let endpoint = format!("http://{}", server.addr());
    builder.with_endpoint(endpoint).with_allow_http(true).build().expect("the options are right")
}

/// Where the packages of the server are.
fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target directory")
}
