//! Injects one fault after the other, chosen by a seed, with time to recover after each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_testkit::history::{Event, EventKind, Recorder};
use lock_testkit::now_ns;
use lock_testkit::proxy::Direction;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, sleep_until};

use super::grant_watch::GrantWatch;
use super::injected::Injected;
use super::verdict::{SLACK, seconds};
use crate::data::{Defect, Disturbance, Failure, Fault, Hits, Outcome, Site};
use crate::rig::worker::client_runtimes::RUNTIMES;
use crate::rig::worker::handle::unexpected;
use crate::rig::{FaultServers, Job, Order, Outage, SoakTask, Task, WorkerHandle, WorkerReport};

/// Injects faults into servers and workers.
pub(super) struct FaultInjector<'a> {
    servers: &'a FaultServers,
    backend: Site,
    kinds: Vec<Fault>,
    dice: StdRng,
    seed: u64,
    folder: PathBuf,
    broken: Option<Defect>,
    deaths: Recorder,
    workers: Vec<WorkerHandle>,
    started: u32,
    watch: GrantWatch,
    began_ns: u64,
    pub(super) faults: Vec<Injected>,
    complaints: Vec<String>,
}

impl<'a> FaultInjector<'a> {
    /// Starts workers that write their histories into this folder.
    pub(super) async fn with_workers(
        servers: &'a FaultServers,
        backend: Site,
        kinds: Vec<Fault>,
        seed: u64,
        folder: &Path,
        broken: Option<Defect>,
    ) -> Outcome<Self> {
        let deaths = Recorder::create(folder.join("deaths.jsonl"), INJECTOR)?.flush_every_event();
        let mut injector = Self {
            servers,
            backend,
            kinds,
            dice: StdRng::seed_from_u64(seed),
            seed,
            folder: folder.to_owned(),
            broken,
            deaths,
            workers: Vec::new(),
            started: 0,
            watch: GrantWatch::new(folder),
            began_ns: now_ns(),
            faults: Vec::new(),
            complaints: Vec::new(),
        };
        let jobs: Vec<Job> = (0..WORKERS).map(|_| injector.job(false)).collect();
        injector.workers = WorkerHandle::start_all(jobs).await?;
        Ok(injector)
    }

    /// Injects faults until `end`, the last one early enough for recovery. When the future is dropped during a fault, the
    /// fault stays.
    pub(super) async fn run(&mut self, end: Instant) -> Outcome<()> {
        let mut bag = Vec::new();
        sleep(CALM).await;
        loop {
            if bag.is_empty() {
                bag.clone_from(&self.kinds);
                bag.shuffle(&mut self.dice);
            }
            let Some(kind) = bag.pop() else { break };
            let plan = self.plan(kind);
            if Instant::now() + (plan.span + self.recovery()) * plan.turns() > end {
                break;
            }
            self.inject(&plan).await?;
            sleep(self.recovery()).await;
            self.granted_again(end).await?;
        }
        sleep_until(end).await;
        Ok(())
    }

    pub(super) async fn end_workers(&self) -> Vec<String> {
        for worker in &self.workers {
            // A worker that has died is reported below.
            let _ = worker.send(Order::Go).await;
        }
        let mut complaints = self.complaints.clone();
        for worker in &self.workers {
            let process = worker.process();
            match worker.receive(self.servers.lease() + END_DEADLINE).await {
                Ok(WorkerReport::Stuck(stuck)) => {
                    complaints.extend(stuck.into_iter().map(|stuck| format!("process {process}: {stuck}")));
                }
                Ok(other) => complaints.push(format!("process {process} reported {other:?}")),
                Err(failure) => complaints.push(format!("process {process}: {failure}")),
            }
        }
        complaints
    }

    /// The time after a fault in which all locks must be granted again, and a margin.
    fn recovery(&self) -> Duration {
        self.servers.lease() + SLACK + MARGIN
    }

    /// Waits until every lock was granted after the last fault, at most until the end of the soak. Otherwise the next fault
    /// would hide the length of an outage.
    async fn granted_again(&mut self, end: Instant) -> Outcome<()> {
        let over_ns = self.faults.iter().map(|fault| fault.until_ns).max().unwrap_or(0);
        while Instant::now() < end {
            let waiting = self.watch.waiting_since(over_ns)?;
            if waiting.is_empty() {
                break;
            }
            eprintln!("    {}: not granted yet: {}", seconds(now_ns() - self.began_ns), waiting.join(", "));
            sleep(LOOK).await;
        }
        Ok(())
    }

