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

/// A test for each model. Without more, what it promises holds; else a search finds how this property breaks, and the page tells it
/// under this name if there is one.
macro_rules! searches {
    ($($(#[$tier:meta])? $test:ident: $model:expr $(, $property:expr $(, $story:literal)?)?;)*) => {$(
        #[test]
        $(#[$tier])?
        fn $test() {
            searches!(@ $model $(, $property $(, $story)?)?);
        }
    )*};
    (@ $model:expr) => { assert_holds($model) };
    (@ $model:expr, $property:expr) => { drop(counterexample($model, $property)) };
    (@ $model:expr, $property:expr, $story:literal) => {
        check_page("SAFETY.md", $story, &counterexample($model, $property))
    };
}

const SOUND: Redlock<2> = Redlock::SOUND;
const HANDS_OVER: Redlock<2> = Redlock::HANDS_OVER;
/// One restart without data, with the quarantine.
const ONE_RESTART: Redlock<2> = Redlock { restarts: 1, quarantine: LONGEST_TTL, ..SOUND };
/// Two of them, on masters whose clocks run alike.
const TWO_RESTARTS: Redlock<2> = Redlock { drift: false, margin: 0, restarts: 2, ..ONE_RESTART };

impl Redlock<2> {
    const fn with(self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self }
    }
}

searches! {
    two_clients_exclude_each_other: SOUND;
    a_restart_without_data_breaks_exclusion:
        Redlock { restarts: 1, drift: false, ..SOUND }, EXCLUSION, "restart";
    a_lease_that_counts_from_the_answer_breaks_exclusion:
        SOUND.with(Mistake::CountsFromAnswer), EXCLUSION, "answer";
    a_minority_that_hands_the_lock_over_is_not_enough: HANDS_OVER.with(Mistake::CountsMinority), EXCLUSION;
    #[ignore = "full: searches far for a counterexample"]
    an_extension_that_counts_as_it_was_asked_for_breaks_exclusion: Extensions::AsAsked, KEPT, "late extension";
    #[ignore = "full: searches far for a counterexample"]
    an_extension_that_counts_for_those_without_an_answer_breaks_exclusion: Extensions::StillAwaited, KEPT;
    #[ignore = "full: searches far for a counterexample"]
    a_shorter_quarantine_is_too_short: Redlock { quarantine: LONGEST_TTL - 2, ..ONE_RESTART }, EXCLUSION;
    #[ignore = "full: searches far for a counterexample"]
    a_grace_period_that_counts_from_the_notification_breaks_exclusion:
        HANDS_OVER.with(Mistake::CountsFromNotification), EXCLUSION, "notification";
    #[ignore = "full: searches far for a counterexample"]
    without_the_write_back_tokens_do_not_increase:
        Fencing { writes_back: false, hands_over: false }, INCREASE, "write-back";
    #[ignore = "full: a large model"]
    three_clients_exclude_each_other: Redlock::<3>::SOUND;
    #[ignore = "full: a large model"]
    a_restarted_master_that_does_not_vote_for_the_longest_ttl_breaks_nothing: Redlock { drift: false, ..ONE_RESTART };
    #[ignore = "full: a large model"]
    an_extension_that_counts_for_the_shortest_it_overlapped_with_keeps_the_lock: Extensions::Sound;
}

/// Models that are searched at night.
mod deep {
    use super::*;

    searches! {
        // The same, and more, with clocks that are as fast as the margin allows.
        #[ignore = "deep: a large model"]
        restarts_that_bring_earlier_states_back_break_nothing:
            Redlock { restarts: 2, rolls_back: true, ..ONE_RESTART };
        #[ignore = "deep: a large model"]
        a_restarted_master_must_not_confirm_a_lease_after_its_vote_has_expired:
            ONE_RESTART.with(Mistake::ConfirmsExpired), EXCLUSION;
        #[ignore = "deep: a large model"]
        a_vote_that_a_restarted_master_confirms_counts_from_the_request:
            ONE_RESTART.with(Mistake::ConfirmsFromAnswer), EXCLUSION;
        #[ignore = "deep: a large model"]
        a_restarted_master_must_not_confirm_what_it_granted_after_the_restart:
            ONE_RESTART.with(Mistake::ConfirmsNewClaims), EXCLUSION;
        #[ignore = "deep: a large model"]
        a_restarted_master_must_not_confirm_extensions_of_any_lease:
            ONE_RESTART.with(Mistake::ConfirmsAny), EXCLUSION, "extension";
        #[ignore = "deep: a large model"]
        a_vote_from_quarantine_does_not_count_after_it: TWO_RESTARTS;
        #[ignore = "deep: a large model"]
        a_vote_from_quarantine_must_not_count_after_it:
            TWO_RESTARTS.with(Mistake::CountsLateAnswers), EXCLUSION, "late vote";
        #[ignore = "deep: a large model"]
        a_restarted_master_must_not_count_where_it_hands_the_lock_over:
            Redlock { restarts: 1, quarantine: LONGEST_TTL, ..HANDS_OVER.with(Mistake::CountsQuarantined) }, EXCLUSION;
        #[ignore = "deep: a large model"]
        a_claim_that_does_not_extend_what_was_handed_over_breaks_exclusion:
            HANDS_OVER.with(Mistake::AsksWithoutExtending), EXCLUSION;
        #[ignore = "deep: a large model"]
        an_owner_id_that_is_used_again_breaks_exclusion: HANDS_OVER.with(Mistake::ReusesOwner), EXCLUSION;
        #[ignore = "deep: a large model"]
        tokens_increase_from_holder_to_holder: Fencing { writes_back: true, hands_over: false };
        #[ignore = "deep: some minutes"]
        clients_that_are_handed_the_lock_exclude_each_other: HANDS_OVER;
        #[ignore = "deep: some minutes"]
        clients_that_are_handed_the_lock_exclude_each_other_though_a_master_restarts_without_data:
            Redlock { restarts: 1, quarantine: LONGEST_TTL, ..HANDS_OVER };
        #[ignore = "deep: some minutes"]
        tokens_increase_where_the_lock_is_handed_over: Fencing { writes_back: true, hands_over: true };
    }
}
