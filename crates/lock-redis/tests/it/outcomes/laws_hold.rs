//! The laws hold through random sequences of operations.

use lock_core::Mode;
use proptest::prelude::*;

use super::op::Op;
use super::random::{happens, try_all, who};
use super::single::Single;
use super::state::{Who, mode};

#[test]
fn a_single_server_keeps_the_laws() {
    try_all::<Single>(&op().boxed());
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

/// An acquisition wants its lock in one mode.
fn mode_of(who: Who) -> Mode {
    mode(["x", "x", "r", "r", "2", "2", "2", "r"][who.0])
}
