//! The TLS options of a URL.

use lock_core::url::OptionValue;
use lock_core::{Error, ErrorKind, Result};
use redis::{ConnectionAddr, ConnectionInfo};

/// The TLS options of a URL with `rediss://`, `rediss+sentinel://`, `rediss+cluster://` or `redlocks://`.
///
/// | option | default | |
/// |---|---|---|
/// | `tls_ca` | the system's | file with the certificates of the authorities to trust, PEM |
/// | `tls_cert`, `tls_key` | none | files with the client certificate and its key, PEM |
/// | `tls_insecure_skip_verify` | `false` | `true` accepts any server certificate: for tests only |
///
/// # Examples
///
/// The options are part of the URL:
///
/// ```text
/// rediss://me:s3cret@redis.example.com:6380?tls_ca=/etc/ssl/our-ca.pem
/// ```
///
/// This type names them:
///
/// ```
/// # use redis_link::tls::Tls;
/// assert!(Tls::OPTIONS.contains(&"tls_ca"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tls {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    skip_verify: bool,
}

impl Tls {
    /// The names of the options.
    pub const OPTIONS: [&'static str; 4] = ["tls_ca", "tls_cert", "tls_key", "tls_insecure_skip_verify"];

    /// Sets an option, and reports whether it is a TLS option.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a bad value.
    pub fn set(&mut self, key: &str, value: OptionValue<'_>) -> Result<bool> {
        let file = || Some(value.text().to_owned());
        match key {
            "tls_ca" => self.ca = file(),
            "tls_cert" => self.cert = file(),
            "tls_key" => self.key = file(),
            "tls_insecure_skip_verify" => self.skip_verify = value.parse("use true or false")?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The same server, reached over TLS with these options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a file that cannot be used, [`ErrorKind::Unsupported`] in a build without TLS.
    pub fn over(&self, backend: &'static str, info: ConnectionInfo) -> Result<ConnectionInfo> {
        if !cfg!(feature = "tls") {
            return Err(unsupported(backend));
        }
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else { return Ok(info) };
        let info = info.set_addr(ConnectionAddr::TcpTls {
            host,
            port,
            insecure: self.skip_verify,
            tls_params: None,
        });
        self.with_certificates(backend, info)
    }

    #[cfg(feature = "tls")]
    fn with_certificates(&self, backend: &'static str, info: ConnectionInfo) -> Result<ConnectionInfo> {
        use redis::{Client, ClientTlsConfig, TlsCertificates};

        let read = |file: &String| {
            std::fs::read(file).map_err(|error| {
                invalid(backend, format!("cannot read {file:?}: {error}"))
                    .with_hint("name a readable PEM file")
            })
        };
        let root_cert = self.ca.as_ref().map(read).transpose()?;
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
            }
            (None, None) => None,
            _ => {
                return Err(invalid(backend, "the client certificate or its key is missing".into())
                    .with_hint("give both tls_cert and tls_key"));
            }
        };
        if root_cert.is_none() && client_tls.is_none() {
            return Ok(info);
        }
        install_provider();
        let client = Client::build_with_tls(info, TlsCertificates { client_tls, root_cert });
        let client = client.map_err(|error| {
            invalid(backend, format!("the certificates cannot be used: {error}"))
                .with_hint("tls_ca, tls_cert and tls_key must be PEM files")
        })?;
        Ok(client.get_connection_info().clone())
    }

    #[cfg(not(feature = "tls"))]
    fn with_certificates(&self, backend: &'static str, _: ConnectionInfo) -> Result<ConnectionInfo> {
        Err(unsupported(backend))
    }
}

/// The error for a build without TLS.
pub(crate) fn unsupported(backend: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, backend)
        .with_message("this build has no TLS")
        .with_hint("enable the feature: cargo add polylock --features tls")
}

/// Installs a cryptography provider, unless the application has installed one.
#[cfg(feature = "tls")]
pub(crate) fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread installed one meanwhile.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(feature = "tls")]
fn invalid(backend: &'static str, what: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, backend).with_message(what)
}
