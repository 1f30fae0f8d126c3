//! `throughput`: many tasks acquire and release locks with names of their own, as fast as they can; in one process, and in
//! several.
//!
//! Ours, the bare commands and the locks of other libraries take turns in slices of time, each in processes of its own, which
//! are idle meanwhile.

use std::time::{Duration, Instant};

use rand::seq::SliceRandom;

use super::bench::{Bench, Measured, time};
use crate::data::median::median;
use crate::data::{BackendName, Failure, Latency, Load, Outcome, Peer, Plan, Row, Window};
use crate::rig::worker::handle::unexpected;
use crate::rig::{Job, Order, Slice, Subject, Target, Task, WorkerHandle, WorkerReport, cpu_time};

pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    let span = plan.throughput_slice;
    vec![
        (
            "duration",
            format!(
                "medians of {} slices of {} each (postgres: twice as long), in turn, in an order by chance, after {} of warm-up in \
                 every slice",
                plan.rounds,
                time(span),
                time(ramp(span))
            ),
        ),
        ("interval", "of the ratios of the slices of one round, of at least 90 %".into()),
        ("tasks", "one lock each, with a name of its own; released as soon as it is acquired".into()),
        (
            "clients",
            "one for each process and library: one connection, or session, for all tasks; a pool on postgres".into(),
        ),
        ("runtime", "multi_thread with 2 workers, in every process".into()),
        ("pair", "from the call of acquire to the return of release".into()),
        ("client_cpu", "of all client processes, for a pair".into()),
        ("server_cpu", "of all servers, for a pair".into()),
        (
            "floor",
            "redis: SET NX PX + EVALSHA compare-and-delete; redlock: the same on every master in parallel, until a majority \
             has answered; zk: create ephemeral sequential + get children at once, then delete; postgres: INSERT .. ON CONFLICT DO \
             UPDATE WHERE expired, then DELETE, prepared, on as many sessions as ours has, each commit on the disk"
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
    let slices = plan.rounds * plan.loads.len() as u32 * SUBJECTS;
    (plan.throughput_slice + ramp(plan.throughput_slice)) * slices + START * plan.loads.len() as u32
}

pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let (plan, servers) = (&bench.plan, target.processes());
    let mut measured = Measured { backend: target.name(), ..Measured::default() };
    for &load in plan.loads {
        let mut teams = Vec::new();
        for subject in subjects(target.backend(), plan.throughput_peers) {
            let lock = bench.lock(&format!("throughput-{}", label(subject, target.backend(), load)));
            let team = Team::start(target.url(), &lock.replace(' ', "-"), subject, load).await;
            teams.push((subject, team));
        }
        for _ in 0..plan.rounds {
            // By chance, so that none always comes after the same other one.
            let mut order: Vec<_> = teams.iter_mut().collect();
            order.shuffle(&mut rand::rng());
            for (_, team) in order {
                use_locks(team, slice(target.backend(), plan), &servers).await;
            }
        }
        for (_, team) in &mut teams {
            // Of hundreds of tasks on a busy machine: most slices may end before the first of them has its turn.
            if let Ok(running) = team
                && middle(&running.rounds, |round| round.pairs_per_s) <= 0.0
            {
                running.rounds.clear();
                use_locks(team, LONG_SLICE, &servers).await;
            }
        }
        let mut costs = Vec::new();
        for (subject, team) in teams {
            let ended = match team {
                Ok(team) => team.end().await,
                Err(failure) => Err(failure),
            };
            match ended {
                Ok(rounds) => costs.push((subject, rounds)),
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

/// Has a team use its locks for a slice of time; one that fails takes no further part.
async fn use_locks(team: &mut Outcome<Team>, span: Duration, servers: &[u32]) {
    if let Ok(running) = team
        && let Err(failure) = running.use_locks(span, servers).await
    {
        *team = Err(failure);
    }
}

/// The median of acquire + release of a free lock by a process that does nothing else, in microseconds.
pub(crate) async fn alone_us(url: &str, lock: &str, span: Duration) -> Outcome<f64> {
    let rounds = ours(url, lock, Load { processes: 1, tasks: 1 }, span).await?;
    Ok(middle(&rounds, |round| round.p50_us))
}

/// The pairs per second of so many tasks with a lock each, by a process that does nothing else.
pub(crate) async fn pairs_per_s(url: &str, lock: &str, tasks: u32, span: Duration) -> Outcome<f64> {
    let rounds = ours(url, lock, Load { processes: 1, tasks }, span).await?;
    Ok(middle(&rounds, |round| round.pairs_per_s))
}

async fn ours(url: &str, lock: &str, load: Load, span: Duration) -> Outcome<Vec<Round>> {
    let mut team = Team::start(url, lock, Subject::Ours, load).await?;
    team.use_locks(span, &[]).await?;
    team.end().await
}

/// Who is measured on a backend.
pub(crate) fn subjects(backend: BackendName, peers: &'static [Peer]) -> Vec<Subject> {
    let mut subjects = vec![Subject::Floor, Subject::Ours];
    if matches!(backend, BackendName::Redis | BackendName::Redlock) {
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
fn rows(costs: &[(Subject, Vec<Round>)], backend: BackendName, load: Load) -> Vec<Row> {
    let of = |wanted| costs.iter().find(|(subject, _)| *subject == wanted).map(|(_, rounds)| rounds);
    let mut rows = Vec::new();
    for (subject, rounds) in costs {
        let name = label(*subject, backend, load);
        let row = |metric, unit, number: Number, floor: Option<&Vec<Round>>| {
            let row = Row::new(SCENARIO, &name, metric, unit, middle(rounds, number));
            match floor {
                Some(floor) => {
                    let both = rounds.iter().zip(floor).map(|(ours, floor)| (number(ours), number(floor)));
                    row.with_floor(middle(floor, number)).with_rounds(both)
                }
                None => row,
            }
        };
        let floor = of(Subject::Floor).filter(|_| *subject != Subject::Floor);
        rows.extend(METRICS.map(|(metric, unit, number)| row(metric, unit, number, floor)));
        let others = [
            (PAIRS_MINTING, of(Subject::MintingFloor)),
            (PAIRS_RSLOCK, of(Subject::Peer(Peer::Rslock))),
            (PAIRS_SQLX, of(Subject::Peer(Peer::Sqlx))),
        ];
        for (metric, other) in others.into_iter().filter(|_| *subject == Subject::Ours) {
            rows.extend(other.map(|_| row(metric, "1/s", |round| round.pairs_per_s, other)));
        }
    }
    // What could not be measured has no row.
    rows.retain(|row| row.value.is_finite());
    rows
}

/// The median of the rounds in which it was measured.
fn middle(rounds: &[Round], number: Number) -> f64 {
    median(rounds.iter().map(number).filter(|number| number.is_finite()).collect())
}

/// The processes of a subject, and what they did so far.
struct Team {
    workers: Vec<WorkerHandle>,
    rounds: Vec<Round>,
}

impl Team {
    async fn start(url: &str, lock: &str, subject: Subject, load: Load) -> Outcome<Self> {
        let task = Task::Throughput { subject, tasks: load.tasks };
        let jobs = (0..load.processes).map(|process| Job::new(url, lock, process, task.clone()));
        Ok(Self { workers: WorkerHandle::start_all(jobs).await?, rounds: Vec::new() })
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
        self.rounds.push(Round::of(&slices, elapsed, servers));
        Ok(())
    }

    async fn end(self) -> Outcome<Vec<Round>> {
        for worker in &self.workers {
            worker.send(Order::Go).await?;
        }
        for worker in &self.workers {
            worker.events(PATIENCE).await?;
        }
        if self.rounds.iter().all(|round| round.pairs_per_s <= 0.0) {
            return Err(Failure::new("no lock was acquired and released in any slice"));
        }
        Ok(self.rounds)
    }
}

/// What the processes of a subject did in a slice; not a number where nothing was measured.
#[derive(Clone, Copy, Debug)]
struct Round {
    pairs_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    client_us: f64,
    /// Of our own servers.
    server_us: f64,
}

impl Round {
    fn of(slices: &[Slice], elapsed: Duration, servers: Option<Duration>) -> Self {
        let (mut pairs_per_s, mut pairs, mut client, mut times) = (0.0, 0, Duration::ZERO, Latency::new());
        for slice in slices {
            pairs_per_s += slice.pairs as f64 / slice.span.as_secs_f64();
            pairs += slice.pairs;
            client += slice.cpu;
            times.add(&slice.times);
        }
        let quantile = |part| if times.len() == 0 { f64::NAN } else { times.quantile_us(part) };
        // The time of the servers was not read at the very moment of the clients'.
        let meanwhile = pairs_per_s * elapsed.as_secs_f64();
        Self {
            pairs_per_s,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            client_us: client.as_secs_f64() * 1e6 / pairs as f64,
            server_us: servers.map_or(f64::NAN, |spent| spent.as_secs_f64() * 1e6 / meanwhile),
        }
    }
}

/// How long the subjects of a backend have their turn.
fn slice(backend: BackendName, plan: &Plan) -> Duration {
    match backend {
        // Hundreds of tasks wait for the disk, one commit after the other.
        BackendName::Postgres => plan.throughput_slice * 2,
        _ => plan.throughput_slice,
    }
}

/// Until all tasks are at work.
fn ramp(span: Duration) -> Duration {
    span / 4
}

type Number = fn(&Round) -> f64;

pub(crate) const SCENARIO: &str = "throughput";
pub(crate) const PAIRS: &str = "pairs_per_s";
pub(crate) const PAIRS_MINTING: &str = "pairs_per_s_minting";
pub(crate) const PAIRS_RSLOCK: &str = "pairs_per_s_rslock";
pub(crate) const PAIRS_SQLX: &str = "pairs_per_s_sqlx";
pub(crate) const CLIENT_CPU: &str = "client_cpu";
pub(crate) const SERVER_CPU: &str = "server_cpu";
const METRICS: [(&str, &str, Number); 5] = [
    (PAIRS, "1/s", |round| round.pairs_per_s),
    ("p50", "us", |round| round.p50_us),
    ("p99", "us", |round| round.p99_us),
    (CLIENT_CPU, "us", |round| round.client_us),
    (SERVER_CPU, "us", |round| round.server_us),
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

    /// Rounds by one process and by two, by turns.
    fn cost(pairs: u64, client_ms: u64, server_ms: u64) -> Vec<Round> {
        let slice = |part| Slice {
            pairs: pairs / part,
            span: Duration::from_millis(500),
            cpu: Duration::from_millis(client_ms / part),
            times: vec![(1_000, pairs / part)],
        };
        let servers = Some(Duration::from_millis(server_ms));
        let [one, two] = [vec![slice(1)], vec![slice(2), slice(2)]]
            .map(|slices| Round::of(&slices, Duration::from_millis(500), servers));
        vec![one, two, one, two, one]
    }

    #[test]
    fn promises_under_load_are_about_rows_of_full_and_quick_runs() {
        let backends = [BackendName::Redis, BackendName::Redlock, BackendName::Zk, BackendName::Postgres];
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
        for Round { pairs_per_s, client_us, server_us, .. } in cost(1000, 20, 10) {
            assert!((pairs_per_s - 2000.0).abs() < 1e-6, "{pairs_per_s}");
            assert!((client_us - 20.0).abs() < 1e-6 && (server_us - 10.0).abs() < 1e-6);
        }
        let foreign = Round::of(&[], Duration::from_millis(500), None);
        assert!(foreign.server_us.is_nan() && foreign.p50_us.is_nan(), "{foreign:?}");
        // A round without a pair says nothing about its cost.
        let rounds = [cost(1000, 20, 10), vec![foreign]].concat();
        assert!((middle(&rounds, |round| round.client_us) - 20.0).abs() < 1e-6);
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
        assert!(rows.iter().all(|row| row.interval.is_some() == row.ratio.is_some()), "{rows:?}");
        assert!(rows.iter().filter(|row| row.metric == PAIRS_MINTING).count() == 1);
    }

    #[test]
    fn every_subject_has_a_name_of_its_own() {
        let load = Load { processes: 8, tasks: 64 };
        let peers = Plan::new(Mode::Full).throughput_peers;
        let mut names: Vec<String> = Vec::new();
        for backend in [BackendName::Redis, BackendName::Redlock, BackendName::Zk, BackendName::Postgres] {
            names.extend(subjects(backend, peers).into_iter().map(|subject| label(subject, backend, load)));
        }
        let expected = "redis floor, redis, redis minting floor, rslock, rlock, async-redis-lock, distkit, redlock floor, redlock, \
                        redlock minting floor, rslock on redlock, zk floor, zk, lock-client, postgres floor, postgres, sqlx";
        let expected: Vec<_> = expected.split(", ").map(|name| format!("{name} 8 x 64 tasks")).collect();
        assert_eq!(names, expected);
    }
}
