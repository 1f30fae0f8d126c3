//! The same rows on the specification, [`lock_core::record`]: it answers as the functions do, and comes to the same state.
//!
//! What it says nothing about: observers, and rows that another transaction has locked.

use std::num::NonZeroU32;
use std::time::Duration;

use lock_core::record::{Answer, Ask, Holding, Now, Record, Turn, Waiting};
use lock_core::{BootInstant, Mode, OwnerId, Token};
use lock_testkit::by_tier;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::bench::Bench;
use super::state::{owner, read};

const NAMES: [&str; 4] = ["me", "ann", "bob", "carl"];
const GRACE: Duration = Duration::from_secs(100);
const TTL: Duration = Duration::from_secs(300);

/// Checks a row of a table, if it is one of the specification.
pub(super) fn check(before: &str, call: &str, answer: &str, notified: &str, after: &str) {
    if before.contains('*') || after.contains('*') || call.contains('/') || answer == "locked" {
        return;
    }
    let mut record = parse(before);
    let Some((got, told)) = run(&mut record, call).filter(|(got, _)| !got.is_empty()) else { return };
    let wanted = (answer.to_owned(), notified.to_owned(), after.replace("none", "free"));
    assert_eq!((got, told, text(&record)), wanted, "the specification: {before}; {call}");
}

