//! The operator of a soak: one fault after the other, chosen by a seed, with time to recover after each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_testkit::history::{Event, EventKind, Recorder};
use lock_testkit::now_ns;
use lock_testkit::proxy::Direction;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until};

use super::stage::Stage;
use super::verdict::seconds;
use super::watch::Watch;
use super::worker::Task;
use crate::crew::Hand;
use crate::failure::Outcome;
use crate::options::{Defect, FaultKind};
use crate::worker::{self, Job, News, Order};

/// A fault that has come to pass.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    /// Its kind.
    pub(super) kind: FaultKind,
    /// The servers or workers, in words.
    pub(super) whom: String,
    /// Whether it is the end of a pause: the limit counts from there again.
    pub(super) resumes: bool,
    /// When it began, on the clock of the histories.
    pub(super) from_ns: u64,
    /// When it was over. For a worker that was killed or stopped: when that happened, as its lease runs out from then on.
    pub(super) until_ns: u64,
}

/// The operator, the servers and the workers.
pub(super) struct Operator<'a> {
    stage: &'a Stage,
    kinds: Vec<FaultKind>,
    dice: StdRng,
    seed: u64,
    folder: PathBuf,
    broken: Option<Defect>,
    deaths: Recorder,
    crew: Vec<Hand>,
    hired: u32,
    watch: Watch,
    began_ns: u64,
    /// What has happened so far.
    pub(super) faults: Vec<Fault>,
}

impl<'a> Operator<'a> {
    /// With workers that write their histories into this folder.
    ///
    /// # Errors
    ///
    /// When a worker cannot be started.
    pub(super) async fn with_crew(
        stage: &'a Stage,
        kinds: Vec<FaultKind>,
        seed: u64,
        folder: &Path,
        broken: Option<Defect>,
    ) -> Outcome<Self> {
        let deaths = Recorder::create(folder.join("deaths.jsonl"), OPERATOR)?.flush_every_event();
        let mut operator = Self {
            stage,
            kinds,
            dice: StdRng::seed_from_u64(seed),
            seed,
            folder: folder.to_owned(),
            broken,
            deaths,
            crew: Vec::new(),
            hired: 0,
            watch: Watch::new(folder),
            began_ns: now_ns(),
            faults: Vec::new(),
        };
        let jobs: Vec<Job> = (0..WORKERS).map(|_| operator.job()).collect();
        operator.crew = Hand::hire(jobs).await?;
        Ok(operator)
    }

    /// Carries out faults until `end`; the last one is over in time for all to recover.
    ///
    /// # Errors
    ///
    /// When a server does not come back, or a worker cannot be started.
    ///
    /// # Cancel safety
    ///
    /// Dropped in the middle of a fault, it leaves that as it is.
    pub(super) async fn disturb(&mut self, end: Instant) -> Outcome<()> {
        let mut bag = Vec::new();
        sleep(CALM).await;
        loop {
            if bag.is_empty() {
                bag.clone_from(&self.kinds);
                bag.shuffle(&mut self.dice);
            }
            let Some(kind) = bag.pop() else { break };
            let plan = self.plan(kind);
            if Instant::now() + plan.span + self.recovery() > end {
                break;
            }
            self.carry_out(&plan).await?;
            sleep(self.recovery()).await;
            self.granted_again(end).await?;
        }
        sleep_until(end).await;
        Ok(())
    }

    /// Ends all workers, and returns their complaints.
    pub(super) async fn dismiss(&self) -> Vec<String> {
        for hand in &self.crew {
            // One that is gone is told below.
            let _ = hand.order(Order::Go).await;
        }
        let mut complaints = Vec::new();
        for hand in &self.crew {
            let process = hand.process();
            match hand.hear(self.stage.lease() + DISMISSAL).await {
                Ok(News::Stuck(stuck)) => {
                    complaints.extend(stuck.into_iter().map(|stuck| format!("process {process}: {stuck}")));
                }
                Ok(other) => complaints.push(format!("process {process} said {other:?}")),
                Err(failure) => complaints.push(format!("process {process}: {failure}")),
            }
        }
        complaints
    }

    /// The longest time after a fault until all locks must be granted again, and a margin.
    fn recovery(&self) -> Duration {
        self.stage.lease() + super::SLACK + MARGIN
    }

