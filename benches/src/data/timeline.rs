//! A history as a timeline of holds.

use std::collections::BTreeMap;

use lock_testkit::history::Event;

use crate::data::holds::holds;
use crate::data::results::{Lane, Picture, Span, SpanKind};

pub(crate) fn timeline(title: &str, events: &[Event], from_ns: u64, until_ns: u64) -> Picture {
    let holds = holds(events);
    let mut lanes: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    for (index, hold) in holds.iter().enumerate() {
        let lane = lanes.entry(hold.process).or_default();
        let mut add = |begin_ns: u64, end_ns: u64, what| {
            let (begin_ns, end_ns) = (begin_ns.max(from_ns), end_ns.min(until_ns));
            if begin_ns < end_ns {
                let [from_ms, until_ms] = [begin_ns, end_ns].map(|ns| (ns - from_ns) as f64 / 1e6);
                let note = hold.token.map_or_else(String::new, |token| format!("token {token}"));
                lane.push(Span { from_ms, until_ms, what, note });
            }
        };
        let valid_ns = hold.valid_until_ns.min(hold.end_ns);
        add(hold.begin_ns, valid_ns, SpanKind::Valid);
        add(valid_ns.max(hold.begin_ns), hold.end_ns, SpanKind::Invalid);
        for other in holds.iter().take(index).filter(|other| other.process != hold.process) {
            add(hold.begin_ns.max(other.begin_ns), hold.end_ns.min(other.end_ns), SpanKind::Overlap);
        }
    }
    let lane = |(process, spans)| Lane { name: format!("process {process}"), spans };
    Picture::Timeline { title: title.to_owned(), lanes: lanes.into_iter().map(lane).collect() }
}

#[cfg(test)]
mod tests {
    use lock_testkit::history::EventKind;

    use super::*;

    #[test]
    fn a_hold_beyond_its_validity_and_an_overlap_are_seen() {
        let ms = |ms: u64| ms * 1_000_000;
        let event = |process, at, kind| Event { process, client: 0, lock: "a".into(), at_ns: ms(at), kind };
        let acquired = |until| EventKind::Acquired {
            token: Some(7),
            valid_until_ns: Some(ms(until)),
            mode: lock_testkit::history::Mode::Exclusive,
        };
        let events = [
            event(1, 100, acquired(150)),
            event(2, 160, acquired(400)),
            event(1, 200, EventKind::Lost),
            event(2, 300, EventKind::ReleaseCalled),
        ];
        let Picture::Timeline { lanes, .. } = timeline("", &events, ms(50), ms(500)) else { panic!() };
        let seen = |lane: usize| -> Vec<_> {
            lanes[lane].spans.iter().map(|span| (span.from_ms, span.until_ms, span.what)).collect()
        };
        assert_eq!(seen(0), [(50.0, 100.0, SpanKind::Valid), (100.0, 150.0, SpanKind::Invalid)]);
        assert_eq!(seen(1), [(110.0, 250.0, SpanKind::Valid), (110.0, 150.0, SpanKind::Overlap)]);
    }
}
