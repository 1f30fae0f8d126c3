//! The scripts of the recipe setnx-timestamp, as tables, and laws that random operations keep. The times of clients are
//! arguments of the scripts, so that nothing here depends on the moment.

use lock_testkit::{RedisServer, by_tier};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult, Value, cmd, pipe};

use super::setnx_state::{Fence, Lock, Op, State};
use super::state::{NAMES, Who};
use crate::common::script_text::source;

/// In milliseconds: the beginning of a case, and how long a fence is kept.
const BEGIN: i64 = 1_700_000_000_000;
const LASTING: u64 = 600_000_000;
/// The units, in milliseconds.
const UNITS: [i64; 2] = [1, 1000];
/// By how many seconds the times of an acquisition, of an extension and of a request that comes late are ahead.
const ASKED: i64 = 300;
const EXTENDED: i64 = 400;
const LATE: i64 = 50;
/// When what is there at the beginning of a case was sent.
const FIRST_SENT: u64 = 1;
const JUNK: &str = "theirs";
const UNREADABLE: &str = "string that is no time in this recipe_unit";

const ASK: &str = "clock mint setnx setnx_moved setnx_ask";
const RELEASE: &str = "setnx setnx_release";
const EXTEND: &str = "setnx setnx_extend";
const RAISE: &str = "clock mint raise_last setnx setnx_raise";
const INSPECT: &str = "setnx setnx_moved setnx_inspect";
const BREAK: &str = "setnx setnx_moved setnx_break";

struct Bench {
    connection: MultiplexedConnection,
    cases: u64,
    // Last, so that it outlives the connection.
    _redis: RedisServer,
}

/// One lock, and its state as last seen.
struct Case {
    lock: String,
    tokens: String,
    fence: String,
    unit: i64,
    state: State,
    /// In seconds since the beginning.
    now: i64,
    /// The largest token so far, and when the last request was sent.
    last: u64,
    sent: u64,
    /// When the request was sent whose time the lock has.
    written: u64,
}

impl Bench {
    async fn new() -> Self {
        let redis = RedisServer::start().await.unwrap();
        let connection = Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
        Self { connection, cases: 0, _redis: redis }
    }

    async fn case(&mut self, state: State, unit: i64) -> Case {
        self.cases += 1;
        let [lock, tokens, fence] = ["lock", "tokens", "fence"].map(|key| format!("{key}:{}", self.cases));
        let case = Case {
            lock,
            tokens,
            fence,
            unit,
            state,
            now: 0,
            last: 1000,
            sent: FIRST_SENT,
            written: FIRST_SENT,
        };
        let mut pipe = pipe();
        match state.lock {
            Lock::Free => {}
            Lock::Hash => drop(pipe.cmd("HSET").arg(&case.lock).arg("field").arg(1)),
            Lock::Junk => drop(pipe.cmd("SET").arg(&case.lock).arg(JUNK)),
            Lock::Ends(at) => drop(pipe.cmd("SET").arg(&case.lock).arg(case.value(at))),
        }
        let fence = match state.fence {
            Fence::Lost => None,
            Fence::Hash => {
                pipe.cmd("HSET").arg(&case.fence).arg("field").arg(1);
                pipe.cmd("HSET").arg(&case.tokens).arg("field").arg(1);
                None
            }
            Fence::Plain => Some(case.last.to_string()),
            Fence::Given(who) => Some(format!("{} {} 1 {who}", case.last, id(who))),
            Fence::Of(who, ends) => {
                Some(format!("{} {} 1 {} {FIRST_SENT} {who}", case.last, id(who), case.value(ends)))
            }
        };
        if let Some(fence) = fence {
            pipe.cmd("SET").arg(&case.fence).arg(fence);
            pipe.cmd("ZADD").arg(&case.tokens).arg(case.last).arg("last");
        }
        let _: Value = pipe.cmd("PING").query_async(&mut self.connection).await.unwrap();
        case
    }

    /// Does this to the lock, checks what holds of every operation, and gives the answer and the state after.
    async fn step(&mut self, case: &mut Case, op: Op) -> (String, State) {
        case.sent += 1;
        let sent = if op.is_late() { 0 } else { case.sent };
        let answer = self.run(case, op, sent).await;
        let (after, last) = self.read(case).await;
        case.check(op, sent, &answer, after, last);
        let is_new = answer == "granted" && !op.who().is_some_and(|who| case.state.is_held_by(who));
        if is_new || ["granted", "extended"].contains(&&*answer) && sent >= case.written {
            case.written = sent;
        }
        (case.state, case.last) = (after, case.last.max(last.unwrap_or_default()));
        if let Op::Pass(seconds) = op {
            case.now += seconds;
        }
        (answer, after)
    }

