//! Redlock while a minority of its masters does not answer: `degraded` measures it, and claim 7 judges it.
//!
//! In `degraded` a master is stopped by SIGSTOP: it accepts connections and requests, and never answers. rslock is measured in
//! the same states, on the same masters.

use std::fmt;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lock_testkit::proxy::Direction;
use lock_testkit::{FaultProxy, RedisServer};
use polylock::Locks;
use tokio::time::timeout;

use super::bench::{Bench, Measured, connect, time};
use super::claim::{About, Claim, Judgement, Measuring};
use super::side_by_side::{MeasuredClient, side_by_side};
use crate::data::{
    BackendName, Compared, EventLog, Failure, Figure, Figures, Latency, Mode, Outcome, Peer, Plan, Times,
    Verdict,
};
use crate::rig::measured_lock::hold_once;
use crate::rig::{MeasuredLock, Proxies, Rslock, Target, url};

pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("fault", "one of the masters is stopped by SIGSTOP".into()),
        ("floor", "the same lock with all masters healthy".into()),
        (
            "duration",
            format!("{} healthy, then {} with the fault", time(plan.uncontended), time(plan.uncontended)),
        ),
    ]
}

pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let victim = target
        .masters()
        .last()
        .ok_or_else(|| Failure::new("servers given by --url are not stopped: leave out --url redlock=..."))?;
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let plan = bench.plan;
    let client = MeasuredClient::new(&locks, &rival, bench, &bench.lock("degraded"));
    let healthy = side_by_side(client, (), plan).await?;
    let theirs = Rslock::new(url::each(target.url()), &bench.lock("rslock"));
    let mut log = EventLog::new(0, 0, &bench.lock("rslock"));
    let healthy_theirs = repeat(&theirs, plan.counted, &mut log).await?;

    // Continued on drop, so that the next scenario finds all masters alive.
    let stopped = Stopped::stop(victim);
    let degraded = side_by_side(healthy.client, (), plan).await;
    let degraded_theirs = repeat(&theirs, plan.counted, &mut log).await;
    drop(stopped);
    let degraded = degraded?;

    let rows = Compared::with(degraded.times.ours, healthy.times.ours).rows("degraded", target.name());
    rival.close().await?;
    locks.close().await?;
    let mut ours = Measured {
        backend: target.name(),
        rows,
        events: degraded.client.into_events(),
        ..Measured::default()
    };
    let name = Peer::Rslock.as_str();
    let theirs = match degraded_theirs {
        Ok(times) => Compared::with(times, healthy_theirs).rows("degraded", name),
        Err(failure) => {
            ours.complaints.push(failure.during(name).to_string());
            Vec::new()
        }
    };
    Ok(vec![ours, Measured { backend: name, rows: theirs, events: log.into_events(), ..Measured::default() }])
}

/// Acquires and releases for this long.
async fn repeat<L: MeasuredLock>(lock: &L, span: Duration, log: &mut EventLog) -> Outcome<Times> {
    let (end, mut times) = (Instant::now() + span, Times::new());
    while Instant::now() < end {
        let hold = hold_once(lock).await?;
        times.record(hold.acquire_ns(), hold.release_ns());
        log.hold(&hold);
    }
    Ok(times)
}

struct Stopped<'a>(&'a RedisServer);

impl<'a> Stopped<'a> {
    fn stop(server: &'a RedisServer) -> Self {
        server.stop();
        Self(server)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.cont();
    }
}

/// Claim 7: Redlock survives the loss of a minority.
#[derive(Debug)]
pub(super) struct Minority;

#[async_trait(?Send)]
impl Claim for Minority {
    fn about(&self) -> About {
        About {
            id: 7,
            says: "Redlock survives the loss of a minority of its masters.",
            how: "One client acquires and releases a free lock over five masters, while so many of them are lost (connections \
                  end, and new ones are refused), hang (nothing is answered), are slow (each message takes 20 ms longer), or \
                  have just reset all connections. Counted are the attempts that succeed within a second, and their time.",
            rule: "Holds when at least 95 % of the attempts succeed with up to two masters in trouble of every kind, and none \
                   with three that are lost or hang; does not hold when they do for no kind; otherwise it depends on the fault. A lock that is granted while \
                   three or more are lost or hang breaks what polylock promises.",
            needs: &[],
            in_quick: false,
        }
    }

