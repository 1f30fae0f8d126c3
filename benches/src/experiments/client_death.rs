//! A holder that dies: the time until another client has the lock. `crash` measures it by SIGKILL, and claim 5 judges more ways to
//! die.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join_all, try_join_all};
use lock_testkit::history::{Event, EventKind};
use lock_testkit::proxy::Direction;
use lock_testkit::{FaultProxy, ZooKeeper, now_ns};
use polylock::{LockOptions, Locks};
use rand::Rng;
use tokio::time::{sleep, timeout};

use super::bench::{Bench, Measured, time};
use super::claim::{About, Claim, Judgement, Measuring};
use crate::data::median::median;
use crate::data::{BackendName, EventLog, Failure, Figure, Figures, Mode, Outcome, Peer, Plan, Row, Verdict};
use crate::rig::peers::missing;
use crate::rig::{Job, Order, Proxies, Subprocess, Target, Task, WorkerHandle, url};

pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("lease", format!("a ttl or session timeout of {}, renewed until the crash", time(plan.crash_lease))),
        (
            "rounds",
            format!(
                "the median of {} crashes, {} at a time, each at a random time between two renewals",
                plan.crash_rounds * plan.crash_holders,
                plan.crash_holders
            ),
        ),
        ("memory", "a guard with a fixed ttl is forgotten, as there is no process to kill".into()),
    ]
}

pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let plan = &bench.plan;
    let mut takeovers = Vec::new();
    for round in 0..plan.crash_rounds {
        let crashes = (0..plan.crash_holders).map(|number| async move {
            let number = (round * plan.crash_holders + number) as u32;
            let lock = bench.lock(&format!("crash-{number}"));
            match target.backend() {
                BackendName::Memory => forget(bench, target, &lock, number).await,
                _ => {
                    let url = with_lease(target.backend(), target.url(), plan.crash_lease);
                    let job = |process, task| Job {
                        lock: bench.lock_of(&lock, process),
                        ..Job::new(&url, &lock, process, task)
                    };
                    // A death ends all holds of a process: its number is unique in the scenario.
                    let [holder, waiter] = [job(number * 2, Task::Hold), job(number * 2 + 1, Task::Wait)];
                    death(target.backend(), holder, waiter, End::Killed).await
                }
            }
        });
        takeovers.extend(try_join_all(crashes).await?);
    }
    let floor = takeovers.first().map_or(plan.crash_lease, |takeover| takeover.lease);
    let gaps_ms: Vec<f64> =
        takeovers.iter().map(|takeover| millis(takeover.gap.unwrap_or_default())).collect();
    let [first, last] = [f64::min, f64::max].map(|of| gaps_ms.iter().copied().reduce(of).unwrap_or_default());
    let row = Row::new("crash", target.name(), "takeover", "ms", median(gaps_ms)).with_floor(millis(floor));
    let range = format!("{first:.0} to {last:.0} ms");
    Ok(Measured {
        backend: target.name(),
        rows: vec![row],
        events: takeovers.into_iter().flat_map(|takeover| takeover.events).collect(),
        notes: vec![("range", range)],
        ..Measured::default()
    })
}

/// What followed the end of a holder.
struct Takeover {
    /// From the end until the waiter has the lock; nothing if it had it before, an overlap that the events show.
    gap: Option<Duration>,
    /// How long a lock outlives its holder.
    lease: Duration,
    events: Vec<Event>,
}

impl Takeover {
    fn new(ended_ns: u64, lease: Duration, mut holder: Vec<Event>, waiter: Vec<Event>) -> Outcome<Self> {
        let granted = waiter.iter().find(|event| matches!(event.kind, EventKind::Acquired { .. }));
        let granted_ns = granted.ok_or_else(|| Failure::new("the waiter reported no grant"))?.at_ns;
        holder.extend(waiter);
        Ok(Self { gap: granted_ns.checked_sub(ended_ns).map(Duration::from_nanos), lease, events: holder })
    }

    fn gap(&self) -> Outcome<Duration> {
        self.gap.ok_or_else(|| Failure::new("the waiter had the lock before its holder ended"))
    }
}

/// The URL for locks that outlive their holder by this time.
fn with_lease(backend: BackendName, url: &str, lease: Duration) -> String {
    let option = if backend == BackendName::Zk { "session_timeout" } else { "ttl" };
    url::with_option(url, option, &format!("{}ms", lease.as_millis()))
}

