//! Growth curves, on logarithmic axes.

use super::axis::{Scale, round};
use super::svg::{Anchor, Svg};
use crate::data::results::numbers::{number, quantity};

/// Lines over a common `x`, both axes logarithmic. Zero is drawn at the bottom.
#[derive(Debug)]
pub(super) struct Curve<'a> {
    pub(super) label: String,
    /// What grows along the axis, such as `waiters`.
    pub(super) x_name: &'a str,
    pub(super) unit: &'a str,
    /// In the order of the legend.
    pub(super) lines: Vec<Line<'a>>,
}

#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    /// Its class in the style sheet, which is its colour.
    pub(super) colour: String,
    /// Tells lines of one colour apart.
    pub(super) dash: usize,
    /// From left to right.
    pub(super) points: Vec<(f64, f64)>,
}

impl Curve<'_> {
    /// The SVG element; empty without points.
    pub(super) fn render(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points).copied();
        let Some(across) = decades(points().map(|(x, _)| x)) else { return String::new() };
        let up = decades(points().map(|(_, y)| y)).unwrap_or(Scale::Linear { end: 1.0 });
        let height = BOTTOM + 44.0 + self.lines.len() as f64 * LEGEND;
        let mut svg = Svg::new(WIDTH, height, &self.label);
        let x = |value: f64| LEFT + across.position(value) * (RIGHT - LEFT);
        let y = |value: f64| BOTTOM - up.position(value) * (BOTTOM - TOP);
        for tick in up.ticks((BOTTOM - TOP) * 2.0) {
            let lowest = matches!(up, Scale::Logarithmic { .. }) && y(tick) > BOTTOM - 1.0;
            let zero = lowest && self.has_zero();
            let text = if zero { "0".into() } else { round(&quantity(tick, self.unit)) };
            svg.level([LEFT, RIGHT], y(tick), &text);
        }
        for tick in across.ticks(RIGHT - LEFT) {
            svg.upright(x(tick), [TOP, BOTTOM], &number(tick));
        }
        svg.text("tick", Anchor::Middle, [f64::midpoint(LEFT, RIGHT), BOTTOM + 32.0], self.x_name);
        for line in &self.lines {
            let points = || line.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite());
            svg.coloured(&line.colour, |svg| {
                svg.path(&format!("line d{}", line.dash), points().map(|point| [x(point.0), y(point.1)]));
                for point in points() {
                    let (value, place) = (quantity(point.1, self.unit), number(point.0));
                    let hint = format!("{}: {value} at {place} {}", line.name, self.x_name);
                    svg.point([x(point.0), y(point.1)], &hint);
                }
            });
        }
        for (row, line) in self.lines.iter().enumerate() {
            svg.legend(&line.colour, line.dash, [LEFT, BOTTOM + 52.0 + row as f64 * LEGEND], line.name);
        }
        svg.end()
    }

    fn has_zero(&self) -> bool {
        self.lines.iter().flat_map(|line| &line.points).any(|(_, y)| *y <= 0.0)
    }
}

/// The powers of ten around the values above zero, one more at the bottom when some value is zero.
fn decades(values: impl Iterator<Item = f64>) -> Option<Scale> {
    let (mut least, mut most, mut zero) = (f64::INFINITY, 0.0_f64, false);
    for value in values.filter(|value| value.is_finite()) {
        if value > 0.0 {
            (least, most) = (least.min(value), most.max(value));
        } else {
            zero = true;
        }
    }
    if most <= 0.0 {
        return None;
    }
    // Rounded, as the logarithm of 1000 need not be exactly 3.
    let rounded = |value: f64| (value.log10() * 1e9).round() / 1e9;
    let first = rounded(least).floor() - if zero { 1.0 } else { 0.0 };
    Some(Scale::Logarithmic { first, last: rounded(most).ceil().max(first + 1.0) })
}

const WIDTH: f64 = 450.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 432.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 210.0;
const LEGEND: f64 = 18.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> String {
        let line = Line { name: "zk", colour: "b3".into(), dash: 0, points: points.to_vec() };
        Curve { label: "x".into(), x_name: "waiters", unit: "", lines: vec![line] }.render()
    }

    #[test]
    fn equal_factors_are_equal_distances() {
        let svg = curve(&[(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)]);
        assert!(svg.contains("points=\"74.0,210.0 253.0,110.0 432.0,10.0\""), "{svg}");
    }

    #[test]
    fn zero_is_at_the_bottom_and_says_so() {
        let svg = curve(&[(8.0, 0.0), (64.0, 10.0)]);
        assert!(svg.contains(",210.0 "), "{svg}");
        assert!(svg.contains("text-anchor=\"end\">0</text>"), "{svg}");
        assert!(!curve(&[(8.0, 1.0), (64.0, 10.0)]).contains(">0</text>"));
    }

    #[test]
    fn odd_values_do_not_break_the_picture() {
        assert_eq!(curve(&[]), "");
        for points in [&[(1.0, 0.0)][..], &[(1.0, f64::NAN), (2.0, 1.0)], &[(1.0, 1e-12), (1e9, 1e12)]] {
            let svg = curve(points);
            assert!(
                svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"),
                "{points:?}: {svg}"
            );
        }
    }
}
