//! The server of the tests, and clients of it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use lock_core::Locks;
use lock_postgres::PostgresConfig;
use lock_postgres::schema::{self, Grants};
use lock_testkit::postgres::{PostgresOptions, PostgresServer};
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

/// The sessions of the locks of this database.
pub(crate) const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'polylock%'";
/// Those of them that listen.
pub(crate) const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'polylock\\_%'";

static SERVER: Mutex<Weak<PostgresServer>> = Mutex::const_new(Weak::new());
static DATABASES: AtomicUsize = AtomicUsize::new(0);

/// A database of its own on a server, which tests that run at the same time share.
pub(crate) struct Site {
    pub(crate) server: Arc<PostgresServer>,
    pub(crate) database: String,
}

impl Site {
    pub(crate) async fn open() -> Self {
        let mut shared = SERVER.lock().await;
        let server = match shared.upgrade() {
            Some(server) => server,
            None => {
                let server = Arc::new(start().await);
                *shared = Arc::downgrade(&server);
                server
            }
        };
        drop(shared);
        Self::on(server).await
    }

    /// On a server of its own, which a test may kill.
    pub(crate) async fn private() -> Self {
        Self::on(Arc::new(start().await)).await
    }

    /// With a role `app`, which may create the schema and has this password, on a server that asks for it.
    pub(crate) async fn secured(options: PostgresOptions, hba: &str, password: &str) -> Self {
        let options = options.hba(&format!("local all postgres trust\n{hba}"));
        let started = options.start().await.unwrap_or_else(|error| panic!("{error}"));
        let site = Self::on(Arc::new(started)).await;
        let sql = format!(
            "CREATE ROLE app LOGIN PASSWORD '{password}'; GRANT CREATE ON DATABASE {} TO app",
            site.database
        );
        site.execute(&sql).await;
        site
    }

    async fn on(server: Arc<PostgresServer>) -> Self {
        let database = format!("site{}", DATABASES.fetch_add(1, Relaxed));
        let client = client(&server.connect_string()).await;
        client.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
        Self { server, database }
    }

    /// The URL, to which options can be added.
    pub(crate) fn url(&self) -> String {
        self.url_of("postgres")
    }

    pub(crate) fn url_of(&self, user: &str) -> String {
        format!("postgres://{user}@{}/{}?", self.server.addr(), self.database)
    }

    pub(crate) async fn locks(&self, options: &str) -> Locks {
        let ttl = if options.contains("&ttl=") { "" } else { "&ttl=6s" };
        connect(&format!("{}{ttl}{options}", self.url())).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Grants a role what clients need.
    pub(crate) async fn grant(&self, role: &str) {
        let grants = Grants::default().client(role);
        self.execute(&schema::install("polylock", &grants)).await;
    }

    /// A role that may log in, with the default rights.
    pub(crate) async fn role(&self, name: &str) -> String {
        let role = format!("{name}_{}", self.database);
        self.execute(&format!("CREATE ROLE {role} LOGIN")).await;
        role
    }

    pub(crate) async fn client_of(&self, role: &str) -> Client {
        let server = self.server.connect_string().replace("user=postgres dbname=postgres", "");
        client(&format!("{server} user={role} dbname={}", self.database)).await
    }

    /// Whatever the limits of the database are.
    pub(crate) async fn client_without_limits(&self) -> Client {
        let limits = "-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0";
        let server = self.server.connect_string();
        client(&format!("{server} dbname={} options='{limits}'", self.database)).await
    }

    pub(crate) async fn client(&self) -> Client {
        client(&format!("{} dbname={}", self.server.connect_string(), self.database)).await
    }

    /// Runs statements as the owner.
    pub(crate) async fn execute(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Sets something for all new sessions.
    pub(crate) async fn set(&self, setting: &str) {
        self.execute(&format!("ALTER DATABASE {} SET {setting}", self.database)).await;
    }

    /// Makes the schema, as the owner, with the default rights.
    pub(crate) async fn install(&self) {
        self.execute(&schema::install("polylock", &Grants::default())).await;
    }

    /// The first column of the first row.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.client().await.query_one(sql, &[]).await.unwrap().get(0)
    }
}

async fn start() -> PostgresServer {
    let started = PostgresServer::builder().config("max_connections", "300").start().await;
    started.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) async fn connect(url: &str) -> lock_core::Result<Locks> {
    PostgresConfig::from_url(url)?.connect().await
}

pub(crate) async fn client(parameters: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(parameters, NoTls).await.unwrap();
    drop(tokio::spawn(connection));
    client
}
