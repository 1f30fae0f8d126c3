//! Credentials, TLS and ACL.

use lock_core::Result;

use super::{ZkConfig, invalid};
use crate::nodes::acl::NodeAcl;

impl ZkConfig {
    pub(super) fn check_security(&self) -> Result<()> {
        self.login.check()?;
        if self.node_acl().acls().is_empty() {
            return Err(invalid("the ACL is empty", "give at least one entry"));
        }
        // A custom ensemble may authenticate in its own way.
        let authenticates = self.login.authenticates() || self.ensemble.is_some();
        if self.node_acl().needs_credentials() && !authenticates {
            return Err(invalid(
                "the ACL names the credentials of this client, and there are none",
                "write user:password@, or acl=open",
            ));
        }
        Ok(())
    }

    /// The ACL of created nodes.
    pub(crate) fn node_acl(&self) -> NodeAcl {
        let has_credentials = self.login.credentials.is_some() || self.login.typed.has_sasl();
        self.acl.clone().unwrap_or(if has_credentials { NodeAcl::Creator } else { NodeAcl::Open })
    }
}
