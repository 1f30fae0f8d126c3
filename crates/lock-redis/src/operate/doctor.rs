//! Examines the server, and the rights of its user.

use lock_core::{DoctorReport, Finding, FindingLevel, Result};

use crate::config::RedisWait;
use crate::store::RedisStore;

impl RedisStore {
    pub(crate) async fn examined(&self) -> Result<DoctorReport> {
        let mut findings = self.server.client.examine().await?;
        findings.extend(self.server.recipe().danger());
        // A user without a right to the key has nothing to do with a migration yet.
        if let Ok(Some(migration)) = self.server.client.claimed_keys(&self.prefix).await {
            findings.push(Finding::new(
                FindingLevel::Note,
                "",
                format!(
                    "these locks take part in a migration ({migration}): those that have moved are busy here"
                ),
                "use the migrate:// URL of that migration; `polylock migrate status` shows what has moved",
            ));
        }
        if self.wait != RedisWait::Poll {
            findings.extend(self.push.examine(self.wait == RedisWait::Queue).await);
        }
        Ok(DoctorReport::new(findings))
    }
}
