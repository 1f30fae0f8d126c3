//! Bar charts.

use super::axis::{BOLD, CHARACTER, Scale, round};
use super::svg::{Anchor, Svg};
use crate::data::results::numbers::quantity;

/// Horizontal bars in named groups, all on one scale.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub(super) label: String,
    pub(super) unit: &'a str,
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
    pub(super) name: &'a str,
    /// Its class in the style sheet, which is its colour.
    pub(super) colour: String,
    /// From top to bottom.
    pub(super) bars: Vec<Bar>,
}

#[derive(Debug)]
pub(super) struct Bar {
    /// The name, if the group has more than one bar.
    pub(super) name: String,
    /// The length of the bar.
    pub(super) value: f64,
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
        let mut svg = Svg::new(self.width, bottom + 26.0, &self.label);
        let left = self.left();
        let span = self.width - left - self.right();
        let x = |value: f64| left + scale.position(value) * span;
        for tick in scale.ticks(span) {
            svg.upright(x(tick), [TOP - 4.0, bottom], &round(&quantity(tick, self.unit)));
        }
        let mut y = TOP;
        for group in &self.groups {
            svg.coloured(&group.colour, |svg| {
                svg.text("name", Anchor::Start, [0.0, y + 12.0], group.name);
                for (depth, bar) in group.bars.iter().enumerate() {
                    self.bar(svg, bar, depth, y, &x);
                    y += STEP;
                }
            });
            y += GAP;
        }
        svg.line("axis", [left, TOP - 4.0], [left, bottom]);
        svg.end()
    }

    /// Whether the scale is logarithmic, which the caption must say.
    pub(super) fn is_logarithmic(&self) -> bool {
        matches!(self.scale(), Some(Scale::Logarithmic { .. }))
    }

    /// Whether there are marks, which the caption must explain.
    pub(super) fn is_marked(&self) -> bool {
        self.groups.iter().flat_map(|group| &group.bars).any(|bar| bar.mark.is_some())
    }

    fn bar(&self, svg: &mut Svg, bar: &Bar, depth: usize, y: f64, x: &impl Fn(f64) -> f64) {
        let (start, end) = (self.left(), x(bar.value));
        if !bar.name.is_empty() {
            svg.text("tick", Anchor::End, [start - 8.0, y + 12.0], &bar.name);
        }
        let value = quantity(bar.value, self.unit);
        let hint = match bar.mark {
            Some(mark) => format!("{} {value}, {} {}", bar.name, self.mark_name, quantity(mark, self.unit)),
            None => format!("{} {value}", bar.name),
        };
        let size = [(end - start).max(1.0), BAR];
        svg.rect(&format!("bar d{}", depth.min(2)), [start, y], size, hint.trim());
        let mark = bar.mark.map(x);
        if let Some(x) = mark {
            for class in ["halo", "mark"] {
                svg.line(class, [x, y - 1.5], [x, y + BAR + 1.5]);
            }
        }
        let length = (value.chars().count() + bar.note.chars().count()) as f64 * CHARACTER + 22.0;
        // Beside the bar, or beyond the mark where the two would collide.
        let beside = mark.filter(|mark| *mark > end && *mark < end + length).unwrap_or(end);
        svg.text_and("", Anchor::Start, [beside + 8.0, y + 12.0], &value, &bar.note);
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