    fn plan(&mut self, kind: Fault) -> FaultPlan {
        let (row, all) = (kind.row(), self.servers.len());
        let span = row.span(self.servers.lease());
        let span = span.start + self.up_to(span.end - span.start);
        let mut servers: Vec<usize> = (0..all).collect();
        servers.shuffle(&mut self.dice);
        let most = if row.hits == Hits::Several { all } else { self.servers.most_failing() };
        if matches!(row.hits, Hits::Several | Hits::Minority) {
            servers.truncate(self.dice.random_range(1..=most.max(1)));
        }
        let mut workers: Vec<usize> = (0..WORKERS).collect();
        workers.shuffle(&mut self.dice);
        workers.truncate(self.dice.random_range(1..=MOST_WORKERS));
        FaultPlan {
            kind,
            span,
            servers,
            leader: self.dice.random_bool(0.5),
            workers,
            runtime: self.dice.random_range(0..RUNTIMES),
            also_kills: self.dice.random_bool(0.3),
            variant: self.dice.random_range(0..VARIANTS),
            directions: match self.dice.random_range(0..3) {
                0 => vec![Direction::ToClient],
                1 => vec![Direction::ToServer],
                _ => vec![Direction::ToServer, Direction::ToClient],
            },
        }
    }

    async fn inject(&mut self, plan: &FaultPlan) -> Outcome<()> {
        let all = self.servers;
        let mut servers = plan.servers.clone();
        if plan.leader
            && plan.kind.row().hits == Hits::Minority
            && let Some(leader) = all.leader().await
        {
            servers = vec![leader];
        }
        let of_servers = format!("servers {servers:?}");
        match plan.kind {
            Fault::ServerPaused | Fault::Blackout => self.outage(plan, &servers, Outage::Frozen).await?,
            Fault::RestartWithData => self.outage(plan, &servers, Outage::Killed).await?,
            Fault::BlackHole => {
                let directions = plan.directions.clone();
                self.outage(plan, &servers, Outage::CutOff { route: 0, directions }).await?;
            }
            Fault::FullMemory => self.outage(plan, &servers, Outage::Full).await?,
            Fault::Password => self.outage(plan, &servers, Outage::OtherPassword).await?,
            Fault::Certificate => self.outage(plan, &servers, Outage::OtherCertificates).await?,
            Fault::ClientKilled | Fault::Fork => self.replace(plan).await?,
            Fault::ClientPaused => {
                let fault = self.begin(plan, self.processes(&plan.workers));
                plan.workers.iter().for_each(|&worker| self.workers[worker].stop());
                self.end(fault);
                sleep(plan.span).await;
                plan.workers.iter().for_each(|&worker| self.workers[worker].cont());
                // A worker that continues may disturb the others once more.
                let resumed = self.resume(fault);
                self.end(resumed);
            }
            Fault::BusyThread => {
                let (worker, runtime, span) = (plan.workers[0], plan.runtime, plan.span);
                let process = self.workers[worker].process();
                let fault = self.begin(plan, format!("runtime {runtime} of process {process}"));
                self.faults[fault].computes = Some((process, runtime));
                self.workers[worker].send(Order::Compute { runtime, span }).await?;
                self.end(fault);
                match self.workers[worker].receive(span + all.lease() + END_DEADLINE).await? {
                    WorkerReport::Computed => {}
                    other => return Err(unexpected(&other)),
                }
                let resumed = self.resume(fault);
                self.end(resumed);
            }
            Fault::ConnectionsReset => {
                let whom = if servers.is_empty() { "all clients".to_owned() } else { of_servers };
                let fault = self.begin(plan, whom);
                all.reset(&servers).await?;
                self.end(fault);
            }
            Fault::ConnectionsEnded => {
                let fault = self.begin(plan, of_servers);
                all.end_sessions().await?;
                self.end(fault);
            }
            Fault::Silence => {
                let fault = self.begin(plan, of_servers);
                servers.iter().for_each(|&server| all.proxy(server).forget());
                self.end(fault);
            }
            Fault::RollingRestart => {
                for server in servers {
                    let fault = self.begin(plan, format!("server {server}"));
                    all.begin(&Outage::Killed, &[server]).await?;
                    all.end(&Outage::Killed, &[server]).await?;
                    self.end(fault);
                    sleep(self.recovery()).await;
                }
            }
            Fault::Renegotiation => {
                let server = servers[0];
                let fault = self.begin(plan, format!("server {server}"));
                all.restart_with_limit(server, all.lease() / 3).await?;
                // All clients choose a server anew.
                all.reset(&(0..all.len()).collect::<Vec<_>>()).await?;
                self.end(fault);
                sleep(plan.span).await;
                let resumed = self.resume(fault);
                all.strand_clients_of(server, true);
                sleep(all.lease()).await;
                all.strand_clients_of(server, false);
                all.restart_with_limit(server, NO_LIMIT).await?;
                self.end(resumed);
            }
            Fault::BusyScript => {
                let mut masters = all.masters().await?;
                masters.shuffle(&mut self.dice);
                for master in masters {
                    let fault = self.begin(plan, format!("the server on port {}", master.port()));
                    all.run_script(master, self.last(plan)).await?;
                    self.end(fault);
                }
            }
            Fault::SynchronousFailover | Fault::Failover => {
                let fault = self.begin(plan, "the master".to_owned());
                all.fail_over(plan.kind == Fault::SynchronousFailover).await?;
                self.end(fault);
                all.settle().await?;
            }
            Fault::TableLock => {
                let tables = ["lock", "lease", "waiter"];
                self.disturb(plan, Disturbance::TableLock(tables[plan.variant % tables.len()])).await?;
            }
            Fault::CancelledWaits => {
                let without_standby = plan.variant.is_multiple_of(2);
                self.disturb(plan, Disturbance::Cancels { without_standby }).await?;
            }
            Fault::ReadOnly => self.disturb(plan, Disturbance::ReadOnly).await?,
            Fault::IsolationLevel => {
                let levels = ["serializable", "repeatable read"];
                self.disturb(plan, Disturbance::Isolation(levels[plan.variant % levels.len()])).await?;
            }
            Fault::FullVacuum => self.disturb(plan, Disturbance::FullVacuum).await?,
            Fault::ForgedNotifications if self.backend == Site::Postgres => {
                self.disturb(plan, Disturbance::ForgedNotifications).await?;
            }
            Fault::ForgedNotifications => {
                let fault = self.begin(plan, "all inboxes".to_owned());
                all.forge_messages(self.last(plan)).await?;
                self.end(fault);
            }
            Fault::Close => {
                let fault = self.begin(plan, self.processes(&plan.workers));
                for &worker in &plan.workers {
                    self.workers[worker].send(Order::Close).await?;
                }
                for &worker in &plan.workers {
                    match self.workers[worker].receive(all.lease() + END_DEADLINE).await? {
                        WorkerReport::Closed => {}
                        other => return Err(unexpected(&other)),
                    }
                }
                self.end(fault);
            }
            Fault::Crowd => self.crowd(plan).await?,
            fault => return Err(Failure::new(format!("{fault} is not in the soak"))),
        }
        Ok(())
    }

