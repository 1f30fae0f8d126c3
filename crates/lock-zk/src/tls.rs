//! The TLS options of a URL.

use lock_core::{ErrorKind, Result};
#[cfg(feature = "tls")]
use zookeeper_client::TlsOptions;

use crate::error::error;

/// The PEM files that a URL names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<String>,
    pub(crate) cert: Option<String>,
    pub(crate) key: Option<String>,
}

impl TlsFiles {
    /// Refuses options that cannot work.
    pub(crate) fn check(&self) -> Result<()> {
        if !cfg!(feature = "tls") {
            let hint = "enable the feature: cargo add polylock --features zk,tls";
            return Err(error(ErrorKind::Unsupported, "this build does not support TLS", hint));
        }
        if self.ca.is_none() {
            let hint = "name a PEM file with the certificates of the trusted authorities as tls_ca";
            return Err(error(ErrorKind::InvalidConfig, "tls_ca is missing", hint));
        }
        if self.cert.is_some() != self.key.is_some() {
            let message = "only half of the client certificate is given";
            return Err(error(ErrorKind::InvalidConfig, message, "give both tls_cert and tls_key"));
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    pub(crate) fn read(&self) -> Result<TlsOptions> {
        let invalid = |message, hint| error(ErrorKind::InvalidConfig, message, hint);
        let read = |file: &Option<String>| {
            let Some(file) = file else { return Ok(None) };
            let text = std::fs::read_to_string(file).map(Some);
            text.map_err(|error| {
                invalid(format!("cannot read {file:?}: {error}"), "name a file with PEM text")
            })
        };
        let unusable = |error| {
            let hint = "tls_ca, tls_cert and tls_key must be files with PEM text";
            invalid(format!("the certificates cannot be used: {error}"), hint)
        };
        let mut options = TlsOptions::new();
        if let Some(ca) = read(&self.ca)? {
            options = options.with_pem_ca(&ca).map_err(unusable)?;
        }
        if let (Some(cert), Some(key)) = (read(&self.cert)?, read(&self.key)?) {
            options = options.with_pem_identity(&cert, &key).map_err(unusable)?;
        }
        Ok(options)
    }
}

/// Installs a cryptography provider, unless the application has installed its own.
#[cfg(feature = "tls")]
pub(crate) fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread installs one at the same time.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