    async fn measure(&self, run: &mut Measuring<'_>) {
        let Some(url) = run.url("redlock") else { return };
        let attempts = match run.mode {
            Mode::Quick => 5,
            Mode::Full => 12,
        };
        for trouble in Trouble::ALL {
            for masters in 0..=5 {
                for subject in [OURS, PEER] {
                    // Names of their own: a lock that could not be released lasts for its ttl.
                    let lock = run.bench.lock(&format!("minority-{}-{masters}-{subject}", trouble.metric()));
                    let name = format!("{subject}, {masters} masters {trouble}");
                    let part = attempts_in(&url, &lock, trouble, masters, attempts, subject);
                    let measured = match subject {
                        OURS => run.part(&name, PATIENCE, part).await,
                        _ => run.part_of_a_peer(&name, PATIENCE, part).await,
                    };
                    if let Some((share, latency)) = measured {
                        add(run, subject, trouble, masters as u32, share, &latency);
                    }
                }
            }
        }
        for trouble in Trouble::ALL {
            let title = format!("Attempts that succeed, in percent: masters that {trouble}");
            run.curves("masters", &[(&title, trouble.metric())]);
        }
    }

    fn judge(&self, figures: &Figures) -> Outcome<Judgement> {
        let (mut survives, mut texts) = (0, Vec::new());
        for trouble in Trouble::ALL {
            let share = |masters: u32| figures.at(OURS, trouble.metric(), f64::from(masters));
            let minority = share(1)?.min(share(2)?);
            let majority = share(3)?;
            texts.push(format!(
                "{minority:.0} % with up to two that {trouble} and {majority:.0} % with three"
            ));
            let is_expected = minority >= ENOUGH && (!trouble.is_a_loss() || majority < 1e-9);
            survives += usize::from(is_expected);
        }
        let verdict = Verdict::of(survives, Trouble::ALL.len(), "the fault").unwrap_or(Verdict::NotJudged);
        Ok(Judgement::new(verdict, format!("attempts that succeed: {}", texts.join(", "))))
    }

    fn broken_promise(&self, figures: &Figures) -> Option<String> {
        let losses = Trouble::ALL.into_iter().filter(|trouble| trouble.is_a_loss());
        let mut majorities = losses.flat_map(|trouble| (3..=5_u32).map(move |masters| (trouble, masters)));
        let granted = |trouble: Trouble, masters| {
            figures.at(OURS, trouble.metric(), f64::from(masters)).is_ok_and(|share| share > 0.0)
        };
        let (trouble, masters) = majorities.find(|(trouble, masters)| granted(*trouble, *masters))?;
        Some(format!("a lock was granted while {masters} of five masters {trouble}"))
    }
}

/// What happens to masters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Trouble {
    Lost,
    Hung,
    Slow,
    Reset,
}

impl Trouble {
    const ALL: [Self; 4] = [Self::Lost, Self::Hung, Self::Slow, Self::Reset];

    const fn metric(self) -> &'static str {
        match self {
            Self::Lost => "success_lost",
            Self::Hung => "success_hung",
            Self::Slow => "success_slow",
            Self::Reset => "success_reset",
        }
    }

    /// Whether a master in this trouble cannot vote.
    const fn is_a_loss(self) -> bool {
        matches!(self, Self::Lost | Self::Hung)
    }

    fn happens(self, proxy: &FaultProxy) {
        let both = [Direction::ToServer, Direction::ToClient];
        match self {
            Self::Lost => {
                proxy.refuse(true);
                proxy.rst();
            }
            Self::Hung => both.into_iter().for_each(|direction| proxy.black_hole(direction, true)),
            Self::Slow => both.into_iter().for_each(|direction| proxy.delay(direction, SLOWER)),
            Self::Reset => proxy.rst(),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lost => "are lost",
            Self::Hung => "hang",
            Self::Slow => "are slow",
            Self::Reset => "reset connections",
        })
    }
}

