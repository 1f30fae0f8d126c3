//! "Which one should I use?": needs against backends, and questions that pick one.
//!
//! What it says is in `choice.json`; README.md and docs/COMPARE.md are compared with it. The page has the answer to each combination of
//! the questions; its script only shows the right one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use serde::Deserialize;

use super::html::escape;
use super::sheet::{Cell, Sheet};
use crate::data::results::numbers::quantity;
use crate::data::{Fault, FaultResult, FaultVerdict, Flag, Results};

static CHOOSER: LazyLock<Chooser> =
    LazyLock::new(|| serde_json::from_str(include_str!("choice.json")).expect("it was written by hand"));

#[derive(Debug, Deserialize)]
struct Chooser {
    /// Of processes that share locks. Locks of one process have no choice to make.
    backends: Vec<String>,
    questions: Vec<Question>,
    /// The first that fits chooses.
    rules: Vec<Rule>,
    /// From top to bottom.
    needs: Vec<Need>,
}

#[derive(Debug, Deserialize)]
struct Question {
    text: String,
    /// With their values.
    answers: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    /// The rule in words.
    when: String,
    /// To each question; an empty one fits all.
    answers: Vec<String>,
    #[serde(rename = "use")]
    backend: String,
    why: String,
    /// The needs that decided.
    decided: Vec<String>,
}

/// What a user may need of a lock.
#[derive(Debug, Deserialize)]
struct Need {
    name: String,
    text: String,
    /// What each backend offers by design.
    #[serde(default)]
    words: BTreeMap<String, String>,
    #[serde(default)]
    figures: Vec<Source>,
}

/// What a run measured of it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    /// A row of a scenario, and what it is.
    Row(String, String, String),
    /// The figure of a claim with the largest x, what it is, and the subjects that stand for the backends.
    Claim(u8, String, String, Vec<String>),
    /// The faults in which two valid guards overlapped, or a store without tokens accepted a stale write.
    Breaks,
    /// The longest outage while a minority of the servers failed.
    LongestOutage,
}

pub(super) fn section(page: &mut String, results: &Results) {
    page.push_str("<section id=\"choice\">\n<h2>Which one should I use?</h2>\n");
    questions(page);
    for answers in combinations() {
        answer(page, results, &answers);
    }
    page.push_str(&sheet(results).html(" id=\"needs\" class=\"words\""));
    page.push_str(
        "<details>\n<summary>The rule of the chooser</summary>\n<p>The first that fits:</p>\n<ol>\n",
    );
    for rule in &CHOOSER.rules {
        let _ = writeln!(page, "<li>{}: {}.</li>", escape(&rule.when), escape(&rule.backend));
    }
    page.push_str(BESIDE);
    page.push_str("</section>\n");
}

/// What each backend offers for each need.
pub(super) fn sheet(results: &Results) -> Sheet {
    let backends = CHOOSER.backends.iter().map(String::as_str);
    let mut sheet = backends.clone().fold(Sheet::of(["need"]), Sheet::chosen);
    for need in &CHOOSER.needs {
        let offers = backends.clone().map(|backend| {
            let cell = Cell::from(need.word(backend));
            match need.figure(results, backend) {
                _ if !need.figures.iter().any(|source| source.is_about(backend)) => cell,
                Some((text, place)) => cell.and_small(text).to(&place),
                None => cell.and_small(NO_FIGURE),
            }
        });
        sheet.row([Cell::from(&*need.text)].into_iter().chain(offers));
    }
    sheet
}

fn questions(page: &mut String) {
    page.push_str("<form id=\"chooser\" hidden=\"\">\n");
    for (index, question) in CHOOSER.questions.iter().enumerate() {
        let _ = writeln!(page, "<fieldset>\n<legend>{}</legend>", escape(&question.text));
        for (place, (value, text)) in question.answers.iter().enumerate() {
            let checked = if place == 0 { " checked=\"\"" } else { "" };
            let input = format!("<input type=\"radio\" name=\"q{index}\" value=\"{value}\"{checked}/>");
            let _ = writeln!(page, "<label>{input} {}</label>", escape(text));
        }
        page.push_str("</fieldset>\n");
    }
    page.push_str("</form>\n");
}

