//! The certificates of TLS, in files that are read at each connect.

#[cfg(feature = "tls")]
use std::fmt::Display;
#[cfg(feature = "tls")]
use std::path::Path;

#[cfg(feature = "tls")]
use rustls::crypto::{CryptoProvider, ring};
#[cfg(feature = "tls")]
use rustls::pki_types::pem::PemObject;
#[cfg(feature = "tls")]
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
#[cfg(feature = "tls")]
use rustls::{ClientConfig, RootCertStore};

#[cfg(feature = "tls")]
use crate::connect::secret::{Unreadable, read_file};
use crate::{Error, ErrorKind, Result};

/// The PEM files of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TlsFiles {
    /// The certificates of the authorities to trust, instead of those of the system.
    pub ca: Option<String>,
    /// The certificate of the client.
    pub cert: Option<String>,
    /// The key of the client.
    pub key: Option<String>,
}

impl TlsFiles {
    /// Sets the file that an option of a URL names, and reports whether it is one of the three.
    pub fn set(&mut self, option: &str, file: &str) -> bool {
        let which = match option {
            "tls_ca" => &mut self.ca,
            "tls_cert" => &mut self.cert,
            "tls_key" => &mut self.key,
            _ => return false,
        };
        *which = Some(file.to_owned());
        true
    }

    /// Refuses half of a client certificate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`], with a hint that names the options of `[certificate, key]`.
    pub fn check_pair(&self, backend: &'static str, [cert, key]: [&str; 2]) -> Result<()> {
        if self.cert.is_some() == self.key.is_some() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidConfig, backend)
            .with_message("the client certificate or its key is missing")
            .with_hint(format!("give both {cert}= and {key}=")))
    }
}

/// The error of a build without TLS.
#[must_use]
pub fn no_tls(backend: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, backend)
        .with_message("this build has no TLS")
        .with_hint(format!("enable the feature: cargo add polylock --features {backend},tls"))
}

#[cfg(feature = "tls")]
impl TlsFiles {
    /// The configuration with the certificates that the files have now. The system's are not read if no certificate is verified.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or used, or the system has no certificates.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn config(&self, verifies: bool) -> Result<ClientConfig, Unreadable> {
        install_provider();
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(file) => {
                for certificate in certificates(file).await? {
                    roots.add(certificate).map_err(|error| unusable(file, error))?;
                }
            }
            None if verifies => {
                let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
                let found = found.map_err(|error| Unreadable::new(error.to_string()))?;
                if roots.add_parsable_certificates(found.certs).0 == 0 {
                    let why = format!("the system has no certificates of authorities: {:?}", found.errors);
                    return Err(Unreadable::new(why));
                }
            }
            None => {}
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
            return Ok(config.with_no_client_auth());
        };
        let pem = read_file(Path::new(key)).await?;
        let secret = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unusable(key, error))?;
        let config = config.with_client_auth_cert(certificates(cert).await?, secret);
        config.map_err(|error| unusable(cert, error))
    }
}

/// Installs a cryptography provider, unless the application has installed one.
#[cfg(feature = "tls")]
pub fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only if another thread installed one meanwhile.
        let _ = ring::default_provider().install_default();
    }
}

/// The certificates in a file.
#[cfg(feature = "tls")]
async fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, Unreadable> {
    let pem = read_file(Path::new(file)).await?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| unusable(file, error))?;
    if found.is_empty() { Err(unusable(file, "there is no certificate in PEM")) } else { Ok(found) }
}

#[cfg(feature = "tls")]
fn unusable(file: &str, why: impl Display) -> Unreadable {
    Unreadable::new(format!("{file:?} cannot be used: {why}"))
}
