//! Checks the history of a scenario for mutual exclusion and fencing tokens.

use lock_testkit::history::{Event, History};

#[derive(Clone, Debug)]
pub(crate) struct CheckedHistory {
    /// How many holds began while another one lasted (L1). No scenario pauses a holder, so holds must not overlap by wall
    /// time, whatever their leases say.
    pub(crate) overlaps: u64,
    /// Fencing tokens that were granted twice, or were smaller than an earlier one.
    pub(crate) token_errors: u64,
    /// Pairs of grants in the opposite order of their calls, per grant. First come, first served has none.
    pub(crate) inversions: f64,
    /// Everything that is wrong, overlaps included.
    pub(crate) complaints: Vec<String>,
}

pub(crate) fn check_exclusion(events: Vec<Event>) -> CheckedHistory {
    let report = lock_testkit::check(&History::new(events));
    let mut complaints = Vec::new();
    if report.holds == 0 {
        complaints.push("no lock was ever held: the history proves nothing".to_owned());
    }
    if report.l1.count > 0 {
        complaints.push(format!("mutual exclusion was BROKEN: {} overlaps", report.l1.count));
    }
    for (what, count) in [
        ("fencing tokens were granted twice", report.shared_tokens.count),
        ("fencing tokens went backwards", report.token_order.count),
    ] {
        if count > 0 {
            complaints.push(format!("{what}: {count} times"));
        }
    }
    if report.l1.count > 0 || !complaints.is_empty() && report.holds > 0 {
        complaints.extend(report.to_string().lines().take(MOST_LINES).map(|line| format!("  {line}")));
    }
    let inversions: u64 = report.locks.values().map(|lock| lock.fifo_inversions).sum();
    let inversions = inversions as f64 / report.holds.max(1) as f64;
    let token_errors = (report.shared_tokens.count + report.token_order.count) as u64;
    CheckedHistory { overlaps: report.l1.count as u64, token_errors, inversions, complaints }
}

const MOST_LINES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::events::{GrantInfo, sample_hold};

    fn hold(process: u32, token: u64, from: u64, until: u64) -> Vec<Event> {
        let grant = GrantInfo { token: Some(token), until_ns: Some(until + 100) };
        sample_hold(process, [from - 1, from, until], grant)
    }

    #[test]
    fn consecutive_holds_are_fine() {
        let checked = check_exclusion([hold(1, 1, 10, 20), hold(2, 2, 30, 40)].concat());
        assert!(checked.inversions.abs() < 1e-9);
        assert_eq!((checked.overlaps, checked.complaints), (0, Vec::new()));
    }

    #[test]
    fn overlaps_are_counted_and_reported() {
        let checked = check_exclusion([hold(1, 1, 10, 20), hold(2, 2, 15, 40)].concat());
        assert_eq!(checked.overlaps, 1);
        assert!(checked.complaints[0].contains("BROKEN: 1 overlaps"), "{checked:?}");
        assert!(checked.complaints.iter().any(|line| line.contains("process 2")), "{checked:?}");
    }

    #[test]
    fn tokens_must_grow() {
        let checked = check_exclusion([hold(1, 2, 10, 20), hold(2, 1, 30, 40)].concat());
        assert_eq!((checked.overlaps, checked.token_errors), (0, 1));
        assert!(checked.complaints[0].contains("backwards: 1 times"), "{checked:?}");
    }

    #[test]
    fn an_empty_history_proves_nothing() {
        assert_eq!(check_exclusion(Vec::new()).complaints.len(), 1);
    }
}
