//! The PostgreSQL backend.

use std::sync::Arc;

use lock_core::backend::Support;
use lock_core::engine::{Engine, EngineOptions, OnEngine};
use lock_core::runtime::{self, Home};
use lock_core::waiting::pause_between;
use lock_core::{Capabilities, ErrorKind, Lazy, LeaseKind, Locks, Result};
use tokio::time::sleep;

use crate::config::PostgresConfig;
use crate::connect::link::Dialer;
use crate::error::{BACKEND, CREATED_AT_ONCE, Endpoint, FOREIGN_SCHEMA, MIN_TTL, NOT_INSTALLED};
use crate::inbox::Inbox;
use crate::operate::sweep::Sweeper;
use crate::schema::{self, Grants};
use crate::server::{SchemaOwner, Server};
use crate::store::PostgresStore;

/// How often an installation is tried that others disturb.
const INSTALLATIONS: u32 = 20;

/// The backend for a PostgreSQL database.
///
/// A lock is as durable as the database: after a failover to an asynchronous standby, two may hold it at once. Data in the same
/// database is safe even then, and from holders that were paused: see [`Fence`](crate::Fence).
///
/// # Examples
///
/// ```no_run
/// use lock_core::Locks;
/// use lock_postgres::{Postgres, PostgresConfig};
///
/// # async fn example() -> lock_core::Result<()> {
/// let postgres = Postgres::connect(PostgresConfig::from_url("postgres://me@localhost/shop")?).await?;
/// let locks = Locks::new(postgres);
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// [`PostgresConfig::connect`] does the first two lines in one.
#[derive(Debug)]
pub struct Postgres(Engine<PostgresStore>);

impl Postgres {
    /// Connects to the server, and creates or upgrades the schema if that is needed and allowed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], [`ErrorKind::Unavailable`] or [`ErrorKind::Denied`];
    /// [`ErrorKind::Unsupported`] if the schema is newer than this client.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connection is closed, after `connect_timeout` at the latest. The schema may have been
    /// created.
    pub async fn connect(config: PostgresConfig) -> Result<Self> {
        let home = Home::here();
        let server = config.server(&home).await?;
        prepare(&server, &config).await?;
        let listens = config.listen.then(|| config.listen_targets()).transpose()?;
        let listens = listens.map(|targets| config.dialer(targets, &home));
        let inbox = Inbox::new(&server, listens);
        // Until then, waiters would poll. It goes on in the background.
        inbox.opened(config.connect_timeout).await;
        let mut options = EngineOptions::new(config.command_timeout);
        options.local_handovers = config.local_handovers;
        // The fence knows the block of the last grant only, so it would accept a token that another task has passed on.
        options.passes_on_shown_tokens = false;
        options.clock = config.clock.clone();
        let store = PostgresStore { server, inbox, sweeper: Sweeper::new(), listens: config.listen };
        Engine::new(store, capabilities(&config), options).map(Self)
    }
}

/// Checks that the schema is there and whose it is, and creates or upgrades it where that is needed and allowed.
async fn prepare(server: &Server, config: &PostgresConfig) -> Result<()> {
    let found = version(server, config).await?;
    match found {
        Some(version) if version > schema::VERSION => {
            return Err(server.endpoint.too_new(version, schema::VERSION));
        }
        Some(schema::VERSION) => return Ok(()),
        _ => {}
    }
    let is_enough = found.is_some_and(|version| version >= schema::OLDEST);
    if config.install {
        match install(server, &config.grants).await {
            Err(error) if is_enough => {
                tracing::warn!(%error, "the schema was not upgraded; its older version works");
            }
            // Somebody else may have made it meanwhile.
            installed => return installed.and(version(server, config).await.map(drop)),
        }
    }
    match found {
        _ if is_enough => Ok(()),
        Some(version) => Err(server.endpoint.not_installed(&format!("it has the old version {version}"))),
        None => Err(server.endpoint.not_installed("it has no functions")),
    }
}

/// Whether the schema is there. One in which somebody who is not trusted may have left something is refused.
async fn exists(server: &Server, config: &PostgresConfig) -> Result<bool> {
    match server.owner(config.owner.as_deref()).await? {
        SchemaOwner::Missing => Ok(false),
        SchemaOwner::Trusted => Ok(true),
        SchemaOwner::Distrusted(why) => Err(server.endpoint.distrusted(&why)),
    }
}

