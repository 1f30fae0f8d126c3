//! `throughput`: many tasks acquire and release locks with names of their own, as fast as they can; in one process, and in
//! several.
//!
//! Ours, the bare commands and the locks of other libraries take turns in slices of time, each in processes of its own, which
//! are idle meanwhile.

use std::time::{Duration, Instant};

use super::bench::{Bench, Measured, time};
use crate::data::{BackendName, Failure, Latency, Load, Outcome, Peer, Plan, Row, Window};
use crate::rig::worker::handle::unexpected;
use crate::rig::{Job, Order, Slice, Subject, Target, Task, WorkerHandle, WorkerReport, cpu_time};

/// The settings, for the report.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    let span = plan.throughput_slice;
    vec![
        (
            "duration",
            format!(
                "{} slices of {} each, in turn, after {} of warm-up in every slice",
                plan.throughput_slices,
                time(span),
                time(ramp(span))
            ),
        ),
        ("tasks", "one lock each, with a name of its own; released as soon as it is acquired".into()),
        ("clients", "one for each process and library: one connection, or session, for all tasks".into()),
        ("runtime", "multi_thread with 2 workers, in every process".into()),
        ("pair", "from the call of acquire to the return of release".into()),
        ("client_cpu", "of all client processes, for a pair".into()),
        ("server_cpu", "of all servers, for a pair".into()),
        (
            "floor",
            "redis: SET NX PX + EVALSHA compare-and-delete; redlock: the same on every master in parallel, until a majority \
             has answered; zk: create ephemeral sequential + get children at once, then delete"
                .into(),
        ),
        (
            "minting_floor",
            "with a fencing token. redis: SET NX PX + INCR of a counter of the lock in one write, as INCR takes less than half \
             of the server's time for ZADD GT CH; redlock: SET NX PX + ZADD GT CH of the local clock in one write, as counters \
             of masters differ; zk: the floor has a token already"
                .into(),
        ),
        ("verdict", "none, as no two tasks want the same lock; fencing tokens must grow, and no lock may be lost".into()),
    ]
}

/// About how long it takes on one backend.
pub(crate) fn expected(plan: &Plan) -> Duration {
    let slices = plan.throughput_slices * plan.loads.len() as u32 * SUBJECTS;
    (plan.throughput_slice + ramp(plan.throughput_slice)) * slices + START * plan.loads.len() as u32
}

/// Measures one backend.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let mut measured = Measured { backend: target.name(), ..Measured::default() };
    for &load in bench.plan.loads {
        let mut teams = Vec::new();
        for subject in subjects(target.backend(), bench.plan.throughput_peers) {
            let lock = bench.lock(&format!("throughput-{}", label(subject, target.backend(), load)));
            let team = Team::start(target.url(), &lock.replace(' ', "-"), subject, load).await;
            teams.push((subject, team));
        }
        for _ in 0..bench.plan.throughput_slices {
            for (_, started) in &mut teams {
                if let Ok(team) = started
                    && let Err(failure) =
                        team.use_locks(bench.plan.throughput_slice, &target.processes()).await
                {
                    *started = Err(failure);
                }
            }
        }
        for (_, started) in &mut teams {
            // Of hundreds of tasks on a busy machine: a few slices may end before the first of them has its turn.
            if let Ok(team) = started
                && team.cost.pairs == 0
                && let Err(failure) = team.use_locks(LONG_SLICE, &target.processes()).await
            {
                *started = Err(failure);
            }
        }
        let mut costs = Vec::new();
        for (subject, team) in teams {
            let ended = match team {
                Ok(team) => team.end().await,
                Err(failure) => Err(failure),
            };
            match ended {
                Ok(cost) => costs.push((subject, cost)),
                Err(failure) => {
                    let part = label(subject, target.backend(), load);
                    measured.complaints.push(failure.during(&part).to_string());
                }
            }
        }
        measured.rows.extend(rows(&costs, target.backend(), load));
    }
    Ok(measured)
}