    async fn run(&mut self, case: &Case, op: Op, sent: u64) -> String {
        let now = (BEGIN + case.now * 1000).to_string();
        let (unit, lasting, sent) = (case.unit.to_string(), LASTING.to_string(), sent.to_string());
        let flag = |answer: RedisResult<Value>, what: &str| match answer.unwrap() {
            Value::Int(1) => what.to_owned(),
            Value::Int(0) => "not ours".into(),
            other => panic!("{other:?}"),
        };
        match op {
            Op::Ask(who, late) => {
                let value = case.value(case.ends(ASKED, late));
                let name = who.to_string();
                let words = [&id(who), "", &name, "", "x", &lasting, &value, &sent, &unit, &now];
                self.eval(case, ASK, &words).await.map_or_else(refused, |answer| case.verdict(&answer))
            }
            Op::Extend(who, late) => {
                let value = case.value(case.ends(EXTENDED, late));
                let words = [&id(who), "", &lasting, &value, &sent];
                flag(self.eval(case, EXTEND, &words).await, "extended")
            }
            Op::Release(who) => flag(self.eval(case, RELEASE, &[&id(who), "", ""]).await, "released"),
            Op::Raise(who, by) => {
                let floor = case.last.saturating_add_signed(by).to_string();
                flag(self.eval(case, RAISE, &[&id(who), &floor, &lasting]).await, "raised")
            }
            Op::Look(who) => {
                case.sight(self.eval(case, INSPECT, &["", &id(who), &unit, &now]).await.unwrap())
            }
            Op::Break => {
                let mut break_seen = async |hash: &str| -> Vec<String> {
                    let answer = self.eval(case, BREAK, &[hash, &unit, &now]).await.unwrap();
                    redis::from_redis_value(answer).unwrap()
                };
                let seen = break_seen("").await;
                if seen[0] == "string" {
                    assert_eq!(break_seen("another").await, seen);
                    assert_eq!(break_seen(&seen[1]).await, ["broken"]);
                }
                seen[0].clone()
            }
            other => {
                self.happens(case, other).await;
                String::new()
            }
        }
    }

    async fn eval(&mut self, case: &Case, script: &str, words: &[&str]) -> RedisResult<Value> {
        let mut eval = cmd("EVAL");
        eval.arg(source(script))
            .arg(4)
            .arg(&case.lock)
            .arg(&case.tokens)
            .arg(&case.fence)
            .arg(format!("moved:{}", case.lock))
            .arg(words)
            .query_async(&mut self.connection)
            .await
    }

    async fn happens(&mut self, case: &Case, op: Op) {
        let (mut pipe, lock) = (pipe(), &case.lock);
        match op {
            Op::Write(ahead) => drop(pipe.cmd("SET").arg(lock).arg(case.value(case.now + ahead))),
            Op::WriteJunk => drop(pipe.cmd("SET").arg(lock).arg(JUNK)),
            Op::WriteHash => drop(pipe.cmd("DEL").arg(lock).cmd("HSET").arg(lock).arg("field").arg(1)),
            Op::Delete => drop(pipe.cmd("DEL").arg(lock)),
            Op::FlushAll => drop(pipe.cmd("FLUSHALL")),
            _ => return,
        }
        let _: Value = pipe.query_async(&mut self.connection).await.unwrap();
    }

