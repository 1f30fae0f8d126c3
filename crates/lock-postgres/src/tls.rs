//! TLS, by the names that libpq has for its options.

use lock_core::secret::Unreadable;
use lock_core::url::OptionValue;
use lock_core::{Error, ErrorKind, Result};
use tokio_postgres::config::SslMode;

use crate::error::{BACKEND, invalid};

/// The options `sslmode` and `sslrootcert`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    required: Option<bool>,
    root_cert: Option<String>,
}

impl Tls {
    /// Sets an option.
    pub(crate) fn set(&mut self, key: &str, value: OptionValue<'_>) -> Result<()> {
        if key == "sslrootcert" {
            self.root_cert = Some(value.text().to_owned());
            return Ok(());
        }
        self.required = Some(match value.text() {
            "disable" => false,
            "require" | "verify-full" => true,
            _ => {
                return Err(value.invalid(
                    "use disable, or require, which checks the certificate; a private authority goes into sslrootcert=",
                ));
            }
        });
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.required == Some(false) && self.root_cert.is_some() {
            return Err(invalid("sslrootcert= has no use with sslmode=disable", "leave one of them out"));
        }
        if self.is_required() && !cfg!(feature = "tls") {
            return Err(Error::new(ErrorKind::Unsupported, BACKEND)
                .with_message("this build has no TLS")
                .with_hint("enable the feature: cargo add polylock --features postgres,tls"));
        }
        Ok(())
    }

    pub(crate) fn mode(&self) -> SslMode {
        if self.is_required() { SslMode::Require } else { SslMode::Disable }
    }

    pub(crate) fn is_required(&self) -> bool {
        self.required.unwrap_or_else(|| self.root_cert.is_some())
    }

    /// The connector, with the certificates that the file has now.
    #[cfg(feature = "tls")]
    pub(crate) async fn connector(
        &self,
    ) -> std::result::Result<tokio_postgres_rustls::MakeRustlsConnect, Unreadable> {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;
        use rustls::{ClientConfig, RootCertStore};

        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Fails only if another thread installed one meanwhile.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let Some(file) = &self.root_cert else {
            let native = tokio_postgres_rustls::MakeRustlsConnect::with_native_certs();
            let native =
                native.map_err(|error| Unreadable::new(format!("the system's certificates: {error:?}")));
            return native.map(|(connector, _)| connector);
        };
        let pem = lock_core::secret::read_file(std::path::Path::new(file)).await?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem).flatten() {
            roots.add(certificate).map_err(|error| Unreadable::new(format!("{file:?}: {error}")))?;
        }
        if roots.is_empty() {
            return Err(Unreadable::new(format!("{file:?} has no certificate in PEM")));
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(tokio_postgres_rustls::MakeRustlsConnect::new(config))
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_async, reason = "there is nothing to read")]
    pub(crate) async fn connector(&self) -> std::result::Result<tokio_postgres::NoTls, Unreadable> {
        Ok(tokio_postgres::NoTls)
    }
}