    /// Waits until every lock was granted after the last fault, at most until the end of the soak: the next fault must not
    /// hide the length of an outage.
    async fn granted_again(&mut self, end: Instant) -> Outcome<()> {
        let over_ns = self.faults.iter().map(|fault| fault.until_ns).max().unwrap_or(0);
        while Instant::now() < end {
            let waiting = self.watch.waiting_since(over_ns)?;
            if waiting.is_empty() {
                break;
            }
            eprintln!("    {}: no grant yet of {}", seconds(now_ns() - self.began_ns), waiting.join(", "));
            sleep(LOOK).await;
        }
        Ok(())
    }

    fn plan(&mut self, kind: FaultKind) -> Plan {
        let (lease, all) = (self.stage.lease(), self.stage.len());
        let span = match kind {
            FaultKind::Kill | FaultKind::Reset | FaultKind::Failover | FaultKind::AbruptFailover => {
                Duration::ZERO
            }
            FaultKind::Pause => lease + self.up_to(lease),
            FaultKind::Freeze | FaultKind::BlackHole | FaultKind::Blackout => {
                SHORTEST + self.up_to(lease + LONGER)
            }
            FaultKind::Restart => self.up_to(lease),
        };
        let mut servers: Vec<usize> = (0..all).collect();
        servers.shuffle(&mut self.dice);
        let most = if kind == FaultKind::Reset { all } else { self.stage.most_gone() };
        servers.truncate(self.dice.random_range(1..=most.max(1)));
        let mut workers: Vec<usize> = (0..WORKERS).collect();
        workers.shuffle(&mut self.dice);
        workers.truncate(self.dice.random_range(1..=MOST_WORKERS));
        Plan {
            kind,
            span,
            servers,
            leader: self.dice.random_bool(0.5),
            workers,
            also_kills: self.dice.random_bool(0.3),
            directions: match self.dice.random_range(0..3) {
                0 => vec![Direction::ToClient],
                1 => vec![Direction::ToServer],
                _ => vec![Direction::ToServer, Direction::ToClient],
            },
        }
    }

    async fn carry_out(&mut self, plan: &Plan) -> Outcome<()> {
        let stage = self.stage;
        let mut servers = plan.servers.clone();
        if plan.kind == FaultKind::Blackout {
            servers = (0..stage.len()).collect();
        } else if plan.leader
            && plan.kind != FaultKind::Reset
            && let Some(leader) = stage.leader().await
        {
            servers = vec![leader];
        }
        let of_servers = format!("servers {servers:?}");
        match plan.kind {
            FaultKind::Kill => {
                let fault = self.begin(plan, self.processes(&plan.workers));
                for &worker in &plan.workers {
                    self.kill(worker).await?;
                }
                self.end(fault);
            }
            FaultKind::Pause => {
                let fault = self.begin(plan, self.processes(&plan.workers));
                plan.workers.iter().for_each(|&worker| self.crew[worker].stop());
                self.end(fault);
                sleep(plan.span).await;
                plan.workers.iter().for_each(|&worker| self.crew[worker].cont());
                // A worker that goes on may disturb the others once more.
                let now_ns = now_ns();
                let stopped = self.faults[fault].clone();
                self.faults.push(Fault { resumes: true, from_ns: now_ns, until_ns: now_ns, ..stopped });
            }
            FaultKind::Freeze | FaultKind::Blackout => {
                let fault = self.begin(plan, of_servers);
                servers.iter().for_each(|&server| stage.stop(server));
                self.meanwhile(plan).await?;
                servers.iter().for_each(|&server| stage.cont(server));
                self.end(fault);
            }
            FaultKind::Reset => {
                let whom = if servers.is_empty() { "all clients".to_owned() } else { of_servers };
                let fault = self.begin(plan, whom);
                stage.reset(&servers).await?;
                self.end(fault);
            }
            FaultKind::BlackHole => {
                let fault = self.begin(plan, format!("{of_servers} {:?}", plan.directions));
                let switch = |on: bool| {
                    for &server in &servers {
                        for &direction in &plan.directions {
                            stage.proxy(server).black_hole(direction, on);
                        }
                    }
                };
                switch(true);
                self.meanwhile(plan).await?;
                switch(false);
                self.end(fault);
            }
            FaultKind::Restart => {
                let fault = self.begin(plan, of_servers);
                servers.iter().for_each(|&server| stage.kill(server));
                self.meanwhile(plan).await?;
                for &server in &servers {
                    stage.start_again(server).await?;
                }
                self.end(fault);
            }
            FaultKind::Failover | FaultKind::AbruptFailover => {
                let fault = self.begin(plan, "the master".to_owned());
                stage.fail_over(plan.kind == FaultKind::Failover).await?;
                self.end(fault);
                stage.settle().await?;
            }
        }
        Ok(())
    }

