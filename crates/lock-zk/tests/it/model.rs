//! Models of the recipe and of the session, searched without a gap.
//!
//! What a wrong variant leads to is written into `docs/SAFETY.md` by the search that finds it; the test fails
//! when the page says something else, and `UPDATE=1 cargo xtask test model` writes it anew.

mod page;
mod recipe;
mod session;

use stateright::{Checker, HasDiscoveries, Model, Path};

use self::page::assert_page;
use self::recipe::{Recipe, Seen, Variant};
use self::session::{Moves, Sessions, Validity};

#[test]
fn one_fault_and_a_follower_that_lags_break_nothing() {
    assert_sound(&Recipe::new(Variant::Sound, 1, 1));
    assert_sound(&Recipe::new(Variant::Sound, 1, 0).with_downgrades());
}

#[test]
#[ignore = "full: searches far for a counterexample"]
fn adopting_any_node_of_our_name_is_unsafe() {
    assert_page("adopt-any-node", &counterexample(Variant::AdoptAnyNode, 2));
}

#[test]
#[ignore = "full: searches far for a counterexample"]
fn trusting_a_listing_from_before_a_reconnection_is_unsafe() {
    assert_page("trust-old-listing", &counterexample(Variant::TrustOldListing, 3));
}

#[test]
fn skipping_the_listing_with_two_before_us_is_unsafe() {
    assert_page("skip-listing", &counterexample(Variant::SkipListing, 1));
}

#[test]
fn taking_the_end_of_a_writer_for_a_grant_is_unsafe() {
    let recipe = Recipe::new(Variant::TrustEndOfWriter, 0, 0).with_downgrades();
    assert_page("trust-end-of-writer", &counterexample_of(recipe));
}

#[test]
#[ignore = "full: a large model"]
fn no_session_is_valid_for_longer_than_at_the_leader() {
    let moves = Moves::SameTimeout;
    // What happens without pauses happens with them, too.
    for (valid_until, pauses) in [(Validity::Proven, true), (Validity::ThreeQuarters, false)] {
        let checker = Sessions { valid_until, pauses, cut_off: true, moves }.checker().spawn_bfs().join();
        println!("{valid_until:?}: {} states", checker.unique_state_count());
        checker.assert_properties();
    }
}

#[test]
fn a_validity_of_the_whole_timeout_is_unsafe() {
    assert_page("whole-timeout", &overrun(Validity::Whole, false));
}

#[test]
fn a_validity_from_the_answer_on_is_unsafe() {
    assert_page("from-the-answer", &overrun(Validity::FromAnswer, true));
}

#[test]
fn three_quarters_are_too_much_after_a_pause() {
    assert_page("after-a-pause", &overrun(Validity::ThreeQuarters, true));
}

#[test]
fn taking_a_sync_for_a_proof_is_unsafe() {
    let sessions =
        Sessions { valid_until: Validity::ProvenBySync, pauses: true, cut_off: true, moves: Moves::None };
    assert_page("sync-as-proof", &overrun_of(sessions));
}

#[test]
fn a_session_that_follows_a_lower_limit_unawares_is_unsafe() {
    let moves = Moves::ShorterTimeout;
    let sessions = Sessions { valid_until: Validity::Proven, pauses: true, cut_off: false, moves };
    assert_page("shorter-timeout", &overrun_of(sessions));
}

/// Models that are searched at night.
mod deep {
    use super::*;

    #[test]
    #[ignore = "deep: some minutes"]
    fn two_faults_and_a_follower_that_lags_break_nothing() {
        assert_sound(&Recipe::new(Variant::Sound, 2, 1));
    }

    #[test]
    #[ignore = "deep: some minutes"]
    fn three_faults_at_the_leader_break_nothing() {
        assert_sound(&Recipe::new(Variant::Sound, 3, 0));
    }

    #[test]
    #[ignore = "deep: some minutes"]
    fn writers_that_become_readers_let_nobody_in() {
        assert_sound(&Recipe::new(Variant::Sound, 1, 1).with_downgrades());
        assert_sound(&Recipe::new(Variant::Sound, 2, 0).with_downgrades());
    }
}

/// The shortest way to a client that treats an ended session as valid.
fn overrun(valid_until: Validity, pauses: bool) -> Vec<String> {
    overrun_of(Sessions { valid_until, pauses, cut_off: false, moves: Moves::None })
}

fn overrun_of(sessions: Sessions) -> Vec<String> {
    let valid_until = sessions.valid_until;
    let found = sessions.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = found.discovery("no session is valid for longer than at the leader");
    let path = path.unwrap_or_else(|| panic!("{valid_until:?} breaks nothing"));
    let moral = session::Action::moral(path.last_state());
    let lines = steps(path).map(|(before, action, after)| action.tell(&before, &after));
    lines.filter(|line| !line.is_empty()).chain([moral]).collect()
}

fn assert_sound(recipe: &Recipe) {
    let checker = recipe.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
    let reached = recipe.reached.lock().unwrap();
    for seen in Seen::ALL {
        assert!(
            reached.contains(&seen)
                || (seen == Seen::StaleListing && recipe.lag == 0)
                || (seen == Seen::BecameReader && !recipe.downgrades),
            "{seen:?} is never reached"
        );
    }
}

/// The shortest way of this variant to two holders at once, which takes so many faults.
fn counterexample(variant: Variant, faults: u8) -> Vec<String> {
    counterexample_of(Recipe::new(variant, faults, 0))
}

fn counterexample_of(recipe: Recipe) -> Vec<String> {
    let variant = recipe.variant;
    let found = recipe.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = found.discovery("exclusion").unwrap_or_else(|| panic!("{variant:?} breaks nothing"));
    // The checker gives a later one of those that it looks at together.
    let steps = steps(path).take_while(|(before, ..)| before.is_exclusive());
    let mut lines: Vec<String> = steps.map(|(before, action, after)| action.tell(&before, &after)).collect();
    lines.push("Two hold the lock at once.".to_owned());
    lines
}

fn steps<S: Clone, A>(path: Path<S, A>) -> impl Iterator<Item = (S, A, S)> {
    let pairs = path.into_vec();
    let states: Vec<S> = pairs.iter().map(|(state, _)| state.clone()).collect();
    let actions = pairs.into_iter().filter_map(|(_, action)| action);
    actions
        .zip(states.clone())
        .zip(states.into_iter().skip(1))
        .map(|((action, before), after)| (before, action, after))
}
