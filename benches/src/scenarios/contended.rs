//! `contended`: processes fight for one lock, each holds it for a moment.
//!
//! Every process records what it did on a clock that all of them share; the histories are put together afterwards.
//! A second, short pass sends every connection through a proxy that counts requests, so that the counting does not
//! disturb the timing.

use std::time::Duration;

use lock_testkit::history::{Event, EventKind};
use lock_testkit::proxy::Protocol;
use lock_testkit::{FaultProxy, now_ns};
use polylock::{Locks, Mutex};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Bench, Measured, Plan, time};
use crate::address;
use crate::backends::Target;
use crate::crew::Hand;
use crate::diary::Diary;
use crate::failure::{Failure, Outcome};
use crate::latency::Latency;
use crate::options::BackendName;
use crate::results::Row;
use crate::worker::{Job, Order, Task};

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("processes", format!("{}; memory: so many tasks of one process", plan.processes)),
        ("hold", format!("{}, asleep on tokio's timer, which rounds up to the next millisecond", time(HOLD))),
        ("duration", format!("{} after {} of warm-up", time(plan.contended), time(plan.warm_up))),
        ("runtime", "current_thread in every process; memory: multi_thread with 2 workers".into()),
        ("hand-off", "from the call of release to the return of the next acquire, whoever gets it".into()),
        (
            "requests",
            format!(
                "commands that arrive at the servers, counted by a proxy in a pass of {}",
                time(plan.counted)
            ),
        ),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let plan = &bench.plan;
    let lock = bench.lock("contended");
    let window = Window::after(plan.contended, plan.warm_up);
    let mut measured = if target.backend() == BackendName::Memory {
        let mut measured =
            timed(target.name(), fight_inside(bench, target, &lock, window).await?, window, plan)?;
        // Nothing goes over a connection.
        measured.rows.push(Row::new("contended", target.name(), "requests_per_grant", "", 0.0));
        return Ok(measured);
    } else {
        let crew = crew(bench, target.url(), &lock).await?;
        let window = Window::after(plan.contended, plan.warm_up);
        timed(target.name(), fight(&crew, window).await?, window, plan)?
    };
    let (requests, mut events) = counted(bench, target, &bench.lock("counted")).await?;
    measured.rows.push(Row::new("contended", target.name(), "requests_per_grant", "", requests));
    measured.events.append(&mut events);
    Ok(measured)
}

/// When contenders contend, on the clock of the histories.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Window {
    /// From then on grants count.
    from_ns: u64,
    /// From then on nobody asks any more.
    until_ns: u64,
}

impl Window {
    fn after(span: Duration, warm_up: Duration) -> Self {
        let from_ns = now_ns() + nanos(warm_up);
        Self { from_ns, until_ns: from_ns + nanos(span) }
    }

    const fn contains(self, at_ns: u64) -> bool {
        self.from_ns <= at_ns && at_ns < self.until_ns
    }

    async fn begins(self) {
        sleep(Duration::from_nanos(self.from_ns.saturating_sub(now_ns()))).await;
    }

    async fn ends(self) {
        sleep(Duration::from_nanos(self.until_ns.saturating_sub(now_ns()))).await;
    }
}

/// What one contender does: takes the lock, holds it, gives it back, until the window is over.
///
/// # Errors
///
/// When the lock fails, or is not granted long after everybody has stopped asking for more.
pub(crate) async fn contend(mutex: &Mutex, diary: &mut Diary, window: Window, hold: Duration) -> Outcome<()> {
    while now_ns() < window.until_ns {
        let patience = Duration::from_nanos(window.until_ns.saturating_sub(now_ns())) + GRACE;
        diary.acquire_called();
        let Some(guard) = mutex.try_acquire_for(patience).await? else {
            return Err(Failure::new(format!("the lock was not granted for {patience:?}: it is stuck")));
        };
        diary.acquired(&guard);
        sleep(hold).await;
        diary.release_called();
        diary.released(guard.release().await?);
    }
    Ok(())
}

