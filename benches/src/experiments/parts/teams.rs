//! Processes whose tasks use locks with names of their own, in slices of time.

use std::time::{Duration, Instant};

use crate::data::median::median;
use crate::experiments::parts::contention::ramp;
use crate::experiments::prelude::*;
use crate::rig::worker::handle::unexpected;

/// The processes of a subject, and what they did so far.
pub(crate) struct Team {
    workers: Vec<WorkerHandle>,
    pub(crate) rounds: Vec<Round>,
}

impl Team {
    pub(crate) async fn start(url: &str, lock: &str, subject: Subject, load: Load) -> Outcome<Self> {
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

    pub(crate) async fn end(self) -> Outcome<Vec<Round>> {
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
pub(crate) struct Round {
    pub(crate) pairs_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) client_us: f64,
    /// Of our own servers.
    pub(crate) server_us: f64,
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

/// The median of the rounds in which it was measured.
pub(crate) fn middle(rounds: &[Round], number: Number) -> f64 {
    median(rounds.iter().map(number).filter(|number| number.is_finite()).collect())
}

/// Has a team use its locks for a slice of time; one that fails takes no further part.
pub(crate) async fn use_locks(team: &mut Outcome<Team>, span: Duration, servers: &[u32]) {
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

/// The rows of a subject with the floor of its load; those of ours also against what has tokens, or is another library's.
pub(crate) fn rows(costs: &[(Subject, Vec<Round>)], subject: Subject) -> Vec<Row> {
    let of = |wanted| costs.iter().find(|(subject, _)| *subject == wanted).map(|(_, rounds)| rounds);
    let Some(rounds) = of(subject) else { return Vec::new() };
    let row = |metric, number: Number, floor: Option<&Vec<Round>>| {
        let row = Row::of(metric, middle(rounds, number));
        match floor {
            Some(floor) => {
                let both = rounds.iter().zip(floor).map(|(ours, floor)| (number(ours), number(floor)));
                row.with_floor(middle(floor, number)).with_rounds(both)
            }
            None => row,
        }
    };
    let floor = of(Subject::Floor).filter(|_| subject != Subject::Floor);
    let mut rows = NUMBERS.map(|(metric, number)| row(metric, number, floor)).to_vec();
    let others = [
        ("pairs_per_s_minting", of(Subject::MintingFloor)),
        ("pairs_per_s_rslock", of(Subject::Peer(Peer::Rslock))),
        ("pairs_per_s_sqlx", of(Subject::Peer(Peer::Sqlx))),
    ];
    for (metric, other) in others.into_iter().filter(|_| subject == Subject::Ours) {
        rows.extend(other.map(|_| row(metric, |round| round.pairs_per_s, other)));
    }
    // What could not be measured has no row.
    rows.retain(|row| row.value.is_finite());
    rows
}

pub(crate) const PAIRS: &str = "pairs_per_s";
pub(crate) const CLIENT_CPU: &str = "client_cpu";
pub(crate) const SERVER_CPU: &str = "server_cpu";
const NUMBERS: [(&str, Number); 5] = [
    (PAIRS, |round| round.pairs_per_s),
    ("p50", |round| round.p50_us),
    ("p99", |round| round.p99_us),
    (CLIENT_CPU, |round| round.client_us),
    (SERVER_CPU, |round| round.server_us),
];
pub(crate) type Number = fn(&Round) -> f64;

/// For the pairs that have begun, and to clean up.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Meta, Mode, Plan, Results};
    use crate::experiments::scenarios::throughput::{THIS, loads, peers};
    use crate::experiments::target::judge;

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
        let ratio = |subject, metric: &str| {
            let rows = rows(&costs, subject);
            assert!(rows.iter().all(|row| row.interval.is_some() == row.ratio.is_some()), "{rows:?}");
            rows.iter().find(|row| row.metric == metric).map(|row| row.ratio)
        };
        assert_eq!(ratio(Subject::Ours, PAIRS), Some(Some(0.8)));
        assert_eq!(ratio(Subject::Ours, "pairs_per_s_minting"), Some(Some(0.8889)));
        assert_eq!(ratio(Subject::Ours, "pairs_per_s_rslock"), Some(Some(2.0)));
        assert_eq!(ratio(Subject::Ours, SERVER_CPU), Some(Some(1.25)));
        assert_eq!(ratio(Subject::Peer(Peer::Rslock), PAIRS), Some(Some(0.4)));
        assert_eq!(ratio(Subject::Peer(Peer::Rslock), "pairs_per_s_minting"), None);
        assert_eq!(ratio(Subject::Floor, PAIRS), Some(None));
    }

    #[test]
    fn targets_are_about_subjects_of_full_and_quick_runs() {
        let backends = [BackendName::Redis, BackendName::Redlock, BackendName::Zk, BackendName::Postgres];
        for plan in [Mode::Quick, Mode::Full].map(Plan::new) {
            let mut results = Results::new(Meta::of_this_run(plan.mode));
            for backend in backends {
                let costs: Vec<_> = subjects(backend, peers(&plan))
                    .into_iter()
                    .map(|subject| (subject, cost(1000, 20, 10)))
                    .collect();
                for (load, (subject, _)) in
                    loads(&plan, backend).iter().flat_map(|load| costs.iter().map(move |one| (load, one)))
                {
                    let (scenario, backend) = (THIS.name.to_owned(), label(*subject, backend, *load));
                    let named = |row| Row { scenario: scenario.clone(), backend: backend.clone(), ..row };
                    results.rows.extend(rows(&costs, *subject).into_iter().map(named));
                }
            }
            let judged = judge(&[&THIS], &results, &plan);
            let seen = judged.iter().filter(|one| one.seen.is_some()).count();
            assert_eq!((judged.len(), seen), (16, plan.by_mode(14, 16)), "{judged:?}");
        }
    }
}