/// The version of the schema, if it has one.
async fn version(server: &Server, config: &PostgresConfig) -> Result<Option<i32>> {
    if !exists(server, config).await? {
        return Ok(None);
    }
    match server.version().await {
        Err(error) if error.code() == NOT_INSTALLED => Ok(None),
        found => found,
    }
}

/// Creates or upgrades the schema.
async fn install(server: &Server, grants: &Grants) -> Result<()> {
    // A login that is refused is another matter than a right on the schema.
    drop(server.connection().await?);
    let sql = schema::install(&server.endpoint.schema, grants);
    let mut tries = 0;
    loop {
        tries += 1;
        match server.batch(&sql).await {
            // Another process creates it at the same time.
            Err(error) if error.code() == CREATED_AT_ONCE && tries < INSTALLATIONS => {
                sleep(pause_between(20, 100)).await;
            }
            Err(error) if error.kind() == ErrorKind::Denied && error.code() != FOREIGN_SCHEMA => {
                return Err(server.endpoint.may_not_install(error));
            }
            installed => return installed,
        }
    }
}

impl OnEngine for Postgres {
    type Store = PostgresStore;

    fn engine(&self) -> &Engine<PostgresStore> {
        &self.0
    }
}

impl PostgresConfig {
    /// The server, before the first connection to it.
    async fn server(&self, home: &Home) -> Result<Arc<Server>> {
        self.check()?;
        runtime::current(BACKEND)?;
        let requests = self.dialer(self.targets()?, home);
        requests.check().await?;
        Server::new(requests, self.pool, self.sync, self.command_timeout, self.clock.clone()).map(Arc::new)
    }

    fn dialer(&self, targets: Vec<tokio_postgres::Config>, home: &Home) -> Dialer {
        let secrets = (self.password_source().cloned(), self.tls.clone());
        let endpoint = Endpoint { servers: self.servers(), schema: self.schema.clone() };
        Dialer::new(targets, secrets, self.connect_timeout, endpoint, home.clone())
    }

    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// As [`Postgres::connect`].
    ///
    /// # Cancel safety
    ///
    /// As [`Postgres::connect`].
    pub async fn connect(self) -> Result<Locks> {
        Ok(Locks::new(Postgres::connect(self).await?))
    }

    /// The same locks without a connection: the first use connects, and returns the errors of connecting.
    ///
    /// For a service that starts before its server. This method needs no runtime; every use of the locks does.
    ///
    /// ```
    /// # use lock_postgres::PostgresConfig;
    /// let locks = PostgresConfig::from_url("postgres://localhost")?.connect_lazy()?;
    /// let mutex = locks.mutex("orders/42"); // nothing is sent before mutex.acquire()
    /// # let _ = mutex;
    /// # Ok::<(), lock_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a bad option.
    pub fn connect_lazy(self) -> Result<Locks> {
        self.check()?;
        Ok(Locks::new(Lazy::new(capabilities(&self), move || Postgres::connect(self.clone()))))
    }

    /// The SQL that [`install_schema`](Self::install_schema) runs, for an administrator and `psql`.
    #[must_use]
    pub fn schema_sql(&self) -> String {
        schema::script(&self.schema, &self.grants)
    }

    /// Creates or upgrades the schema, whatever is there: for a role that may, where the clients may not.
    ///
    /// # Errors
    ///
    /// As [`Postgres::connect`], and [`ErrorKind::InvalidConfig`] for a role that may not.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the schema may have been created.
    pub async fn install_schema(self) -> Result<()> {
        let server = self.server(&Home::here()).await?;
        let installed = async {
            exists(&server, &self).await?;
            install(&server, &self.grants).await
        };
        let installed = installed.await;
        server.close();
        installed
    }
}

fn capabilities(config: &PostgresConfig) -> Capabilities {
    let mut capabilities = Capabilities::new(BACKEND, LeaseKind::ttl(config.ttl, MIN_TTL));
    capabilities.answer_timeout = config.answer_timeout();
    (capabilities.fifo, capabilities.counts_waiters, capabilities.names_sharers) = (true, true, true);
    (capabilities.shared, capabilities.permits) = (Support::Yes, Support::Yes);
    (capabilities.breaks_one, capabilities.listing) = (Support::Yes, Support::Yes);
    capabilities
}
