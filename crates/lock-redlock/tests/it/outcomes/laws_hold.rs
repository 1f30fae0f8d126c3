//! The laws hold through random sequences of operations.

use proptest::prelude::*;

use super::master::Master;
use super::op::Op;
use super::random::{happens, try_all, who};

#[test]
fn one_of_several_masters_keeps_the_laws() {
    try_all::<Master>(&op().boxed());
}

fn op() -> impl Strategy<Value = Op> {
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
