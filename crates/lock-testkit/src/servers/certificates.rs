//! TLS certificates for the servers and clients of a test.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tempfile::TempDir;

use crate::error::{Error, Result};

/// A certificate authority, a server certificate for 127.0.0.1, localhost and the names below lock.test, and a client certificate,
/// as PEM files in a temporary directory.
#[derive(Debug)]
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// Generates the certificates.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when they cannot be written.
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("lock-testkit-certificates-")
            .tempdir()
            .map_err(|e| Error::io("make a temporary directory", e))?;
        let made = Self { dir };
        made.replace()?;
        Ok(made)
    }

    /// Replaces all files by those of a new authority. Servers read them when they are started.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when they cannot be written.
    pub fn replace(&self) -> Result<()> {
        let authority = self.authority()?;
        self.leaf("server", ExtendedKeyUsagePurpose::ServerAuth, &authority)?;
        self.leaf("client", ExtendedKeyUsagePurpose::ClientAuth, &authority)
    }

    /// The certificate of the authority.
    pub fn ca(&self) -> PathBuf {
        self.path("ca.crt")
    }

    /// The certificate of the server, and its key.
    pub fn server(&self) -> (PathBuf, PathBuf) {
        (self.path("server.crt"), self.path("server.key"))
    }

    /// The certificate of the client, and its key.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        (self.path("client.crt"), self.path("client.key"))
    }

    fn authority(&self) -> Result<CertifiedIssuer<'static, KeyPair>> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "lock-testkit authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(refused)?;
        let authority = CertifiedIssuer::self_signed(params, key).map_err(refused)?;
        write(&self.ca(), &authority.pem())?;
        Ok(authority)
    }

    fn leaf(
        &self,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
        authority: &CertifiedIssuer<'static, KeyPair>,
    ) -> Result<()> {
        let names = ["localhost", "127.0.0.1", "*.lock.test"].map(str::to_owned);
        let mut params = CertificateParams::new(names).map_err(refused)?;
        params.distinguished_name.push(DnType::CommonName, format!("lock-testkit {name}"));
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().map_err(refused)?;
        let certificate = params.signed_by(&key, authority).map_err(refused)?;
        write(&self.path(&format!("{name}.crt")), &certificate.pem())?;
        write(&self.path(&format!("{name}.key")), &key.serialize_pem())
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| Error::io(format!("write {}", path.display()), e))
}

fn refused(error: rcgen::Error) -> Error {
    Error::io("make a certificate", std::io::Error::other(error))
}
