//! The handshake of TLS with a server.

use std::io;
use std::sync::Arc;

use lock_core::tls::TlsFiles;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// The handshake with a server of this name, with the certificates that files had when it was made.
pub(crate) struct Handshake {
    server: ServerName<'static>,
    connector: TlsConnector,
}

impl Handshake {
    /// Reads the files. With `accepts_any`, the certificate of the server is not verified.
    pub(crate) async fn new(files: &TlsFiles, host: &str, accepts_any: bool) -> io::Result<Self> {
        let server = ServerName::try_from(host.to_owned());
        let server = server.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut config = files.config(!accepts_any).await.map_err(io::Error::other)?;
        if accepts_any {
            config.enable_sni = false;
            let schemes = config.crypto_provider().signature_verification_algorithms.supported_schemes();
            config.dangerous().set_certificate_verifier(Arc::new(AnyCertificate(schemes)));
        }
        Ok(Self { server, connector: Arc::new(config).into() })
    }

    pub(crate) async fn over(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.server.clone(), stream).await
    }
}

/// Accepts any server, also one whose certificate cannot be parsed.
#[derive(Debug)]
struct AnyCertificate(Vec<SignatureScheme>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}
