//! The protocol as models that are searched exhaustively: who holds the lock, and with which token.
//!
//! What each mistake leads to is written into `docs/MIGRATION.md` by the search that finds it; the test fails when the page
//! says something else, and `UPDATE=1 cargo xtask test models` writes it anew.

mod exclusion;
mod tokens;

use lock_testkit::stories::{assert_holds, check_page, counterexample};

use self::exclusion::{EXCLUSION, Ladder};
use self::tokens::{INCREASE, LEAD, Tokens};

#[test]
fn every_mixture_of_three_processes_and_a_straggler_excludes() {
    assert_holds(Ladder::<3> { mistake: None });
}

#[test]
#[ignore = "full: a large model"]
fn tokens_increase_through_every_mixture() {
    assert_holds(Tokens { mistake: None, attempts: 3, elections: 2 });
}

macro_rules! mistakes {
    ($($(#[$attribute:meta])* $test:ident: $story:literal, $model:expr, $property:expr;)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $test() {
            check_page("MIGRATION.md", $story, &counterexample($model, $property));
        }
    )*};
}

const fn ladder(mistake: exclusion::Mistake) -> Ladder<2> {
    Ladder { mistake: Some(mistake) }
}

const fn tokens(mistake: tokens::Mistake) -> Tokens {
    Tokens { mistake: Some(mistake), attempts: 4, elections: 3 }
}

mistakes! {
    a_guard_before_its_tombstone_breaks_exclusion:
        "guard-before-tombstone", ladder(exclusion::Mistake::GuardBeforeTombstone), EXCLUSION;
    a_reading_from_before_the_way_back_breaks_exclusion:
        "earlier-generation", ladder(exclusion::Mistake::ReadingOfEarlierGeneration), EXCLUSION;
    a_reading_that_is_judged_before_the_grant_breaks_exclusion:
        "judged-before-grant", ladder(exclusion::Mistake::JudgedBeforeGrant), EXCLUSION;
    a_reading_that_ignores_the_remaining_life_breaks_exclusion:
        "whole-life", ladder(exclusion::Mistake::WholeLifeFromReading), EXCLUSION;
    a_removal_without_a_deadline_breaks_exclusion:
        "late-removal", ladder(exclusion::Mistake::RemovalWithoutDeadline), EXCLUSION;
    a_removal_before_all_have_seen_the_way_back_breaks_exclusion:
        "unseen-way-back", ladder(exclusion::Mistake::RemovalBeforeAllHaveSeen), EXCLUSION;
    a_record_that_another_session_watches_breaks_exclusion:
        "other-session", ladder(exclusion::Mistake::WatchedInAnotherSession), EXCLUSION;
    a_seal_before_the_leases_end_breaks_exclusion:
        "early-seal", ladder(exclusion::Mistake::SealBeforeLeasesEnd), EXCLUSION;
    new_without_the_seal_breaks_exclusion:
        "no-seal", ladder(exclusion::Mistake::NewWithoutSeal), EXCLUSION;
    a_guard_of_either_half_breaks_exclusion:
        "either-half", ladder(exclusion::Mistake::EitherHalf), EXCLUSION;
    a_last_token_that_is_not_raised_lets_tokens_fall:
        "no-raise", tokens(tokens::Mistake::NoRaiseOnRedis), INCREASE;
    a_base_that_is_raised_after_the_tombstone_lets_tokens_fall:
        "late-raise", tokens(tokens::Mistake::TombstoneBeforeRaise), INCREASE;
    #[ignore = "full: searches far for a counterexample"]
    a_removal_that_raises_nothing_lets_tokens_fall:
        "removal-without-raise", tokens(tokens::Mistake::RemovalWithoutRaise), INCREASE;
    #[ignore = "full: searches far for a counterexample"]
    a_sharer_with_an_older_node_lets_tokens_fall:
        "older-sharer", tokens(tokens::Mistake::OlderSharer), INCREASE;
    a_sharer_that_raises_by_its_whole_token_gets_far_ahead:
        "whole-token", tokens(tokens::Mistake::SharersRaiseByWhole), LEAD;
    elections_that_count_get_tokens_far_ahead:
        "elections-count", tokens(tokens::Mistake::ElectionsCount), LEAD;
    a_grant_from_before_the_seal_lets_tokens_fall:
        "granted-before-seal", tokens(tokens::Mistake::GrantedBeforeSeal), INCREASE;
    #[ignore = "full: searches far for a counterexample"]
    dual_after_the_seal_lets_tokens_fall:
        "dual-after-seal", tokens(tokens::Mistake::DualAfterSeal), INCREASE;
}

/// Models that are searched at night.
mod deep {
    use super::*;

    mistakes! {
        #[ignore = "deep: a large model"]
        a_raise_above_the_last_token_grows_with_every_move:
            "growing-lead", Tokens { attempts: 6, elections: 0, ..tokens(tokens::Mistake::RaiseAboveLast) }, LEAD;
        #[ignore = "deep: a large model"]
        a_lead_that_is_longer_than_the_memory_lets_tokens_fall:
            "any-lead", tokens(tokens::Mistake::AnyLead), INCREASE;
    }

    #[test]
    #[ignore = "deep: some minutes"]
    fn tokens_increase_through_longer_mixtures() {
        assert_holds(Tokens { mistake: None, attempts: 4, elections: 2 });
    }
}
