//! Checks a history for mutual exclusion and fencing tokens.

use std::ops::Deref;

use lock_testkit::check;
use lock_testkit::checker::HistoryReport;
use lock_testkit::history::History;

/// What a history shows, of a scenario, a fault or a soak.
#[derive(Clone, Debug)]
pub(crate) struct Findings(HistoryReport);

/// What a lock does not promise.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Excused {
    Nothing,
    /// Two guards may be valid at once.
    Overlaps,
    /// Servers forget a lock, with its token.
    Everything,
}

impl Findings {
    pub(crate) fn of(history: &History) -> Self {
        Self(check(history))
    }

    /// Fencing tokens that were granted twice, or were smaller than an earlier one.
    pub(crate) fn token_errors(&self) -> usize {
        self.token_order.count + self.shared_tokens.count
    }

    /// Pairs of grants in the opposite order of their calls, per grant. First come, first served has none.
    pub(crate) fn inversions(&self) -> f64 {
        let inversions: u64 = self.locks.values().map(|lock| lock.fifo_inversions).sum();
        inversions as f64 / self.holds.max(1) as f64
    }

    /// What is wrong in a scenario. None pauses a holder, so holds must not overlap by wall time, whatever their leases say.
    pub(crate) fn of_scenario(&self) -> Vec<String> {
        let overlaps = self.l1.count;
        let broken = (overlaps > 0).then(|| format!("mutual exclusion was BROKEN: {overlaps} overlaps"));
        // Those of valid guards are among them, and nothing is written.
        let others = self.complaints(Excused::Overlaps, ("", 0));
        let mut complaints: Vec<_> = broken.into_iter().chain(others).collect();
        if !complaints.is_empty() && self.holds > 0 {
            complaints.extend(self.to_string().lines().take(MOST_LINES).map(|line| format!("  {line}")));
        }
        complaints
    }

    /// What breaks a promise. `stale`: how often a write broke one, and in which words.
    pub(crate) fn complaints(&self, excused: Excused, stale: (&'static str, usize)) -> Vec<String> {
        if self.holds == 0 {
            return vec!["no lock was ever held: the history proves nothing".to_owned()];
        }
        let all = [
            ("two guards of one lock were valid at once", self.l2.count, Excused::Nothing),
            ("fencing tokens went backwards", self.token_order.count, Excused::Overlaps),
            ("fencing tokens were granted twice", self.shared_tokens.count, Excused::Overlaps),
            (stale.0, stale.1, Excused::Overlaps),
        ];
        let broken = all.into_iter().filter(|&(_, count, up_to)| count > 0 && excused as u8 <= up_to as u8);
        broken.map(|(what, count, _)| format!("{what}: {count} times")).collect()
    }
}

impl Deref for Findings {
    type Target = HistoryReport;

    fn deref(&self) -> &HistoryReport {
        &self.0
    }
}

const MOST_LINES: usize = 8;

#[cfg(test)]
mod tests {
    use lock_testkit::history::Event;

    use super::*;
    use crate::data::events::{GrantInfo, sample_hold};

    fn hold(process: u32, token: u64, from: u64, until: u64) -> Vec<Event> {
        let grant = GrantInfo { token: Some(token), until_ns: Some(until + 100) };
        sample_hold(process, [from - 1, from, until], grant)
    }

    fn checked(events: Vec<Event>) -> Findings {
        Findings::of(&History::new(events))
    }

    #[test]
    fn consecutive_holds_are_fine() {
        let checked = checked([hold(1, 1, 10, 20), hold(2, 2, 30, 40)].concat());
        assert!(checked.inversions().abs() < 1e-9);
        assert_eq!((checked.l1.count, checked.of_scenario()), (0, Vec::new()));
    }

    #[test]
    fn overlaps_are_counted_and_reported() {
        let checked = checked([hold(1, 1, 10, 20), hold(2, 2, 15, 40)].concat());
        assert_eq!(checked.l1.count, 1);
        assert!(checked.of_scenario()[0].contains("BROKEN: 1 overlaps"), "{checked:?}");
        assert!(checked.of_scenario().iter().any(|line| line.contains("process 2")), "{checked:?}");
    }

    #[test]
    fn tokens_must_grow() {
        let checked = checked([hold(1, 2, 10, 20), hold(2, 1, 30, 40)].concat());
        assert_eq!((checked.l1.count, checked.token_errors()), (0, 1));
        assert!(checked.of_scenario()[0].contains("backwards: 1 times"), "{checked:?}");
    }

    #[test]
    fn an_empty_history_proves_nothing() {
        assert_eq!(checked(Vec::new()).of_scenario().len(), 1);
    }

    #[test]
    fn what_is_excused_is_no_complaint() {
        let found = checked([hold(1, 2, 10, 20), hold(2, 1, 15, 40)].concat());
        assert_eq!((found.l2.count, found.token_errors()), (1, 1));
        let complaints = |excused| found.complaints(excused, ("stale", 3)).len();
        assert_eq!([Excused::Nothing, Excused::Overlaps, Excused::Everything].map(complaints), [3, 2, 0]);
        assert_eq!(found.complaints(Excused::Nothing, ("stale", 0)).len(), 2);
    }
}