/// Sequences that no table has.
#[test]
fn random_requests_are_answered_as_by_the_specification() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut bench = runtime.block_on(Bench::new());
    let config = Config { cases: by_tier(40, 60, 1_000), failure_persistence: None, ..Config::default() };
    let calls = proptest::collection::vec(call(), 1..40);
    let bench = std::cell::RefCell::new(&mut bench);
    let ran = TestRunner::new(config).run(&calls, |calls| {
        runtime.block_on(compare(&mut bench.borrow_mut(), &calls));
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn compare(bench: &mut Bench, calls: &[String]) {
    let (name, mut record) = (bench.name("free").await, parse("free"));
    for call in calls {
        let wanted = run(&mut record, call).expect("it is one of the specification").0;
        let got = bench.call(&name, call).await;
        // The row of a share stays until somebody else looks.
        let is_same = got == wanted || got == "locked" && wanted == "lost";
        assert!(is_same, "{call} of {calls:?}: {got} instead of {wanted}");
        let state = read(&bench.client, &name, bench.listener).await;
        assert_eq!(state, text(&record), "{call} of {calls:?}");
    }
}

fn call() -> impl Strategy<Value = String> {
    let who = || prop::sample::select(&NAMES[..]);
    let mode = prop::sample::select(&["0", "0", "-1", "1", "2", "3"][..]);
    let waits = prop::sample::select(&["", " wait", " wait", " poll"][..]);
    prop_oneof![
        8 => (who(), mode, waits).prop_map(|(who, mode, waits)| format!("ask {who} {mode}{waits}")),
        6 => who().prop_map(|who| format!("release {who}")),
        1 => who().prop_map(|who| format!("extend {who}")),
        1 => who().prop_map(|who| format!("downgrade {who}")),
        1 => (who(), who()).prop_filter("two", |(from, to)| from != to)
            .prop_map(|(from, to)| format!("hand_over {from} {to}")),
    ]
}

/// Does what a call does. Returns the answer, and who is notified; nothing for a call that the specification does not know.
fn run(record: &mut Record<bool>, call: &str) -> Option<(String, String)> {
    let words: Vec<_> = call.split(' ').collect();
    let id = words.get(1).map(|who| id(who));
    let mut now = Moment;
    let (answer, changes) = match words[..] {
        ["ask", who, how, ref waits @ ..] => {
            let waits =
                waits.first().map(|how| if *how == "poll" { Turn::Asks } else { Turn::Granted(GRACE) });
            let ask = Ask { owner: self::id(who), mode: mode(how), ttl: TTL, waits, party: false };
            let (answer, changes) = record.ask(&mut now, ask);
            (answer_text(answer), changes)
        }
        ["release", _] => {
            let (was_held, changes) = record.release(&mut now, id?);
            ((if was_held { "released" } else { "lost" }).to_owned(), changes)
        }
        ["extend" | "shorten", _] => {
            let until = record.extend(&now, id?, TTL, words[0] == "shorten");
            (format!("{{{},0}}", u8::from(until.is_some())), Default::default())
        }
        ["hand_over", _, to] => {
            let to = Ask { owner: self::id(to), mode: Mode::Exclusive, ttl: TTL, waits: None, party: false };
            let token = record.hand_over(&mut now, id?, to);
            ((if token.is_some() { "granted" } else { "lost" }).to_owned(), Default::default())
        }
        ["downgrade", _] => {
            let (is_shared, changes) = record.downgrade(&mut now, id?, TTL);
            ((if is_shared { "shared" } else { "lost" }).to_owned(), changes)
        }
        ["raise", _, floor] => {
            let floor = floor.parse().ok().filter(|floor| *floor <= 1 << 62)?;
            let raised = record.raise(&now, id?, Token::new(floor));
            ((if raised { "raised" } else { "lost" }).to_owned(), Default::default())
        }
        ["break", last] => {
            let last: u64 = last.parse().ok()?;
            let (broken, changes) = record.break_lock(&mut now, |token| token.get() >> 4 <= last >> 4);
            ((if broken { "broken" } else { "free" }).to_owned(), changes)
        }
        ["break_if", token] => {
            let only: u64 = token.parse().ok()?;
            let (broken, changes) = record.break_lock(&mut now, |token| token.get() >> 4 == only >> 4);
            ((if broken { "broken" } else { "free" }).to_owned(), changes)
        }
        _ => return None,
    };
    let mut told: Vec<_> = changes.granted.iter().map(|owner| format!("granted {}", who(*owner))).collect();
    told.sort();
    Some((answer, told.join(", ")))
}

/// The time stands still, and the parties say which waiters are dead.
struct Moment;

impl Now<bool> for Moment {
    fn time(&self) -> BootInstant {
        after("0")
    }

    fn lives(&self, waiter: &Waiting<bool>) -> bool {
        !waiter.party
    }

    fn mint(&mut self, last: Token) -> Token {
        Token::new(last.get() + 16)
    }
}

/// After this number of seconds.
fn after(seconds: &str) -> BootInstant {
    BootInstant::from_boot(Duration::from_secs(1_000 + seconds.parse::<u64>().expect("a number of seconds")))
}

fn id(who: &str) -> OwnerId {
    OwnerId::decode(&owner(who)).expect("an id")
}

fn who(owner: OwnerId) -> &'static str {
    NAMES.into_iter().find(|who| id(who) == owner).expect("one of the names")
}

fn mode(text: &str) -> Mode {
    match text {
        "0" | "" => Mode::Exclusive,
        "-1" | "r" => Mode::Shared,
        max => Mode::Permit { max: max.parse::<NonZeroU32>().expect("a number of permits") },
    }
}

fn answer_text(answer: Answer) -> String {
    match answer {
        Answer::Granted(_) => "granted".to_owned(),
        Answer::Busy { ahead, until } => {
            let seconds = until.map(|until| until.saturating_duration_since(after("0")).as_secs() as i64);
            format!("busy {} {}", ahead.map_or(-1, |ahead| ahead as i64), seconds.unwrap_or(-1))
        }
    }
}

/// Reads a state as the tables have it.
fn parse(state: &str) -> Record<bool> {
    let last = Token::new(1_600);
    let (holders, queue) = state.split_once(" | ").unwrap_or((state, ""));
    let kind = holders.split_once(' ').map_or("", |(kind, _)| kind);
    let holders = holders.trim_start_matches("r ").trim_start_matches("p ");
    let holders = holders.split(' ').filter_map(|holder| holder.split_once(':')).map(|(holder, seconds)| {
        let (who, permits) = holder.split_once('/').unwrap_or((holder, if kind == "r" { "r" } else { "0" }));
        Holding::new(id(who), mode(permits), last, after(seconds), false)
    });
    let queue = queue.split(' ').filter(|waiter| !waiter.is_empty()).map(|waiter| {
        let (waiter, is_dead) = waiter.strip_suffix('!').map_or((waiter, false), |waiter| (waiter, true));
        let (waiter, turn) =
            waiter.strip_suffix('~').map_or((waiter, Turn::Granted(GRACE)), |waiter| (waiter, Turn::Asks));
        let (who, how) = waiter.split_once('.').unwrap_or((waiter, "0"));
        Waiting::new(id(who), mode(how), turn, is_dead)
    });
    Record::of(last, holders, queue)
}

/// Writes it.
fn text(record: &Record<bool>) -> String {
    let mut holders: Vec<_> = record.holders().iter().collect();
    holders.sort_by_key(|holder| (holder.token, owner(who(holder.owner))));
    let mut text = match holders.first().map(|holder| holder.mode) {
        None => "free".to_owned(),
        Some(Mode::Shared) => "r ".to_owned(),
        Some(Mode::Permit { .. }) => "p ".to_owned(),
        Some(_) => String::new(),
    };
    let held = holders.iter().map(|holder| {
        let permits = if let Mode::Permit { max } = holder.mode { format!("/{max}") } else { String::new() };
        let seconds = holder.until.saturating_duration_since(after("0")).as_secs();
        format!("{}{permits}:{seconds}", who(holder.owner))
    });
    text += &held.collect::<Vec<_>>().join(" ");
    for (at, waiter) in record.queue().iter().enumerate() {
        let mode = match waiter.mode {
            Mode::Shared => ".r".to_owned(),
            Mode::Permit { max } => format!(".{max}"),
            _ => String::new(),
        };
        let polls = if waiter.turn == Turn::Asks { "~" } else { "" };
        let dead = if waiter.party { "!" } else { "" };
        text += &format!(" {}{}{mode}{polls}{dead}", if at == 0 { "| " } else { "" }, who(waiter.owner));
    }
    text
}
