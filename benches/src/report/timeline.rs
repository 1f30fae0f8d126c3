//! What processes did over time, as inline SVG: a lane per process.

use std::fmt::Write as _;

use super::axis::{BOLD, CHARACTER, Scale, round};
use super::html::escape;
use super::scenario::LARGE;
use crate::data::results::labels::quantity;
use crate::data::results::{Lane, Span, SpanKind};

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
    let mut svg = format!(
        "<svg viewBox=\"0 0 {LARGE} {}\" style=\"max-width: {LARGE}px\" role=\"img\" aria-label=\"{}\">\n",
        bottom + 52.0,
        escape(label)
    );
    let x = |ms: f64| left + scale.position(ms) * (right - left);
    for tick in scale.ticks(right - left) {
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            TOP - 4.0,
            bottom + 16.0,
            escape(&round(&quantity(tick, "ms"))),
            x = x(tick),
        );
    }
    for (row, lane) in lanes.iter().enumerate() {
        let y = TOP + row as f64 * STEP;
        let _ =
            writeln!(svg, "<text class=\"name\" x=\"0\" y=\"{}\">{}</text>", y + 16.0, escape(&lane.name));
        // The overlaps last, so that nothing hides them.
        let (red, others): (Vec<_>, Vec<_>) =
            lane.spans.iter().partition(|span| span.what == SpanKind::Overlap);
        for span in others.into_iter().chain(red) {
            draw(&mut svg, span, y, &x);
        }
    }
    legend(&mut svg, left, bottom + 38.0, |kind| spans().any(|span| span.what == kind));
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, span: &Span, y: f64, x: &impl Fn(f64) -> f64) {
    let (from, until) = (x(span.from_ms), x(span.until_ms));
    let width = (until - from).max(2.0);
    let hint = [about(span.what), &span.note].join(" ");
    let _ = writeln!(
        svg,
        "<rect class=\"span {}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" rx=\"2\">\
         <title>{}, {} to {}</title></rect>",
        class(span.what),
        escape(hint.trim()),
        quantity(span.from_ms, "ms"),
        quantity(span.until_ms, "ms"),
    );
    if span.note.chars().count() as f64 * CHARACTER + 8.0 < width {
        let _ = writeln!(
            svg,
            "<text class=\"note {}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            class(span.what),
            from + 6.0,
            y + 16.0,
            escape(&span.note)
        );
    }
}

fn legend(svg: &mut String, left: f64, y: f64, occurs: impl Fn(SpanKind) -> bool) {
    let mut x = left;
    for kind in KINDS.iter().copied().filter(|kind| occurs(*kind)) {
        let _ = writeln!(
            svg,
            "<rect class=\"span {}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"12\" rx=\"2\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            class(kind),
            y - 10.0,
            x + 20.0,
            about(kind)
        );
        x += about(kind).chars().count() as f64 * CHARACTER + 36.0;
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
