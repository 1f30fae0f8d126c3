//! The record of a migration: which rung is in force for which names.

use lock_core::migration::StoredRecord;
use lock_core::{Error, ErrorKind, LockName, OwnerId, Result};
use serde::{Deserialize, Serialize};

use crate::error::BACKEND;
use crate::rungs::glob::matches;
use crate::rungs::rung::Rung;
use crate::rungs::time::wall_clock;

/// The version of the format.
const FORMAT: u32 = 1;

/// The record of a migration, which the new store keeps and all processes follow.
///
/// # Examples
///
/// ```
/// # use lock_core::LockName;
/// # use lock_migrate::{Record, Rule, Rung};
/// let mut record = Record::new("shop", "redis://a:6379?prefix=lock:", "zk://b:2181?dir=/locks");
/// record.set(Rung::Dual, "*");
/// record.set(Rung::Move, "reports/*"); // a canary first
/// assert_eq!(record.rung(&LockName::new("orders/42")?), Rung::Dual);
/// assert_eq!(record.rung(&LockName::new("reports/7")?), Rung::Move);
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// The version of the format. A process that meets a later one keeps what it has.
    format: u32,
    /// The namespace of the migration.
    pub namespace: String,
    /// The id of the migration, by which the old store knows whether processes agree on it.
    pub id: String,
    /// The old store, as the process that began the migration names it.
    pub from: String,
    /// The new store, as the process that began the migration names it. Tombstones name it so.
    pub to: String,
    /// Grows with every way back: what a process has read of a tombstone counts only in the generation in which it read it.
    pub generation: u64,
    /// Where the migration is.
    pub phase: Phase,
    /// All tokens of the old store are below it, and all of locks of the new store that are granted after the seal above it.
    #[serde(default)]
    pub floor: u64,
    /// The rungs by name: the first rule whose pattern matches decides.
    pub rules: Vec<Rule>,
}

/// A rule of a [`Record`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rule {
    /// The names that it is for, where `*` stands for any text.
    pub names: String,
    /// Their rung.
    pub rung: Rung,
}

/// Where a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Phase {
    /// Names move, as the rules say.
    Open,
    /// The way back: tombstones are removed, and nobody writes one or relies on an earlier reading.
    Returning,
    /// The old store is closed to all: `dual` and `move` act as `new`.
    Sealed,
}

impl Record {
    /// A record in which all names are on [`Rung::Old`].
    #[must_use]
    pub fn new(namespace: impl Into<String>, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self {
            format: FORMAT,
            namespace: namespace.into(),
            id: OwnerId::random().to_string(),
            from: from.into(),
            to: to.into(),
            generation: 1,
            phase: Phase::Open,
            floor: 0,
            rules: Vec::new(),
        }
    }

    /// The same migration whose record was deleted, by what the old store notes about it; none if that is another one. Its
    /// generation is larger than all before, as it is the time.
    pub(crate) fn resume(mut self, claim: &str) -> Option<Self> {
        let (id, _) = claim.split_once(' ')?;
        self.id = id.to_owned();
        self.generation = u64::try_from(wall_clock().as_millis()).unwrap_or(u64::MAX);
        (self.claim() == claim).then_some(self)
    }

    /// What the old store notes about the migration.
    #[must_use]
    pub fn claim(&self) -> String {
        format!("{} {} {}", self.id, self.namespace, self.to)
    }

