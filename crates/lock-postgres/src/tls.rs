//! TLS, by the names that libpq has for its options.

#[cfg(feature = "tls")]
use std::path::Path;

use lock_core::secret::Unreadable;
#[cfg(feature = "tls")]
use lock_core::secret::read_file;
use lock_core::url::OptionValue;
use lock_core::{Error, ErrorKind, Result};
#[cfg(feature = "tls")]
use rustls::pki_types::pem::PemObject;
#[cfg(feature = "tls")]
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
#[cfg(feature = "tls")]
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, SslNegotiation};

use crate::error::{BACKEND, invalid};

/// What makes a connection secure.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// The options `sslmode`, `sslnegotiation`, `sslrootcert`, `sslcert` and `sslkey`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    required: Option<bool>,
    negotiation: SslNegotiation,
    root_cert: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Tls {
    /// Sets an option.
    pub(crate) fn set(&mut self, key: &str, value: OptionValue<'_>) -> Result<()> {
        let file = || Some(value.text().to_owned());
        match key {
            "sslrootcert" => self.root_cert = file(),
            "sslcert" => self.cert = file(),
            "sslkey" => self.key = file(),
            "sslnegotiation" => {
                let all = [("postgres", SslNegotiation::Postgres), ("direct", SslNegotiation::Direct)];
                self.negotiation = value.one_of(all)?;
            }
            _ => {
                self.required = Some(match value.text() {
                    "disable" => false,
                    // Each checks the certificate and its host name: the last as well, and more than the others promise.
                    "require" | "verify-ca" | "verify-full" => true,
                    _ => {
                        return Err(value.invalid(
                            "use disable, or require, which checks the certificate; a private authority goes into \
                             sslrootcert=",
                        ));
                    }
                });
            }
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.cert.is_some() != self.key.is_some() {
            return Err(invalid(
                "the client certificate or its key is missing",
                "give both sslcert= and sslkey=",
            ));
        }
        if self.required == Some(false) && self.names_files() {
            return Err(invalid(
                "sslrootcert=, sslcert= and sslkey= have no use with sslmode=disable",
                "leave them or sslmode= out",
            ));
        }
        if self.negotiation == SslNegotiation::Direct && !self.is_required() {
            return Err(invalid("sslnegotiation=direct needs TLS", "add sslmode=require"));
        }
        if self.is_required() && !cfg!(feature = "tls") {
            return Err(Error::new(ErrorKind::Unsupported, BACKEND)
                .with_message("this build has no TLS")
                .with_hint("enable the feature: cargo add polylock --features postgres,tls"));
        }
        Ok(())
    }

    /// Hands the options to the driver.
    pub(crate) fn apply(&self, target: &mut Config) {
        let mode = if self.is_required() { SslMode::Require } else { SslMode::Disable };
        target.ssl_mode(mode).ssl_negotiation(self.negotiation);
    }

    pub(crate) fn is_required(&self) -> bool {
        self.required.unwrap_or_else(|| self.names_files())
    }

    fn names_files(&self) -> bool {
        self.root_cert.is_some() || self.cert.is_some()
    }

    /// The connector, with the certificates that the files have now.
    #[cfg(feature = "tls")]
    pub(crate) async fn connector(&self) -> std::result::Result<Connector, Unreadable> {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Fails only if another thread installed one meanwhile.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        // A host without certificates needs none for a connection without TLS.
        let roots = if self.is_required() { self.roots().await? } else { RootCertStore::empty() };
        let config = ClientConfig::builder().with_root_certificates(roots);
        let mut config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let pem = read_file(Path::new(key)).await?;
                let secret = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unusable(key, error))?;
                let config = config.with_client_auth_cert(certificates(cert).await?, secret);
                config.map_err(|error| unusable(cert, error))?
            }
            _ => config.with_no_client_auth(),
        };
        if self.negotiation == SslNegotiation::Direct {
            // Servers refuse a client that does not name the protocol.
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(Connector::new(config))
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_async, reason = "there is nothing to read")]
    pub(crate) async fn connector(&self) -> std::result::Result<Connector, Unreadable> {
        Ok(tokio_postgres::NoTls)
    }

    #[cfg(feature = "tls")]
    async fn roots(&self) -> std::result::Result<RootCertStore, Unreadable> {
        let mut roots = RootCertStore::empty();
        match self.root_cert.as_deref() {
            None | Some("system") => {
                let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
                let found = found.map_err(|error| Unreadable::new(error.to_string()))?;
                if roots.add_parsable_certificates(found.certs).0 == 0 {
                    let why = format!("the system has no certificates of authorities: {:?}", found.errors);
                    return Err(Unreadable::new(why));
                }
            }
            Some(file) => {
                for certificate in certificates(file).await? {
                    roots.add(certificate).map_err(|error| unusable(file, error))?;
                }
            }
        }
        Ok(roots)
    }
}

/// The certificates in a file.
#[cfg(feature = "tls")]
async fn certificates(file: &str) -> std::result::Result<Vec<CertificateDer<'static>>, Unreadable> {
    let pem = read_file(Path::new(file)).await?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>();
    let found = found.map_err(|error| unusable(file, error))?;
    if found.is_empty() { Err(unusable(file, "there is no certificate in PEM")) } else { Ok(found) }
}

#[cfg(feature = "tls")]
fn unusable(file: &str, why: impl std::fmt::Display) -> Unreadable {
    Unreadable::new(format!("{file:?} cannot be used: {why}"))
}
