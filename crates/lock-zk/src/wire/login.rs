//! How connections authenticate. Passwords and files are read at each connect.

use std::time::Duration;

use lock_core::secret::Unreadable;
use lock_core::tls::TlsFiles;
use lock_core::{ErrorKind, Password, Result};
use tokio::time::timeout;
use zookeeper_client::{Client, Connector};

use crate::error::{BACKEND, error};
use crate::wire::tls;

/// The use of user and password.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Auth {
    #[default]
    Digest,
    Sasl,
}

/// The credentials of every connection, and TLS.
#[derive(Clone, Default)]
pub(crate) struct Login {
    /// User and password.
    pub(crate) credentials: Option<(String, Password)>,
    pub(crate) auth: Auth,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) typed: TypedOptions,
}

/// Options of the driver's own types, which cannot be compared, and do not change.
#[derive(Clone, Default)]
pub(crate) struct TypedOptions {
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<zookeeper_client::TlsOptions>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<zookeeper_client::SaslOptions>,
}

impl TypedOptions {
    const fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    pub(crate) const fn has_sasl(&self) -> bool {
        #[cfg(feature = "sasl")]
        return self.sasl.is_some();
        #[cfg(not(feature = "sasl"))]
        false
    }

    pub(crate) const fn is_given(&self) -> bool {
        self.has_tls() || self.has_sasl()
    }
}

impl Login {
    /// Whether the connections use TLS.
    pub(crate) const fn speaks_tls(&self) -> bool {
        self.typed.has_tls() || self.tls.is_some()
    }

    /// Whether the driver has to know the names of the servers: for their certificates, or for their tickets (GSSAPI).
    pub(crate) const fn needs_names(&self) -> bool {
        self.speaks_tls() || self.typed.has_sasl()
    }

    /// Whether servers can tell which client this is.
    pub(crate) fn authenticates(&self) -> bool {
        let certificate = self.tls.as_ref().is_some_and(|tls| tls.cert.is_some());
        certificate || self.typed.is_given() || self.credentials.is_some()
    }

    /// Whether everybody on the way to the servers can read the password.
    pub(crate) fn shows_password(&self) -> bool {
        self.credentials.is_some() && self.auth == Auth::Digest && !self.speaks_tls()
    }

    /// Whether both log in alike, as far as that can be compared.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.credentials, self.auth, &self.tls) == (&other.credentials, other.auth, &other.tls)
    }

    /// Refuses options that cannot work.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(files) = &self.tls {
            tls::check(files)?;
        }
        if self.auth == Auth::Sasl {
            if !cfg!(feature = "sasl") {
                let hint = "enable the feature: cargo add polylock --features zk,sasl";
                return Err(error(ErrorKind::Unsupported, "this build does not support SASL", hint));
            }
            if self.credentials.is_none() {
                let hint = "write user:password@, or user@ and password_file=";
                return Err(error(ErrorKind::InvalidConfig, "auth=sasl needs a user and a password", hint));
            }
        }
        Ok(())
    }

    /// Refuses passwords and files that cannot be read, which may pass only later.
    pub(crate) async fn check_files(&self, limit: Duration) -> Result<()> {
        let read = self.add_to(Client::connector(), limit).await;
        read.map(drop).map_err(|unreadable| unreadable.error(ErrorKind::InvalidConfig, BACKEND))
    }

    /// The connector, with what can be read now, within this time.
    pub(crate) async fn add_to(
        &self,
        connector: Connector,
        limit: Duration,
    ) -> Result<Connector, Unreadable> {
        let read = timeout(limit, self.read_for(connector)).await;
        read.unwrap_or_else(|_| Err(Unreadable::new(format!("no password within {limit:?}"))))
    }

    async fn read_for(&self, mut connector: Connector) -> Result<Connector, Unreadable> {
        if let Some((user, password)) = &self.credentials {
            let password = password.read().await?;
            connector = match self.auth {
                Auth::Digest => connector.with_auth("digest", format!("{user}:{password}").as_bytes()),
                #[cfg(feature = "sasl")]
                Auth::Sasl => {
                    connector.with_sasl(zookeeper_client::SaslOptions::digest_md5(user.clone(), password))
                }
                #[cfg(not(feature = "sasl"))]
                Auth::Sasl => connector,
            };
        }
        #[cfg(feature = "sasl")]
        if let Some(sasl) = &self.typed.sasl {
            connector = connector.with_sasl(sasl.clone());
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.typed.tls {
            connector = connector.with_tls(tls.clone());
        } else if let Some(files) = &self.tls {
            connector = connector.with_tls(tls::read(files).await?);
        }
        Ok(connector)
    }
}
