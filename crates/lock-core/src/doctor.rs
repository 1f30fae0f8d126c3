//! What an examination of the servers found.

use std::fmt;

/// What [`Locks::doctor`](crate::Locks::doctor) found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DoctorReport {
    /// The findings, in the order of the examination.
    pub findings: Vec<Finding>,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub level: FindingLevel,
    /// Which server it is about, as host and port; empty for all of them.
    pub server: String,
    /// What was found.
    pub what: String,
    /// What to do about it; empty when nothing has to be done.
    pub advice: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FindingLevel {
    /// Good to know.
    Note,
    /// Locks work, but may be lost, or less is done than could be.
    Warning,
}

impl DoctorReport {
    /// A report of these findings.
    #[must_use]
    pub fn new(findings: Vec<Finding>) -> Self {
        Self { findings }
    }

    /// The findings that something should be done about.
    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.level >= FindingLevel::Warning)
    }
}

impl Finding {
    /// A finding about this server, `""` for all of them; the advice is `""` when nothing has to be done.
    #[must_use]
    pub fn new(
        level: FindingLevel,
        server: impl Into<String>,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { level, server: server.into(), what: what.into(), advice: advice.into() }
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
