//! TLS, by the names that libpq has for its options.

use lock_core::Result;
use lock_core::secret::Unreadable;
use lock_core::tls::{TlsFiles, no_tls};
use lock_core::url::OptionValue;
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
    files: TlsFiles,
}

impl Tls {
    /// Sets an option.
    pub(crate) fn set(&mut self, key: &str, value: OptionValue<'_>) -> Result<()> {
        let file = || Some(value.text().to_owned());
        match key {
            "sslrootcert" => self.files.ca = file(),
            "sslcert" => self.files.cert = file(),
            "sslkey" => self.files.key = file(),
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
        self.files.check_pair(BACKEND, ["sslcert", "sslkey"])?;
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
            return Err(no_tls(BACKEND));
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
        self.files.ca.is_some() || self.files.cert.is_some()
    }

    /// The connector, with the certificates that the files have now.
    #[cfg(feature = "tls")]
    pub(crate) async fn connector(&self) -> std::result::Result<Connector, Unreadable> {
        let mut files = self.files.clone();
        files.ca = files.ca.filter(|file| file != "system");
        // A host without certificates needs none for a connection without TLS.
        let mut config = files.config(self.is_required()).await?;
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
}
