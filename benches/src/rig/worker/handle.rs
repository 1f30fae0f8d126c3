//! The parent's side of a worker.

use std::process::Command;
use std::time::Duration;

use lock_testkit::history::Event;
use lock_testkit::{Error as TestkitError, Worker};

use super::held_locks::HeldLocksCost;
use super::{Job, Order, WorkerReport};
use crate::data::{Failure, Outcome};
use crate::rig::process::stat;
use crate::rig::stuck;

/// A worker process. It is killed when this is dropped, and when this process dies.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    inner: Worker,
    process: u32,
    /// The ttl or session timeout of its locks.
    pub(crate) lease: Duration,
}

impl WorkerHandle {
    /// Starts a worker for each job, all at once, and waits until all are connected.
    pub(crate) async fn start_all(jobs: impl IntoIterator<Item = Job>) -> Outcome<Vec<Self>> {
        let mut started = Vec::new();
        for job in jobs {
            let process = job.process;
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("worker");
            if let Some(folder) = stuck::logs() {
                command.env(stuck::LOGS, folder);
            }
            let worker = Worker::spawn(&command)?;
            worker.send(&serde_json::to_value(job)?).await?;
            started.push((worker, process));
        }
        let mut workers = Vec::new();
        for (inner, process) in started {
            let mut worker = Self { inner, process, lease: Duration::ZERO };
            worker.lease = match worker.receive(CONNECT_DEADLINE).await? {
                WorkerReport::Ready { lease } => lease,
                other => return Err(unexpected(&other)),
            };
            workers.push(worker);
        }
        Ok(workers)
    }

    pub(crate) async fn start_one(job: Job) -> Outcome<Self> {
        Self::start_all([job]).await?.pop().ok_or_else(|| Failure::new("no worker was started"))
    }

    /// The number of the process in the history.
    pub(crate) const fn process(&self) -> u32 {
        self.process
    }

    /// Sends an order. Fails when the worker has ended, with its last report.
    pub(crate) async fn send(&self, order: Order) -> Outcome<()> {
        if let Err(error) = self.inner.send(&serde_json::to_value(order)?).await {
            self.receive(Duration::from_secs(1)).await?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Sends an order, and reads no report. Fails when the worker has ended.
    pub(crate) async fn send_only(&self, order: Order) -> Outcome<()> {
        Ok(self.inner.send(&serde_json::to_value(order)?).await?)
    }

    pub(crate) async fn receive(&self, patience: Duration) -> Outcome<WorkerReport> {
        let received = match self.inner.recv_deadline(patience).await {
            Err(silent @ TestkitError::WorkerSilent { .. }) => {
                return Err(Failure::new(format!("{silent}{}", stuck::see_logs())));
            }
            received => received?,
        };
        match serde_json::from_value(received)? {
            WorkerReport::Failed(why) => Err(Failure::new(why).during("in a worker process")),
            report => Ok(report),
        }
    }

    /// Waits for the next report, which must have events.
    pub(crate) async fn events(&self, patience: Duration) -> Outcome<Vec<Event>> {
        match self.receive(patience).await? {
            WorkerReport::Events(events) => Ok(events),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits for the next report, which must be what many held locks cost.
    pub(crate) async fn cost(&self, patience: Duration) -> Outcome<HeldLocksCost> {
        match self.receive(patience).await? {
            WorkerReport::Cost(cost) => Ok(cost),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn kill(&self) {
        self.inner.kill();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        stat(self.inner.pid()).is_some_and(|fields| fields.first().is_some_and(|state| state == "T"))
    }

    pub(crate) fn stop(&self) {
        self.inner.stop();
    }

    /// Continues a stopped process.
    pub(crate) fn cont(&self) {
        self.inner.cont();
    }
}

/// The failure of a worker that breaks the protocol.
pub(crate) fn unexpected(report: &WorkerReport) -> Failure {
    Failure::new(format!("a worker sent an unexpected report: {report:?}"))
}

/// Long, as many processes start at once on a small machine.
const CONNECT_DEADLINE: Duration = Duration::from_secs(60);
