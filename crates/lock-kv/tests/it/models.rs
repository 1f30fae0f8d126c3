//! The protocol as a model that is searched exhaustively: who holds the lock, with which token, and what is left.
//!
//! What each rule is for is written into `docs/design/kv.md` by the search that finds what happens without it; the test fails when the
//! page says something else, and `UPDATE=1 cargo xtask test models` writes it anew.

mod swaps;

use lock_testkit::stories::{assert_holds, check_page, counterexample};

use self::swaps::{EXCLUSION, INCREASE, Mistake, NOTHING_LEFT, Swaps};

#[test]
#[ignore = "full: a large model"]
fn two_clients_exclude_each_other_and_leave_nothing() {
    assert_holds(Swaps { mistake: None, writes: 3, queues: false, given_up: 1 });
}

macro_rules! rules {
    ($($test:ident: $story:literal, $mistake:ident, $property:expr;)*) => {$(
        #[test]
        fn $test() {
            let model = Swaps { mistake: Some(Mistake::$mistake), writes: 4, queues: true, given_up: 1 };
            check_page("design/kv.md", $story, &counterexample(model, $property));
        }
    )*};
}

rules! {
    a_write_without_a_condition_breaks_exclusion: "unconditional", WritesUnconditionally, EXCLUSION;
    a_renewal_that_writes_the_same_bytes_breaks_exclusion: "same-bytes", RepeatsValues, EXCLUSION;
    a_guard_that_is_valid_from_the_answer_on_breaks_exclusion: "from-answer", CountsFromAnswer, EXCLUSION;
    an_entry_that_is_dead_from_a_read_that_was_sent_breaks_exclusion: "from-sent", CountsFromSent, EXCLUSION;
    clocks_without_a_margin_break_exclusion: "no-margin", NoMargin, EXCLUSION;
    a_roll_back_that_only_reads_leaves_a_lock: "only-reads", SettlesByReading, NOTHING_LEFT;
    tokens_by_the_clock_alone_fall: "clock-tokens", TokensByClock, INCREASE;
    a_waiter_that_counts_its_grant_from_a_read_breaks_exclusion: "granted-by-read", GrantCountsFromRead, EXCLUSION;
}

#[test]
fn records_that_are_removed_by_the_clock_let_tokens_fall() {
    let model = Swaps { mistake: Some(Mistake::RemovesByClock), writes: 4, queues: false, given_up: 0 };
    check_page("design/kv.md", "removal", &counterexample(model, INCREASE));
}

/// Models that are searched at night.
mod deep {
    use super::*;

    #[test]
    #[ignore = "deep: a large model"]
    fn a_waiter_that_is_granted_the_lock_excludes_others() {
        assert_holds(Swaps { mistake: None, writes: 4, queues: true, given_up: 0 });
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn two_clients_exclude_each_other_in_longer_searches() {
        assert_holds(Swaps { mistake: None, writes: 4, queues: true, given_up: 1 });
    }
}