/// The median of acquire + release of a free lock by a process that does nothing else, in microseconds.
pub(crate) async fn alone_us(url: &str, lock: &str, span: Duration) -> Outcome<f64> {
    let mut team = Team::start(url, lock, Subject::Ours, Load { processes: 1, tasks: 1 }).await?;
    team.use_locks(span, &[]).await?;
    Ok(team.end().await?.times.quantile_us(0.5))
}

/// Who is measured on a backend.
pub(crate) fn subjects(backend: BackendName, peers: &'static [Peer]) -> Vec<Subject> {
    let mut subjects = vec![Subject::Floor, Subject::Ours];
    if backend != BackendName::Zk {
        subjects.push(Subject::MintingFloor);
    }
    let fits = |peer: &Peer| {
        // rslock is a Redlock, too.
        Peer::of(backend).any(|of| of == *peer) || backend == BackendName::Redlock && *peer == Peer::Rslock
    };
    subjects.extend(peers.iter().copied().filter(fits).map(Subject::Peer));
    subjects
}

/// Its name in the results, such as `redis minting floor 256 tasks`.
pub(crate) fn label(subject: Subject, backend: BackendName, load: Load) -> String {
    format!("{} {load}", subject_name(subject, backend))
}

/// Its name, such as `redis minting floor`.
pub(crate) fn subject_name(subject: Subject, backend: BackendName) -> String {
    match subject {
        Subject::Ours => backend.to_string(),
        Subject::Floor => format!("{backend} floor"),
        Subject::MintingFloor => format!("{backend} minting floor"),
        Subject::Peer(peer) if Peer::of(backend).any(|of| of == peer) => peer.as_str().to_owned(),
        Subject::Peer(peer) => format!("{} on {backend}", peer.as_str()),
    }
}

/// The rows of all subjects with the floor of this load, and ours against what has tokens, or is another library's.
fn rows(costs: &[(Subject, Cost)], backend: BackendName, load: Load) -> Vec<Row> {
    let of = |wanted| costs.iter().find(|(subject, _)| *subject == wanted).map(|(_, cost)| cost);
    let floor = of(Subject::Floor);
    let mut rows = Vec::new();
    for (subject, cost) in costs {
        let name = label(*subject, backend, load);
        for (metric, unit, number) in METRICS {
            let Some(value) = number(cost) else { continue };
            let row = Row::new(SCENARIO, &name, metric, unit, value);
            rows.push(match floor.and_then(number) {
                Some(floor) if *subject != Subject::Floor => row.with_floor(floor),
                _ => row,
            });
        }
        let others =
            [(PAIRS_MINTING, of(Subject::MintingFloor)), (PAIRS_RSLOCK, of(Subject::Peer(Peer::Rslock)))];
        for (metric, other) in others.into_iter().filter(|_| *subject == Subject::Ours) {
            if let Some(other) = other {
                let row = Row::new(SCENARIO, &name, metric, "1/s", cost.pairs_per_s());
                rows.push(row.with_floor(other.pairs_per_s()));
            }
        }
    }
    rows
}

/// The processes of a subject, and what they did so far.
struct Team {
    workers: Vec<WorkerHandle>,
    cost: Cost,
}

impl Team {
    async fn start(url: &str, lock: &str, subject: Subject, load: Load) -> Outcome<Self> {
        let task = Task::Throughput { subject, tasks: load.tasks };
        let jobs = (0..load.processes).map(|process| Job::new(url, lock, process, task.clone()));
        Ok(Self { workers: WorkerHandle::start_all(jobs).await?, cost: Cost::default() })
    }

    /// Has the processes use their locks for a slice of time.
    async fn use_locks(&mut self, span: Duration, servers: &[u32]) -> Outcome<()> {
        let window = Window::after(span, ramp(span));
        for worker in &self.workers {
            worker.send(Order::Contend(window)).await?;
        }
        window.begins().await;
        let (began, before) = (Instant::now(), cpu_time::of(servers)?);
        window.ends().await;
        let (elapsed, after) = (began.elapsed(), cpu_time::of(servers)?);
        let mut slices = Vec::new();
        for worker in &self.workers {
            match worker.receive(PATIENCE).await? {
                WorkerReport::Slice(slice) => slices.push(slice),
                other => return Err(unexpected(&other)),
            }
        }
        let servers = (!servers.is_empty()).then(|| after.saturating_sub(before));
        self.cost.add(&slices, elapsed, servers);
        Ok(())
    }

