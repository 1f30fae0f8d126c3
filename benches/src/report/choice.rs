//! "Which one should I use?": needs against backends, and four questions that pick one.
//!
//! The rule is [`choose`]. The page has the answer to each combination of the questions; its script only shows the right one.

use std::fmt::Write as _;

use super::html::escape;
use super::needs::{self, BACKENDS, NEEDS, Need};
use super::sheet::{Cell, Sheet};
use crate::data::Results;

pub(super) fn section(page: &mut String, results: &Results) {
    page.push_str("<section id=\"choice\">\n<h2>Which one should I use?</h2>\n");
    questions(page);
    for answers in Answers::all() {
        answer(page, results, answers);
    }
    page.push_str(&sheet(results).html(" id=\"needs\" class=\"words\""));
    page.push_str(RULE);
    page.push_str("</section>\n");
}

/// The answers to the four questions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Answers {
    /// Two clients at work at the same time damage something.
    corrupts: bool,
    /// One server may not stop the locks.
    no_single_server: bool,
    /// Hundreds wait for one lock.
    many_waiters: bool,
    running: Running,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Running {
    Redis,
    ZooKeeper,
    Postgres,
    SeveralOrNone,
}

impl Answers {
    fn all() -> impl Iterator<Item = Self> {
        (0..32).map(|index| Self {
            corrupts: index / 16 == 1,
            no_single_server: index / 8 % 2 == 1,
            many_waiters: index / 4 % 2 == 1,
            running: [Running::Redis, Running::ZooKeeper, Running::Postgres, Running::SeveralOrNone]
                [index % 4],
        })
    }

    /// The values of the checked answers, in the order of the questions.
    fn key(self) -> String {
        let yes = |answer: bool| if answer { "yes" } else { "no" };
        let running = match self.running {
            Running::Redis => "redis",
            Running::ZooKeeper => "zk",
            Running::Postgres => "postgres",
            Running::SeveralOrNone => "any",
        };
        [yes(self.corrupts), yes(self.no_single_server), yes(self.many_waiters), running].join(" ")
    }
}