    /// The state of the lock, and the last token.
    async fn read(&mut self, case: &Case) -> (State, Option<u64>) {
        let mut reads = pipe();
        reads.ignore_errors();
        reads.cmd("TYPE").arg(&case.lock).cmd("GET").arg(&case.lock);
        reads.cmd("TYPE").arg(&case.fence).cmd("GET").arg(&case.fence);
        reads.cmd("ZSCORE").arg(&case.tokens).arg("last");
        let answers: Vec<RedisResult<Value>> = reads.query_async(&mut self.connection).await.unwrap();
        let text = |answer: &RedisResult<Value>| -> String {
            let value = answer.as_ref().ok().and_then(|value| redis::from_redis_value_ref(value).ok());
            value.unwrap_or_default()
        };
        let [lock_type, lock, fence_type, fence, last] = [0, 1, 2, 3, 4].map(|at: usize| text(&answers[at]));
        let lock = match (lock_type.as_str(), lock.as_str()) {
            ("none", _) => Lock::Free,
            ("hash", _) => Lock::Hash,
            (_, JUNK) => Lock::Junk,
            (_, value) => Lock::Ends(case.offset(value)),
        };
        let words: Vec<_> = fence.split(' ').collect();
        let fence = match (fence_type.as_str(), &words[..]) {
            ("none", _) => Fence::Lost,
            ("hash", _) => Fence::Hash,
            (_, [_]) => Fence::Plain,
            (_, [_, owner, _, info]) => Fence::Given(who(owner, info)),
            (_, [_, owner, _, value, _, info]) => Fence::Of(who(owner, info), case.offset(value)),
            _ => panic!("a fence of {fence:?}"),
        };
        (State { lock, fence }, last.parse().ok())
    }
}

impl Case {
    /// The time so many seconds after the beginning, as it is written.
    fn value(&self, offset: i64) -> String {
        ((BEGIN + offset * 1000) / self.unit).to_string()
    }

    fn offset(&self, value: &str) -> i64 {
        (value.parse::<i64>().unwrap() * self.unit - BEGIN) / 1000
    }

    fn verdict(&self, answer: &Value) -> String {
        let Value::Array(parts) = answer else { panic!("{answer:?}") };
        match &parts[..] {
            [Value::Int(1), _, _] => "granted".into(),
            [Value::Int(0), Value::Int(left), kind] => {
                let kind: String = redis::from_redis_value_ref(kind).unwrap();
                // One more, so that who comes then finds it over.
                match (*left, kind.as_str()) {
                    (left, "string") => format!("busy {}", (left - 1) / 1000),
                    (-1, UNREADABLE) => "busy never unreadable".into(),
                    (-1, kind) => format!("busy never {kind}"),
                    _ => panic!("{answer:?}"),
                }
            }
            _ => panic!("{answer:?}"),
        }
    }

