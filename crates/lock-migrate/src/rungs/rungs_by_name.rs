//! The rungs of a record by name, for look-ups.

use std::collections::{BTreeSet, HashMap};

use lock_core::LockName;

use crate::rungs::glob::matches;
use crate::rungs::record::Record;
use crate::rungs::rung::Rung;

/// The rungs of a record by name: what [`Record::rung`] returns, also of thousands of rules without reading them all.
///
/// Rules for one name (`reports/7`) and for all with a beginning (`reports/*`) are found by their text; others are tried in order.
#[derive(Debug)]
pub(crate) struct RungsByName {
    names: HashMap<Box<str>, Place>,
    beginnings: HashMap<Box<str>, Place>,
    /// Those of the beginnings.
    lengths: BTreeSet<usize>,
    others: Vec<(Box<str>, Place)>,
}

/// The number of a rule, and its rung: the first that matches decides.
type Place = (usize, Rung);

impl RungsByName {
    pub(crate) fn of(record: &Record) -> Self {
        let (names, beginnings, lengths) = (HashMap::new(), HashMap::new(), BTreeSet::new());
        let mut rungs = Self { names, beginnings, lengths, others: Vec::new() };
        for (number, rule) in record.rules.iter().enumerate() {
            rungs.add(&rule.names, (number, rule.rung));
        }
        rungs
    }

    fn add(&mut self, pattern: &str, place: Place) {
        match pattern.split_once('*') {
            None => drop(self.names.entry(pattern.into()).or_insert(place)),
            Some((beginning, "")) => {
                self.lengths.insert(beginning.len());
                self.beginnings.entry(beginning.into()).or_insert(place);
            }
            Some(_) => self.others.push((pattern.into(), place)),
        }
    }

    /// The rung of a name; [`Rung::Old`] if no rule matches.
    pub(crate) fn rung(&self, name: &LockName) -> Rung {
        let name = name.as_str();
        let beginnings = self.lengths.iter().filter_map(|length| name.get(..*length));
        let found = beginnings.filter_map(|beginning| self.beginnings.get(beginning));
        let first = found.chain(self.names.get(name)).min().copied();
        let is_before = |place: &Place| first.is_none_or(|first| *place < first);
        let mut others = self.others.iter().take_while(|(_, place)| is_before(place));
        let other = others.find(|(pattern, _)| matches(pattern, name)).map(|(_, place)| *place);
        other.or(first).map_or(Rung::Old, |(_, rung)| rung)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn text(random: &mut StdRng, letters: &[char], most: usize) -> String {
        let length = random.random_range(1..=most);
        (0..length).map(|_| *letters.choose(random).unwrap()).collect()
    }

    #[test]
    fn every_name_is_on_the_rung_of_the_first_rule_that_matches() {
        let mut random = StdRng::seed_from_u64(7);
        let mut seen = BTreeSet::new();
        for _ in 0..2_000 {
            let mut record = Record::new("shop", "redis://a", "zk://b");
            for _ in 0..random.random_range(0..8) {
                let rung = *Rung::ALL.choose(&mut random).unwrap();
                record.set(rung, &text(&mut random, &['a', 'b', 'é', '*'], 4));
            }
            let rungs = RungsByName::of(&record);
            for _ in 0..10 {
                let name = LockName::new(text(&mut random, &['a', 'b', 'é'], 4)).unwrap();
                assert_eq!(rungs.rung(&name), record.rung(&name), "{name} {record:?}");
                seen.insert(record.rung(&name));
            }
        }
        assert_eq!(seen.len(), Rung::ALL.len(), "all are met");
    }
}
