//! Processes whose tasks use locks with names of their own, in slices of time.

use std::time::{Duration, Instant};

use crate::data::median::median;
use crate::data::{BackendName, Failure, Latency, Load, Outcome, Peer, Window};
use crate::experiments::parts::contention::ramp;
use crate::rig::worker::handle::unexpected;
use crate::rig::{Job, Order, Slice, Subject, Task, WorkerHandle, WorkerReport, cpu_time};

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

pub(crate) type Number = fn(&Round) -> f64;

/// For the pairs that have begun, and to clean up.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Rounds by one process and by two, by turns.
    pub(crate) fn cost(pairs: u64, client_ms: u64, server_ms: u64) -> Vec<Round> {
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
}