    /// Has many tasks of a worker acquire a lock each.
    async fn crowd(&mut self, plan: &FaultPlan) -> Outcome<()> {
        let (worker, tasks) = (&self.workers[plan.workers[0]], crowd(self.backend));
        let whom = format!("{tasks} tasks of process {}", worker.process());
        let fault = self.begin(plan, whom.clone());
        self.workers[plan.workers[0]].send(Order::Crowd(tasks)).await?;
        match self.workers[plan.workers[0]].receive(CROWD_DEADLINE).await? {
            WorkerReport::Crowded { failed, .. } if failed <= tasks / 100 => {}
            WorkerReport::Crowded { failed, why } => {
                self.complaints.push(format!("{failed} of {whom} got no lock: {why}"));
            }
            other => return Err(unexpected(&other)),
        }
        self.end(fault);
        Ok(())
    }

    /// Has another session disturb the locks, for the time of the fault.
    async fn disturb(&mut self, plan: &FaultPlan, disturbance: Disturbance) -> Outcome<()> {
        let all = self.servers;
        let fault = self.begin(plan, disturbance.to_string());
        all.disturb(disturbance, self.last(plan)).await?;
        self.end(fault);
        Ok(())
    }

    /// Begins an outage of servers, for the time of the fault.
    async fn outage(&mut self, plan: &FaultPlan, servers: &[usize], outage: Outage) -> Outcome<()> {
        let all = self.servers;
        let fault = self.begin(
            plan,
            match &outage {
                Outage::CutOff { directions, .. } => format!("servers {servers:?} {directions:?}"),
                Outage::OtherPassword => "all servers".to_owned(),
                _ => format!("servers {servers:?}"),
            },
        );
        all.begin(&outage, servers).await?;
        if outage == Outage::Full {
            self.workers[plan.workers[0]].send(Order::Keep(plan.span)).await?;
        }
        self.last(plan).await?;
        all.end(&outage, servers).await?;
        self.end(fault);
        Ok(())
    }

    /// Waits while a fault of servers lasts. Workers may be killed meanwhile.
    async fn last(&mut self, plan: &FaultPlan) -> Outcome<()> {
        sleep(plan.span / 2).await;
        if plan.also_kills && self.kinds.contains(&Fault::ClientKilled) {
            self.replace(&FaultPlan { kind: Fault::ClientKilled, ..plan.clone() }).await?;
        }
        sleep(plan.span - plan.span / 2).await;
        Ok(())
    }

