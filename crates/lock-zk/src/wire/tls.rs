//! The TLS options of a URL.

#[cfg(feature = "tls")]
use std::path::Path;

#[cfg(feature = "tls")]
use lock_core::secret::{Unreadable, read_file};
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

    /// The certificates that the files have now.
    #[cfg(feature = "tls")]
    pub(crate) async fn read(&self) -> Result<TlsOptions, Unreadable> {
        let Self { ca, cert, key } = self;
        let unusable = |error| {
            let files: Vec<_> = [ca, cert, key].into_iter().flatten().collect();
            Unreadable::new(format!("the PEM text in {files:?} cannot be used: {error}"))
        };
        let mut options = TlsOptions::new();
        if let Some(ca) = text_of(ca).await? {
            options = options.with_pem_ca(&ca).map_err(unusable)?;
        }
        if let (Some(cert), Some(key)) = (text_of(cert).await?, text_of(key).await?) {
            options = options.with_pem_identity(&cert, &key).map_err(unusable)?;
        }
        Ok(options)
    }
}

#[cfg(feature = "tls")]
async fn text_of(file: &Option<String>) -> Result<Option<String>, Unreadable> {
    let Some(file) = file else { return Ok(None) };
    let text = String::from_utf8(read_file(Path::new(file)).await?);
    text.map(Some).map_err(|_| Unreadable::new(format!("{file:?} has no PEM text")))
}
