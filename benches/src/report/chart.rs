//! Bar charts as inline SVG.
//!
//! No chart crate: plotters writes fixed colours and charming needs a script engine, where these pictures take their colours
//! from the page's style sheet, so that one picture serves light, dark and print. poloto does that too, but has neither bars
//! with a mark nor lanes over time, so that most of this code would stay.

use std::fmt::Write as _;

use super::axis::{BOLD, CHARACTER, Scale, round};
use super::html::escape;
use crate::data::results::labels::quantity;

/// Horizontal bars in named groups, all on one scale.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    /// The text for screen readers.
    pub(super) label: String,
    /// The unit of all values.
    pub(super) unit: &'a str,
    /// What the marks show.
    pub(super) mark_name: &'a str,
    /// The end of the scale, for values with a maximum.
    pub(super) end: Option<f64>,
    /// The width in SVG units; the height follows from the bars.
    pub(super) width: f64,
    /// From top to bottom.
    pub(super) groups: Vec<Group<'a>>,
}

/// The bars of one backend.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// The backend.
    pub(super) name: &'a str,
    /// Its class in the style sheet, which is its colour.
    pub(super) colour: String,
    /// From top to bottom.
    pub(super) bars: Vec<Bar>,
}

/// One value.
#[derive(Debug)]
pub(super) struct Bar {
    /// The name, if the group has more than one bar.
    pub(super) name: String,
    /// The length of the bar.
    pub(super) value: f64,
    /// A mark for comparison.
    pub(super) mark: Option<f64>,
    /// The text after the value.
    pub(super) note: String,
}

