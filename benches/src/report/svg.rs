//! Inline SVG, drawn piece by piece. Classes of the style sheet give the colours.
//!
//! No chart crate: plotters writes fixed colours and charming needs a script engine, where these pictures take their colours
//! from the page's style sheet, so that one picture serves light, dark and print. poloto does that too, but has neither bars
//! with a mark nor lanes over time, so that most of this code would stay.

use std::fmt::Write as _;

use super::html::escape;

#[derive(Debug)]
pub(super) struct Svg(String);

/// The end of a text that is at its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty picture of this size, with a text for screen readers.
    pub(super) fn new(width: f64, height: f64, label: &str) -> Self {
        Self(format!(
            "<svg viewBox=\"0 0 {width} {height}\" style=\"max-width: {width}px\" role=\"img\" aria-label=\"{}\">\n",
            escape(label)
        ))
    }

    pub(super) fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    pub(super) fn coloured(&mut self, class: &str, draw: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.0, "<g class=\"{class}\">");
        draw(self);
        self.0.push_str("</g>\n");
    }

    pub(super) fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        let _ = writeln!(
            self.0,
            "<line class=\"{class}\" x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    pub(super) fn path(&mut self, class: &str, points: impl Iterator<Item = [f64; 2]>) {
        let points: Vec<_> = points.map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.0, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    pub(super) fn point(&mut self, [x, y]: [f64; 2], hint: &str) {
        let _ = writeln!(
            self.0,
            "<circle class=\"point\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{}</title></circle>",
            escape(hint)
        );
    }

    /// A rectangle with a hint, from its upper left corner.
    pub(super) fn rect(&mut self, class: &str, [x, y]: [f64; 2], [width, height]: [f64; 2], hint: &str) {
        let _ = writeln!(
            self.0,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\">\
             <title>{}</title></rect>",
            escape(hint)
        );
    }

    /// A text; without a class in the colour of the page.
    pub(super) fn text(&mut self, class: &str, anchor: Anchor, at: [f64; 2], text: &str) {
        self.text_and(class, anchor, at, text, "");
    }

    pub(super) fn text_and(&mut self, class: &str, anchor: Anchor, [x, y]: [f64; 2], text: &str, note: &str) {
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let note = match note {
            "" => String::new(),
            note => format!("<tspan class=\"tick\" dx=\"6\">{}</tspan>", escape(note)),
        };
        let text = escape(text);
        let _ = writeln!(self.0, "<text{class} x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{text}{note}</text>");
    }

    /// A line of the grid across, with its number to the left.
    pub(super) fn level(&mut self, [left, right]: [f64; 2], y: f64, number: &str) {
        self.line("grid", [left, y], [right, y]);
        self.text("tick", Anchor::End, [left - 6.0, y + 4.0], number);
    }

    /// An upright line of the grid, with its number below.
    pub(super) fn upright(&mut self, x: f64, [top, bottom]: [f64; 2], number: &str) {
        self.line("grid", [x, top], [x, bottom]);
        self.text("tick", Anchor::Middle, [x, bottom + 16.0], number);
    }

    pub(super) fn legend(&mut self, colour: &str, dash: usize, [x, y]: [f64; 2], text: &str) {
        self.coloured(colour, |svg| svg.line(&format!("line d{dash}"), [x, y], [x + 30.0, y]));
        self.text("", Anchor::Start, [x + 38.0, y + 4.0], text);
    }
}
