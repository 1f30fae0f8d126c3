//! Steps one after the other: a bar for each, and lines to compare them with.

use super::axis::{Scale, round};
use super::svg::{Anchor, Svg};
use crate::data::results::numbers::quantity;

/// Upright bars from left to right, and level lines over all of them.
#[derive(Debug)]
pub(super) struct Steps<'a> {
    pub(super) label: String,
    pub(super) unit: &'a str,
    /// The class of the bars in the style sheet, which is their colour.
    pub(super) colour: String,
    /// From left to right, with their names.
    pub(super) steps: Vec<(&'a str, f64)>,
    /// In the order of the legend.
    pub(super) lines: Vec<Level<'a>>,
}

#[derive(Debug)]
pub(super) struct Level<'a> {
    pub(super) name: &'a str,
    pub(super) value: f64,
    pub(super) colour: String,
    /// Tells lines of one colour apart.
    pub(super) dash: usize,
}

impl Steps<'_> {
    /// The SVG element; empty without steps.
    pub(super) fn render(&self) -> String {
        let values =
            self.steps.iter().map(|(_, value)| *value).chain(self.lines.iter().map(|line| line.value));
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        if self.steps.is_empty() || most <= 0.0 {
            return String::new();
        }
        let scale = Scale::Linear { end: most * 1.1 };
        let height = BOTTOM + 34.0 + self.lines.len() as f64 * LEGEND;
        let mut svg = Svg::new(WIDTH, height, &self.label);
        let y = |value: f64| BOTTOM - scale.position(value) * (BOTTOM - TOP);
        for tick in scale.ticks((BOTTOM - TOP) * 2.0) {
            svg.level([LEFT, RIGHT], y(tick), &round(&quantity(tick, self.unit)));
        }
        let each = (RIGHT - LEFT) / self.steps.len() as f64;
        let middle = |at: usize| LEFT + (at as f64 + 0.5) * each;
        for (at, (name, value)) in self.steps.iter().enumerate() {
            let (width, top) = (each * 0.6, y(*value));
            let (corner, size) = ([middle(at) - width / 2.0, top], [width, (BOTTOM - top).max(1.0)]);
            let hint = format!("{name} {}", quantity(*value, self.unit));
            svg.coloured(&self.colour, |svg| svg.rect("bar d1", corner, size, &hint));
            svg.text("name", Anchor::Middle, [middle(at), BOTTOM + 16.0], name);
        }
        for (row, line) in self.lines.iter().enumerate() {
            let (class, y) = (format!("line d{}", line.dash), y(line.value));
            svg.coloured(&line.colour, |svg| svg.line(&class, [LEFT, y], [RIGHT, y]));
            let text = format!("{} {}", line.name, quantity(line.value, self.unit));
            svg.legend(&line.colour, line.dash, [LEFT, BOTTOM + 38.0 + row as f64 * LEGEND], &text);
        }
        // Last, so that no line hides a number.
        for (at, (_, value)) in self.steps.iter().enumerate() {
            let place = [middle(at), f64::midpoint(y(*value), BOTTOM) + 4.0];
            svg.text("", Anchor::Middle, place, &quantity(*value, self.unit));
        }
        svg.end()
    }
}

const WIDTH: f64 = 450.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 8.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 190.0;
const LEGEND: f64 = 18.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(values: &[f64]) -> Steps<'static> {
        let line = Level { name: "zk", value: 300.0, colour: "b3".into(), dash: 0 };
        let steps = values.iter().map(|value| ("dual", *value)).collect();
        Steps { label: "x".into(), unit: "us", colour: "b4".into(), steps, lines: vec![line] }
    }

    #[test]
    fn each_step_has_its_number_and_each_line_its_legend() {
        let svg = steps(&[88.0, 412.0]).render();
        for text in [">88 µs<", ">412 µs<", ">zk 300 µs<"] {
            assert_eq!(svg.matches(text).count(), 1, "{text} in {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 2);
    }

    #[test]
    fn odd_values_do_not_break_the_picture() {
        assert_eq!(steps(&[]).render(), "");
        for values in [&[0.0][..], &[-1.0], &[f64::NAN, 1.0], &[f64::INFINITY, 1e3]] {
            let svg = steps(values).render();
            assert!(
                svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"),
                "{values:?}: {svg}"
            );
        }
    }
}
