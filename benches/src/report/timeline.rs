//! What processes did over time: a lane per process.

use super::axis::{BOLD, CHARACTER, Scale, round};
use super::scenario::LARGE;
use super::svg::{Anchor, Svg};
use crate::data::results::numbers::quantity;
use crate::data::{Lane, Span, SpanKind};

/// The SVG element; empty without spans.
pub(super) fn render(label: &str, lanes: &[Lane]) -> String {
    let spans = || lanes.iter().flat_map(|lane| &lane.spans);
    let end = spans().map(|span| span.until_ms).filter(|end| end.is_finite()).fold(0.0, f64::max);
    if end <= 0.0 {
        return String::new();
    }
    let scale = Scale::Linear { end };
    let longest = lanes.iter().map(|lane| lane.name.chars().count()).max().unwrap_or(0);
    let left = longest as f64 * BOLD + 14.0;
    let right = LARGE - 24.0;
    let bottom = TOP + lanes.len() as f64 * STEP;
    let mut svg = Svg::new(LARGE, bottom + 52.0, label);
    let x = |ms: f64| left + scale.position(ms) * (right - left);
    for tick in scale.ticks(right - left) {
        svg.upright(x(tick), [TOP - 4.0, bottom], &round(&quantity(tick, "ms")));
    }
    for (row, lane) in lanes.iter().enumerate() {
        let y = TOP + row as f64 * STEP;
        svg.text("name", Anchor::Start, [0.0, y + 16.0], &lane.name);
        // The overlaps last, so that nothing hides them.
        let (red, others): (Vec<_>, Vec<_>) =
            lane.spans.iter().partition(|span| span.what == SpanKind::Overlap);
        for span in others.into_iter().chain(red) {
            draw(&mut svg, span, y, &x);
        }
    }
    let mut at = left;
    for kind in KINDS.iter().copied().filter(|kind| spans().any(|span| span.what == *kind)) {
        svg.rect(&format!("span {}", class(kind)), [at, bottom + 28.0], [14.0, 12.0], about(kind));
        svg.text("tick", Anchor::Start, [at + 20.0, bottom + 38.0], about(kind));
        at += about(kind).chars().count() as f64 * CHARACTER + 36.0;
    }
    svg.end()
}

fn draw(svg: &mut Svg, span: &Span, y: f64, x: &impl Fn(f64) -> f64) {
    let from = x(span.from_ms);
    let width = (x(span.until_ms) - from).max(2.0);
    let hint = [about(span.what), &span.note].join(" ");
    let [begin, end] = [span.from_ms, span.until_ms].map(|ms| quantity(ms, "ms"));
    let hint = format!("{}, {begin} to {end}", hint.trim());
    svg.rect(&format!("span {}", class(span.what)), [from, y], [width, HEIGHT], &hint);
    if span.note.chars().count() as f64 * CHARACTER + 8.0 < width {
        let class = format!("note {}", class(span.what));
        svg.text(&class, Anchor::Start, [from + 6.0, y + 16.0], &span.note);
    }
}

const fn class(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Valid => "valid",
        SpanKind::Invalid => "invalid",
        SpanKind::Overlap => "overlap",
        SpanKind::Paused => "paused",
        SpanKind::Outage => "outage",
    }
}

const fn about(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Valid => "holds, guard valid",
        SpanKind::Invalid => "acts, guard lost",
        SpanKind::Overlap => "two act as holder",
        SpanKind::Paused => "paused or cut off",
        SpanKind::Outage => "nobody can acquire",
    }
}

const KINDS: &[SpanKind] =
    &[SpanKind::Valid, SpanKind::Invalid, SpanKind::Overlap, SpanKind::Paused, SpanKind::Outage];
const TOP: f64 = 8.0;
const STEP: f64 = 30.0;
const HEIGHT: f64 = 22.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(spans: &[(f64, f64, SpanKind)]) -> Lane {
        let span = |&(from_ms, until_ms, what): &_| Span { from_ms, until_ms, what, note: "token 7".into() };
        Lane { name: "a & b".into(), spans: spans.iter().map(span).collect() }
    }

    #[test]
    fn overlaps_are_drawn_last_and_explained() {
        let overlap = (10.0, 20.0, SpanKind::Overlap);
        let svg = render("x", &[lane(&[overlap, (0.0, 30.0, SpanKind::Valid)])]);
        assert!(svg.find("span valid").unwrap() < svg.find("span overlap").unwrap(), "{svg}");
        assert!(svg.contains(">two act as holder</text>") && !svg.contains(about(SpanKind::Outage)), "{svg}");
        assert!(svg.contains("a &amp; b") && svg.contains("token 7, 10 ms to 20 ms"), "{svg}");
    }

    #[test]
    fn without_spans_there_is_no_picture() {
        assert_eq!(render("x", &[]), "");
        assert_eq!(render("x", &[lane(&[])]), "");
        assert_eq!(render("x", &[lane(&[(f64::NAN, f64::NAN, SpanKind::Valid)])]), "");
    }
}
