//! The TLS options of a URL.

#[cfg(feature = "tls")]
use std::path::Path;

use lock_core::Result;
use lock_core::secret::Unreadable;
#[cfg(feature = "tls")]
use lock_core::secret::read_file;
use lock_core::tls::{TlsFiles, no_tls};
use lock_core::url::OptionValue;
use redis::{ConnectionAddr, ConnectionInfo};

/// The TLS options of a URL with `rediss://`, `rediss+sentinel://`, `rediss+cluster://` or `redlocks://`.
///
/// | option | default | |
/// |---|---|---|
/// | `tls_ca` | the system's | file with the certificates of the authorities to trust, PEM |
/// | `tls_cert`, `tls_key` | none | files with the client certificate and its key, PEM |
/// | `tls_insecure_skip_verify` | `false` | `true` accepts any server certificate: for tests only |
///
/// The files are read at each connect, so certificates can be replaced without a restart.
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
    pub(crate) files: TlsFiles,
    skip_verify: bool,
}

impl Tls {
    /// The names of the options.
    pub const OPTIONS: [&'static str; 4] = ["tls_ca", "tls_cert", "tls_key", "tls_insecure_skip_verify"];

    /// Sets an option, and reports whether it is a TLS option.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a bad value.
    pub fn set(&mut self, key: &str, value: OptionValue<'_>) -> Result<bool> {
        if key == "tls_insecure_skip_verify" {
            self.skip_verify = value.parse("use true or false")?;
            return Ok(true);
        }
        Ok(self.files.set(key, value.text()))
    }

    /// The same server, reached over TLS with these options.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a certificate without its key, [`Unsupported`](lock_core::ErrorKind::Unsupported)
    /// in a build without TLS.
    pub fn over(&self, backend: &'static str, info: ConnectionInfo) -> Result<ConnectionInfo> {
        if !cfg!(feature = "tls") {
            return Err(no_tls(backend));
        }
        self.files.check_pair(backend, ["tls_cert", "tls_key"])?;
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else { return Ok(info) };
        let insecure = self.skip_verify;
        Ok(info.set_addr(ConnectionAddr::TcpTls { host, port, insecure, tls_params: None }))
    }

    /// Whether the files can be used.
    #[cfg(feature = "tls")]
    pub(crate) async fn check(&self) -> Result<(), Unreadable> {
        self.files.config(!self.skip_verify).await.map(drop)
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_async, reason = "there is nothing to read")]
    pub(crate) async fn check(&self) -> Result<(), Unreadable> {
        Ok(())
    }

    /// The same server, with the certificates that the files have now, for a dialer that leaves TLS to the driver.
    #[cfg(feature = "tls")]
    pub(crate) async fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Unreadable> {
        use redis::{Client, ClientTlsConfig, TlsCertificates};

        let TlsFiles { ca, cert, key } = &self.files;
        let root_cert = read(ca.as_ref()).await?;
        let (cert_text, key_text) = (read(cert.as_ref()).await?, read(key.as_ref()).await?);
        let client_tls = cert_text
            .zip(key_text)
            .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        if root_cert.is_none() && client_tls.is_none() {
            return Ok(info);
        }
        lock_core::tls::install_provider();
        let client = Client::build_with_tls(info, TlsCertificates { client_tls, root_cert });
        let client = client.map_err(|error| {
            let files: Vec<_> = [ca, cert, key].into_iter().flatten().collect();
            Unreadable::new(format!("the certificates in {files:?} cannot be used: {error}"))
        })?;
        Ok(client.get_connection_info().clone())
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_async, reason = "there is nothing to read")]
    pub(crate) async fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Unreadable> {
        Ok(info)
    }
}

#[cfg(feature = "tls")]
async fn read(file: Option<&String>) -> Result<Option<Vec<u8>>, Unreadable> {
    match file {
        Some(file) => read_file(Path::new(file)).await.map(Some),
        None => Ok(None),
    }
}
