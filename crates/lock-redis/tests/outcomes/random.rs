//! Random sequences of operations, on a real server and on the model.

use lock_core::Mode;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::bench::Bench;
use crate::op::{Line, Op};
use crate::state::{NAMES, State, Who, mode};

const CASES: u32 = 150;
const OPS: usize = 60;

#[test]
fn the_server_does_what_the_model_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = std::cell::RefCell::new(runtime.block_on(Bench::new(true)));
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let ran = TestRunner::new(config).run(&vec(op(), 1..OPS), |ops| {
        runtime.block_on(run(&mut bench.borrow_mut(), &ops));
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn run(bench: &mut Bench, ops: &[Op]) {
    let mut case = bench.case(State::free()).await;
    let mut last = None;
    for op in ops {
        let (effect, _, token) = bench.step(&mut case, *op).await;
        if effect.mints > 0 && token.is_some() {
            assert!(token > last, "{op}: {token:?} after {last:?}");
            last = token;
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let who = || (0..NAMES.len()).prop_map(Who);
    let line = || prop_oneof![Just(Line::Apart), Just(Line::Stays), Just(Line::Leaves)];
    let lines_up = || prop_oneof![3 => Just(Line::Stays), 1 => Just(Line::Leaves)];
    let ttl = || prop_oneof![Just(None), Just(Some(200))];
    prop_oneof![
        3 => who().prop_map(|who| Op::Claim(who, None)),
        8 => (who(), lines_up()).prop_map(|(who, line)| Op::LineUp(who, line)),
        8 => (who(), line(), any::<bool>()).prop_map(|(who, line, calls)| Op::Vacate(who, line, calls)),
        10 => who().prop_map(|who| Op::Ask(who, mode_of(who))),
        20 => who().prop_map(|who| Op::Queue(who, mode_of(who))),
        10 => who().prop_map(|who| Op::Confirm(who, mode_of(who))),
        10 => who().prop_map(Op::Release),
        15 => who().prop_map(|who| Op::Leave(who, mode_of(who))),
        5 => (who(), who()).prop_map(|(from, to)| Op::Rotate(from, to)),
        5 => who().prop_map(Op::Extend),
        5 => who().prop_map(Op::Keep),
        5 => who().prop_map(Op::Downgrade),
        3 => (who(), -5..5_i64).prop_map(|(who, by)| Op::Raise(who, by)),
        3 => who().prop_map(Op::Look),
        2 => Just(Op::Break),
        3 => ttl().prop_map(Op::Set),
        1 => ttl().prop_map(Op::Overwrite),
        1 => Just(Op::SetHash),
        8 => Just(Op::Delete),
        6 => who().prop_map(Op::Expire),
        1 => Just(Op::FlushAll),
        1 => Just(Op::ScriptFlush),
        4 => who().prop_map(Op::Die),
        6 => who().prop_map(Op::Rise),
    ]
}

/// An acquisition wants its lock in one mode.
fn mode_of(who: Who) -> Mode {
    mode(["x", "x", "r", "r", "2", "2", "2", "r"][who.0])
}
