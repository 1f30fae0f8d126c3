//! The protocol as a model that is searched exhaustively: who holds the lock, and whose transactions are committed.
//!
//! What each mistake leads to is written into `docs/design/postgres.md` by the search that finds it; the test fails when the
//! page says something else, and `UPDATE=1 cargo xtask test models` writes it anew.

mod fences;
mod hand_over;

use lock_testkit::stories::{assert_holds, check_page, counterexample};

use self::fences::{EXCLUSION, Fences, INCREASE, Mistake, NO_STALE_COMMIT};
use self::hand_over::{HandOver, LASTS};

#[test]
#[ignore = "full: a large model"]
fn fenced_transactions_are_never_stale() {
    // Until the first lease has ended. The night goes on, and so do the searches for what mistakes lead to.
    assert_holds(Fences { mistake: None, attempts: 2, latest: 2 });
}

macro_rules! mistakes {
    ($($test:ident: $story:literal, $mistake:ident, $property:expr;)*) => {$(
        #[test]
        fn $test() {
            let model = Fences { mistake: Some(Mistake::$mistake), attempts: 2, latest: 3 };
            check_page("design/postgres.md", $story, &counterexample(model, $property));
        }
    )*};
}

mistakes! {
    a_fence_that_locks_no_row_commits_late: "no-row-lock", FenceOnlyReads, NO_STALE_COMMIT;
    a_fence_by_fenced_tokens_alone_commits_late: "fenced-tokens-alone", FenceByFencedTokensAlone, NO_STALE_COMMIT;
    an_acquisition_that_ignores_a_locked_row_lets_a_fence_commit_late: "ignored-row", AskIgnoresLockedRow, NO_STALE_COMMIT;
    an_acquisition_that_ignores_a_renewal_breaks_exclusion: "ignored-renewal", AskIgnoresRenewal, EXCLUSION;
    an_expired_lease_that_keeps_its_owner_is_extended_by_an_old_snapshot: "kept-owner", ExpiredLeaseKeepsOwner, EXCLUSION;
    an_extension_that_counts_from_its_call_shortens_a_later_one: "slow-extension", ExtensionsCountFromCall, EXCLUSION;
    a_grant_that_a_crash_undoes_breaks_exclusion: "undone-grant", GrantsCommitAsynchronously, EXCLUSION;
    an_extension_that_a_crash_undoes_breaks_exclusion: "undone-extension", ExtensionsCommitAsynchronously, EXCLUSION;
    a_known_token_that_is_passed_on_commits_late: "passed-on", KnownTokenIsPassedOn, NO_STALE_COMMIT;
    a_removed_name_without_a_floor_lets_tokens_fall: "no-floor", RemovalForgetsTokens, INCREASE;
}

#[test]
fn a_hand_over_lasts_as_long_as_its_waiter_counts_on_it() {
    assert_holds(HandOver { mistake: None });
}

#[test]
fn a_release_that_reads_the_clock_first_hands_over_for_too_short() {
    let model = HandOver { mistake: Some(hand_over::Mistake::EarlyClock) };
    check_page("design/postgres.md", "early-clock", &counterexample(model, LASTS));
}

#[test]
fn a_waiter_that_counts_from_its_last_request_counts_too_long() {
    let model = HandOver { mistake: Some(hand_over::Mistake::CountsFromLast) };
    check_page("design/postgres.md", "counts-from-last", &counterexample(model, LASTS));
}

/// Models that are searched at night.
mod deep {
    use super::*;

    #[test]
    #[ignore = "deep: a large model"]
    fn fenced_transactions_are_never_stale_in_longer_searches() {
        assert_holds(Fences { mistake: None, attempts: 3, latest: 4 });
    }
}
