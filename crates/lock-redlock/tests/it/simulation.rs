//! The real backend in virtual time: clients on five masters in memory, with all that can go wrong between them.
//!
//! A seed determines who takes part, what they do and what goes wrong. `SEED=n cargo xtask test simulation::no_seed`
//! replays one and tells its story; `SEEDS=n` runs so many, and `SEED_SECONDS=n` new ones for so long. A seed that fails is
//! added to `simulation.seeds`, which is always run first.

mod run;
mod scenario;

use std::sync::atomic::Ordering;

use lock_testkit::by_tier;
use lock_testkit::simulation::{self, Outcome, Scenario as _, Seeds, find, in_parallel};

use self::run::SEEN;
use self::scenario::{Mode, Scenario};

const SEED_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation.seeds");

#[test]
fn no_seed_breaks_a_promise() {
    simulation::no_seed_breaks_a_promise::<Scenario>(&Seeds::new(SEED_FILE, by_tier(60, 120, 20_000)));
}

#[test]
fn no_seed_breaks_a_promise_of_three_or_seven_masters() {
    let seeds: Vec<u64> = (0..by_tier(20, 40, 2_000)).collect();
    let outcomes = in_parallel(&seeds, |seed| Scenario::new(seed, Mode::OtherSizes).run(false));
    for (seed, outcome) in seeds.iter().zip(&outcomes) {
        assert!(outcome.holds(), "seed {seed} breaks a promise\n{outcome}");
    }
    let tenures: usize = outcomes.iter().map(|outcome| outcome.report.holds).sum();
    println!("{} seeds: {tenures} tenures", seeds.len());
}

#[test]
fn seeds_hand_the_lock_over_and_split_the_vote_also_while_a_master_is_away() {
    let count = by_tier(60, 60, 300);
    let seeds: Vec<u64> = (0..count).collect();
    in_parallel(&seeds, |seed| Scenario::new(seed, Mode::Sound).run(false));
    println!("{SEEN:?}");
    for seen in [&SEEN.handed_over, &SEEN.with_a_master_away, &SEEN.split] {
        assert!(seen.load(Ordering::Relaxed) > count / 30, "{SEEN:?}");
    }
}

#[test]
fn a_seed_is_always_the_same_story() {
    simulation::a_seed_is_always_the_same_story::<Scenario>();
}

#[test]
fn masters_that_restart_without_their_data_are_kept_out() {
    no_seed_overlaps(Mode::EmptyRestart);
}

#[test]
fn masters_that_restart_one_after_the_other_confirm_only_what_they_granted_before() {
    no_seed_overlaps(Mode::RollingRestart);
}

#[test]
fn masters_that_lose_their_data_unseen_give_a_lock_twice() {
    find::<Scenario>(Mode::UnseenEmptyRestart, overlaps);
}

#[test]
fn keys_that_end_early_give_a_lock_twice() {
    find::<Scenario>(Mode::EarlyExpiry, overlaps);
}

#[test]
#[ignore = "full: searches many seeds"]
fn a_lease_that_counts_from_the_answer_is_held_twice() {
    find::<Scenario>(Mode::FromReply, overlaps);
    // It is the mutant that is wrong, not the run.
    no_seed_overlaps(Mode::FromRequest);
}

fn no_seed_overlaps(mode: Mode) {
    let seeds: Vec<u64> = (0..by_tier(20, 40, 2_000)).collect();
    let outcomes = in_parallel(&seeds, |seed| Scenario::new(seed, mode).run(false));
    for (seed, outcome) in seeds.iter().zip(&outcomes) {
        assert!(!overlaps(outcome), "{mode:?}, seed {seed}\n{outcome}");
    }
}

fn overlaps(outcome: &Outcome) -> bool {
    outcome.report.l2.count > 0
}
