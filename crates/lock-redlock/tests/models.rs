//! The protocol as models that are searched exhaustively: who holds the lock, and with which token.
//!
//! Where a search finds a way to two holders, or to a token that does not grow, `docs/SAFETY.md` tells it, word for word;
//! `UPDATE=1 cargo test -p lock-redlock --test models` writes it anew.

#[path = "models/exclusion.rs"]
mod exclusion;
#[path = "models/fencing.rs"]
mod fencing;

use lock_testkit::stories::{assert_holds, check_page, counterexample};

use crate::exclusion::{EXCLUSION, LONGEST_TTL, Redlock};
use crate::fencing::{Fencing, INCREASE};

#[test]
fn two_clients_exclude_each_other() {
    assert_holds(Redlock::<2>::SOUND);
}

#[test]
fn three_clients_exclude_each_other() {
    assert_holds(Redlock::<3>::SOUND);
}

#[test]
fn a_restart_without_data_breaks_exclusion() {
    let one_restart = Redlock::<2> { restarts: 1, drift: false, ..Redlock::SOUND };
    check_page("SAFETY.md", "restart", &counterexample(one_restart, EXCLUSION));
}

#[test]
fn a_key_that_ends_early_breaks_exclusion() {
    let one_jump = Redlock::<2> { early_ends: 1, drift: false, ..Redlock::SOUND };
    check_page("SAFETY.md", "clock", &counterexample(one_jump, EXCLUSION));
}

#[test]
fn a_restarted_master_that_does_not_vote_for_the_longest_ttl_breaks_nothing() {
    assert_holds(Redlock::<2> { restarts: 1, quarantine: LONGEST_TTL, ..Redlock::SOUND });
}

#[test]
fn a_shorter_quarantine_is_too_short() {
    let short = Redlock::<2> { restarts: 1, quarantine: LONGEST_TTL - 2, ..Redlock::SOUND };
    counterexample(short, EXCLUSION);
}

#[test]
fn a_restarted_master_must_not_confirm_extensions_either() {
    let extends =
        Redlock::<2> { restarts: 1, quarantine: LONGEST_TTL, quarantine_extends: true, ..Redlock::SOUND };
    check_page("SAFETY.md", "extension", &counterexample(extends, EXCLUSION));
}

#[test]
fn a_lease_that_counts_from_the_answer_breaks_exclusion() {
    let mistaken = Redlock::<2> { counts_from_answer: true, ..Redlock::SOUND };
    check_page("SAFETY.md", "answer", &counterexample(mistaken, EXCLUSION));
}

#[test]
fn tokens_increase_from_holder_to_holder() {
    assert_holds(Fencing { writes_back: true });
}

#[test]
fn without_the_write_back_tokens_do_not_increase() {
    check_page("SAFETY.md", "write-back", &counterexample(Fencing { writes_back: false }, INCREASE));
}
