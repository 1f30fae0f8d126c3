//! A claim: what people say, and the rule that judges it by figures alone.
//!
//! A claim measures nothing: its experiment does. So a verdict can be checked by hand, and a test can show that other figures give
//! another one.

use std::fmt::Display;
use std::time::Duration;

use futures_util::future::join_all;

use super::bench::Bench;
use crate::data::{ClaimResult, Failure, Figure, Figures, Mode, Outcome, Picture, Results, Row, Verdict};
use crate::rig::{Target, stuck, url};

#[derive(Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) id: u8,
    pub(crate) says: &'static str,
    pub(crate) how: &'static str,
    pub(crate) rule: &'static str,
    /// The experiments whose rows it uses.
    pub(crate) needs: &'static [&'static str],
    /// Whether it belongs to a quick run.
    pub(crate) in_quick: bool,
    /// After those that were drawn while it was measured.
    pub(crate) pictures: fn() -> Vec<Picture>,
    /// Judges the figures by the rule. Fails when one is missing.
    pub(crate) judge: fn(&Figures) -> Outcome<Judgement>,
    /// What polylock did, by these figures, that its documentation rules out.
    pub(crate) broken_promise: fn(&Figures) -> Option<String>,
}

/// A claim without words, to begin with.
pub(crate) const CLAIM: Claim = Claim {
    id: 0,
    says: "",
    how: "",
    rule: "",
    needs: &[],
    in_quick: false,
    pictures: Vec::new,
    judge: |_| Err(Failure::new("the claim has no rule")),
    broken_promise: |_| None,
};

/// Horizontal bars of a metric.
pub(crate) fn bars(title: &str, metric: &str) -> Picture {
    Picture::Bars { title: title.to_owned(), metric: metric.to_owned() }
}

/// A line for each subject, over what grows.
pub(crate) fn curve(title: &str, metric: &str, x: &str) -> Picture {
    let [title, metric, x] = [title, metric, x].map(str::to_owned);
    Picture::Curve { title, metric, x }
}

/// A verdict and its reason, with the figures that decided.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    pub(crate) because: String,
}

impl Judgement {
    pub(crate) fn new(verdict: Verdict, because: impl Into<String>) -> Self {
        Self { verdict, because: because.into() }
    }

    /// By parts, each with whether it is as the claim says: it holds when all are, and does not when none is. Fails without a part.
    pub(crate) fn of_parts(
        parts: Vec<(bool, String)>,
        depends_on: &str,
        because: &str,
        none: &'static str,
    ) -> Outcome<Self> {
        let as_said = parts.iter().filter(|(as_said, _)| *as_said).count();
        let verdict = Verdict::of(as_said, parts.len(), depends_on).ok_or_else(|| Failure::new(none))?;
        let texts: Vec<_> = parts.into_iter().map(|(_, text)| text).collect();
        Ok(Self::new(verdict, format!("{because}: {}", texts.join(", "))))
    }
}

impl Claim {
    /// The verdict of the rule, unless a part is missing that it needs.
    fn judged(&self, figures: &Figures, missing: &[String], is_incomplete: bool) -> Judgement {
        match (self.judge)(figures) {
            Ok(judged) if !is_incomplete => judged,
            Ok(_) => Judgement::new(Verdict::NotJudged, missing.join("; ")),
            Err(failure) => {
                let reasons = [failure.to_string()].into_iter().chain(missing.iter().cloned());
                Judgement::new(Verdict::NotJudged, reasons.collect::<Vec<_>>().join("; "))
            }
        }
    }

    pub(crate) fn not_measured(&self, why: String) -> ClaimResult {
        let [claim, how, rule] = [self.says, self.how, self.rule].map(str::to_owned);
        ClaimResult {
            id: self.id,
            claim,
            verdict: Verdict::NotJudged,
            because: why,
            broken_promise: None,
            rule,
            how,
            figures: Vec::new(),
            pictures: Vec::new(),
            missing: Vec::new(),
            command: format!("cargo xtask compare --claim {}", self.id),
        }
    }
}

/// What an experiment measures figures with.
pub(crate) struct Measuring<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) mode: Mode,
    /// The rows that were measured before.
    pub(crate) rows: &'a Results,
    pub(crate) targets: &'a [Target],
    figures: Figures,
    pictures: Vec<Picture>,
    missing: Vec<String>,
    /// Whether a part is missing that the verdict needs.
    is_incomplete: bool,
}

impl<'a> Measuring<'a> {
    pub(super) fn new(bench: &'a Bench, targets: &'a [Target], rows: &'a Results) -> Self {
        let (figures, pictures, missing) = (Figures::default(), Vec::new(), Vec::new());
        Self { bench, mode: rows.meta.mode, rows, targets, figures, pictures, missing, is_incomplete: false }
    }

    /// The claim by these figures.
    pub(super) fn judged(self, claim: &Claim) -> ClaimResult {
        let Self { figures, mut pictures, missing, is_incomplete, .. } = self;
        let Judgement { verdict, because } = claim.judged(&figures, &missing, is_incomplete);
        let broken_promise = (claim.broken_promise)(&figures);
        pictures.extend((claim.pictures)());
        let (figures, result) = (figures.into_inner(), claim.not_measured(because));
        ClaimResult { verdict, broken_promise, figures, pictures, missing, ..result }
    }