    /// Has them clean up.
    async fn end(self) -> Outcome<Cost> {
        for worker in &self.workers {
            worker.send(Order::Go).await?;
        }
        for worker in &self.workers {
            worker.events(PATIENCE).await?;
        }
        if self.cost.pairs == 0 {
            return Err(Failure::new("no lock was acquired and released in any slice"));
        }
        Ok(self.cost)
    }
}

/// What pairs of acquire and release cost.
#[derive(Debug)]
struct Cost {
    pairs: u64,
    /// The rates of all slices, each the sum of those of its processes.
    rates: Vec<f64>,
    client: Duration,
    /// CPU time of the servers, and how many pairs there were meanwhile; nothing if they are not ours.
    servers: Option<(Duration, f64)>,
    times: Latency,
}

impl Default for Cost {
    fn default() -> Self {
        let (pairs, rates, client, servers) = (0, Vec::new(), Duration::ZERO, None);
        Self { pairs, rates, client, servers, times: Latency::new() }
    }
}

impl Cost {
    /// Adds what the processes did in a slice, and what the servers did in this time.
    fn add(&mut self, slices: &[Slice], elapsed: Duration, servers: Option<Duration>) {
        let mut rate = 0.0;
        for slice in slices {
            rate += slice.pairs as f64 / slice.span.as_secs_f64();
            self.pairs += slice.pairs;
            self.client += slice.cpu;
            self.times.add(&slice.times);
        }
        self.rates.push(rate);
        if let Some(spent) = servers {
            // Their time was not read at the very moment of the clients'.
            let pairs = rate * elapsed.as_secs_f64();
            let (before, meanwhile) = self.servers.unwrap_or_default();
            self.servers = Some((before + spent, meanwhile + pairs));
        }
    }

    fn pairs_per_s(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    fn client_us(&self) -> f64 {
        self.client.as_secs_f64() * 1e6 / self.pairs as f64
    }

    fn server_us(&self) -> Option<f64> {
        self.servers.map(|(spent, pairs)| spent.as_secs_f64() * 1e6 / pairs)
    }
}

/// Until all tasks are at work.
fn ramp(span: Duration) -> Duration {
    span / 4
}

type Number = fn(&Cost) -> Option<f64>;

pub(crate) const SCENARIO: &str = "throughput";
pub(crate) const PAIRS: &str = "pairs_per_s";
pub(crate) const PAIRS_MINTING: &str = "pairs_per_s_minting";
pub(crate) const PAIRS_RSLOCK: &str = "pairs_per_s_rslock";
pub(crate) const CLIENT_CPU: &str = "client_cpu";
pub(crate) const SERVER_CPU: &str = "server_cpu";
const METRICS: [(&str, &str, Number); 5] = [
    (PAIRS, "1/s", |cost| Some(cost.pairs_per_s())),
    ("p50", "us", |cost| Some(cost.times.quantile_us(0.5))),
    ("p99", "us", |cost| Some(cost.times.quantile_us(0.99))),
    (CLIENT_CPU, "us", |cost| Some(cost.client_us())),
    (SERVER_CPU, "us", Cost::server_us),
];
/// The mean over the backends, for the time left.
const SUBJECTS: u32 = 4;
/// To start the processes of all subjects, for the time left.
const START: Duration = Duration::from_millis(1500);
/// For the pairs that have begun, and to clean up.
const PATIENCE: Duration = Duration::from_secs(30);
const LONG_SLICE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::results::sample;
    use crate::data::{Mode, Results, promises};

    fn cost(pairs: u64, client_ms: u64, server_ms: u64) -> Cost {
        let slice = |part| Slice {
            pairs: pairs / part,
            span: Duration::from_millis(500),
            cpu: Duration::from_millis(client_ms / part),
            times: vec![(1_000, pairs / part)],
        };
        let mut cost = Cost::default();
        // Once by one process, and once by two.
        cost.add(&[slice(1)], Duration::from_millis(500), Some(Duration::from_millis(server_ms)));
        cost.add(&[slice(2), slice(2)], Duration::from_millis(500), Some(Duration::from_millis(server_ms)));
        cost
    }