    /// Kills workers and starts others.
    async fn replace(&mut self, plan: &FaultPlan) -> Outcome<()> {
        let fault = self.begin(plan, self.processes(&plan.workers));
        for &worker in &plan.workers {
            let process = self.workers[worker].process();
            self.workers[worker].kill();
            // Taken after its end: it may have acquired a lock in its last moment.
            let (client, lock, at_ns) = (0, String::new(), now_ns());
            self.deaths.write(&Event { process, client, lock, at_ns, kind: EventKind::Died });
            let job = self.job(plan.kind == Fault::Fork);
            self.workers[worker] = WorkerHandle::start_one(job).await?;
        }
        self.end(fault);
        Ok(())
    }

    /// The job of the next worker.
    fn job(&mut self, forks: bool) -> Job {
        let child = forks.then(|| self.next_process());
        let process = self.next_process();
        let lease = match self.broken {
            Some(Defect::NeverReleases) => self.servers.lease() + LEFT,
            _ => self.servers.lease(),
        };
        let task = SoakTask {
            seed: self.seed,
            lease: self.servers.lease(),
            folder: self.folder.clone(),
            broken: self.broken,
            faults: self.kinds.clone(),
            child,
        };
        Job::new(&self.servers.url(lease), "soak", process, Task::Soak(task))
    }

    fn next_process(&mut self) -> u32 {
        self.started += 1;
        self.started
    }

    fn processes(&self, workers: &[usize]) -> String {
        let processes: Vec<_> = workers.iter().map(|&worker| self.workers[worker].process()).collect();
        format!("processes {processes:?}")
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.dice.random_range(0.0..1.0))
    }

    fn begin(&mut self, plan: &FaultPlan, whom: String) -> usize {
        let from_ns = now_ns();
        eprintln!(
            "    {}: {} of {whom}, {:.1} s",
            seconds(from_ns - self.began_ns),
            plan.kind.soak_name(),
            plan.span.as_secs_f64()
        );
        let (kind, until_ns) = (plan.kind, u64::MAX);
        let keeps_locks = kind.row().keeps_locks(self.backend);
        self.faults.push(Injected {
            fault: kind,
            whom,
            resumes: false,
            keeps_locks,
            from_ns,
            until_ns,
            computes: None,
        });
        self.faults.len() - 1
    }

    /// Begins the end of a fault.
    fn resume(&mut self, fault: usize) -> usize {
        let begun = self.faults[fault].clone();
        self.faults.push(Injected { resumes: true, from_ns: now_ns(), until_ns: u64::MAX, ..begun });
        self.faults.len() - 1
    }

    fn end(&mut self, fault: usize) {
        self.faults[fault].until_ns = now_ns();
    }
}

/// The next fault, as the seed chose it.
#[derive(Clone, Debug)]
struct FaultPlan {
    kind: Fault,
    span: Duration,
    servers: Vec<usize>,
    leader: bool,
    workers: Vec<usize>,
    /// Whose thread computes.
    runtime: usize,
    also_kills: bool,
    /// Chooses among the variants of a kind.
    variant: usize,
    directions: Vec<Direction>,
}

impl FaultPlan {
    /// How often it happens.
    fn turns(&self) -> u32 {
        let in_turn = self.kind.row().hits == Hits::EachInTurn;
        if in_turn { self.servers.len().max(1) as u32 } else { 1 }
    }
}

/// How many tasks a worker can have at once: all of them get their lock within some leases.
const fn crowd(backend: Site) -> usize {
    match backend {
        Site::Redis | Site::RedisTls | Site::Sentinel => 20_000,
        Site::Redlock => 1_000,
        _ => 2_000,
    }
}

const WORKERS: usize = 12;
const MOST_WORKERS: usize = 3;
/// A multiple of the variants of each kind.
const VARIANTS: usize = 6;
/// The number of this process in the histories.
pub(super) const INJECTOR: u32 = 0;
const CALM: Duration = Duration::from_secs(1);
/// So that an outage beyond the limit is measured in full.
const MARGIN: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(1);
/// The limit of session timeouts that the servers began with.
const NO_LIMIT: Duration = Duration::from_secs(60);
/// How much longer than a lease a worker may take to end.
const END_DEADLINE: Duration = Duration::from_secs(30);
const CROWD_DEADLINE: Duration = Duration::from_secs(120);
/// How much longer the lock of `NeverReleases` lives.
const LEFT: Duration = Duration::from_secs(60);
