//! Claim 5: what happens to the lock of a client that dies.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join_all};
use lock_testkit::history::{Event, EventKind};
use lock_testkit::proxy::Direction;
use lock_testkit::{FaultProxy, ZooKeeper, now_ns};
use rand::Rng;
use tokio::time::{sleep, timeout};

use super::claim::{About, Claim, Judgement, Measuring};
use crate::data::events::EventLog;
use crate::data::failure::{Failure, Outcome};
use crate::data::figures::Figures;
use crate::data::names::{BackendName, Peer};
use crate::data::results::{Figure, Mode, Picture, Verdict};
use crate::rig::counters::Counters;
use crate::rig::peers::{Subprocess, missing};
use crate::rig::url;
use crate::rig::worker::handle::WorkerHandle;
use crate::rig::worker::{Job, Order, Task};

/// The claim.
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
                    async move { (*subject, end, death(*backend, url, &lock, end, lease).await) }
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
                if let Some(median) = median(&mut times) {
                    run.add(Figure::new(subject, end.metric(), "ms", median));
                }
            }
        }
        if run.mode == Mode::Full && run.target_of("zk").is_some() {
            for peer in PEERS {
                add_peer(run, peer, lease).await;
            }
        }
        for end in End::ALL {
            run.draw(Picture::Bars {
                title: format!("Until another client has the lock: the holder {end}"),
                metric: end.metric().into(),
            });
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

/// The time from the end of a holder until a process that waits has the lock.
async fn death(backend: BackendName, url: &str, lock: &str, end: End, lease: Duration) -> Outcome<Duration> {
    let option = if backend == BackendName::Zk { "session_timeout" } else { "ttl" };
    let url = url::with_option(url, option, &format!("{}ms", lease.as_millis()));
    let proxies = Counters::start(backend, &url).await?;
    let holder = WorkerHandle::start_one(Job::new(&proxies.url(&url), lock, 0, Task::Hold)).await?;
    if holder.lease != lease {
        return Err(Failure::new(format!("its lease is {:?}, not {lease:?}", holder.lease)));
    }
    holder.events(PATIENCE).await?;
    let waiter = WorkerHandle::start_one(Job::new(&url, lock, 1, Task::Wait)).await?;
    waiter.send(Order::Go).await?;
    sleep(alive(lease)).await;

    let ended_ns = now_ns();
    end.happens(&holder, proxies.proxies()).await?;
    since(ended_ns, &waiter.events(lease * 3 + PATIENCE).await?)
}

/// The time from the end of the holder until the waiter has the lock.
fn since(ended_ns: u64, events: &[Event]) -> Outcome<Duration> {
    granted(events)?
        .checked_sub(ended_ns)
        .map(Duration::from_nanos)
        .ok_or_else(|| Failure::new("the waiter had the lock before its holder ended"))
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
    if let Some(median) = median(&mut times) {
        run.add(Figure::new(peer.as_str(), End::Killed.metric(), "ms", median));
    }
}

/// The time from the SIGKILL of a holder until another process has the lock.
async fn death_of_peer(peer: Peer, lease: Duration) -> Outcome<Duration> {
    if let Some(why) = missing(peer) {
        return Err(Failure::new(why));
    }
    // The peers ask for longer sessions, and this server grants none.
    let server = ZooKeeper::builder().max_session_timeout(lease).start().await?;
    let start = async || match peer {
        Peer::Curator => Subprocess::curator(&server.url(), PEER_LOCK).await,
        _ => Subprocess::kazoo(&server.url(), PEER_LOCK).await,
    };
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
    since(ended_ns, &log.into_events())
}

/// Long enough for a renewal, and until a random time between two of them.
fn alive(lease: Duration) -> Duration {
    lease.mul_f64(1.2 + rand::rng().random_range(0.0..0.34))
}

fn granted(events: &[Event]) -> Outcome<u64> {
    let granted = events.iter().find(|event| matches!(event.kind, EventKind::Acquired { .. }));
    Ok(granted.ok_or_else(|| Failure::new("the waiter reported no grant"))?.at_ns)
}

fn median(times: &mut [f64]) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

const SUBJECTS: [&str; 3] = ["redis", "redlock", "zk"];
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