impl Chart<'_> {
    /// The SVG element; empty without values.
    pub(super) fn render(&self) -> String {
        let Some(scale) = self.scale() else { return String::new() };
        let bars: usize = self.groups.iter().map(|group| group.bars.len()).sum();
        let bottom = TOP + bars as f64 * STEP + (self.groups.len() as f64 - 1.0).max(0.0) * GAP;
        let (width, height) = (self.width, bottom + 26.0);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {width} {height}\" style=\"max-width: {width}px\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.label)
        );
        let left = self.left();
        let span = width - left - self.right();
        let x = |value: f64| left + scale.position(value) * span;
        for tick in scale.ticks(span) {
            let (x, text) = (x(tick), escape(&round(&quantity(tick, self.unit))));
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y}\" y2=\"{bottom}\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                bottom + 18.0,
                y = TOP - 4.0,
            );
        }
        let mut y = TOP;
        for group in &self.groups {
            let _ = writeln!(svg, "<g class=\"{}\">", group.colour);
            let _ = writeln!(
                svg,
                "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text>",
                y + 12.0,
                escape(group.name)
            );
            for (depth, bar) in group.bars.iter().enumerate() {
                self.bar(&mut svg, bar, depth, y, &x);
                y += STEP;
            }
            svg.push_str("</g>\n");
            y += GAP;
        }
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{y}\" y2=\"{bottom}\"/>\n</svg>",
            y = TOP - 4.0,
        );
        svg
    }

    /// Whether the scale is logarithmic, which the caption must say.
    pub(super) fn is_logarithmic(&self) -> bool {
        matches!(self.scale(), Some(Scale::Logarithmic { .. }))
    }

    /// Whether there are marks, which the caption must explain.
    pub(super) fn is_marked(&self) -> bool {
        self.groups.iter().flat_map(|group| &group.bars).any(|bar| bar.mark.is_some())
    }

    fn bar(&self, svg: &mut String, bar: &Bar, depth: usize, y: f64, x: &impl Fn(f64) -> f64) {
        let start = self.left();
        if !bar.name.is_empty() {
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                start - 8.0,
                y + 12.0,
                escape(&bar.name)
            );
        }
        let end = x(bar.value);
        let value = quantity(bar.value, self.unit);
        let hint = match bar.mark {
            Some(mark) => format!("{} {value}, {} {}", bar.name, self.mark_name, quantity(mark, self.unit)),
            None => format!("{} {value}", bar.name),
        };
        let _ = writeln!(
            svg,
            "<rect class=\"bar d{}\" x=\"{start:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\">\
             <title>{}</title></rect>",
            depth.min(2),
            (end - start).max(1.0),
            escape(hint.trim())
        );
        let mark = bar.mark.map(x);
        if let Some(x) = mark {
            let (top, bottom) = (y - 1.5, y + BAR + 1.5);
            for class in ["halo", "mark"] {
                let _ = writeln!(
                    svg,
                    "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>"
                );
            }
        }
        let length = (value.chars().count() + bar.note.chars().count()) as f64 * CHARACTER + 22.0;
        // Beside the bar, or beyond the mark where the two would collide.
        let beside = mark.filter(|mark| *mark > end && *mark < end + length).unwrap_or(end);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}<tspan class=\"tick\" dx=\"6\">{}</tspan></text>",
            beside + 8.0,
            y + 12.0,
            escape(&value),
            escape(&bar.note)
        );
    }

    fn left(&self) -> f64 {
        let longest = |names: &mut dyn Iterator<Item = &str>, width: f64| {
            names.map(|name| name.chars().count()).max().unwrap_or(0) as f64 * width
        };
        let groups = longest(&mut self.groups.iter().map(|group| group.name), BOLD);
        let bars = longest(
            &mut self.groups.iter().flat_map(|group| &group.bars).map(|bar| bar.name.as_str()),
            CHARACTER,
        );
        (groups + bars + if bars > 0.0 { 28.0 } else { 14.0 }).min(self.width / 2.0)
    }

    fn right(&self) -> f64 {
        let noted = self.groups.iter().flat_map(|group| &group.bars).map(|bar| {
            (quantity(bar.value, self.unit).chars().count() + bar.note.chars().count()) as f64 * CHARACTER
        });
        noted.fold(0.0, f64::max) + 22.0
    }

    fn scale(&self) -> Option<Scale> {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let values =
            || bars().flat_map(|bar| [Some(bar.value), bar.mark]).flatten().filter(|value| value.is_finite());
        values().next()?;
        let most = values().fold(0.0, f64::max);
        if let Some(end) = self.end {
            return Some(Scale::Linear { end: end.max(most) });
        }
        let least = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        if most / least > LOGARITHMIC_FROM {
            // The scale begins lower, so that the shortest bar is visible.
            let first = (least / 2.0).log10().floor();
            return Some(Scale::Logarithmic { first, last: most.log10().ceil() });
        }
        Some(Scale::Linear { end: if most > 0.0 { most } else { 1.0 } })
    }
}

const TOP: f64 = 8.0;
const BAR: f64 = 16.0;
const STEP: f64 = 21.0;
const GAP: f64 = 9.0;
/// From this ratio of the largest to the smallest value, small ones would vanish on a linear scale.
const LOGARITHMIC_FROM: f64 = 25.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[f64]) -> Chart<'static> {
        let bars = values.iter().map(|value| Bar {
            name: "p".into(),
            value: *value,
            mark: None,
            note: String::new(),
        });
        let group = Group { name: "zk", colour: "b3".into(), bars: bars.collect() };
        Chart {
            label: "x".into(),
            unit: "us",
            mark_name: "floor",
            end: None,
            width: 640.0,
            groups: vec![group],
        }
    }

    #[test]
    fn the_scale_follows_the_spread() {
        assert!(!chart(&[10.0, 100.0]).is_logarithmic());
        assert!(chart(&[1.0, 100.0]).is_logarithmic());
        assert!(!chart(&[0.0, 100.0]).is_logarithmic());
    }

    #[test]
    fn odd_values_do_not_break_the_picture() {
        assert_eq!(chart(&[]).render(), "");
        for values in
            [&[0.0][..], &[0.0, 0.0], &[-1.0], &[1e-9, 1e12], &[f64::NAN, 1.0], &[1.0, f64::INFINITY, 1e3]]
        {
            let svg = chart(values).render();
            assert!(
                svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"),
                "{values:?}: {svg}"
            );
        }
    }
}
