//! Whether a history shows a lock.

use lock_testkit::history::{Event, History};

/// What a history proves.
#[derive(Clone, Debug)]
pub(crate) struct Judgement {
    /// How many holds began while another one went on (L1). No holder is ever paused here, so that holds must not
    /// overlap by wall time, whatever their leases say.
    pub(crate) overlaps: u64,
    /// What else is wrong, and where the overlaps are, in words.
    pub(crate) complaints: Vec<String>,
}

/// Judges what all clients of a scenario recorded.
pub(crate) fn judge(events: Vec<Event>) -> Judgement {
    let report = lock_testkit::check(&History::new(events));
    let mut complaints = Vec::new();
    if report.tenures == 0 {
        complaints.push("no lock was ever held: the history proves nothing".to_owned());
    }
    if report.l1.count > 0 {
        complaints.push(format!("mutual exclusion was BROKEN: {} overlaps", report.l1.count));
    }
    for (what, count) in [
        ("fencing tokens were given twice", report.shared_tokens.count),
        ("fencing tokens went backwards", report.token_order.count),
    ] {
        if count > 0 {
            complaints.push(format!("{what}: {count} times"));
        }
    }
    if report.l1.count > 0 || !complaints.is_empty() && report.tenures > 0 {
        complaints.extend(report.to_string().lines().take(MOST_LINES).map(|line| format!("  {line}")));
    }
    Judgement { overlaps: report.l1.count as u64, complaints }
}

/// Enough of a report to see what happened.
const MOST_LINES: usize = 8;

#[cfg(test)]
mod tests {
    use lock_testkit::history::ReleaseOutcome;

    use super::*;
    use crate::diary::{Claim, Diary, Tenure};

    fn hold(process: u32, token: u64, from: u64, until: u64) -> Vec<Event> {
        let mut diary = Diary::new(process, 0, "a");
        diary.tenure(&Tenure {
            called_ns: from - 1,
            acquired_ns: from,
            claim: Claim { token: Some(token), until_ns: Some(until + 100) },
            release_called_ns: until,
            released_ns: until + 1,
            released: ReleaseOutcome::Released,
        });
        diary.into_events()
    }

    #[test]
    fn holds_one_after_the_other_are_fine() {
        let judgement = judge([hold(1, 1, 10, 20), hold(2, 2, 30, 40)].concat());
        assert_eq!((judgement.overlaps, judgement.complaints), (0, Vec::new()));
    }

    #[test]
    fn overlaps_are_counted_and_told() {
        let judgement = judge([hold(1, 1, 10, 20), hold(2, 2, 15, 40)].concat());
        assert_eq!(judgement.overlaps, 1);
        assert!(judgement.complaints[0].contains("BROKEN: 1 overlaps"), "{judgement:?}");
        assert!(judgement.complaints.iter().any(|line| line.contains("process 2")), "{judgement:?}");
    }

    #[test]
    fn tokens_must_grow() {
        let judgement = judge([hold(1, 2, 10, 20), hold(2, 1, 30, 40)].concat());
        assert_eq!(judgement.overlaps, 0);
        assert!(judgement.complaints[0].contains("backwards: 1 times"), "{judgement:?}");
    }

    #[test]
    fn an_empty_history_proves_nothing() {
        assert_eq!(judge(Vec::new()).complaints.len(), 1);
    }
}
