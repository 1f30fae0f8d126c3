//! The password and the certificates of a soak. Clients read both from files, which follow later what servers demand.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lock_testkit::redis::RedisOptions;
use lock_testkit::zookeeper::ZkOptions;
use lock_testkit::{Certificates, RedisServer, SecretFile};

use super::{FaultServers, Servers, end_connections};
use crate::data::{Failure, Outcome};
use crate::rig::url;

/// What servers demand of clients, and the files from which clients know it.
#[derive(Debug)]
pub(super) struct Secrets {
    /// Chooses the password: this many were replaced.
    replaced: AtomicU32,
    file: SecretFile,
    tls: Option<Tls>,
}

#[derive(Debug)]
pub(super) struct Tls {
    servers: Arc<Certificates>,
    clients: Certificates,
}

impl Secrets {
    /// A password, and certificates if there is TLS.
    pub(super) fn new(with_tls: bool) -> Outcome<Self> {
        let tls = if with_tls { Some(Tls::new()?) } else { None };
        Ok(Self { replaced: AtomicU32::new(0), file: SecretFile::new(&password(0)), tls })
    }

    pub(super) const fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Has Redis servers demand them from the start on. The user of commands, which has no password, stays.
    pub(super) fn of_redis(&self, options: RedisOptions) -> RedisOptions {
        let options = options.user(USER, &format!("on >{} {EVERYTHING}", password(0)));
        match &self.tls {
            Some(tls) => options.tls(&tls.servers, true),
            None => options,
        }
    }

    /// Has ZooKeeper servers demand the password from the start on.
    pub(super) fn of_zookeeper(options: ZkOptions) -> ZkOptions {
        options.sasl(USER, &password(0))
    }

    pub(super) fn add_to(&self, url: &str) -> String {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let scheme = if self.has_tls() { "rediss" } else { scheme };
        let url = format!("{scheme}://{USER}@{rest}");
        let mut options = vec![("password_file", self.file.to_string())];
        if scheme == "zk" {
            options.push(("auth", "sasl".to_owned()));
        }
        if let Some(Tls { clients, .. }) = &self.tls {
            let (cert, key) = clients.client();
            let files = [("tls_ca", clients.ca()), ("tls_cert", cert), ("tls_key", key)];
            options.extend(files.map(|(name, path)| (name, path.display().to_string())));
        }
        options.iter().fold(url, |url, (name, value)| url::with_option(&url, name, value))
    }

    fn password(&self) -> String {
        password(self.replaced.load(Ordering::Relaxed))
    }

    /// Has a server that runs demand the password of now, and no other.
    pub(super) async fn set_password(&self, server: &RedisServer) -> Outcome<()> {
        let rules = format!("ACL SETUSER {USER} on resetpass >{} {EVERYTHING}", self.password());
        let reply = server.command(&rules.split(' ').collect::<Vec<_>>()).await?;
        if reply.is_error() { Err(Failure::new(format!("ACL SETUSER: {reply:?}"))) } else { Ok(()) }
    }
}

impl Tls {
    fn new() -> Outcome<Self> {
        let tls = Self { servers: Arc::new(Certificates::new()?), clients: Certificates::new()? };
        tls.publish()?;
        Ok(tls)
    }

    /// Copies what clients need. A client that reads meanwhile finds files that do not belong together.
    fn publish(&self) -> Outcome<()> {
        let (Self { servers, clients }, copy) = (self, |from: &Path, to: &Path| fs::copy(from, to).map(drop));
        copy(&servers.ca(), &clients.ca())?;
        copy(&servers.client().0, &clients.client().0)?;
        Ok(copy(&servers.client().1, &clients.client().1)?)
    }
}

impl FaultServers {
    /// Has all servers demand another password of clients, and closes their connections.
    pub(super) async fn replace_password(&self) -> Outcome<()> {
        let secrets = self.secrets()?;
        secrets.replaced.fetch_add(1, Ordering::Relaxed);
        if let Servers::ZooKeeper(ensemble) = &self.servers {
            // They read it when they start.
            for node in ensemble.nodes() {
                node.set_sasl(USER, &secrets.password())?;
                node.restart().await?;
            }
        }
        for server in self.all_redis() {
            secrets.set_password(server).await?;
            end_connections(server).await?;
        }
        Ok(())
    }

    /// Restarts a Redis server with certificates of another authority.
    pub(super) async fn replace_certificates(&self, server: usize) -> Outcome<()> {
        let tls = self.secrets()?.tls.as_ref().ok_or_else(|| Failure::new("there is no TLS"))?;
        self.server(server).kill();
        tls.servers.replace()?;
        self.start_again(server).await
    }

    /// Writes what servers demand to the files that clients read.
    pub(super) fn publish_secrets(&self) -> Outcome<()> {
        let secrets = self.secrets()?;
        secrets.file.change(&secrets.password());
        secrets.tls.as_ref().map_or(Ok(()), Tls::publish)
    }

    fn secrets(&self) -> Outcome<&Secrets> {
        self.secrets.as_ref().ok_or_else(|| Failure::new("the servers demand no password"))
    }
}

fn password(number: u32) -> String {
    format!("password-{number}")
}

const USER: &str = "worker";
const EVERYTHING: &str = "~* &* +@all";
