//! The figures of a claim, as its rule asks for them.

use crate::data::failure::{Failure, Outcome};
use crate::data::results::{Figure, distinct};

#[derive(Clone, Debug, Default)]
pub(crate) struct Figures(Vec<Figure>);

impl Figures {
    /// A number that is no point of a curve. Fails when it was not measured.
    pub(crate) fn get(&self, subject: &str, metric: &str) -> Outcome<f64> {
        let found = self.of(subject, metric).find(|figure| figure.x.is_none());
        let absent = || Failure::new(format!("{metric} of {subject} was not measured"));
        Ok(found.ok_or_else(absent)?.value)
    }

    /// A point of a curve. Fails when it was not measured.
    pub(crate) fn at(&self, subject: &str, metric: &str, x: f64) -> Outcome<f64> {
        let found = self.curve(subject, metric).into_iter().find(|(of, _)| (of - x).abs() < 1e-9);
        let absent = || Failure::new(format!("{metric} of {subject} at {x} was not measured"));
        Ok(found.ok_or_else(absent)?.1)
    }

    /// The points of a curve, from left to right.
    pub(crate) fn curve(&self, subject: &str, metric: &str) -> Vec<(f64, f64)> {
        let mut points: Vec<_> =
            self.of(subject, metric).filter_map(|figure| Some((figure.x?, figure.value))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    }

    /// The subjects of which this was measured, in the order of measurement.
    pub(crate) fn subjects(&self, metric: &str) -> Vec<&str> {
        let of_metric = self.0.iter().filter(|figure| figure.metric == metric);
        distinct(of_metric.map(|figure| &*figure.subject))
    }

    pub(crate) fn push(&mut self, figure: Figure) {
        self.0.push(figure);
    }

    pub(crate) fn into_inner(self) -> Vec<Figure> {
        self.0
    }

    fn of(&self, subject: &str, metric: &str) -> impl Iterator<Item = &Figure> {
        self.0.iter().filter(move |figure| figure.subject == subject && figure.metric == metric)
    }
}

#[cfg(test)]
impl FromIterator<Figure> for Figures {
    fn from_iter<I: IntoIterator<Item = Figure>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_and_the_missing_one_is_named() {
        let figures = [
            Figure::new("zk", "takeover", "ms", 7.0),
            Figure::new("zk", "requests", "", 2.0).at(64),
            Figure::new("zk", "requests", "", 1.0).at(8),
        ];
        let figures: Figures = figures.into_iter().collect();
        assert_eq!(figures.get("zk", "takeover").unwrap().to_string(), "7");
        assert_eq!(figures.curve("zk", "requests"), [(8.0, 1.0), (64.0, 2.0)]);
        assert_eq!(figures.at("zk", "requests", 64.0).unwrap().to_string(), "2");
        assert_eq!(figures.subjects("requests"), ["zk"]);
        let missing = figures.get("redis", "takeover").unwrap_err().to_string();
        assert_eq!(missing, "takeover of redis was not measured");
        assert!(figures.get("zk", "requests").is_err(), "a point is no number of its own");
    }
}
