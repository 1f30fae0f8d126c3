//! A claim: how it is measured and how it is judged.
//!
//! A claim measures figures first; its rule then judges the figures alone. So a verdict can be checked by hand, and a test can
//! show that other figures give another one.

use std::fmt::Display;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::bench::Bench;
use crate::data::{
    ClaimResult, Figure, Figures, Mode, Outcome, Picture, Results, Row, ScenarioName, Verdict,
};

use crate::rig::{Target, stuck, url};

/// A claim, how it is measured and how it is judged.
#[async_trait(?Send)]
pub(crate) trait Claim: Sync {
    fn about(&self) -> About;

    /// Measures the figures. A part that fails is left out: see [`Measuring::part`].
    async fn measure(&self, run: &mut Measuring<'_>);

    /// Judges the figures by the rule. Fails when one is missing.
    fn judge(&self, figures: &Figures) -> Outcome<Judgement>;

    /// What polylock did, by these figures, that its documentation rules out.
    fn broken_promise(&self, _figures: &Figures) -> Option<String> {
        None
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) id: u8,
    pub(crate) says: &'static str,
    pub(crate) how: &'static str,
    pub(crate) rule: &'static str,
    /// The scenarios whose rows it uses.
    pub(crate) needs: &'static [ScenarioName],
    /// Whether it belongs to a quick run.
    pub(crate) in_quick: bool,
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
}

pub(crate) struct Measuring<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) mode: Mode,
    /// The rows of the scenarios that ran before.
    pub(crate) rows: &'a Results,
    pub(super) targets: &'a [Target],
    figures: Vec<Figure>,
    pictures: Vec<Picture>,
    missing: Vec<String>,
    /// Whether a part is missing that the verdict needs.
    is_incomplete: bool,
}

impl<'a> Measuring<'a> {
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
        let ended = stuck::within(name, patience, part).await;
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
        let running = parts.into_iter().map(|(name, part)| {
            let part = stuck::within(name.to_string(), patience, part);
            async { (name, part.await) }
        });
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
        let mut rows = self.rows.rows.iter().rev();
        rows.find(|row| row.scenario == scenario && row.backend == backend && row.metric == metric)
    }

    /// Adds a number of a scenario's row as a figure. A row of a selected backend must be there.
    pub(crate) fn add_row(&mut self, scenario: &str, backend: &str, metric: &str) {
        if let Some(row) = self.row(scenario, backend, metric) {
            self.figures.push(Figure::new(backend, metric, &row.unit, row.value));
        } else if self.target_of(backend).is_some() {
            self.leave_out(&format!("{metric} of {backend}"), format!("`{scenario}` did not measure it"));
        }
    }

    /// Adds bars for each of these titles and metrics.
    pub(crate) fn bars(&mut self, pictures: &[(&str, &str)]) {
        for (title, metric) in pictures {
            self.draw(Picture::Bars { title: (*title).into(), metric: (*metric).into() });
        }
    }

    /// Adds a curve for each of these titles and metrics.
    pub(crate) fn curves(&mut self, x: &str, pictures: &[(&str, &str)]) {
        for (title, metric) in pictures {
            self.draw(Picture::Curve { title: (*title).into(), metric: (*metric).into(), x: x.into() });
        }
    }

    pub(crate) fn draw(&mut self, picture: Picture) {
        self.pictures.push(picture);
    }
}

#[expect(clippy::future_not_send, reason = "the main thread runs it")]
pub(crate) async fn run(
    claim: &dyn Claim,
    bench: &Bench,
    mode: Mode,
    targets: &[Target],
    rows: &Results,
) -> ClaimResult {
    let (figures, pictures, missing) = (Vec::new(), Vec::new(), Vec::new());
    let is_incomplete = false;
    let mut run = Measuring { bench, mode, rows, targets, figures, pictures, missing, is_incomplete };
    stuck::part_of_run(&format!("claim {}", claim.about().id), claim.measure(&mut run)).await;
    let Measuring { figures, pictures, missing, is_incomplete, .. } = run;
    let figures = Figures::from(figures);
    let result = not_measured(claim, String::new());
    let Judgement { verdict, because } = judge(claim, &figures, &missing, is_incomplete);
    let broken_promise = claim.broken_promise(&figures);
    ClaimResult {
        verdict,
        because,
        broken_promise,
        figures: figures.into_inner(),
        pictures,
        missing,
        ..result
    }
}

/// The verdict of the rule, unless a part is missing that it needs.
pub(super) fn judge(
    claim: &dyn Claim,
    figures: &Figures,
    missing: &[String],
    is_incomplete: bool,
) -> Judgement {
    match claim.judge(figures) {
        Ok(judged) if !is_incomplete => judged,
        Ok(_) => Judgement::new(Verdict::NotJudged, missing.join("; ")),
        Err(failure) => {
            let reasons = [failure.to_string()].into_iter().chain(missing.iter().cloned());
            Judgement::new(Verdict::NotJudged, reasons.collect::<Vec<_>>().join("; "))
        }
    }
}

pub(crate) fn not_measured(claim: &dyn Claim, why: String) -> ClaimResult {
    let About { id, says, how, rule, .. } = claim.about();
    let [claim, how, rule] = [says, how, rule].map(str::to_owned);
    ClaimResult {
        id,
        claim,
        verdict: Verdict::NotJudged,
        because: why,
        broken_promise: None,
        rule,
        how,
        figures: Vec::new(),
        pictures: Vec::new(),
        missing: Vec::new(),
        command: format!("cargo xtask compare --claim {id}"),
    }
}
