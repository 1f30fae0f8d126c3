//! Claim 5: what happens to the lock of a client that dies.

use std::time::Duration;

use futures_util::future::join_all;

use crate::data::median::median;
use crate::experiments::parts::death::{End, death_of_peer, gap_after, millis};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "client-death",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 5,
        says: "When a client dies, ZooKeeper frees its lock at once; Redis waits for the ttl.",
        how: "A process holds a lock that is renewed, with the same ttl and session timeout everywhere, and another process \
              waits for it. The holder is killed by SIGKILL, loses its connections for ever, is cut off from the servers \
              (nothing arrives in either direction, and no connection is closed), or exits in good order. Measured is the time from \
              then until the other process has the lock: the median of three rounds (one in a quick run), each at a random \
              time between two renewals. Beside them, in a full run, Curator and kazoo: killed by SIGKILL, on a server that \
              grants the same session timeout. Peers on Redis are left out, as their programs here have ttls of their own.",
        rule: "A lock is freed at once when the median is below a quarter of the ttl or session timeout. Holds when \
               ZooKeeper frees it at once in all three ways to die, and Redis in none; does not hold when ZooKeeper frees \
               it at once in none; otherwise it depends on how the client dies.",
        in_quick: true,
        pictures: || {
            let title = |end: End| format!("Until another client has the lock: the holder {end}");
            End::ALL.map(|end| bars(&title(end), end.metric())).into()
        },
        judge,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let (rounds, lease) = run.mode.pick((1, Duration::from_secs(1)), (3, Duration::from_secs(2)));
    for subject in SUBJECTS {
        run.add(Figure::new(subject, LEASE, "ms", millis(lease)));
    }
    let urls: Vec<_> = SUBJECTS
        .iter()
        .filter_map(|&subject| Some((subject, run.target_of(subject)?.backend(), run.url(subject)?)))
        .collect();
    let mut deaths = Vec::new();
    for round in 0..rounds {
        // All wait most of the time: the backends and ways to die do not disturb each other.
        let all = urls.iter().flat_map(|(subject, backend, url)| {
            End::ALL.map(|end| {
                let lock = run.bench.lock(&format!("death-{round}-{}", end.metric()));
                async move { (*subject, end, gap_after(end, *backend, url, &lock, lease).await) }
            })
        });
        deaths.extend(join_all(all).await);
    }
    for subject in SUBJECTS {
        for end in End::ALL {
            let mut times = Vec::new();
            for (_, _, took) in deaths.iter().filter(|(of, by, _)| *of == subject && *by == end) {
                match took {
                    Ok(took) => times.push(millis(*took)),
                    Err(failure) => run.leave_out(&format!("{subject}, {end}"), failure),
                }
            }
            if !times.is_empty() {
                run.add(Figure::new(subject, end.metric(), "ms", median(times)));
            }
        }
    }
    if run.mode == Mode::Full && run.target_of("zk").is_some() {
        for peer in PEERS {
            add_peer(run, peer, lease).await;
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let mut at_once = [0, 0];
    let mut texts = Vec::new();
    for end in End::DEATHS {
        for (counted, subject) in at_once.iter_mut().zip(["zk", "redis"]) {
            let share = figures.get(subject, end.metric())? / figures.get(subject, LEASE)?;
            *counted += u32::from(share < AT_ONCE);
            texts.push(format!("{subject} {share:.2} when it {end}"));
        }
    }
    let all = End::DEATHS.len() as u32;
    let verdict = match at_once {
        [zk, 0] if zk == all => Verdict::Holds,
        [0, _] => Verdict::DoesNotHold,
        _ => Verdict::DependsOn("how the client dies".into()),
    };
    let because =
        format!("in parts of the ttl or session timeout, the lock is free after {}", texts.join(", "));
    Ok(Judgement::new(verdict, because))
}

/// Adds how long the lock of a peer outlives its holder.
async fn add_peer(run: &mut Measuring<'_>, peer: Peer, lease: Duration) {
    let mut times = Vec::new();
    for _ in 0..PEER_ROUNDS {
        let Some(took) = run.part_of_a_peer(peer.as_str(), PEER_PATIENCE, death_of_peer(peer, lease)).await
        else {
            return;
        };
        times.push(millis(took));
    }
    run.add(Figure::new(peer.as_str(), LEASE, "ms", millis(lease)));
    run.add(Figure::new(peer.as_str(), End::Killed.metric(), "ms", median(times)));
}

const SUBJECTS: [&str; 4] = ["redis", "redlock", "zk", "postgres"];
const LEASE: &str = "lease";
/// The part of the lease within which a lock is free at once.
const AT_ONCE: f64 = 0.25;
/// Those that can be given the same session timeout.
const PEERS: [Peer; 2] = [Peer::Curator, Peer::Kazoo];
const PEER_ROUNDS: usize = 3;
const PEER_PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn a_death_decides_by_its_part_of_the_lease() {
        let by = |zk: [f64; 3], redis: f64| {
            let of = |subject, parts: [f64; 3]| {
                let deaths = End::DEATHS.into_iter().zip(parts);
                let gaps =
                    deaths.map(move |(end, part)| Figure::new(subject, end.metric(), "ms", part * 1e3));
                gaps.chain([Figure::new(subject, LEASE, "ms", 1e3)])
            };
            judged(&THIS, of("zk", zk).chain(of("redis", [redis; 3]))).0
        };
        assert_eq!(by([0.1; 3], 0.8), Verdict::Holds);
        assert_eq!(by([0.9; 3], 0.8), Verdict::DoesNotHold);
        assert_eq!(by([0.1, 0.1, 0.9], 0.8), Verdict::DependsOn("how the client dies".into()));
        assert_eq!(by([0.1; 3], 0.1), Verdict::DependsOn("how the client dies".into()));
    }
}
