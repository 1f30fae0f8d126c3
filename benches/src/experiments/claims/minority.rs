//! Claim 7: Redlock survives the loss of a minority of its masters.

use std::time::{Duration, Instant};

use lock_testkit::FaultProxy;
use lock_testkit::proxy::Direction::{ToClient, ToServer};
use polylock::Locks;
use tokio::time::timeout;

use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "minority",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 7,
        says: "Redlock survives the loss of a minority of its masters.",
        how: "One client acquires and releases a free lock over five masters, while so many of them are lost (connections \
              end, and new ones are refused), hang (nothing is answered), are slow (each message takes 20 ms longer), or \
              have just reset all connections. Counted are the attempts that succeed within a second, and their time.",
        rule: "Holds when at least 95 % of the attempts succeed with up to two masters in trouble of every kind, and none \
               with three that are lost or hang; does not hold when they do for no kind; otherwise it depends on the fault. A lock that is granted while \
               three or more are lost or hang breaks what polylock promises.",
        pictures: || {
            let title = |says: &str| format!("Attempts that succeed, in percent: masters that {says}");
            TROUBLES.map(|trouble| curve(&title(trouble.says), trouble.metric, "masters")).into()
        },
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let Some(url) = run.url("redlock") else { return };
    for trouble in TROUBLES {
        for masters in 0..=5_u32 {
            // Names of their own: a lock that could not be released lasts for its ttl.
            let lock = |subject| run.bench.lock(&format!("minority-{}-{masters}-{subject}", trouble.metric));
            let name = |subject| format!("{subject}, {masters} masters {}", trouble.says);
            let (ours, theirs) = (lock(OURS), lock(PEER));
            let part = ours_in(&url, &ours, trouble, masters, ATTEMPTS);
            if let Some(measured) = run.part(&name(OURS), PATIENCE, part).await {
                add(run, OURS, trouble, masters, &measured);
            }
            let part = theirs_in(&url, &theirs, trouble, masters, ATTEMPTS);
            if let Some(measured) = run.part_of_a_peer(&name(PEER), PATIENCE, part).await {
                add(run, PEER, trouble, masters, &measured);
            }
        }
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let mut parts = Vec::new();
    for Trouble { metric, says, is_a_loss, .. } in TROUBLES {
        let share = |masters: u32| figures.at(OURS, metric, f64::from(masters));
        let (minority, majority) = (share(1)?.min(share(2)?), share(3)?);
        let text = format!("{minority:.0} % with up to two that {says} and {majority:.0} % with three");
        parts.push((minority >= ENOUGH && (!is_a_loss || majority < 1e-9), text));
    }
    Judgement::of_parts(parts, "the fault", "attempts that succeed", "nothing was tried")
}

fn broken_promise(figures: &Figures) -> Option<String> {
    let losses = TROUBLES.into_iter().filter(|trouble| trouble.is_a_loss);
    let mut majorities = losses.flat_map(|trouble| (3..=5_u32).map(move |masters| (trouble, masters)));
    let granted = |trouble: Trouble, masters| {
        figures.at(OURS, trouble.metric, f64::from(masters)).is_ok_and(|share| share > 0.0)
    };
    let (trouble, masters) = majorities.find(|(trouble, masters)| granted(*trouble, *masters))?;
    Some(format!("a lock was granted while {masters} of five masters {}", trouble.says))
}

fn add(run: &mut Measuring<'_>, subject: &str, trouble: Trouble, masters: u32, measured: &(f64, Latency)) {
    let (share, latency) = measured;
    run.add(Figure::new(subject, trouble.metric, "%", *share).at(masters));
    if latency.len() > 0 {
        let metric = trouble.metric.replace("success", "p50");
        run.add(Figure::new(subject, &metric, "us", latency.quantile_us(0.5)).at(masters));
    }
}

/// What happens to masters.
#[derive(Clone, Copy)]
struct Trouble {
    metric: &'static str,
    says: &'static str,
    /// Whether a master in this trouble cannot vote.
    is_a_loss: bool,
    /// Before each attempt.
    happens: fn(&FaultProxy),
}