/// Ends a process that holds the lock while another one waits for it.
async fn death(backend: BackendName, holder: Job, waiter: Job, end: End) -> Outcome<Takeover> {
    let proxies =
        if end.is_of_the_network() { Some(Proxies::start(backend, &holder.url).await?) } else { None };
    let url = proxies.as_ref().map_or_else(|| holder.url.clone(), |proxies| proxies.url(&holder.url));
    let (process, recorded_as) = (holder.process, holder.recorded_as.clone());
    let holder = WorkerHandle::start_one(Job { url, ..holder }).await?;
    let (mut held, lease) = (holder.events(PATIENCE).await?, holder.lease);
    let waiter = WorkerHandle::start_one(waiter).await?;
    waiter.send(Order::Go).await?;
    sleep(alive(lease)).await;

    let ended_ns = now_ns();
    end.happens(&holder, proxies.as_ref().map_or(&[], Proxies::all)).await?;
    let mut log = EventLog::new(process, 0, &recorded_as);
    log.died(ended_ns);
    held.extend(log.into_events());
    Takeover::new(ended_ns, lease, held, waiter.events(lease * 3 + PATIENCE).await?)
}

/// Forgets a guard, as the memory backend has no process to kill.
async fn forget(bench: &Bench, target: &Target, lock: &str, number: u32) -> Outcome<Takeover> {
    let lease = bench.plan.crash_lease;
    // Separate connections: the holder's one still counts its forgotten guard.
    let (holder, waiter) = (Locks::connect(target.url()).await?, Locks::connect(target.url()).await?);
    let (holding, waiting) = (number * 2, number * 2 + 1);
    let mut log = EventLog::new(holding, 0, lock);
    let mutex = holder.mutex_with(bench.lock_of(lock, holding), LockOptions::new().fixed_ttl(lease))?;
    log.acquire_called();
    let guard = mutex.acquire().await?;
    log.acquired(&guard);
    let died_ns = now_ns();
    log.died(died_ns);
    std::mem::forget(guard);

    let mut waited = EventLog::new(waiting, 0, lock);
    waited.acquire_called();
    let guard = waiter.mutex(bench.lock_of(lock, waiting)).acquire().await?;
    waited.acquired(&guard);
    waited.release_called();
    waited.released(guard.release().await?);
    Takeover::new(died_ns, lease, log.into_events(), waited.into_events())
}

/// Claim 5: what happens to the lock of a client that dies.
#[derive(Debug)]
pub(super) struct ClientDeath;

#[async_trait(?Send)]
impl Claim for ClientDeath {
    fn about(&self) -> About {
        About {
            id: 5,
            says: "When a client dies, ZooKeeper frees its lock at once; Redis waits for the ttl.",
            how: "A process holds a lock that is renewed, with the same ttl and session timeout everywhere, and another process \
                  waits for it. The holder is killed by SIGKILL, loses its connections for ever, is cut off from the servers \
                  (nothing arrives in either direction, and no connection is closed), or exits in good order. Measured is the time from \
                  then until the other process has the lock: the median of five rounds (one in a quick run), each at a random \
                  time between two renewals. Beside them, in a full run, Curator and kazoo: killed by SIGKILL, on a server that \
                  grants the same session timeout. Peers on Redis are left out, as their programs here have ttls of their own.",
            rule: "A lock is freed at once when the median is below a quarter of the ttl or session timeout. Holds when \
                   ZooKeeper frees it at once in all three ways to die, and Redis in none; does not hold when ZooKeeper frees \
                   it at once in none; otherwise it depends on how the client dies.",
            needs: &[],
            in_quick: true,
        }
    }

    async fn measure(&self, run: &mut Measuring<'_>) {
        let (rounds, lease) = match run.mode {
            Mode::Quick => (1, Duration::from_secs(1)),
            Mode::Full => (5, Duration::from_secs(2)),
        };
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
        for end in End::ALL {
            run.bars(&[(&format!("Until another client has the lock: the holder {end}"), end.metric())]);
        }
    }

    fn judge(&self, figures: &Figures) -> Outcome<Judgement> {
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
}

/// How a holder ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Killed,
    Disconnected,
    CutOff,
    Exited,
}

impl End {
    const ALL: [Self; 4] = [Self::Killed, Self::Disconnected, Self::CutOff, Self::Exited];
    /// Those in which the client does not release the lock.
    const DEATHS: [Self; 3] = [Self::Killed, Self::Disconnected, Self::CutOff];