    #[test]
    fn promises_under_load_are_about_rows_of_full_and_quick_runs() {
        let backends = [BackendName::Redis, BackendName::Redlock, BackendName::Zk];
        for plan in [Mode::Quick, Mode::Full].map(Plan::new) {
            let rows = backends.into_iter().flat_map(|backend| {
                let subjects = subjects(backend, plan.throughput_peers);
                let costs: Vec<_> =
                    subjects.into_iter().map(|subject| (subject, cost(1000, 20, 10))).collect();
                plan.loads.iter().flat_map(move |load| rows(&costs, backend, *load)).collect::<Vec<_>>()
            });
            let results = Results { rows: rows.collect(), ..sample() };
            let promises = promises::judge(&results, &plan);
            let missing =
                promises.iter().filter(|promise| promise.scenario == SCENARIO && promise.seen.is_none());
            assert_eq!(missing.map(|promise| promise.about()).collect::<Vec<_>>(), Vec::<String>::new());
        }
    }

    #[test]
    fn costs_are_those_of_all_processes_for_a_pair() {
        let cost = cost(1000, 20, 10);
        assert!((cost.pairs_per_s() - 2000.0).abs() < 1e-6, "{cost:?}");
        assert!((cost.client_us() - 20.0).abs() < 1e-6, "{cost:?}");
        assert!((cost.server_us().unwrap() - 10.0).abs() < 1e-6, "{cost:?}");
        assert_eq!(cost.times.len(), 2000);
        let mut foreign = Cost::default();
        foreign.add(&[], Duration::from_millis(500), None);
        assert_eq!(foreign.server_us(), None);
    }

    #[test]
    fn ours_is_compared_with_each_floor_and_with_rslock() {
        let costs = [
            (Subject::Floor, cost(1000, 20, 10)),
            (Subject::Ours, cost(800, 20, 10)),
            (Subject::MintingFloor, cost(900, 20, 10)),
            (Subject::Peer(Peer::Rslock), cost(400, 20, 10)),
        ];
        let rows = rows(&costs, BackendName::Redis, Load { processes: 1, tasks: 256 });
        let ratio = |backend: &str, metric: &str| {
            let row = rows.iter().find(|row| row.backend == backend && row.metric == metric);
            row.unwrap_or_else(|| panic!("{metric} of {backend} is not in {rows:?}")).ratio
        };
        assert_eq!(ratio("redis 256 tasks", PAIRS), Some(0.8));
        assert_eq!(ratio("redis 256 tasks", PAIRS_MINTING), Some(0.8889));
        assert_eq!(ratio("redis 256 tasks", PAIRS_RSLOCK), Some(2.0));
        assert_eq!(ratio("redis 256 tasks", SERVER_CPU), Some(1.25));
        assert_eq!(ratio("rslock 256 tasks", PAIRS), Some(0.4));
        assert_eq!(ratio("redis floor 256 tasks", PAIRS), None);
        assert!(rows.iter().filter(|row| row.metric == PAIRS_MINTING).count() == 1);
    }

    #[test]
    fn every_subject_has_a_name_of_its_own() {
        let load = Load { processes: 8, tasks: 64 };
        let peers = Plan::new(Mode::Full).throughput_peers;
        let mut names: Vec<String> = Vec::new();
        for backend in [BackendName::Redis, BackendName::Redlock, BackendName::Zk] {
            names.extend(subjects(backend, peers).into_iter().map(|subject| label(subject, backend, load)));
        }
        let expected = "redis floor, redis, redis minting floor, rslock, rlock, async-redis-lock, distkit, redlock floor, redlock, \
                        redlock minting floor, rslock on redlock, zk floor, zk, lock-client";
        let expected: Vec<_> = expected.split(", ").map(|name| format!("{name} 8 x 64 tasks")).collect();
        assert_eq!(names, expected);
    }
}