const TROUBLES: [Trouble; 4] = [
    Trouble {
        metric: "success_lost",
        says: "are lost",
        is_a_loss: true,
        happens: |proxy| {
            proxy.refuse(true);
            proxy.rst();
        },
    },
    Trouble {
        metric: "success_hung",
        says: "hang",
        is_a_loss: true,
        happens: |proxy| [ToServer, ToClient].into_iter().for_each(|way| proxy.black_hole(way, true)),
    },
    Trouble {
        metric: "success_slow",
        says: "are slow",
        is_a_loss: false,
        happens: |proxy| [ToServer, ToClient].into_iter().for_each(|way| proxy.delay(way, SLOWER)),
    },
    Trouble {
        metric: "success_reset",
        says: "reset connections",
        is_a_loss: false,
        happens: |proxy| proxy.rst(),
    },
];

/// The share of attempts that succeed, in percent, and how long these take.
async fn ours_in(
    url: &str,
    lock: &str,
    trouble: Trouble,
    masters: u32,
    attempts: u32,
) -> Outcome<(f64, Latency)> {
    let proxies = Proxies::start(BackendName::Redlock, url).await?;
    let locks = Locks::connect(&proxies.url(url)).await?;
    let happens = || proxies.all().iter().take(masters as usize).for_each(trouble.happens);
    let measured = attempt(|number| locks.mutex(format!("{lock}-{number}")), attempts, happens).await;
    // Masters that are lost hold up an orderly end.
    let _ = timeout(WITHIN, locks.close()).await;
    measured
}

async fn theirs_in(
    url: &str,
    lock: &str,
    trouble: Trouble,
    masters: u32,
    attempts: u32,
) -> Outcome<(f64, Latency)> {
    let proxies = Proxies::start(BackendName::Redlock, url).await?;
    let urls = url::each(&proxies.url(url));
    let happens = || proxies.all().iter().take(masters as usize).for_each(trouble.happens);
    attempt(|number| Rslock::new(urls.clone(), &format!("{lock}-{number}")), attempts, happens).await
}

/// Acquires and releases one lock after the other.
async fn attempt<L: MeasuredLock>(
    lock: impl Fn(u32) -> L,
    attempts: u32,
    happens: impl Fn(),
) -> Outcome<(f64, Latency)> {
    // The first one connects.
    let first = lock(0);
    first.release(first.acquire().await?).await?;
    let (mut succeeded, mut latency) = (0, Latency::new());
    for number in 1..=attempts {
        let lock = lock(number);
        happens();
        let began = Instant::now();
        if let Ok(Ok(held)) = timeout(WITHIN, lock.acquire()).await {
            latency.record(u64::try_from(began.elapsed().as_nanos())?);
            succeeded += 1;
            let _ = timeout(WITHIN, lock.release(held)).await;
        }
        // Nothing is to be learnt from more of these.
        if succeeded == 0 && number >= ENOUGH_FAILURES {
            break;
        }
    }
    Ok((f64::from(succeeded) / f64::from(attempts) * 100.0, latency))
}

const OURS: &str = "redlock";
const PEER: &str = "rslock";
/// In percent.
const ENOUGH: f64 = 95.0;
const ATTEMPTS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(90);
const SLOWER: Duration = Duration::from_millis(20);
const WITHIN: Duration = Duration::from_secs(1);
const ENOUGH_FAILURES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    fn by(share: impl Fn(Trouble, u32) -> f64) -> (Verdict, bool) {
        let all = TROUBLES.into_iter().flat_map(|trouble| (0..=5_u32).map(move |masters| (trouble, masters)));
        judged(
            &THIS,
            all.map(|(trouble, masters)| {
                Figure::new(OURS, trouble.metric, "%", share(trouble, masters)).at(masters)
            }),
        )
    }

    #[test]
    fn a_minority_must_not_matter_and_a_majority_must() {
        let sound = |trouble: Trouble, masters| if trouble.is_a_loss && masters > 2 { 0.0 } else { 100.0 };
        assert_eq!(by(sound), (Verdict::Holds, true));
        assert_eq!(by(|_, _| 0.0), (Verdict::DoesNotHold, true));
        let hung =
            |trouble: Trouble, masters| if trouble.says == "hang" { 0.0 } else { sound(trouble, masters) };
        assert_eq!(by(hung), (Verdict::DependsOn("the fault".into()), true));
        // A lock by two of five excludes nobody.
        assert_eq!(by(|_, _| 100.0), (Verdict::DependsOn("the fault".into()), false));
        let four = |trouble, masters| if masters == 4 { 3.0 } else { sound(trouble, masters) };
        assert_eq!(by(four), (Verdict::Holds, false));
    }
}