    const fn metric(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Disconnected => "disconnected",
            Self::CutOff => "cut_off",
            Self::Exited => "exited",
        }
    }

    /// Whether proxies make it happen.
    const fn is_of_the_network(self) -> bool {
        matches!(self, Self::Disconnected | Self::CutOff)
    }

    /// Ends the holder, which is connected by these proxies.
    async fn happens(self, holder: &WorkerHandle, proxies: &[FaultProxy]) -> Outcome<()> {
        match self {
            Self::Killed => holder.kill(),
            Self::Disconnected => proxies.iter().for_each(|proxy| {
                proxy.refuse(true);
                proxy.fin();
            }),
            Self::CutOff => {
                for direction in [Direction::ToServer, Direction::ToClient] {
                    proxies.iter().for_each(|proxy| proxy.black_hole(direction, true));
                }
            }
            Self::Exited => holder.send(Order::Go).await?,
        }
        Ok(())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Killed => "is killed",
            Self::Disconnected => "loses its connections",
            Self::CutOff => "is cut off",
            Self::Exited => "exits",
        })
    }
}

/// The time from the end of a holder with exactly this lease until a process that waits has the lock.
async fn gap_after(
    end: End,
    backend: BackendName,
    url: &str,
    lock: &str,
    lease: Duration,
) -> Outcome<Duration> {
    let url = with_lease(backend, url, lease);
    let [holder, waiter] =
        [(0, Task::Hold), (1, Task::Wait)].map(|(of, task)| Job::new(&url, lock, of, task));
    let takeover = death(backend, holder, waiter, end).await?;
    if takeover.lease != lease {
        return Err(Failure::new(format!("its lease is {:?}, not {lease:?}", takeover.lease)));
    }
    takeover.gap()
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

/// The time from the SIGKILL of a holder until another process has the lock.
async fn death_of_peer(peer: Peer, lease: Duration) -> Outcome<Duration> {
    if let Some(why) = missing(peer) {
        return Err(Failure::new(why));
    }
    // The peers ask for longer sessions, and this server grants none.
    let server = ZooKeeper::builder().max_session_timeout(lease).start().await?;
    let url = server.url();
    let start = || Subprocess::of(peer, &url, PEER_LOCK);
    let (mut holder, mut waiter) = (start().await?, start().await?);
    let mut log = EventLog::new(0, 0, PEER_LOCK);
    let holding = holder.contend(now_ns() + ONCE_NS, FOR_EVER_NS, &mut log);
    if timeout(alive(lease), holding).await.is_ok() {
        return Err(Failure::new("the holder has ended"));
    }
    let mut log = EventLog::new(1, 0, PEER_LOCK);
    let waiting = timeout(lease * 3 + PATIENCE, waiter.contend(now_ns() + ONCE_NS, 0, &mut log));
    let death = async {
        sleep(alive(lease)).await;
        let at_ns = now_ns();
        // Dropping it kills the process.
        drop(holder);
        at_ns
    };
    let (waited, ended_ns) = join(waiting, death).await;
    waited.map_err(|_| Failure::new("the waiter did not get the lock"))??;
    Takeover::new(ended_ns, lease, Vec::new(), log.into_events())?.gap()
}

/// Long enough for a renewal, and until a random time between two of them.
fn alive(lease: Duration) -> Duration {
    lease.mul_f64(1.2 + rand::rng().random_range(0.0..0.34))
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

const SUBJECTS: [&str; 4] = ["redis", "redlock", "zk", "postgres"];
const LEASE: &str = "lease";
/// The part of the lease within which a lock is free at once.
const AT_ONCE: f64 = 0.25;
/// Those that can be given the same session timeout.
const PEERS: [Peer; 2] = [Peer::Curator, Peer::Kazoo];
const PEER_LOCK: &str = "/death";
const PEER_ROUNDS: usize = 3;
const PEER_PATIENCE: Duration = Duration::from_secs(60);
/// A program that gets the lock later acquires it only once.
const ONCE_NS: u64 = 1_000_000_000;
const FOR_EVER_NS: u64 = 3_600_000_000_000;
/// The timeout of a worker for what is not measured.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(zk: [f64; 3], redis: f64) -> Verdict {
        let mut figures = Vec::new();
        for (subject, parts) in [("zk", zk), ("redis", [redis; 3])] {
            figures.push(Figure::new(subject, LEASE, "ms", 1000.0));
            for (end, part) in End::DEATHS.into_iter().zip(parts) {
                figures.push(Figure::new(subject, end.metric(), "ms", part * 1000.0));
            }
        }
        ClientDeath.judge(&Figures::from(figures)).unwrap().verdict
    }

    #[test]
    fn a_death_decides_by_its_part_of_the_lease() {
        assert_eq!(verdict([0.1; 3], 0.8), Verdict::Holds);
        assert_eq!(verdict([0.9; 3], 0.8), Verdict::DoesNotHold);
        assert_eq!(verdict([0.1, 0.1, 0.9], 0.8), Verdict::DependsOn("how the client dies".into()));
        assert_eq!(verdict([0.1; 3], 0.1), Verdict::DependsOn("how the client dies".into()));
    }
}
