//! Steps one after the other as inline SVG: a bar for each, and lines to compare them with.

use std::fmt::Write as _;

use super::axis::{CHARACTER, Scale, round};
use super::html::escape;
use crate::data::results::labels::quantity;

/// Upright bars from left to right, and level lines over all of them.
#[derive(Debug)]
pub(super) struct Steps<'a> {
    /// The text for screen readers.
    pub(super) label: String,
    /// The unit of all values.
    pub(super) unit: &'a str,
    /// The class of the bars in the style sheet, which is their colour.
    pub(super) colour: String,
    /// From left to right, with their names.
    pub(super) steps: Vec<(&'a str, f64)>,
    /// In the order of the legend.
    pub(super) lines: Vec<Level<'a>>,
}

/// A line to compare with.
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
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" style=\"max-width: {WIDTH}px\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.label)
        );
        let y = |value: f64| BOTTOM - scale.position(value) * (BOTTOM - TOP);
        for tick in scale.ticks((BOTTOM - TOP) * 2.0) {
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y(tick) + 4.0,
                escape(&round(&quantity(tick, self.unit))),
                y = y(tick),
            );
        }
        let each = (RIGHT - LEFT) / self.steps.len() as f64;
        for (at, (name, value)) in self.steps.iter().enumerate() {
            let (middle, top) = (LEFT + (at as f64 + 0.5) * each, y(*value));
            let (width, text) = (each * 0.6, quantity(*value, self.unit));
            let _ = writeln!(
                svg,
                "<g class=\"{}\"><rect class=\"bar d1\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
                 height=\"{:.1}\" rx=\"2\"><title>{} {}</title></rect></g>\
                 <text class=\"name\" x=\"{middle:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                self.colour,
                middle - width / 2.0,
                (BOTTOM - top).max(1.0),
                escape(name),
                escape(&text),
                BOTTOM + 16.0,
                escape(name),
            );
        }
        for (row, line) in self.lines.iter().enumerate() {
            line.draw(&mut svg, y(line.value), BOTTOM + 38.0 + row as f64 * LEGEND, self.unit);
        }
        // Last, so that no line hides a number.
        for (at, (_, value)) in self.steps.iter().enumerate() {
            let (middle, text) = (LEFT + (at as f64 + 0.5) * each, quantity(*value, self.unit));
            let _ = writeln!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" textLength=\"{:.0}\">{}</text>",
                f64::midpoint(y(*value), BOTTOM) + 4.0,
                text.chars().count() as f64 * CHARACTER,
                escape(&text),
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Level<'_> {
    fn draw(&self, svg: &mut String, y: f64, legend: f64, unit: &str) {
        let _ = writeln!(
            svg,
            "<g class=\"{}\"><line class=\"line d{dash}\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <line class=\"line d{dash}\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{legend}\" y2=\"{legend}\"/></g>\
             <text x=\"{}\" y=\"{}\">{} {}</text>",
            self.colour,
            LEFT + 30.0,
            LEFT + 38.0,
            legend + 4.0,
            escape(self.name),
            escape(&quantity(self.value, unit)),
            dash = self.dash,
        );
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
