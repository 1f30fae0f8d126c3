//! Examines the server, and the rights of its user.

use lock_core::{DoctorReport, Result};

use crate::config::RedisWait;
use crate::context::Context;

impl Context {
    pub(crate) async fn doctor(&self) -> Result<DoctorReport> {
        let mut findings = self.server.examine().await?;
        findings.extend(self.danger.clone());
        if self.wait != RedisWait::Poll {
            findings.extend(self.push.examine(self.wait == RedisWait::Queue).await);
        }
        Ok(DoctorReport::new(findings))
    }
}
