//! The pictures of a claim, drawn from its figures.

use std::fmt::Write as _;

use super::chart::{Bar, Chart, Group};
use super::colour::colour;
use super::curve::{Curve, Line};
use super::html::escape;
use super::scenario::SMALL;
use super::steps::{Level, Steps};
use super::timeline;
use crate::data::results::distinct;
use crate::data::results::numbers::number;
use crate::data::{ClaimResult, Figure, Picture, Results};

pub(super) fn pictures(page: &mut String, results: &Results, claim: &ClaimResult) {
    let drawn = claim.pictures.iter().map(|picture| draw(results, claim, picture));
    let (wide, small): (Vec<_>, Vec<_>) =
        drawn.filter(|drawn| !drawn.svg.is_empty()).partition(|drawn| drawn.wide);
    for drawn in wide {
        drawn.write(page, "wide large");
    }
    if !small.is_empty() {
        page.push_str("<div class=\"charts\">\n");
        for drawn in small {
            page.push_str("<div>\n");
            drawn.write(page, "wide");
            page.push_str("</div>\n");
        }
        page.push_str("</div>\n");
    }
}

struct Drawn<'a> {
    title: &'a str,
    note: &'static str,
    svg: String,
    wide: bool,
}

impl Drawn<'_> {
    fn write(&self, page: &mut String, class: &str) {
        let note = match self.note {
            "" => String::new(),
            note => format!(" <span class=\"soft\">({note})</span>"),
        };
        let _ = writeln!(
            page,
            "<h4>{}{note}</h4>\n<div class=\"{class}\">\n{}</div>",
            escape(self.title),
            self.svg
        );
    }
}

fn draw<'a>(results: &Results, claim: &'a ClaimResult, picture: &'a Picture) -> Drawn<'a> {
    match picture {
        Picture::Bars { title, metric } => {
            let chart = bars(results, claim, title, metric);
            let note = if chart.is_logarithmic() { "logarithmic scale" } else { "" };
            Drawn { title, note, svg: chart.render(), wide: false }
        }
        Picture::Curve { title, metric, x } => {
            let svg = curve(results, claim, title, metric, x).render();
            Drawn { title, note: "logarithmic axes", svg, wide: false }
        }
        Picture::Steps { title, metric, steps, lines } => {
            let svg = ladder(results, claim, (title, metric), (steps, lines)).render();
            Drawn { title, note: "", svg, wide: false }
        }
        Picture::Timeline { title, lanes } => {
            Drawn { title, note: "", svg: timeline::render(title, lanes), wide: true }
        }
    }
}

fn bars<'a>(results: &Results, claim: &'a ClaimResult, title: &str, metric: &str) -> Chart<'a> {
    let group = |subject: &'a str| {
        let bar = |figure: &Figure| Bar {
            name: figure.x.map_or_else(String::new, number),
            value: figure.value,
            mark: None,
            note: String::new(),
        };
        let bars = of(claim, metric).filter(|figure| figure.subject == subject).map(bar);
        Group { name: subject, colour: colour(results, backend(subject)), bars: bars.collect() }
    };
    Chart {
        label: title.to_owned(),
        unit: unit(claim, metric),
        mark_name: "",
        end: (metric == "jain").then_some(1.0),
        width: SMALL,
        groups: subjects(claim, metric).into_iter().map(group).collect(),
    }
}

fn curve<'a>(
    results: &Results,
    claim: &'a ClaimResult,
    title: &str,
    metric: &str,
    x_name: &'a str,
) -> Curve<'a> {
    let subjects = subjects(claim, metric);
    let line = |(index, subject): (usize, &'a str)| {
        let figures = of(claim, metric).filter(|figure| figure.subject == subject);
        let mut points: Vec<_> = figures.filter_map(|figure| Some((figure.x?, figure.value))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let sisters = subjects[..index].iter().filter(|other| backend(other) == backend(subject)).count();
        Line { name: subject, colour: colour(results, backend(subject)), dash: sisters % DASHES, points }
    };
    let lines = subjects.iter().copied().enumerate().map(line).filter(|line| !line.points.is_empty());
    Curve { label: title.to_owned(), x_name, unit: unit(claim, metric), lines: lines.collect() }
}

fn ladder<'a>(
    results: &Results,
    claim: &'a ClaimResult,
    (title, metric): (&str, &str),
    (steps, lines): (&'a [String], &'a [String]),
) -> Steps<'a> {
    let value = |subject: &'a String| {
        let figure = of(claim, metric).find(|figure| figure.subject == *subject)?;
        Some((subject.as_str(), figure.value))
    };
    let line = |(index, (name, value)): (usize, (&'a str, f64))| {
        let sisters = lines[..index].iter().filter(|other| backend(other) == backend(name)).count();
        Level { name, value, colour: colour(results, backend(name)), dash: sisters % DASHES }
    };
    let measured: Vec<_> = steps.iter().filter_map(value).collect();
    let first = measured.first().map_or("", |(name, _)| backend(name));
    // All are steps of one thing, whose name need not be repeated.
    let short =
        |(name, value): &(&'a str, f64)| (name.split_once(' ').map_or(*name, |(_, step)| step), *value);
    Steps {
        label: title.to_owned(),
        unit: unit(claim, metric),
        colour: colour(results, first),
        steps: measured.iter().map(short).collect(),
        lines: lines.iter().filter_map(value).enumerate().map(line).collect(),
    }
}

fn of<'a>(claim: &'a ClaimResult, metric: &str) -> impl Iterator<Item = &'a Figure> {
    claim.figures.iter().filter(move |figure| figure.metric == metric)
}

fn subjects<'a>(claim: &'a ClaimResult, metric: &str) -> Vec<&'a str> {
    distinct(of(claim, metric).map(|figure| &*figure.subject))
}

fn unit<'a>(claim: &'a ClaimResult, metric: &str) -> &'a str {
    of(claim, metric).next().map_or("", |figure| &figure.unit)
}

/// The backend of a subject such as `redis wait=poll`, or the peer.
fn backend(subject: &str) -> &str {
    subject.split_whitespace().next().unwrap_or(subject)
}

/// The number of dash patterns in the style sheet.
const DASHES: usize = 5;
