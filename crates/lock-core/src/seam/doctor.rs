//! The report on the servers.

use std::fmt;

use crate::values::error::line_of;

/// The report of [`Locks::doctor`](crate::Locks::doctor).
///
/// # Examples
///
/// ```
/// # use lock_core::FindingLevel;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let report = locks.doctor().await?;
/// print!("{report}"); // one line per finding
/// for finding in report.warnings() {
///     assert!(finding.level == FindingLevel::Warning);
///     eprintln!("{} ({}): {}", finding.what, finding.server, finding.advice);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoctorReport {
    /// The findings, in the order of the examination.
    pub findings: Vec<Finding>,
}

/// One finding of a [`DoctorReport`].
///
/// # Examples
///
/// ```
/// # use lock_core::{Finding, FindingLevel};
/// let finding = Finding::new(FindingLevel::Warning, "h:6379", "maxmemory-policy is allkeys-lru", "use noeviction");
/// assert_eq!(finding.to_string(), "warning: h:6379: maxmemory-policy is allkeys-lru; use noeviction");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How serious it is.
    pub level: FindingLevel,
    /// The server, as host and port; empty for all of them.
    pub server: String,
    /// The finding.
    pub what: String,
    /// What to do about it; empty when there is nothing to do.
    pub advice: String,
}

/// How serious a finding is.
///
/// # Examples
///
/// ```
/// # use lock_core::FindingLevel;
/// assert!(FindingLevel::Note < FindingLevel::Warning);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FindingLevel {
    /// Information only.
    Note,
    /// Locks work, but may be lost, or a feature is limited.
    Warning,
}

impl DoctorReport {
    /// A report of these findings.
    #[must_use]
    pub fn new(findings: Vec<Finding>) -> Self {
        Self { findings }
    }

    /// The findings that call for action.
    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.level >= FindingLevel::Warning)
    }
}

impl Finding {
    /// A finding about this server, `""` for all of them; the advice is `""` when there is nothing to do. Each text becomes
    /// [one line](crate::one_line()), as it may quote what others have written.
    #[must_use]
    pub fn new(
        level: FindingLevel,
        server: impl Into<String>,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let [server, what, advice] = [server.into(), what.into(), advice.into()].map(line_of);
        Self { level, server, what, advice }
    }
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            FindingLevel::Note => "note",
            FindingLevel::Warning => "warning",
        };
        write!(f, "{level}: ")?;
        if !self.server.is_empty() {
            write!(f, "{}: ", self.server)?;
        }
        f.write_str(&self.what)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_cannot_forge_a_line() {
        let finding = Finding::new(FindingLevel::Note, "h:1", "the user \"a\nb\u{9b}2K\"", "c\u{202e}");
        assert_eq!(finding.to_string(), r#"note: h:1: the user "a\nb\u{9b}2K"; c\u{202e}"#);
    }

    #[test]
    fn a_report_is_one_line_for_each_finding() {
        let finding = |level, advice: &str| Finding {
            level,
            server: "h:1".into(),
            what: "something".into(),
            advice: advice.into(),
        };
        let report = DoctorReport {
            findings: vec![finding(FindingLevel::Note, ""), finding(FindingLevel::Warning, "do this")],
        };
        assert_eq!(report.to_string(), "note: h:1: something\nwarning: h:1: something; do this\n");
        assert_eq!(report.warnings().count(), 1);
    }
}
