//! Random sequences of operations on a real server, of which each keeps the laws.

use lock_testkit::by_tier;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::bench::{Bench, Scripts};
use super::op::Op;
use super::state::{NAMES, State, Who};

const OPS: usize = 60;

/// Tries random sequences of these operations.
pub fn try_all<S: Scripts>(op: &BoxedStrategy<Op>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = std::cell::RefCell::new(runtime.block_on(Bench::<S>::new(true)));
    let config = ProptestConfig {
        cases: by_tier(40, 60, 500),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let ran = TestRunner::new(config).run(&vec(op.clone(), 1..OPS), |ops| {
        runtime.block_on(run(&mut bench.borrow_mut(), &ops));
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn run<S: Scripts>(bench: &mut Bench<S>, ops: &[Op]) {
    let mut case = bench.case(State::free()).await;
    for op in ops {
        bench.step(&mut case, *op).await;
    }
    assert_eq!(bench.left_for_ever(&case).await, [""; 0], "{ops:?}");
}

/// What strangers do, and what becomes of processes.
pub fn happens() -> impl Strategy<Value = Op> {
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

pub fn who() -> impl Strategy<Value = Who> {
    (0..NAMES.len()).prop_map(Who)
}
