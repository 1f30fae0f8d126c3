//! The TLS options of a URL.

#[cfg(feature = "tls")]
use std::path::Path;

#[cfg(feature = "tls")]
use lock_core::secret::{Unreadable, read_file};
use lock_core::tls::{TlsFiles, no_tls};
use lock_core::{ErrorKind, Result};
#[cfg(feature = "tls")]
use zookeeper_client::TlsOptions;

use crate::error::{BACKEND, error};

/// Refuses options that cannot work.
pub(crate) fn check(files: &TlsFiles) -> Result<()> {
    if !cfg!(feature = "tls") {
        return Err(no_tls(BACKEND));
    }
    if files.ca.is_none() {
        let hint = "name a PEM file with the certificates of the trusted authorities as tls_ca";
        return Err(error(ErrorKind::InvalidConfig, "tls_ca is missing", hint));
    }
    files.check_pair(BACKEND, ["tls_cert", "tls_key"])
}

/// The certificates that the files have now, for the driver.
#[cfg(feature = "tls")]
pub(crate) async fn read(files: &TlsFiles) -> Result<TlsOptions, Unreadable> {
    let TlsFiles { ca, cert, key } = files;
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

#[cfg(feature = "tls")]
async fn text_of(file: &Option<String>) -> Result<Option<String>, Unreadable> {
    let Some(file) = file else { return Ok(None) };
    let text = String::from_utf8(read_file(Path::new(file)).await?);
    text.map(Some).map_err(|_| Unreadable::new(format!("{file:?} has no PEM text")))
}