async fn crew(bench: &Bench, url: &str, lock: &str) -> Outcome<Vec<Hand>> {
    let job = |process| Job {
        url: url.to_owned(),
        lock: bench.lock_of(lock, process),
        rival: String::new(),
        recorded_as: lock.to_owned(),
        process,
        task: Task::Contend { hold: HOLD },
    };
    Hand::hire((0..bench.plan.processes).map(job)).await
}

async fn fight(crew: &[Hand], window: Window) -> Outcome<Vec<Event>> {
    for hand in crew {
        hand.order(Order::Contend(window)).await?;
    }
    window.ends().await;
    let mut events = Vec::new();
    for hand in crew {
        events.append(&mut hand.events(2 * GRACE).await?);
    }
    Ok(events)
}

/// Tasks instead of processes, each with a connection of its own to the same locks.
async fn fight_inside(bench: &Bench, target: &Target, lock: &str, window: Window) -> Outcome<Vec<Event>> {
    let mut tasks = JoinSet::new();
    for process in 0..bench.plan.processes {
        let mutex = Locks::connect(target.url()).await?.mutex(bench.lock_of(lock, process));
        let mut diary = Diary::new(process, 0, lock);
        tasks.spawn(
            async move { contend(&mutex, &mut diary, window, HOLD).await.map(|()| diary.into_events()) },
        );
    }
    let mut events = Vec::new();
    while let Some(done) = tasks.join_next().await {
        events.append(&mut done??);
    }
    Ok(events)
}

/// Counts requests for each grant.
async fn counted(bench: &Bench, target: &Target, lock: &str) -> Outcome<(f64, Vec<Event>)> {
    let protocol = if target.backend() == BackendName::Zk { Protocol::ZooKeeper } else { Protocol::Redis };
    let mut proxies = Vec::new();
    for host in address::hosts(target.url()) {
        proxies.push(FaultProxy::start(address::resolve(host, target.backend()).await?, protocol)?);
    }
    let requests = || proxies.iter().map(FaultProxy::requests).sum::<u64>();
    let addresses: Vec<_> = proxies.iter().map(FaultProxy::addr).collect();
    let crew = crew(bench, &address::with_hosts(target.url(), &addresses), lock).await?;
    let window = Window::after(bench.plan.counted, bench.plan.warm_up);
    let counting = async {
        window.begins().await;
        let before = requests();
        window.ends().await;
        requests() - before
    };
    let (requests, events) = tokio::join!(counting, fight(&crew, window));
    let events = events?;
    let grants = grants(&events).iter().filter(|grant| window.contains(grant.acquired_ns)).count();
    if grants == 0 {
        return Err(Failure::new("no lock was granted while requests were counted"));
    }
    Ok((requests as f64 / grants as f64, events))
}

/// One grant.
#[derive(Clone, Copy, Debug)]
struct Grant {
    process: u32,
    called_ns: u64,
    acquired_ns: u64,
    release_called_ns: u64,
}

/// The grants of a history, in the order of time.
fn grants(events: &[Event]) -> Vec<Grant> {
    let mut open = std::collections::HashMap::new();
    let mut grants = Vec::new();
    for event in events {
        let process = event.process;
        let grant = open.entry(process).or_insert(Grant {
            process,
            called_ns: 0,
            acquired_ns: 0,
            release_called_ns: 0,
        });
        match event.kind {
            EventKind::AcquireCalled => grant.called_ns = event.at_ns,
            EventKind::Acquired { .. } => grant.acquired_ns = event.at_ns,
            EventKind::ReleaseCalled => {
                grant.release_called_ns = event.at_ns;
                grants.push(*grant);
            }
            _ => {}
        }
    }
    grants.sort_by_key(|grant| grant.acquired_ns);
    grants
}

