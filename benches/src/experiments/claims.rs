//! What people say about locks over ZooKeeper, Redis and PostgreSQL, each claim judged by a measurement. One file per claim.

use super::advisory_locks::AdvisoryLocks;
use super::claim::Claim;
use super::client_death::ClientDeath;
use super::database::Database;
use super::failover::Failover;
use super::fairness::Fairness;
use super::faster::Faster;
use super::forgetful_masters::ForgetfulMasters;
use super::herd::Herd;
use super::migration::Migration;
use super::minority::Minority;
use super::naive_recipes::NaiveRecipes;
use super::paused_holder::PausedHolder;
use super::scale::Scale;
use super::waiting_cost::WaitingCosts;

pub(crate) const CLAIMS: &[&dyn Claim] = &[
    &Faster,
    &WaitingCosts,
    &Herd,
    &Fairness,
    &ClientDeath,
    &Failover,
    &Minority,
    &PausedHolder,
    &NaiveRecipes,
    &ForgetfulMasters,
    &Scale,
    &Migration,
    &Database,
    &AdvisoryLocks,
];

pub(crate) fn of(id: u8) -> Option<&'static dyn Claim> {
    CLAIMS.iter().copied().find(|claim| claim.about().id == id)
}

#[cfg(test)]
mod tests {
    use super::super::claim::judge;
    use super::*;
    use crate::data::{Figure, Figures, Verdict};

    #[test]
    fn claims_are_numbered_and_say_how_they_are_judged() {
        let ids: Vec<u8> = CLAIMS.iter().map(|claim| claim.about().id).collect();
        assert!(ids.is_sorted(), "{ids:?}");
        for claim in CLAIMS {
            let about = claim.about();
            for text in [about.says, about.how, about.rule] {
                assert!(text.len() > 10 && text.ends_with('.'), "{text}");
            }
        }
    }

    #[test]
    fn a_missing_part_leaves_no_verdict() {
        let rates = [("zk", 0.0), ("redis wait=poll", 7.0)];
        let figures = rates.map(|(subject, rate)| Figure::new(subject, "idle_requests", "1/s", rate).at(64));
        let (claim, figures) = (of(2).unwrap(), Figures::from(figures.to_vec()));
        assert_eq!(judge(claim, &figures, &[], false).verdict, Verdict::Holds);
        let missing = ["64 waiters of redis wait=queue: stuck".to_owned()];
        let judged = judge(claim, &figures, &missing, true);
        assert_eq!((judged.verdict, judged.because), (Verdict::NotJudged, missing[0].clone()));
    }

    #[test]
    fn no_claim_is_judged_without_figures() {
        for claim in CLAIMS {
            assert!(claim.judge(&Figures::default()).is_err(), "{}", claim.about().says);
        }
    }
}
