//! The protocol as models that are searched exhaustively: who holds the lock, and with which token.
//!
//! Where a search finds a way to two holders, or to a token that does not grow, `docs/SAFETY.md` tells it, word for word;
//! `UPDATE=1 cargo xtask test models` writes it anew.

mod exclusion;
mod extensions;
mod fencing;

use lock_testkit::stories::{assert_holds, check_page, counterexample};

use self::exclusion::{EXCLUSION, LONGEST_TTL, Mistake, Redlock};
use self::extensions::{Extensions, KEPT};
use self::fencing::{Fencing, INCREASE};

#[test]
fn two_clients_exclude_each_other() {
    assert_holds(Redlock::<2>::SOUND);
}

#[test]
#[ignore = "full: a large model"]
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
#[ignore = "full: a large model"]
fn a_restarted_master_that_does_not_vote_for_the_longest_ttl_breaks_nothing() {
    assert_holds(ONE_RESTART);
}

/// One restart without data, with the quarantine.
const ONE_RESTART: Redlock<2> = Redlock { restarts: 1, quarantine: LONGEST_TTL, ..Redlock::SOUND };

#[test]
#[ignore = "full: searches far for a counterexample"]
fn a_shorter_quarantine_is_too_short() {
    let short = Redlock::<2> { restarts: 1, quarantine: LONGEST_TTL - 2, ..Redlock::SOUND };
    counterexample(short, EXCLUSION);
}

#[test]
fn a_lease_that_counts_from_the_answer_breaks_exclusion() {
    let mistaken = Redlock::<2> { counts_from_answer: true, ..Redlock::SOUND };
    check_page("SAFETY.md", "answer", &counterexample(mistaken, EXCLUSION));
}

#[test]
fn a_minority_that_hands_the_lock_over_is_not_enough() {
    let mistaken = Redlock::<2> { mistake: Some(Mistake::CountsMinority), ..Redlock::HANDS_OVER };
    counterexample(mistaken, EXCLUSION);
}

#[test]
#[ignore = "full: searches far for a counterexample"]
fn a_grace_period_that_counts_from_the_notification_breaks_exclusion() {
    let mistaken = Redlock::<2> { mistake: Some(Mistake::CountsFromNotification), ..Redlock::HANDS_OVER };
    check_page("SAFETY.md", "notification", &counterexample(mistaken, EXCLUSION));
}

#[test]
#[ignore = "full: searches far for a counterexample"]
fn an_owner_id_that_is_used_again_breaks_exclusion() {
    let mistaken = Redlock::<2> { mistake: Some(Mistake::ReusesOwner), ..Redlock::HANDS_OVER };
    counterexample(mistaken, EXCLUSION);
}

#[test]
#[ignore = "full: searches far for a counterexample"]
fn without_the_write_back_tokens_do_not_increase() {
    check_page(
        "SAFETY.md",
        "write-back",
        &counterexample(Fencing { writes_back: false, hands_over: false }, INCREASE),
    );
}

#[test]
#[ignore = "full: a large model"]
fn an_extension_that_counts_for_the_shortest_it_overlapped_with_keeps_the_lock() {
    assert_holds(Extensions::Sound);
}

#[test]
fn an_extension_that_counts_as_it_was_asked_for_breaks_exclusion() {
    check_page("SAFETY.md", "late extension", &counterexample(Extensions::AsAsked, KEPT));
    counterexample(Extensions::StillAwaited, KEPT);
}

/// Models that are searched at night.
mod deep {
    use super::*;

    #[test]
    #[ignore = "deep: a large model"]
    fn restarts_that_bring_earlier_states_back_break_nothing() {
        assert_holds(Redlock { restarts: 2, rolls_back: true, ..ONE_RESTART });
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn a_restarted_master_must_not_confirm_a_lease_after_its_vote_has_expired() {
        let mistaken = Redlock { mistake: Some(Mistake::ConfirmsExpired), ..ONE_RESTART };
        counterexample(mistaken, EXCLUSION);
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn a_vote_that_a_restarted_master_confirms_counts_from_the_request() {
        let mistaken = Redlock { mistake: Some(Mistake::ConfirmsFromAnswer), ..ONE_RESTART };
        counterexample(mistaken, EXCLUSION);
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn a_restarted_master_must_not_confirm_what_it_granted_after_the_restart() {
        let mistaken = Redlock { mistake: Some(Mistake::ConfirmsNewClaims), ..ONE_RESTART };
        counterexample(mistaken, EXCLUSION);
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn a_vote_from_quarantine_must_not_count_after_it() {
        let sound = Redlock { drift: false, margin: 0, restarts: 2, ..ONE_RESTART };
        assert_holds(sound);
        let mistaken = Redlock { mistake: Some(Mistake::CountsLateAnswers), ..sound };
        check_page("SAFETY.md", "late vote", &counterexample(mistaken, EXCLUSION));
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn a_restarted_master_must_not_confirm_extensions_of_any_lease() {
        let extends = Redlock::<2> { mistake: Some(Mistake::ConfirmsAny), ..ONE_RESTART };
        check_page("SAFETY.md", "extension", &counterexample(extends, EXCLUSION));
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn a_restarted_master_must_not_count_where_it_hands_the_lock_over() {
        let mistaken = Redlock::<2> {
            restarts: 1,
            quarantine: LONGEST_TTL,
            mistake: Some(Mistake::CountsQuarantined),
            ..Redlock::HANDS_OVER
        };
        counterexample(mistaken, EXCLUSION);
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn a_claim_that_does_not_extend_what_was_handed_over_breaks_exclusion() {
        let mistaken = Redlock::<2> { mistake: Some(Mistake::AsksWithoutExtending), ..Redlock::HANDS_OVER };
        counterexample(mistaken, EXCLUSION);
    }

    #[test]
    #[ignore = "deep: a large model"]
    fn tokens_increase_from_holder_to_holder() {
        assert_holds(Fencing { writes_back: true, hands_over: false });
    }

    #[test]
    #[ignore = "deep: some minutes"]
    fn clients_that_are_handed_the_lock_exclude_each_other() {
        assert_holds(Redlock::<2>::HANDS_OVER);
    }

    #[test]
    #[ignore = "deep: some minutes"]
    fn clients_that_are_handed_the_lock_exclude_each_other_though_a_master_restarts_without_data() {
        let restart = Redlock::<2> { restarts: 1, quarantine: LONGEST_TTL, ..Redlock::HANDS_OVER };
        assert_holds(restart);
    }

    #[test]
    #[ignore = "deep: some minutes"]
    fn tokens_increase_where_the_lock_is_handed_over() {
        assert_holds(Fencing { writes_back: true, hands_over: true });
    }
}