    /// The time that a fault of servers takes; workers may be killed meanwhile.
    async fn meanwhile(&mut self, plan: &Plan) -> Outcome<()> {
        sleep(plan.span / 2).await;
        if plan.also_kills && self.kinds.contains(&FaultKind::Kill) {
            let fault =
                self.begin(&Plan { kind: FaultKind::Kill, ..plan.clone() }, self.processes(&plan.workers));
            for &worker in &plan.workers {
                self.kill(worker).await?;
            }
            self.end(fault);
        }
        sleep(plan.span - plan.span / 2).await;
        Ok(())
    }

    /// Kills a worker, and puts another one in its place.
    async fn kill(&mut self, worker: usize) -> Outcome<()> {
        let process = self.crew[worker].process();
        self.crew[worker].kill();
        // The time is taken when it is gone: it may have acquired a lock in its last moment.
        let (client, lock, at_ns) = (0, String::new(), now_ns());
        self.deaths.write(&Event { process, client, lock, at_ns, kind: EventKind::Died });
        let job = self.job();
        self.crew[worker] = Hand::hire_one(job).await?;
        Ok(())
    }

    /// What the next worker is to do.
    fn job(&mut self) -> Job {
        self.hired += 1;
        let lease = match self.broken {
            Some(Defect::NeverReleases) => self.stage.lease() + LEFT,
            _ => self.stage.lease(),
        };
        let task = Task {
            seed: self.seed,
            lease: self.stage.lease(),
            history: self.folder.join(format!("process-{}.jsonl", self.hired)),
            broken: self.broken,
        };
        Job::new(&self.stage.url(lease), "soak", self.hired, worker::Task::Soak(task))
    }

    fn processes(&self, workers: &[usize]) -> String {
        let processes: Vec<_> = workers.iter().map(|&worker| self.crew[worker].process()).collect();
        format!("processes {processes:?}")
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.dice.random_range(0.0..1.0))
    }

    fn begin(&mut self, plan: &Plan, whom: String) -> usize {
        let from_ns = now_ns();
        eprintln!(
            "    {}: {} of {whom}, {:.1} s",
            seconds(from_ns - self.began_ns),
            plan.kind,
            plan.span.as_secs_f64()
        );
        self.faults.push(Fault { kind: plan.kind, whom, resumes: false, from_ns, until_ns: u64::MAX });
        self.faults.len() - 1
    }

    fn end(&mut self, fault: usize) {
        self.faults[fault].until_ns = now_ns();
    }
}

/// What is to happen next, as far as the dice say.
#[derive(Clone, Debug)]
struct Plan {
    kind: FaultKind,
    span: Duration,
    servers: Vec<usize>,
    /// Whether it is the leader that is meant, where one leads.
    leader: bool,
    workers: Vec<usize>,
    also_kills: bool,
    directions: Vec<Direction>,
}

const WORKERS: usize = 12;
const MOST_WORKERS: usize = 3;
/// The number of this process in the histories.
const OPERATOR: u32 = 0;
const CALM: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_secs(1);
/// Requests that a frozen server carries out afterwards are then older than any lease and timeout of their clients.
const LONGER: Duration = Duration::from_secs(4);
/// An outage that is too long is not cut off at the limit.
const MARGIN: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(1);
/// Beside the lease, what a worker needs to end, and to say what is stuck.
const DISMISSAL: Duration = Duration::from_secs(30);
/// How much longer a lock lives that is never released.
const LEFT: Duration = Duration::from_secs(60);
