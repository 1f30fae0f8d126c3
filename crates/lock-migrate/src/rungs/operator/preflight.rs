//! Looks for what would endanger a migration, before it begins.

use std::iter;
use std::time::Duration;

use lock_core::{ErrorKind, Finding, FindingLevel, LockName, Result, Token};

use super::{Operator, PREFIX};
use crate::leases::lead::check_lead;
use crate::leases::shadow;
use crate::rungs::record::Record;
use crate::rungs::time::{micros, wall_clock};

impl Operator {
    /// Examines both stores for a migration. A [warning](FindingLevel::Warning) is to be repaired first.
    ///
    /// # Errors
    ///
    /// When a store is unavailable. What one of them refuses is a finding.
    pub async fn preflight(&self) -> Result<Vec<Finding>> {
        let source = self.source().await?;
        let (old, new) = tokio::try_join!(self.from.doctor(), self.to.doctor())?;
        let mut findings: Vec<_> = old.findings.into_iter().chain(new.findings).collect();
        let record = self.stored().await;
        let claim = match &record {
            Ok(Some((record, _))) => record.claim(),
            // What nobody has claimed.
            _ => Record::new(&*self.namespace, source.identity(), self.target()?.identity()).claim(),
        };
        match record {
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            Err(error) => findings.push(warning(error.message(), error.hint().unwrap_or_default())),
            Ok(None) => findings.push(note("nobody has begun this migration yet", "")),
            Ok(Some((record, _))) => {
                findings.push(note(
                    &format!("the migration was begun from {} to {}", record.from, record.to),
                    "",
                ));
            }
        }
        findings.extend(source.examine(&claim).await?);
        findings.extend(self.target()?.examine().await?);
        findings.extend(self.differences());
        if let Some(why) = source.keeps_tombstones().why_not() {
            let what = format!("names cannot move one by one: {why}");
            findings.push(note(&what, "the rungs are old, shadow, dual, and new by its gate"));
        }
        findings.extend(self.reserved_names().await?);
        findings.extend(self.tokens().await?);
        Ok(findings)
    }

    /// What only one of the stores can do.
    fn differences(&self) -> Vec<Finding> {
        let (old, new) = (self.from.capabilities(), self.to.capabilities());
        let mut findings = Vec::new();
        for (what, old, new) in [
            ("read/write locks", old.shared, new.shared),
            ("semaphores", old.permits, new.permits),
            ("requests to release a lock", old.revocation, new.revocation),
        ] {
            if let Some(why) = old.why_not().or_else(|| new.why_not()) {
                findings.push(note(&format!("a migration has no {what}: {why}"), ""));
            }
        }
        let (ttl, timeout) = (old.lease.default_ttl(), new.lease.default_ttl());
        let what = format!(
            "a lock outlives a dead holder by {ttl:?} on the old store, and by {timeout:?} on the new one"
        );
        findings.push(note(&what, ""));
        findings
    }

    /// The names that a migration uses itself.
    async fn reserved_names(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for prefix in [shadow::PREFIX, PREFIX] {
            if !self.from.list(prefix).await?.is_empty() {
                let what = format!("locks of the old store have names that begin with {prefix:?}");
                findings.push(warning(&what, "a migration uses these names itself: rename the locks"));
            }
        }
        Ok(findings)
    }

    /// How far the tokens of the new store are ahead of those of the old one, and the old one's clock of this host's.
    async fn tokens(&self) -> Result<Vec<Finding>> {
        let Some((token, clock)) = self.newest_tokens().await? else { return Ok(Vec::new()) };
        let lead = match check_lead(token, clock) {
            Err(error) => warning(error.message(), error.hint().unwrap_or_default()),
            Ok(()) if token > Token::new(clock) => {
                let lead = Duration::from_micros(token.get() - clock);
                let what = format!("the tokens of the new store are {lead:?} ahead of those of the old one");
                note(&what, "")
            }
            Ok(()) => note("the tokens of the new store will be raised above those of the old one", ""),
        };
        Ok(iter::once(lead).chain(other_clock(clock, micros(wall_clock()))).collect())
    }

    /// A new token of the new store, and the clock of the old one; none while another operator looks.
    pub(super) async fn newest_tokens(&self) -> Result<Option<(Token, u64)>> {
        let name = LockName::new(format!("{PREFIX}preflight"))?;
        let Some(mut lease) = self.lock(&name).await? else { return Ok(None) };
        let token = lease.token();
        let _ = lease.release().await;
        Ok(Some((token, self.source().await?.time(&name).await?)))
    }
}

/// Warns of a clock of this host that differs from that of the old store.
fn other_clock(old: u64, host: u64) -> Option<Finding> {
    let difference = Duration::from_micros(old.abs_diff(host));
    let what = format!(
        "the clock of this host is {} that of the old store by {difference:.0?}",
        if host < old { "behind" } else { "ahead of" }
    );
    let advice = "set both right: once the old store is gone, tokens continue from this host's clock and what processes have seen";
    (difference > CLOCKS_DIFFER).then(|| warning(&what, advice))
}

fn note(what: &str, advice: &str) -> Finding {
    Finding::new(FindingLevel::Note, "", what, advice)
}

fn warning(what: &str, advice: &str) -> Finding {
    Finding::new(FindingLevel::Warning, "", what, advice)
}
/// More than the clocks of hosts that are set right.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_differs_is_a_warning() {
        let (minute, noon) = (60_000_000, 1_790_000_000_000_000);
        assert!(other_clock(noon, noon + minute).is_none());
        for (host, part) in [(noon - 120 * minute, "behind that"), (noon + 2 * minute, "ahead of that")] {
            let finding = other_clock(noon, host).unwrap();
            assert_eq!(finding.level, FindingLevel::Warning);
            assert!(finding.what.contains(part), "{finding}");
        }
    }
}
