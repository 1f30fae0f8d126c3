//! One PostgreSQL server, and the same behind a pooler.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::Support;
use lock_core::{Capabilities, ErrorKind, LeaseKind, Locks, Outcome};
use lock_testkit::conformance::{Credential, Fault, Handle, Harness, Refusal, Still};
use lock_testkit::proxy::{FaultProxy, Protocol};
use lock_testkit::{PgBouncer, PostgresServer};
use polylock::postgres::tokio_postgres::{Client, NoTls, connect as connect_to};
use tokio::sync::OnceCell;

use super::{Flavour, Login, PASSWORD, PATIENT, connect, option, set_fault, worker};

/// A server that is started when it is first needed.
pub type Server = OnceCell<PostgresServer>;

/// How many sessions of the server the pooler has for all clients.
const POOLED: usize = 100;

/// The backend `postgres`, also behind PgBouncer in transaction mode.
#[derive(Debug)]
pub struct PostgresHarness {
    name: String,
    flavour: Flavour,
    server: Arc<Server>,
    pooler: Option<Arc<OnceCell<PgBouncer>>>,
    login: Option<Login>,
    proxy: Vec<FaultProxy>,
}

impl PostgresHarness {
    pub fn new(flavour: Flavour, server: Arc<Server>) -> Self {
        Self {
            name: format!("postgres::{flavour}"),
            flavour,
            server,
            pooler: None,
            login: None,
            proxy: Vec::new(),
        }
    }

    pub fn pooled(flavour: Flavour, server: Arc<Server>) -> Self {
        let (name, pooler) = (format!("pgbouncer::{flavour}"), Some(Arc::default()));
        Self { name, pooler, ..Self::new(flavour, server) }
    }

    /// The same on a server of its own.
    fn alone(&self) -> Self {
        let server = Arc::default();
        if self.pooler.is_some() {
            Self::pooled(self.flavour, server)
        } else {
            Self::new(self.flavour, server)
        }
    }

    /// Where clients connect without a proxy.
    async fn addr(&self) -> SocketAddr {
        let server = self.server().await;
        let Some(pooler) = &self.pooler else { return server.addr() };
        let started = pooler.get_or_try_init(|| PgBouncer::start(server, POOLED)).await;
        started.unwrap_or_else(|error| panic!("{error}")).addr()
    }

    async fn server(&self) -> &PostgresServer {
        let server = self.server.get_or_try_init(|| start(self.login.as_ref())).await;
        server.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn url(&self, lease: Duration) -> String {
        let addr = match self.proxy.first() {
            Some(proxy) => proxy.addr(),
            None => self.addr().await,
        };
        // One connection: what waits for it is sent together.
        let pool = if matches!(self.flavour, Flavour::Layers(_)) { "&pool=1" } else { "" };
        let (user, login) = match &self.login {
            None => (format!("postgres:{PASSWORD}"), String::new()),
            Some(login) => {
                let files = login.options(["sslrootcert", "sslcert", "sslkey"]);
                (Login::USER.to_owned(), PATIENT.to_owned() + &files)
            }
        };
        format!("postgres://{user}@{addr}/postgres?ttl={}{login}{pool}", option(lease))
    }

    async fn client(&self) -> Client {
        let (client, connection) =
            connect_to(&self.server().await.connect_string(), NoTls).await.expect("the server answers");
        drop(tokio::spawn(connection));
        client
    }
}

async fn start(login: Option<&Login>) -> lock_testkit::Result<PostgresServer> {
    // All clients of all cases share it.
    let options = PostgresServer::builder().config("max_connections", "1000");
    let Some(login) = login else { return options.start().await };
    let options = match login {
        Login::Password(_) => options.hba(&hba("host", "scram-sha-256")),
        Login::Certificates(certificates) => {
            options.tls(certificates).hba(&hba("hostssl", "trust clientcert=verify-ca"))
        }
    };
    let server = options.start().await?;
    let (user, password) = (Login::USER, login.password().unwrap_or_default());
    let role = format!("CREATE ROLE {user} LOGIN PASSWORD '{password}'");
    server.sql(&[&role, &format!("GRANT CREATE ON DATABASE postgres TO {user}")]).await?;
    Ok(server)
}

fn hba(from: &str, method: &str) -> String {
    format!("local all postgres trust\n{from} all all 127.0.0.1/32 {method}")
}

#[async_trait]
impl Harness for PostgresHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn handle(&self) -> Handle {
        self.flavour.handle()
    }