/// An answer to each question, in all ways.
fn combinations() -> Vec<Vec<&'static str>> {
    CHOOSER.questions.iter().fold(vec![Vec::new()], |all, question| {
        let longer = |so_far: Vec<&'static str>| {
            let values = question.answers.iter().map(|(value, _)| value.as_str());
            values.map(move |value| [&so_far[..], &[value]].concat())
        };
        all.into_iter().flat_map(longer).collect()
    })
}

fn choose(answers: &[&str]) -> &'static Rule {
    let fits =
        |rule: &&Rule| rule.answers.iter().zip(answers).all(|(of, given)| of.is_empty() || of == given);
    CHOOSER.rules.iter().find(fits).expect("the last rule fits all")
}

fn answer(page: &mut String, results: &Results, answers: &[&str]) {
    let Rule { backend, why, decided, .. } = choose(answers);
    let decided = CHOOSER.needs.iter().filter(|need| decided.contains(&need.name)).map(|need| {
        // Without a figure the others say nothing.
        let offers = CHOOSER.backends.iter().filter_map(|other| match need.figure(results, other) {
            Some((text, _)) => Some(format!("{other} {}", escape(&text))),
            None => (other == backend).then(|| format!("{other} {NO_FIGURE}")),
        });
        format!("<li>{}: {}.</li>", escape(&need.text), offers.collect::<Vec<_>>().join("; "))
    });
    let _ = writeln!(
        page,
        "<div class=\"answer\" data-for=\"{}\" data-column=\"{backend}\" hidden=\"\">\n\
         <p><b>{backend}.</b> {} What decided:</p>\n<ul>\n{}\n</ul>\n</div>",
        answers.join(" "),
        escape(why),
        decided.collect::<Vec<_>>().join("\n"),
    );
}

impl Need {
    fn word(&self, backend: &str) -> &str {
        self.words.get(backend).map_or("", String::as_str)
    }

    /// What this run measured, with the section that has it.
    fn figure(&self, results: &Results, backend: &str) -> Option<(String, String)> {
        let found: Vec<_> = self.figures.iter().filter_map(|source| source.find(results, backend)).collect();
        let place = found.first()?.1.clone();
        let texts: Vec<_> = found.into_iter().map(|(text, _)| text).collect();
        Some((texts.join("; "), place))
    }
}

impl Source {
    /// Whether a measurement could say something of this backend.
    fn is_about(&self, backend: &str) -> bool {
        match self {
            Self::Claim(.., subjects) => subjects.iter().any(|subject| is_of(subject, backend)),
            Self::Row(..) | Self::Breaks | Self::LongestOutage => true,
        }
    }

    /// The figure in words, and the section that has it.
    fn find(&self, results: &Results, backend: &str) -> Option<(String, String)> {
        match self {
            Self::Row(scenario, metric, what) => {
                let row = results.row(scenario, backend, metric)?;
                Some((format!("{} {what}", quantity(row.value, &row.unit)), format!("scenario-{scenario}")))
            }
            Self::Claim(id, metric, what, subjects) => {
                let subject = subjects.iter().find(|subject| is_of(subject, backend))?;
                let claim = results.claims.iter().find(|claim| claim.id == *id)?;
                let figures = claim.figures.iter();
                let figures = figures.filter(|figure| figure.subject == *subject && figure.metric == *metric);
                let last =
                    figures.max_by(|one, other| one.x.unwrap_or(0.0).total_cmp(&other.x.unwrap_or(0.0)))?;
                let place = last.x.map_or_else(String::new, |x| format!(" at {x} {}", claim.x_name()));
                let text = format!("{} {what}{place}", quantity(last.value, &last.unit));
                Some((text, format!("claim-{id}")))
            }
            Self::Breaks => {
                let of_backend = faults(results, backend);
                let count =
                    |is: fn(&FaultResult) -> bool| of_backend.iter().filter(|fault| is(fault)).count();
                let differ = count(|fault| fault.verdict == FaultVerdict::Differs);
                let differ = if differ > 0 { format!(", {differ} NOT as documented") } else { String::new() };
                let text = format!(
                    "of {} faults, {} gave two valid guards, {} a stale write with tokens, {} without{differ}",
                    of_backend.len(),
                    count(|fault| fault.l2 > 0),
                    count(|fault| fault.l3 > 0),
                    count(|fault| fault.unfenced > 0),
                );
                (!of_backend.is_empty()).then(|| (text, "faults".into()))
            }
            Self::LongestOutage => {
                let of_servers = faults(results, backend).into_iter();
                let of_servers = of_servers.filter(|fault| fails_servers(&fault.fault));
                let longest = of_servers.max_by(|one, other| one.outage_ms.total_cmp(&other.outage_ms))?;
                let outage = quantity(longest.outage_ms, "ms");
                Some((format!("longest outage {outage} ({})", longest.fault), "faults".into()))
            }
        }
    }
}