    fn sight(&self, answer: Value) -> String {
        // What follows is about holders that share and about the queue, which this recipe does not have.
        let Value::Array(mut answer) = answer else { panic!("{answer:?}") };
        answer.truncate(5);
        let (kind, value, fence, waiters, ours): (String, String, String, u32, u32) =
            redis::from_redis_value(Value::Array(answer)).unwrap();
        assert_eq!(waiters, 0);
        let name = |owner: &str| (0..NAMES.len()).map(Who).find(|who| id(*who) == owner);
        let value = match (value.as_str(), name(&value)) {
            (_, Some(owner)) => owner.to_string(),
            ("", None) => String::new(),
            (JUNK, None) => "junk".into(),
            (value, None) => format!("{:+}", self.offset(value)),
        };
        let last = fence.split(' ').nth(1).and_then(name).map(|owner| format!("last={owner}"));
        let words =
            [kind, value, last.unwrap_or_default(), if ours == 1 { "ours".into() } else { String::new() }];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// The time that a request writes.
    fn ends(&self, ahead: i64, late: bool) -> i64 {
        self.now + ahead - if late { LATE } else { 0 }
    }

    /// What holds whatever is done: one holder, which knows that it is one, and tokens that grow.
    fn check(&self, op: Op, sent: u64, answer: &str, after: State, last: Option<u64>) {
        let before = self.state;
        let law = |holds: bool, law: &str| {
            assert!(
                holds,
                "{law}: {op:?} on {before}: {answer}, then {after}, token {last:?} after {}",
                self.last
            );
        };
        let Some(who) = op.who() else { return };
        let (had, has) = (before.is_held_by(who), after.is_held_by(who));
        let is_over = match before.lock {
            Lock::Free => true,
            Lock::Ends(at) => at < self.now,
            Lock::Hash | Lock::Junk => false,
        };
        law(
            match answer.split(' ').next().unwrap_or_default() {
                "granted" => has && (had || is_over),
                "busy" => !had && !is_over && after == before,
                "not" => !had && after == before,
                "extended" | "raised" => had && has,
                "released" => had && after == State { lock: Lock::Free, fence: Fence::Given(who) },
                _ => after == before,
            },
            "the answer is not true",
        );
        law(
            !had || sent >= self.written || matches!(op, Op::Release(_)) || after == before,
            "a request that came late changed the lock",
        );
        let wanted = match op {
            Op::Raise(_, by) if had => self.last.saturating_add_signed(by.max(0)),
            Op::Ask(..) if answer == "granted" && !had => {
                return law(last.is_some_and(|last| last > self.last), "the token is not larger");
            }
            _ => self.last,
        };
        law(last.is_none_or(|last| last == wanted), "another token than the last one");
    }
}

fn refused(error: redis::RedisError) -> String {
    assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
    "refused".into()
}

fn id(who: Who) -> String {
    format!("{:032x}", 0xA0 + who.0)
}

fn who(owner: &str, info: &str) -> Who {
    let who: Who = info.parse().unwrap();
    assert_eq!(owner, id(who), "what is answered about the owner");
    who
}

/// State, operation, answer, state after.
async fn check(rows: &[(&str, &str, &str, &str)]) {
    let mut bench = Bench::new().await;
    for unit in UNITS {
        for (number, (before, op, answer, after)) in rows.iter().enumerate() {
            let mut case = bench.case(before.parse().unwrap(), unit).await;
            let (seen, state) = bench.step(&mut case, op.parse().unwrap()).await;
            let wanted = ((*answer).to_owned(), (*after).to_owned());
            assert_eq!((seen, state.to_string()), wanted, "row {number}: {before}; {op}; unit {unit}");
        }
    }
}

#[rustfmt::skip]
#[tokio::test]
async fn ask() {
    check(&[
        ("free",             "ask me",      "granted",  "+300 | me+300"),
        ("free | plain",     "ask me",      "granted",  "+300 | me+300"),
        ("free | ann",       "ask me",      "granted",  "+300 | me+300"),
        ("free | ann+200",   "ask me",      "granted",  "+300 | me+300"),
        ("free | me+200",    "ask me",      "granted",  "+300 | me+300"),
        ("free | hash",      "ask me",      "refused",  "free | hash"),
        // Sent again, and late.
        ("+200 | me+200",    "ask me",      "granted",  "+300 | me+300"),
        ("+200 | me+200",    "ask me late", "granted",  "+200 | me+200"),
        ("-200 | me-200",    "ask me",      "granted",  "+300 | me+300"),
        // Another client holds it, ours or one of another library.
        ("+200 | ann+200",   "ask me",      "busy 200", "+200 | ann+200"),
        ("+200 | me+100",    "ask me",      "busy 200", "+200 | me+100"),
        ("+200 | me",        "ask me",      "busy 200", "+200 | me"),
        ("+200",             "ask me",      "busy 200", "+200"),
        ("+0",               "ask me",      "busy 0",   "+0"),
        ("junk",             "ask me",      "busy never unreadable", "junk"),
        ("hash",             "ask me",      "busy never hash", "hash"),
        ("hash | me+200",    "ask me",      "busy never hash", "hash | me+200"),
        // It is over.
        ("-200",             "ask me",      "granted",  "+300 | me+300"),
        ("-200 | ann-200",   "ask me",      "granted",  "+300 | me+300"),
        ("-1 | ann",         "ask me late", "granted",  "+250 | me+250"),
        ("-200 | hash",      "ask me",      "refused",  "-200 | hash"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn release() {
    check(&[
        ("free",             "release me",  "not ours", "free"),
        ("+200 | me+200",    "release me",  "released", "free | me"),
        ("-200 | me-200",    "release me",  "released", "free | me"),
        ("+200 | me+100",    "release me",  "not ours", "+200 | me+100"),
        ("+200 | me",        "release me",  "not ours", "+200 | me"),
        ("+200 | ann+200",   "release me",  "not ours", "+200 | ann+200"),
        ("+200 | hash",      "release me",  "not ours", "+200 | hash"),
        ("free | me+200",    "release me",  "not ours", "free | me+200"),
        ("hash | me+200",    "release me",  "not ours", "hash | me+200"),
        ("junk | plain",     "release me",  "not ours", "junk | plain"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn extend() {
    check(&[
        ("free",             "extend me",      "not ours", "free"),
        ("+200 | me+200",    "extend me",      "extended", "+400 | me+400"),
        ("+200 | me+200",    "extend me late", "extended", "+200 | me+200"),
        ("-200 | me-200",    "extend me",      "extended", "+400 | me+400"),
        ("+200 | me+100",    "extend me",      "not ours", "+200 | me+100"),
        ("+200 | me",        "extend me",      "not ours", "+200 | me"),
        ("+200 | ann+200",   "extend me",      "not ours", "+200 | ann+200"),
        ("+200 | hash",      "extend me",      "not ours", "+200 | hash"),
        ("free | me+200",    "extend me",      "not ours", "free | me+200"),
        ("hash | me+200",    "extend me",      "not ours", "hash | me+200"),
        ("junk | me+200",    "extend me",      "not ours", "junk | me+200"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn raise() {
    check(&[
        ("free | me",        "raise me 50", "not ours", "free | me"),
        ("+200 | me+200",    "raise me 50", "raised",   "+200 | me+200"),
        ("+200 | me+200",    "raise me 0",  "raised",   "+200 | me+200"),
        ("+200 | me+200",    "raise me -5", "raised",   "+200 | me+200"),
        ("+200 | ann+200",   "raise me 50", "not ours", "+200 | ann+200"),
        ("+200 | me+100",    "raise me 50", "not ours", "+200 | me+100"),
        ("+200",             "raise me 50", "not ours", "+200"),
        ("hash | hash",      "raise me 50", "not ours", "hash | hash"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn look() {
    check(&[
        ("free",             "look me", "none",                    "free"),
        ("free | ann",       "look me", "none last=ann",           "free | ann"),
        ("+200 | me+200",    "look me", "string me last=me ours",  "+200 | me+200"),
        ("+200 | ann+200",   "look me", "string ann last=ann",     "+200 | ann+200"),
        ("+200 | me+100",    "look me", "string +200 last=me",     "+200 | me+100"),
        ("+200 | hash",      "look me", "string +200",             "+200 | hash"),
        ("-200 | ann-200",   "look me", "none last=ann",           "-200 | ann-200"),
        ("junk | plain",     "look me", "string junk",             "junk | plain"),
        ("hash | me+200",    "look me", "hash last=me",            "hash | me+200"),
    ]).await;
}

#[rustfmt::skip]
#[tokio::test]
async fn break_lock() {
    check(&[
        ("free | me+200",    "break", "none",   "free | me+200"),
        ("hash | me+200",    "break", "hash",   "hash | me+200"),
        ("+200 | me+200",    "break", "string", "free | me"),
        ("+200 | ann+100",   "break", "string", "free | ann"),
        ("+200",             "break", "string", "free"),
        ("+200 | hash",      "break", "string", "free | hash"),
        ("+200 | plain",     "break", "string", "free | plain"),
        ("junk",             "break", "string", "free"),
        ("-200 | ann-200",   "break", "none",   "free | ann"),
    ]).await;
}

#[test]
fn random_operations_keep_the_laws() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = std::cell::RefCell::new(runtime.block_on(Bench::new()));
    let config = ProptestConfig {
        cases: by_tier(40, 60, 500),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let ops = (proptest::sample::select(&UNITS), vec(op(), 1..60));
    let ran = TestRunner::new(config).run(&ops, |(unit, ops)| {
        runtime.block_on(run(&mut bench.borrow_mut(), unit, &ops));
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn run(bench: &mut Bench, unit: i64, ops: &[Op]) {
    let mut case = bench.case(State { lock: Lock::Free, fence: Fence::Lost }, unit).await;
    for op in ops {
        bench.step(&mut case, *op).await;
    }
}

fn op() -> impl Strategy<Value = Op> {
    let who = || (0..3_usize).prop_map(Who);
    let late = || prop_oneof![3 => Just(false), 1 => Just(true)];
    prop_oneof![
        12 => (who(), late()).prop_map(|(who, late)| Op::Ask(who, late)),
        8 => (who(), late()).prop_map(|(who, late)| Op::Extend(who, late)),
        6 => who().prop_map(Op::Release),
        3 => (who(), -5..50_i64).prop_map(|(who, by)| Op::Raise(who, by)),
        3 => who().prop_map(Op::Look),
        1 => Just(Op::Break),
        2 => (-400..400_i64).prop_map(Op::Write),
        1 => Just(Op::WriteJunk),
        1 => Just(Op::WriteHash),
        4 => Just(Op::Delete),
        8 => (0..350_i64).prop_map(Op::Pass),
        1 => Just(Op::FlushAll),
    ]
}
