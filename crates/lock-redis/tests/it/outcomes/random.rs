//! Random sequences of operations on a real server, of which each keeps the laws.

use lock_core::Mode;
use lock_testkit::by_tier;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::bench::Bench;
use super::op::Op;
use super::state::{Family, NAMES, State, Who, mode};

const OPS: usize = 60;

#[test]
fn a_single_server_keeps_the_laws() {
    try_all(Family::Single, &op().boxed());
}

#[test]
fn one_of_several_masters_keeps_the_laws() {
    try_all(Family::Master, &op_on_master().boxed());
}

fn try_all(family: Family, op: &BoxedStrategy<Op>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = std::cell::RefCell::new(runtime.block_on(Bench::new(true)));
    let config = ProptestConfig {
        cases: by_tier(40, 150, 500),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let ran = TestRunner::new(config).run(&vec(op.clone(), 1..OPS), |ops| {
        runtime.block_on(run(&mut bench.borrow_mut(), family, &ops));
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn run(bench: &mut Bench, family: Family, ops: &[Op]) {
    let mut case = bench.case(family, State::free()).await;
    for op in ops {
        bench.step(&mut case, *op).await;
    }
    assert_eq!(bench.left_for_ever(&case).await, [""; 0], "{ops:?}");
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
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
        6 => who().prop_map(Op::Expire),
        25 => happens(),
    ]
}

fn op_on_master() -> impl Strategy<Value = Op> {
    // Below the last token, the same, or above it.
    let by = || -3..=3_i64;
    prop_oneof![
        12 => (who(), by()).prop_map(|(who, by)| Op::Outright(who, by)),
        10 => (who(), by()).prop_map(|(who, by)| Op::Claim(who, Some(by))),
        2 => who().prop_map(|who| Op::Claim(who, None)),
        12 => who().prop_map(Op::LineUp),
        25 => (who(), any::<bool>()).prop_map(|(who, leaves)| Op::Vacate(who, leaves)),
        6 => who().prop_map(Op::Extend),
        6 => (who(), by()).prop_map(|(who, by)| Op::Raise(who, by)),
        3 => who().prop_map(Op::Look),
        1 => Just(Op::Break),
        20 => happens(),
    ]
}

/// What strangers do, and what becomes of processes.
fn happens() -> impl Strategy<Value = Op> {
    let ttl = || prop_oneof![Just(None), Just(Some(200))];
    prop_oneof![
        3 => ttl().prop_map(Op::Set),
        1 => ttl().prop_map(Op::Overwrite),
        1 => Just(Op::SetHash),
        8 => Just(Op::Delete),
        1 => Just(Op::FlushAll),
        1 => Just(Op::ScriptFlush),
        4 => who().prop_map(Op::Die),
        6 => who().prop_map(Op::Rise),
    ]
}

fn who() -> impl Strategy<Value = Who> {
    (0..NAMES.len()).prop_map(Who)
}

/// An acquisition wants its lock in one mode.
fn mode_of(who: Who) -> Mode {
    mode(["x", "x", "r", "r", "2", "2", "2", "r"][who.0])
}