/// Whether servers fail by this fault, but no majority of them.
fn fails_servers(title: &str) -> bool {
    Fault::of_table().any(|fault| fault.title() == title && fault.row().is(Flag::FailsServers))
}

fn faults<'a>(results: &'a Results, backend: &str) -> Vec<&'a FaultResult> {
    results.faults.iter().filter(|fault| is_of(&fault.backend, backend) && fault.verdict.was_run()).collect()
}

/// Whether a subject, such as `redis wait=queue`, is this backend.
fn is_of(subject: &str, backend: &str) -> bool {
    subject.split_whitespace().next() == Some(backend)
}

const NO_FIGURE: &str = "no figure in this run";
const BESIDE: &str = "\
</ol>
<p class=\"soft\">Within one process use memory: no server, and nothing to lose. The figures are those of this run; words
without a figure hold by design, and docs/SAFETY.md says why.</p>
</details>
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::sample;

    #[test]
    fn each_combination_of_answers_has_one_answer_and_each_rule_is_needed() {
        let (mut page, all) = (String::new(), combinations());
        section(&mut page, &sample());
        assert_eq!((all.len(), page.matches("class=\"answer\"").count()), (64, 64));
        for answers in &all {
            assert_eq!(
                page.matches(&format!("data-for=\"{}\"", answers.join(" "))).count(),
                1,
                "{answers:?}"
            );
        }
        assert!(page.contains("redis 88.2 µs to acquire and release; redlock 215 µs"), "{page}");
        for rule in &CHOOSER.rules {
            assert!(all.iter().any(|answers| choose(answers).when == rule.when), "{rule:?}");
            let known =
                rule.decided.iter().filter(|name| CHOOSER.needs.iter().any(|need| need.name == **name));
            assert!(known.count() == 2 && CHOOSER.backends.contains(&rule.backend), "{rule:?}");
        }
    }

    #[test]
    fn figures_come_from_this_run() {
        let (results, none) = (sample(), Results::new(sample().meta));
        let figure = |name: &str, backend| {
            let need = CHOOSER.needs.iter().find(|need| need.name == name).unwrap();
            assert_eq!(need.figure(&none, backend), None);
            need.figure(&results, backend).unwrap()
        };
        let uncontended = ("88.2 µs to acquire and release".into(), "scenario-uncontended".into());
        assert_eq!(figure("speed", "redis"), uncontended);
        let waiting = "4 requests per grant at 64 waiters; 0/s requests per waiter meanwhile at 64 waiters";
        assert_eq!(figure("waiters", "zk").0, waiting);
        let faults = "of 2 faults, 1 gave two valid guards, 0 a stale write with tokens, 2 without";
        assert_eq!(figure("safety", "redis").0, faults);
    }

    #[test]
    fn the_pages_say_the_same() {
        let readme = include_str!("../../../README.md");
        for (backend, because) in &CHOOSER.needs[0].words {
            let of = |line: &&str| line.contains(&format!("| `{backend}://` |"));
            let row = readme.lines().find(of).unwrap_or_default();
            assert!(row.ends_with(&format!("{because} |")), "README.md: {backend}: {because}");
        }
        let compare = include_str!("../../../docs/COMPARE.md");
        for need in CHOOSER.needs.iter().filter(|need| !need.words.is_empty()) {
            let words: Vec<_> = CHOOSER.backends.iter().map(|backend| need.word(backend)).collect();
            let row = format!("| {} | {} |", need.text, words.join(" | "));
            assert!(compare.contains(&row), "docs/COMPARE.md: {row}");
        }
    }
}