    /// Parses the data of the node, and checks that it is of this migration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for the record of another migration, [`ErrorKind::Unexpected`] for one that a later
    /// version wrote, or that is none.
    pub fn parse(stored: &StoredRecord, namespace: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let format = serde_json::from_slice(&stored.data).map(|Format { format }| format);
        if let Ok(format) = format
            && format > FORMAT
        {
            return Err(Error::new(ErrorKind::Unexpected, BACKEND)
                .with_message(format!(
                    "the record of the migration has the format {format}; this version knows {FORMAT}"
                ))
                .with_hint("use the version of this library that wrote it, or a later one"));
        }
        let record: Self = serde_json::from_slice(&stored.data).map_err(|error| {
            Error::new(ErrorKind::Unexpected, BACKEND)
                .with_message("the record of the migration cannot be read")
                .with_hint("write it with the command `polylock migrate set`")
                .caused_by(error)
        })?;
        if record.namespace == namespace {
            return Ok(record);
        }
        Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
            .with_message(format!(
                "the locks below this directory take part in the migration {:?}, not in {namespace:?}",
                record.namespace
            ))
            .with_hint("use the namespace of that migration, or another dir in the URL of the new store"))
    }

    /// The data of the node.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// The rung that the rules give to a name; [`Rung::Old`] if none matches.
    #[must_use]
    pub fn rung(&self, name: &LockName) -> Rung {
        let rule = self.rules.iter().find(|rule| matches(&rule.names, name.as_str()));
        rule.map_or(Rung::Old, |rule| rule.rung)
    }

    /// The lowest rung of any name.
    #[must_use]
    pub fn lowest(&self) -> Rung {
        self.rungs().min().unwrap_or(Rung::Old)
    }

    /// The highest rung of any name.
    #[must_use]
    pub fn highest(&self) -> Rung {
        self.rungs().max().unwrap_or(Rung::Old)
    }

    /// The rungs that some name may have.
    fn rungs(&self) -> impl Iterator<Item = Rung> {
        let all = self.rules.iter().position(|rule| rule.names == "*");
        let count = all.map_or(self.rules.len(), |at| at + 1);
        let unmatched = all.is_none().then_some(Rung::Old);
        self.rules[..count].iter().map(|rule| rule.rung).chain(unmatched)
    }

    /// Lowers all rungs above this one.
    pub(crate) fn lower_to(&mut self, rung: Rung) {
        for rule in &mut self.rules {
            rule.rung = rule.rung.min(rung);
        }
    }

    /// Sets the rung of the names that match a pattern, before all rules that there are. A rule with the same pattern is
    /// replaced; for `*`, all others are.
    pub fn set(&mut self, rung: Rung, names: &str) {
        self.rules.retain(|rule| rule.names != names && names != "*");
        self.rules.insert(0, Rule { names: names.to_owned(), rung });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(data: &[u8]) -> StoredRecord {
        StoredRecord::new(data.into(), 7)
    }

    fn name(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut record = Record::new("shop", "redis://a", "zk://a");
        record.set(Rung::Dual, "*");
        record.set(Rung::Move, "a/*");
        (record.generation, record.phase) = (3, Phase::Returning);
        assert_eq!(Record::parse(&stored(&record.to_bytes()), "shop").unwrap(), record);
        let text = String::from_utf8(record.to_bytes()).unwrap();
        assert!(text.contains("\"returning\"") && text.contains("\"move\""), "{text}");
    }

    #[test]
    fn the_newest_rule_decides_and_a_rule_for_all_replaces_all() {
        let mut record = Record::new("shop", "redis://a", "zk://a");
        assert_eq!(record.rung(&name("a/1")), Rung::Old);
        record.set(Rung::Shadow, "*");
        record.set(Rung::Move, "a/*");
        record.set(Rung::Dual, "a/1*");
        assert_eq!(
            ["a/1", "a/2", "b"].map(|at| record.rung(&name(at))),
            [Rung::Dual, Rung::Move, Rung::Shadow]
        );
        record.set(Rung::Old, "a/*");
        assert_eq!(
            ["a/1", "a/2", "b"].map(|at| record.rung(&name(at))),
            [Rung::Old, Rung::Old, Rung::Shadow]
        );
        record.set(Rung::Dual, "*");
        assert_eq!(record.rules.len(), 1);
    }

    #[test]
    fn a_record_that_was_deleted_is_begun_anew_with_a_larger_generation() {
        let begin = |namespace: &str| Record::new(namespace, "redis://a", "zk://a b");
        let record = begin("shop");
        let again = begin("shop").resume(&record.claim()).unwrap();
        assert_eq!((&again.id, again.claim()), (&record.id, record.claim()));
        assert!(again.generation > record.generation);
        assert_eq!(begin("store").resume(&record.claim()), None);
        assert_eq!(begin("shop").resume("x"), None);
    }

    #[test]
    fn names_without_a_rule_count_as_old() {
        let mut record = Record::new("shop", "redis://a", "zk://a");
        assert_eq!((record.lowest(), record.highest()), (Rung::Old, Rung::Old));
        record.set(Rung::Move, "a/*");
        assert_eq!((record.lowest(), record.highest()), (Rung::Old, Rung::Move));
        record.set(Rung::Dual, "*");
        record.set(Rung::Move, "b/*");
        assert_eq!((record.lowest(), record.highest()), (Rung::Dual, Rung::Move));
        record.lower_to(Rung::Shadow);
        assert_eq!((record.lowest(), record.highest()), (Rung::Shadow, Rung::Shadow));
    }

    #[test]
    fn other_records_are_refused_with_the_reason() {
        let record = Record::new("shop", "redis://a", "zk://a").to_bytes();
        let error = Record::parse(&stored(&record), "store").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("\"shop\""), "{error}");
        for (data, part) in
            [(&b"{\"format\":2,\"rungs\":[]}"[..], "format 2"), (b"x", "cannot be read"), (b"{}", "cannot")]
        {
            let error = Record::parse(&stored(data), "shop").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unexpected);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