    fn capabilities(&self) -> Capabilities {
        // Time: the shortest lease.
        let times = LeaseKind::ttl(Duration::from_secs(30), Duration::from_millis(100));
        let mut capabilities = Capabilities::new("postgres", times);
        (capabilities.fifo, capabilities.counts_waiters, capabilities.names_sharers) = (true, true, true);
        (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
        (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
        capabilities
    }

    fn leaves_out(&self, case: &str) -> Option<&'static str> {
        self.pooler.as_ref()?;
        match case {
            "eight_processes_lose_no_update" | "processes_never_exceed_the_permits" => {
                Some("waiters poll there, once a second or more often: a crowd takes minutes")
            }
            _ => None,
        }
    }

    /// Longer than that of the others: a new session of a busy server takes some hundred milliseconds for its first call.
    fn short_lease(&self) -> Duration {
        // Time: it ends while nobody extends it.
        Duration::from_millis(2400)
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        connect(self.flavour, self.url(lease).await).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        worker(self.flavour, &self.url(lease).await)
    }

    /// Holders and waiters. The rows of names stay, with their last tokens; those of dead waiters until somebody looks at the
    /// queue.
    async fn leftovers(&self, part: &str) -> Vec<String> {
        let held = "SELECT 'held: ' || name FROM polylock.lock JOIN polylock.lease USING (name, owner) \
                    WHERE strpos(name, $1) > 0 AND expires_at > clock_timestamp() \
                    UNION ALL SELECT 'shared: ' || name FROM polylock.sharer \
                    WHERE strpos(name, $1) > 0 AND expires_at > clock_timestamp() \
                    UNION ALL SELECT 'waited for: ' || name FROM polylock.waiter WHERE strpos(name, $1) > 0 \
                    AND CASE WHEN inbox IS NULL THEN renewed > clock_timestamp() - interval '5 s' \
                        ELSE polylock.hears(inbox, listener) END";
        let rows = self.client().await.query(held, &[&part]).await.expect("the server answers");
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn delete_behind_the_back(&self, name: &str) {
        let mut client = self.client().await;
        let transaction = client.transaction().await.expect("the server answers");
        for table in ["lock", "lease", "sharer"] {
            let delete = format!("DELETE FROM polylock.{table} WHERE name = $1");
            let deleted = transaction.execute(&delete, &[&name]).await.expect("the server answers");
            assert!(deleted > 0 || table == "sharer", "{name} was not held");
        }
        transaction.commit().await.expect("the server answers");
    }

    async fn link(&self) -> Box<dyn Harness> {
        let proxy = FaultProxy::start(self.addr().await, Protocol::Postgres);
        let proxy = vec![proxy.unwrap_or_else(|error| panic!("{error}"))];
        let (name, server, pooler) = (self.name.clone(), Arc::clone(&self.server), self.pooler.clone());
        Box::new(Self { name, pooler, proxy, ..Self::new(self.flavour, server) })
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(self.alone())
    }

    async fn fault(&self, fault: Fault) {
        set_fault(&self.proxy, fault);
    }

    async fn restart(&self) {
        let server = self.server().await;
        server.kill();
        server.start_again().await.unwrap_or_else(|error| panic!("{error}"));
    }

    fn rotates(&self, _: &Credential) -> Result<(), &'static str> {
        if self.pooler.is_some() { Err("the pooler takes any password, and logs in itself") } else { Ok(()) }
    }

    async fn secured(&self, credential: Credential) -> Box<dyn Harness> {
        let login = Some(Login::new(credential));
        Box::new(Self { login, ..Self::new(self.flavour, Arc::default()) })
    }

    async fn rotate(&self, password: &str) {
        if let Some(certificates) = self.login.as_ref().and_then(Login::certificates) {
            certificates.replace().expect("they can be made");
            return self.restart().await;
        }
        let user = Login::USER;
        let change = format!("ALTER ROLE {user} PASSWORD '{password}'");
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'");
        self.server().await.sql(&[&change, &end]).await.unwrap_or_else(|error| panic!("{error}"));
    }

    fn refusal(&self) -> Result<Refusal, &'static str> {
        let (kind, advice) = (ErrorKind::Unavailable, "name all servers");
        Ok(Refusal { kind, advice, outcome: Outcome::NotApplied, still: Still::Nothing })
    }

    async fn refuse_writes(&self, refuses: bool) {
        let (server, setting) = (self.server().await, if refuses { "on" } else { "off" });
        server.set("default_transaction_read_only", setting).await.unwrap_or_else(|error| panic!("{error}"));
        // It is signalled, and reads its settings later.
        while server.sql(&["SHOW default_transaction_read_only"]).await.is_ok_and(|shown| shown != setting) {}
    }
}