/// A backend, and the two needs that decided.
#[derive(Debug)]
struct Choice {
    backend: &'static str,
    why: &'static str,
    decided: [&'static Need; 2],
}

fn choose(answers: Answers) -> Choice {
    let Answers { corrupts, no_single_server, many_waiters, running } = answers;
    let choice = |backend, why, decided| Choice { backend, why, decided };
    match running {
        Running::Postgres if corrupts => choice(
            "postgres",
            "Call the fence in each transaction: no holder commits after a later one, whatever pauses or clocks do. While the \
             database is away, the data is as well.",
            [&needs::SAFETY, &needs::DURABILITY],
        ),
        _ if corrupts && no_single_server => choice(
            "zk",
            "Nothing that a majority acknowledged is lost when a server fails. Send the fencing token with each write.",
            [&needs::SAFETY, &needs::NO_SINGLE_SERVER],
        ),
        Running::Redis if corrupts => choice(
            "redis",
            "One server with appendfsync always and no failover keeps the order. Send the fencing token with each write.",
            [&needs::SAFETY, &needs::DURABILITY],
        ),
        _ if corrupts => choice(
            "zk",
            "Writes are on disk before they are acknowledged. Send the fencing token with each write.",
            [&needs::SAFETY, &needs::DURABILITY],
        ),
        Running::Redis if no_single_server && !many_waiters => choice(
            "redlock",
            "A minority of the masters may fail, at the price of a request to each of them.",
            [&needs::NO_SINGLE_SERVER, &needs::SPEED],
        ),
        _ if no_single_server && many_waiters => choice(
            "zk",
            "A queue on the servers: each release wakes the next two waiters, and a minority may fail.",
            [&needs::WAITERS, &needs::NO_SINGLE_SERVER],
        ),
        _ if no_single_server => choice(
            "zk",
            "A minority of the ensemble may fail, and it takes three servers instead of five.",
            [&needs::NO_SINGLE_SERVER, &needs::HAND_OVER],
        ),
        Running::ZooKeeper => choice("zk", FAST_ENOUGH, [&needs::SPEED, &needs::HAND_OVER]),
        Running::Postgres => choice(
            "postgres",
            FAST_ENOUGH,
            [&needs::SPEED, if many_waiters { &needs::WAITERS } else { &needs::HAND_OVER }],
        ),
        _ if many_waiters => choice(
            "redis",
            "With its wait queue one waiter is notified per release.",
            [&needs::WAITERS, &needs::SPEED],
        ),
        _ => choice(
            "redis",
            "The simplest and fastest: one server, one request.",
            [&needs::SPEED, &needs::HAND_OVER],
        ),
    }
}

fn questions(page: &mut String) {
    page.push_str("<form id=\"chooser\" hidden=\"\">\n");
    for (index, (question, answers)) in QUESTIONS.iter().enumerate() {
        let _ = writeln!(page, "<fieldset>\n<legend>{}</legend>", escape(question));
        for (place, (value, text)) in answers.iter().enumerate() {
            let checked = if place == 0 { " checked=\"\"" } else { "" };
            let _ = writeln!(
                page,
                "<label><input type=\"radio\" name=\"q{index}\" value=\"{value}\"{checked}/> {}</label>",
                escape(text)
            );
        }
        page.push_str("</fieldset>\n");
    }
    page.push_str("</form>\n");
}

fn answer(page: &mut String, results: &Results, answers: Answers) {
    let choice = choose(answers);
    let decided = choice.decided.map(|need| {
        let offers = BACKENDS.iter().map(|backend| {
            let offer = need.offer(results, backend);
            format!("{backend} {}", escape(offer.measured()))
        });
        format!("<li>{}: {}.</li>", escape(need.text), offers.collect::<Vec<_>>().join("; "))
    });
    let _ = writeln!(
        page,
        "<div class=\"answer\" data-for=\"{}\" data-column=\"{backend}\" hidden=\"\">\n\
         <p><b>{backend}.</b> {} What decided:</p>\n<ul>\n{}\n</ul>\n</div>",
        answers.key(),
        escape(choice.why),
        decided.join("\n"),
        backend = choice.backend,
    );
}

/// What each backend offers for each need.
pub(super) fn sheet(results: &Results) -> Sheet {
    let mut sheet = BACKENDS.iter().copied().fold(Sheet::of(["need"]), Sheet::chosen);
    for need in NEEDS {
        let offers = BACKENDS.iter().map(|backend| need.offer(results, backend).cell());
        sheet.row([Cell::from(need.text)].into_iter().chain(offers));
    }
    sheet
}

const FAST_ENOUGH: &str = "It runs already, and is fast enough unless a lock is held for less than the time it takes to acquire it.";

type Question = (&'static str, &'static [(&'static str, &'static str)]);

const QUESTIONS: [Question; 4] = [
    (
        "Two clients do the same work at the same time. What happens?",
        &[("no", "It is wasted"), ("yes", "Data is corrupted")],
    ),
    ("May one failed server stop the locks?", &[("no", "Yes, for a while"), ("yes", "No")]),
    ("How many clients wait for one lock?", &[("no", "A few"), ("yes", "Hundreds or more")]),
    (
        "What do you run already?",
        &[
            ("redis", "Redis"),
            ("zk", "ZooKeeper"),
            ("postgres", "PostgreSQL, with the data in it"),
            ("any", "Several of them, or none"),
        ],
    ),
];

/// [`choose`] in words.
const RULE: &str = "\
<details>
<summary>The rule of the chooser</summary>
<ol>
<li>Corrupted data, where only PostgreSQL runs and has the data: postgres.</li>
<li>Corrupted data and no single server: zk.</li>
<li>Corrupted data, one server may stop the locks: redis where only Redis runs, else zk.</li>
<li>No single server: redlock where only Redis runs and few wait, else zk.</li>
<li>Otherwise: zk where only ZooKeeper runs, postgres where only PostgreSQL does, else redis.</li>
</ol>
<p class=\"soft\">Within one process use memory: no server, and nothing to lose. The figures are those of this run; words
without a figure hold by design, and docs/SAFETY.md says why.</p>
</details>
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::sample;

    fn backend(corrupts: bool, no_single_server: bool, many_waiters: bool, running: Running) -> &'static str {
        choose(Answers { corrupts, no_single_server, many_waiters, running }).backend
    }

    #[test]
    fn the_rule_is_the_written_one() {
        for answers in Answers::all() {
            let Answers { corrupts, no_single_server, many_waiters, running } = answers;
            let expected = match (corrupts, no_single_server, running) {
                (true, _, Running::Postgres) | (false, false, Running::Postgres) => "postgres",
                (true, false, Running::Redis) => "redis",
                (true, ..) => "zk",
                (false, true, Running::Redis) if !many_waiters => "redlock",
                (false, true, _) | (false, false, Running::ZooKeeper) => "zk",
                (false, false, _) => "redis",
            };
            assert_eq!(backend(corrupts, no_single_server, many_waiters, running), expected, "{answers:?}");
        }
    }

    #[test]
    fn each_combination_of_answers_has_one_answer() {
        let mut page = String::new();
        section(&mut page, &sample());
        let mut keys = vec![String::new()];
        for (_, answers) in QUESTIONS {
            let longer =
                keys.iter().flat_map(|key| answers.iter().map(move |(value, _)| format!("{key} {value}")));
            keys = longer.collect();
        }
        assert_eq!(keys.len(), 32);
        for key in keys {
            assert_eq!(page.matches(&format!("data-for=\"{}\"", key.trim())).count(), 1, "{key}");
        }
        assert_eq!(page.matches("class=\"answer\"").count(), 32);
    }

    #[test]
    fn answers_name_the_figures_that_decided() {
        let mut page = String::new();
        section(&mut page, &sample());
        let (_, rest) =
            page.split_once("data-for=\"no no no redis\" data-column=\"redis\"").expect("an answer");
        let (answer, _) = rest.split_once("</div>").expect("an end");
        assert_eq!(answer.matches("<li>").count(), 2, "{answer}");
        assert!(answer.contains("redis 88.2 µs to acquire and release; redlock 215 µs"), "{answer}");
    }
}