    /// The running servers of a subject, such as `redis wait=poll`, when its backend was selected.
    pub(crate) fn target_of(&self, subject: &str) -> Option<&'a Target> {
        let backend = subject.split_whitespace().next()?;
        self.targets.iter().find(|target| target.name() == backend)
    }

    /// The URL of a subject, such as `redis wait=poll`: a backend and options of its URL. `None` when the backend was not
    /// selected.
    pub(crate) fn url(&self, subject: &str) -> Option<String> {
        let target = self.target_of(subject)?;
        let options = subject.split_whitespace().skip(1).filter_map(|option| option.split_once('='));
        Some(options.fold(target.url().to_owned(), |url, (name, value)| url::with_option(&url, name, value)))
    }

    /// The result of a part that the verdict needs, within this time. When it fails, its reason is reported instead, and the
    /// claim has no verdict: what is left may say something else.
    pub(crate) async fn part<T>(
        &mut self,
        name: &str,
        patience: Duration,
        part: impl Future<Output = Outcome<T>>,
    ) -> Option<T> {
        let measured = self.part_of_a_peer(name, patience, part).await;
        self.is_incomplete |= measured.is_none();
        measured
    }

    /// As [`part`](Self::part), for what stands beside and does not decide.
    pub(crate) async fn part_of_a_peer<T>(
        &mut self,
        name: &str,
        patience: Duration,
        part: impl Future<Output = Outcome<T>>,
    ) -> Option<T> {
        let ended = stuck::within(patience, part).await;
        self.note(&name, ended)
    }

    /// The result of a part that has ended; nothing if it failed, which is reported.
    fn note<T>(&mut self, name: &impl Display, ended: Outcome<T>) -> Option<T> {
        ended.map_err(|failure| self.missing.push(format!("{name}: {failure}"))).ok()
    }

    /// As [`part`](Self::part), for parts that run at the same time. Returns those that succeeded, in their order.
    pub(crate) async fn parts<N: Display, T, F: Future<Output = Outcome<T>>>(
        &mut self,
        patience: Duration,
        parts: impl IntoIterator<Item = (N, F)>,
    ) -> Vec<(N, T)> {
        let running =
            parts.into_iter().map(|(name, part)| async move { (name, stuck::within(patience, part).await) });
        let mut measured = Vec::new();
        for (name, ended) in join_all(running).await {
            match self.note(&name, ended) {
                Some(part) => measured.push((name, part)),
                None => self.is_incomplete = true,
            }
        }
        measured
    }

    /// Reports that a part is missing which the verdict needs.
    pub(crate) fn leave_out(&mut self, part: &str, why: impl Display) {
        self.missing.push(format!("{part}: {why}"));
        self.is_incomplete = true;
    }

    pub(crate) fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    pub(crate) fn row(&self, scenario: &str, backend: &str, metric: &str) -> Option<&'a Row> {
        self.rows.row(scenario, backend, metric)
    }

    /// Adds a number of a row as a figure. A row of a selected backend must be there.
    pub(crate) fn add_row(&mut self, scenario: &str, backend: &str, metric: &str) {
        if let Some(row) = self.row(scenario, backend, metric) {
            self.figures.push(Figure::new(backend, metric, &row.unit, row.value));
        } else if self.target_of(backend).is_some() {
            self.leave_out(&format!("{metric} of {backend}"), format!("`{scenario}` did not measure it"));
        }
    }

    pub(crate) fn draw(&mut self, picture: Picture) {
        self.pictures.push(picture);
    }
}

/// The verdict by these figures, and whether polylock kept its promise.
#[cfg(test)]
pub(crate) fn judged(
    by: &super::experiment::Experiment,
    figures: impl IntoIterator<Item = Figure>,
) -> (Verdict, bool) {
    let (claim, figures) = (by.claim.expect("a claim"), figures.into_iter().collect());
    (claim.judged(&figures, &[], false).verdict, (claim.broken_promise)(&figures).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::list::EXPERIMENTS;

    fn claims() -> Vec<Claim> {
        EXPERIMENTS.iter().filter_map(|experiment| experiment.claim).collect()
    }

    #[test]
    fn claims_are_numbered_and_say_how_they_are_judged() {
        let mut ids: Vec<u8> = claims().iter().map(|claim| claim.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (1..=15).collect::<Vec<_>>());
        for claim in claims() {
            for text in [claim.says, claim.how, claim.rule] {
                assert!(text.len() > 10 && text.ends_with('.'), "{text}");
            }
            let is_known =
                |name: &&str| EXPERIMENTS.iter().any(|one| one.name == *name && one.rows.is_some());
            assert!(claim.needs.iter().all(is_known), "{:?}", claim.needs);
        }
    }

    #[test]
    fn a_missing_part_leaves_no_verdict() {
        let rates = [("zk", 0.0), ("redis wait=poll", 7.0)];
        let figures = rates.map(|(subject, rate)| Figure::new(subject, "idle_requests", "1/s", rate).at(64));
        let (claim, figures) =
            (claims().into_iter().find(|claim| claim.id == 2).unwrap(), figures.into_iter().collect());
        assert_eq!(claim.judged(&figures, &[], false).verdict, Verdict::Holds);
        let missing = ["64 waiters of redis wait=queue: stuck".to_owned()];
        let judged = claim.judged(&figures, &missing, true);
        assert_eq!((judged.verdict, judged.because), (Verdict::NotJudged, missing[0].clone()));
    }

    #[test]
    fn no_claim_is_judged_without_figures() {
        for claim in claims() {
            assert!((claim.judge)(&Figures::default()).is_err(), "{}", claim.says);
        }
    }
}
