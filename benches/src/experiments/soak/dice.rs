//! Chooses the faults of a soak, and whom they hit.

use lock_testkit::proxy::Direction;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::data::{Effect, Fault, Hits};
use crate::experiments::faults::injector::{BOTH, Hit, Lasts};
use crate::rig::FaultServers;

pub(super) struct Dice {
    dice: StdRng,
    faults: Vec<Fault>,
    /// Each fault comes once before one comes again.
    bag: Vec<Fault>,
}

impl Dice {
    pub(super) fn new(seed: u64, faults: Vec<Fault>) -> Self {
        Self { dice: StdRng::seed_from_u64(seed), faults, bag: Vec::new() }
    }

    /// The next fault, unless there is none.
    pub(super) async fn hit(&mut self, servers: &FaultServers, workers: usize) -> Option<Hit> {
        if self.bag.is_empty() {
            self.bag.clone_from(&self.faults);
            self.bag.shuffle(&mut self.dice);
        }
        let fault = self.bag.pop()?;
        let (row, all) = (fault.row(), servers.len());
        let span = row.span(servers.lease());
        let span = span.start + (span.end - span.start).mul_f64(self.dice.random_range(0.0..1.0));
        let mut hit: Vec<usize> = (0..all).collect();
        hit.shuffle(&mut self.dice);
        let most = if row.hits == Hits::Several { all } else { servers.most_failing() };
        if matches!(row.hits, Hits::Several | Hits::Minority) {
            hit.truncate(self.dice.random_range(1..=most.max(1)));
        }
        if row.hits == Hits::Minority
            && self.dice.random_bool(0.5)
            && let Some(leader) = servers.leader().await
        {
            hit = vec![leader];
        }
        let mut clients: Vec<usize> = (0..workers).collect();
        clients.shuffle(&mut self.dice);
        clients.truncate(self.dice.random_range(1..=MOST_CLIENTS));
        // Not those that the fault hits itself.
        let may_kill =
            row.hits != Hits::Clients && !span.is_zero() && self.faults.contains(&Fault::ClientKilled);
        let also_kills = may_kill && self.dice.random_bool(0.3);
        let directions = match row.effect {
            Effect::CutOff([]) => WAYS[self.dice.random_range(0..WAYS.len())],
            Effect::CutOff(directions) => directions,
            _ => &[],
        };
        Some(Hit {
            fault,
            lasts: Lasts::For(span),
            servers: hit,
            also_killed: if also_kills { clients.clone() } else { Vec::new() },
            clients,
            directions: directions.to_vec(),
            variant: self.dice.random_range(0..VARIANTS),
            rounds: 1,
        })
    }
}

const WAYS: [&[Direction]; 3] = [&[Direction::ToClient], &[Direction::ToServer], BOTH];
const MOST_CLIENTS: usize = 3;
/// A multiple of the variants of each effect.
const VARIANTS: usize = 6;