/// The numbers of the timed pass.
fn timed(backend: &str, events: Vec<Event>, window: Window, plan: &Plan) -> Outcome<Measured> {
    let all = grants(&events);
    let counted: Vec<&Grant> = all.iter().filter(|grant| window.contains(grant.acquired_ns)).collect();
    if counted.len() < 2 {
        return Err(Failure::new(format!("{} grants in {}", counted.len(), time(plan.contended))));
    }
    let (mut handoff, mut hold) = (Latency::new(), Latency::new());
    for pair in counted.windows(2) {
        // An overlap has no gap; the verdict tells about it.
        if let Some(gap) = pair[1].acquired_ns.checked_sub(pair[0].release_called_ns) {
            handoff.record(gap);
        }
    }
    let mut shares = vec![0_u32; plan.processes as usize];
    for grant in &counted {
        hold.record(grant.release_called_ns.saturating_sub(grant.acquired_ns));
        shares[grant.process as usize] += 1;
    }
    // Whoever still waited at the end of the window has waited at least until then.
    let waits = all
        .iter()
        .filter(|grant| grant.acquired_ns >= window.from_ns && grant.called_ns < window.until_ns)
        .map(|grant| grant.acquired_ns.min(window.until_ns) - grant.called_ns.max(window.from_ns));
    let longest_wait = waits.max().unwrap_or(0);
    let seconds = plan.contended.as_secs_f64();
    let row = |metric, unit, value| Row::new("contended", backend, metric, unit, value);
    let rows = vec![
        row("grants_per_s", "1/s", counted.len() as f64 / seconds),
        row("handoff_p50", "us", handoff.quantile_us(0.5)),
        row("handoff_p99", "us", handoff.quantile_us(0.99)),
        row("longest_wait", "us", longest_wait as f64 / 1e3),
        row("jain", "", jain(&shares)),
    ];
    let notes = vec![("hold_median", format!("{:.2} ms", hold.quantile_us(0.5) / 1e3))];
    Ok(Measured { rows, events, notes })
}

/// Jain's fairness index: 1 when all got the same, 1/n when one got all.
fn jain(shares: &[u32]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| f64::from(share)).sum();
    let squares: f64 = shares.iter().map(|&share| f64::from(share).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

const HOLD: Duration = Duration::from_millis(1);
/// How long after the window the last ones may take: longer than a lock waits after a lost message.
const GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use polylock::Released;

    use super::*;
    use crate::diary::Tenure;
    use crate::results::Mode;

    fn held(process: u32, called_ms: u64, from_ms: u64, until_ms: u64) -> Vec<Event> {
        let ns = |ms| ms * 1_000_000;
        let mut diary = Diary::new(process, 0, "a");
        diary.tenure(&Tenure {
            called_ns: ns(called_ms),
            acquired_ns: ns(from_ms),
            token: from_ms,
            until_ns: u64::MAX,
            release_called_ns: ns(until_ms),
            released_ns: ns(until_ms),
            released: Released::Released,
        });
        diary.into_events()
    }

    #[test]
    fn numbers_are_those_of_the_window() {
        let events = [
            held(0, 0, 50, 99),
            held(1, 0, 100, 110),
            held(0, 100, 112, 120),
            held(1, 111, 124, 130),
            held(0, 121, 300, 310),
        ];
        let window = Window { from_ns: 100_000_000, until_ns: 200_000_000 };
        let plan = Plan { contended: Duration::from_millis(100), ..Plan::new(Mode::Quick, 2) };
        let measured = timed("redis", events.concat(), window, &plan).unwrap();
        let value = |metric: &str| measured.rows.iter().find(|row| row.metric == metric).unwrap().value;
        assert!((value("grants_per_s") - 30.0).abs() < 1e-9);
        assert!((value("handoff_p50") - 2_000.0).abs() < 2.0, "{}", value("handoff_p50"));
        assert!((value("handoff_p99") - 4_000.0).abs() < 4.0);
        assert!((value("longest_wait") - 79_000.0).abs() < 1e-6, "{}", value("longest_wait"));
        assert!((value("jain") - 9.0 / (2.0 * 5.0)).abs() < 1e-9);
    }

    #[test]
    fn jain_knows_the_extremes() {
        assert!((jain(&[5, 5, 5]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-9);
    }
}