/// The share of attempts that succeed, in percent, and how long these take.
async fn attempts_in(
    url: &str,
    lock: &str,
    trouble: Trouble,
    masters: usize,
    attempts: u32,
    subject: &str,
) -> Outcome<(f64, Latency)> {
    let proxies = Proxies::start(BackendName::Redlock, url).await?;
    let url = proxies.url(url);
    let happens = || proxies.all().iter().take(masters).for_each(|proxy| trouble.happens(proxy));
    if subject == OURS {
        let locks = Locks::connect(&url).await?;
        let measured =
            attempt(|number| locks.mutex(format!("{lock}-{number}")), attempts, trouble, happens).await;
        // Masters that are lost hold up an orderly end.
        let _ = timeout(WITHIN, locks.close()).await;
        return measured;
    }
    let urls = url::each(&url);
    attempt(|number| Rslock::new(urls.clone(), &format!("{lock}-{number}")), attempts, trouble, happens).await
}

/// Acquires and releases one lock after the other.
async fn attempt<L: MeasuredLock>(
    lock: impl Fn(u32) -> L,
    attempts: u32,
    trouble: Trouble,
    happens: impl Fn(),
) -> Outcome<(f64, Latency)> {
    // The first one connects.
    let first = lock(0);
    first.release(first.acquire().await?).await?;
    happens();
    let (mut succeeded, mut latency) = (0, Latency::new());
    for number in 1..=attempts {
        let lock = lock(number);
        if trouble == Trouble::Reset {
            happens();
        }
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

fn add(
    run: &mut Measuring<'_>,
    subject: &str,
    trouble: Trouble,
    masters: u32,
    share: f64,
    latency: &Latency,
) {
    run.add(Figure::new(subject, trouble.metric(), "%", share).at(masters));
    if latency.len() > 0 {
        let metric = trouble.metric().replace("success", "p50");
        run.add(Figure::new(subject, &metric, "us", latency.quantile_us(0.5)).at(masters));
    }
}

const OURS: &str = "redlock";
const PEER: &str = "rslock";
const SLOWER: Duration = Duration::from_millis(20);
const WITHIN: Duration = Duration::from_secs(1);
const ENOUGH_FAILURES: u32 = 3;
/// In percent.
const ENOUGH: f64 = 95.0;
const PATIENCE: Duration = Duration::from_secs(90);

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict, and whether polylock kept its promise.
    fn judged(share: impl Fn(Trouble, u32) -> f64) -> (Verdict, bool) {
        let mut figures = Vec::new();
        for trouble in Trouble::ALL {
            for masters in 0..=5 {
                let share = share(trouble, masters);
                figures.push(Figure::new(OURS, trouble.metric(), "%", share).at(masters));
            }
        }
        let figures = Figures::from(figures);
        (Minority.judge(&figures).unwrap().verdict, Minority.broken_promise(&figures).is_none())
    }

    #[test]
    fn a_minority_must_not_matter_and_a_majority_must() {
        let sound = |trouble: Trouble, masters| if trouble.is_a_loss() && masters > 2 { 0.0 } else { 100.0 };
        assert_eq!(judged(sound), (Verdict::Holds, true));
        assert_eq!(judged(|_, _| 0.0), (Verdict::DoesNotHold, true));
        let hung = |trouble, masters| if trouble == Trouble::Hung { 0.0 } else { sound(trouble, masters) };
        assert_eq!(judged(hung), (Verdict::DependsOn("the fault".into()), true));
        // A lock by two of five excludes nobody.
        assert_eq!(judged(|_, _| 100.0), (Verdict::DependsOn("the fault".into()), false));
        let four = |trouble, masters| if masters == 4 { 3.0 } else { sound(trouble, masters) };
        assert_eq!(judged(four), (Verdict::Holds, false));
    }
}
