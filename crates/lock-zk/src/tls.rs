//! TLS, as URLs ask for it.

#[cfg(feature = "tls")]
use zookeeper_client::TlsOptions;

use lock_core::{Error, ErrorKind, Result};

use crate::BACKEND;

/// The files that a URL names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<String>,
    pub(crate) cert: Option<String>,
    pub(crate) key: Option<String>,
}

impl TlsFiles {
    /// Refuses what cannot be a way to the servers.
    pub(crate) fn check(&self) -> Result<()> {
        if !cfg!(feature = "tls") {
            return Err(Error::new(ErrorKind::Unsupported, BACKEND)
                .with_message("this build has no TLS")
                .with_hint("enable the feature: cargo add polylock --features zk,tls"));
        }
        if self.ca.is_none() {
            return Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
                .with_message("it is not said whose certificates to trust")
                .with_hint("name a file with the certificates of the authorities, PEM, as tls_ca"));
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
                .with_message("a client certificate is only half there")
                .with_hint("give both tls_cert and tls_key"));
        }
        Ok(())
    }

    /// What they say now.
    #[cfg(feature = "tls")]
    pub(crate) fn read(&self) -> Result<TlsOptions> {
        let read = |file: &Option<String>| {
            let Some(file) = file else { return Ok(None) };
            std::fs::read_to_string(file).map(Some).map_err(|error| {
                Error::new(ErrorKind::InvalidConfig, BACKEND)
                    .with_message(format!("cannot read {file:?}: {error}"))
                    .with_hint("name a file with PEM text")
            })
        };
        let unusable = |error| {
            Error::new(ErrorKind::InvalidConfig, BACKEND)
                .with_message(format!("the certificates cannot be used: {error}"))
                .with_hint("tls_ca, tls_cert and tls_key must be files with PEM text")
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

/// Sees to it that there is cryptography: an application that chose its own keeps it.
#[cfg(feature = "tls")]
pub(crate) fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if somebody else installed one in the meantime.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
