//! Credentials, TLS and ACL.

use lock_core::{ErrorKind, Result};

use super::{ZkConfig, invalid};
use crate::acl::NodeAcl;
use crate::error::error;
#[cfg(feature = "tls")]
use crate::tls::TlsFiles;

/// The use of user and password.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Auth {
    #[default]
    Digest,
    Sasl,
}

/// Options of the driver's own types, which cannot be compared.
#[derive(Clone, Default)]
pub(crate) struct TypedOptions {
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<zookeeper_client::TlsOptions>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<zookeeper_client::SaslOptions>,
}

impl TypedOptions {
    const fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    const fn has_sasl(&self) -> bool {
        #[cfg(feature = "sasl")]
        return self.sasl.is_some();
        #[cfg(not(feature = "sasl"))]
        false
    }

    pub(super) const fn is_given(&self) -> bool {
        self.has_tls() || self.has_sasl()
    }
}

impl ZkConfig {
    pub(super) fn check_security(&self) -> Result<()> {
        if let Some(tls) = &self.tls {
            tls.check()?;
        }
        if self.auth == Auth::Sasl {
            if !cfg!(feature = "sasl") {
                let hint = "enable the feature: cargo add polylock --features zk,sasl";
                return Err(error(ErrorKind::Unsupported, "this build does not support SASL", hint));
            }
            if self.credentials.is_none() {
                return Err(invalid("auth=sasl needs a user and a password", "write user:password@"));
            }
        }
        if self.node_acl().acls().is_empty() {
            return Err(invalid("the ACL is empty", "give at least one entry"));
        }
        if self.node_acl().needs_credentials() && !self.authenticates() {
            return Err(invalid(
                "the ACL names the credentials of this client, and there are none",
                "write user:password@, or acl=open",
            ));
        }
        Ok(())
    }

    /// Whether the connections use TLS.
    pub(crate) const fn speaks_tls(&self) -> bool {
        self.typed.has_tls() || self.tls.is_some()
    }

    /// Whether the servers can tell which client this is.
    fn authenticates(&self) -> bool {
        let certificate = self.tls.as_ref().is_some_and(|tls| tls.cert.is_some());
        // A custom ensemble may authenticate in its own way.
        certificate || self.typed.is_given() || self.credentials.is_some() || self.ensemble.is_some()
    }

    #[cfg(feature = "tls")]
    pub(super) fn tls_options(&self) -> Result<Option<zookeeper_client::TlsOptions>> {
        match (&self.typed.tls, &self.tls) {
            (Some(options), _) => Ok(Some(options.clone())),
            (None, files) => files.as_ref().map(TlsFiles::read).transpose(),
        }
    }

    /// `user:password`, the form of the digest scheme.
    pub(super) fn digest(&self) -> Option<String> {
        let credentials = self.credentials.as_ref().filter(|_| self.auth == Auth::Digest);
        credentials.map(|(user, password)| format!("{user}:{password}"))
    }

    #[cfg(feature = "sasl")]
    pub(super) fn sasl_options(&self) -> Option<zookeeper_client::SaslOptions> {
        use zookeeper_client::SaslOptions;

        let credentials = self.credentials.as_ref().filter(|_| self.auth == Auth::Sasl);
        let digest =
            credentials.map(|(user, password)| SaslOptions::digest_md5(user.clone(), password.clone()));
        self.typed.sasl.clone().or_else(|| digest.map(Into::into))
    }

    /// The ACL of created nodes.
    pub(crate) fn node_acl(&self) -> NodeAcl {
        let has_credentials = self.credentials.is_some() || self.typed.has_sasl();
        self.acl.clone().unwrap_or(if has_credentials { NodeAcl::Creator } else { NodeAcl::Open })
    }
}
