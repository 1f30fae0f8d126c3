//! What `doctor` says of the records of a store.

use lock_core::{Finding, FindingLevel, Result};

/// So many records call for a look: each name that was ever locked has one.
pub(crate) const MANY: u64 = 1_000_000;

/// Of so many records, or so many at least if they are [`MANY`].
pub(crate) fn of_records(count: Result<u64>) -> Finding {
    let finding = |level, what: String, advice| Finding::new(level, "", what, advice);
    match count {
        Ok(count) if count >= MANY => finding(
            FindingLevel::Warning,
            format!("{count} records of locks at least: that of a name stays when nobody uses it any more"),
            "name locks after what there is, and not after each request; delete records only while no client runs: tokens of these \
             locks begin at the clock of the next holder then",
        ),
        Ok(count) => finding(FindingLevel::Note, format!("{count} records of locks"), ""),
        Err(error) => {
            let what = format!("the records of locks cannot be counted: {error}");
            finding(FindingLevel::Note, what, "")
        }
    }
}

#[cfg(test)]
mod tests {
    use lock_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn many_records_are_a_warning_that_says_what_to_do() {
        let level = |count| of_records(count).level;
        assert_eq!(level(Ok(MANY - 1)), FindingLevel::Note);
        assert_eq!(level(Err(Error::new(ErrorKind::Unavailable, "test"))), FindingLevel::Note);
        let many = of_records(Ok(MANY));
        assert!(many.level == FindingLevel::Warning && many.advice.contains("no client runs"), "{many}");
    }
}
