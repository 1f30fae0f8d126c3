//! The processes that use locks while faults happen, and what they report.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lock_testkit::history::{Event, EventKind};
use lock_testkit::now_ns;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::live_history::LiveHistory;
use crate::data::{Failure, Outcome};
use crate::rig::worker::handle::unexpected;
use crate::rig::{
    ClientOrder, ClientProgram, ClientRole, Job, Order, Task, WorkerHandle, WorkerReport, stuck,
};

/// The process of the holder in the fault table; with the memory backend, that of all clients.
pub(crate) const HOLDER: u32 = 1;

/// The running processes. They are killed when this is dropped.
pub(crate) struct Crew {
    members: Vec<Member>,
    history: Arc<LiveHistory>,
    /// They end with their worker's last report.
    readers: JoinSet<Vec<String>>,
    processes: BTreeMap<Id, u32>,
    /// The clients that are ordered, and run.
    clients: BTreeMap<(u32, u64), ClientRole>,
}

struct Member {
    worker: Arc<WorkerHandle>,
    /// What is no event.
    reports: UnboundedReceiver<WorkerReport>,
}

impl Crew {
    /// Starts the processes, and waits until they are ready.
    pub(crate) async fn start(jobs: Vec<Job>, history: LiveHistory) -> Outcome<Self> {
        let clients = jobs.iter().flat_map(clients_of).collect();
        let mut crew = Self {
            members: Vec::new(),
            history: Arc::new(history),
            readers: JoinSet::new(),
            processes: BTreeMap::new(),
            clients,
        };
        for worker in WorkerHandle::start_all(jobs).await? {
            let member = crew.read(worker);
            crew.members.push(member);
        }
        Ok(crew)
    }

    pub(crate) fn history(&self) -> &LiveHistory {
        &self.history
    }

    /// Sends an order to every process. One that was killed does not get it.
    pub(crate) async fn order(&self, order: ClientOrder) {
        for member in &self.members {
            let _ = member.worker.send_only(Order::Clients(order)).await;
        }
    }

    pub(crate) async fn order_one(&self, member: usize, order: ClientOrder) -> Outcome<()> {
        self.members[member].worker.send_only(Order::Clients(order)).await
    }

    /// The next report of a member that is no event, if it is one of these.
    pub(crate) async fn report<T>(
        &mut self,
        member: usize,
        patience: Duration,
        wanted: impl Fn(&WorkerReport) -> Option<T>,
    ) -> Outcome<T> {
        let process = self.process(member);
        let report = timeout(patience, self.members[member].reports.recv()).await;
        let failed = |what: String| Failure::new(format!("process {process} {what}{}", stuck::see_logs()));
        let report = report
            .map_err(|_| failed(format!("has not reported for {patience:?}")))?
            .ok_or_else(|| failed("has ended".to_owned()))?;
        wanted(&report).ok_or_else(|| unexpected(&report))
    }

    /// The number of a member's process in the history.
    pub(crate) fn process(&self, member: usize) -> u32 {
        self.members[member].worker.process()
    }

    /// Stops a process by SIGSTOP: at once, or between a check of the holder's guard and the write.
    pub(crate) async fn stop(&self, member: usize, patience: Option<Duration>) -> Outcome<()> {
        let worker = &self.members[member].worker;
        let Some(patience) = patience else {
            worker.stop();
            return Ok(());
        };
        self.order_one(member, ClientOrder::Pause).await?;
        let stopped = async {
            while !worker.is_stopped() {
                sleep(LOOK).await;
            }
        };
        let stopped = timeout(patience, stopped).await;
        stopped.map_err(|_| Failure::new(format!("the holder did not stop within {patience:?}")))
    }

    /// Continues a stopped process.
    pub(crate) fn cont(&self, member: usize) {
        self.members[member].worker.cont();
    }

    /// Kills a process by SIGKILL.
    pub(crate) fn kill(&mut self, member: usize) {
        let process = self.process(member);
        self.clients.retain(|(of, _), _| *of != process);
        self.history.expect_death(process);
        self.members[member].worker.kill();
        // Taken after its end: it may have acquired a lock in its last moment.
        let (lock, at_ns) = (String::new(), now_ns());
        self.history.add(Event { process, client: 0, lock, at_ns, kind: EventKind::Died });
    }

    /// Kills all processes, and reads their reports to the end.
    pub(crate) async fn kill_all(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
        while self.readers.join_next().await.is_some() {}
    }

    /// Starts a process in place of a killed one.
    pub(crate) async fn replace(&mut self, member: usize, job: Job) -> Outcome<()> {
        let worker = WorkerHandle::start_one(job).await?;
        self.members[member] = self.read(worker);
        Ok(())
    }

    /// Ends the task of the holder, whose process has other clients.
    pub(crate) async fn abort_holder(&mut self) {
        self.clients.remove(&(HOLDER, 0));
        self.order(ClientOrder::Abort).await;
    }

    /// Those of the first clients that wait for the lock instead of polling it.
    pub(crate) fn waiters(&self) -> Vec<(u32, u64)> {
        let waiters = self.clients.iter().filter(|(_, role)| **role != ClientRole::Poller);
        waiters.map(|(client, _)| *client).collect()
    }

    /// Waits until a lock was granted. Whether that came in time.
    pub(crate) async fn granted(&self, patience: Duration) -> bool {
        self.history.until(patience, |seen| !seen.granted_since(0).is_empty()).await
    }

    /// Waits until a lock was granted to every client that runs since then. Whether that came in time.
    pub(crate) async fn granted_to_all(&self, since_ns: u64, patience: Duration) -> bool {
        let running: BTreeSet<_> = self.clients.keys().copied().collect();
        self.history.until(patience, |seen| seen.granted_since(since_ns).is_superset(&running)).await
    }

    /// Waits until a lock was granted to a client other than the holder since then. Whether that came in time.
    pub(crate) async fn granted_to_another(&self, since_ns: u64, patience: Duration) -> bool {
        let is_other = |client: &(u32, u64)| *client != (HOLDER, 0);
        self.history.until(patience, |seen| seen.granted_since(since_ns).iter().any(is_other)).await
    }

    /// Waits until such a client has written since then. Whether that came in time.
    pub(crate) async fn wrote(
        &self,
        wanted: impl Fn(&(u32, u64)) -> bool + Sync,
        since_ns: u64,
        patience: Duration,
    ) -> bool {
        self.history.until(patience, |seen| seen.wrote_since(since_ns).iter().any(&wanted)).await
    }

    /// Ends the processes. Returns what is wrong with them.
    pub(crate) async fn end(&mut self, patience: Duration) -> Vec<String> {
        self.order(ClientOrder::End).await;
        let (mut complaints, deadline) = (Vec::new(), Instant::now() + patience);
        while let Ok(Some(ended)) = timeout_at(deadline, self.readers.join_next_with_id()).await {
            match ended {
                Ok((id, of_one)) => {
                    self.processes.remove(&id);
                    complaints.extend(of_one);
                }
                Err(error) => complaints.push(format!("reading what a process reports: {error}")),
            }
        }
        if !self.readers.is_empty() {
            let left: Vec<_> = self.processes.values().collect();
            complaints.push(format!("processes {left:?} have not ended within {patience:?}"));
        }
        complaints
    }

    /// Reads what a worker reports from now on.
    fn read(&mut self, worker: WorkerHandle) -> Member {
        let (worker, (pass_on, reports)) = (Arc::new(worker), unbounded_channel());
        let reading = read(Arc::clone(&worker), Arc::clone(&self.history), pass_on);
        self.processes.insert(self.readers.spawn(reading).id(), worker.process());
        Member { worker, reports }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // Their readers have them as well.
        self.members.iter().for_each(|member| member.worker.kill());
    }
}

fn clients_of(job: &Job) -> Vec<((u32, u64), ClientRole)> {
    match &job.task {
        Task::Clients(task) => match &task.program {
            ClientProgram::Ordered(roles) => {
                (0..).zip(roles).map(|(number, role)| ((job.process, number), *role)).collect()
            }
            ClientProgram::Random { .. } => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Reads the reports of a worker until it has ended. Returns its complaints.
async fn read(
    worker: Arc<WorkerHandle>,
    history: Arc<LiveHistory>,
    pass_on: UnboundedSender<WorkerReport>,
) -> Vec<String> {
    let process = worker.process();
    loop {
        match worker.receive(FOR_EVER).await {
            Ok(WorkerReport::Events(events)) => events.into_iter().for_each(|event| history.add(event)),
            Ok(WorkerReport::Write { client, token }) => history.write((process, client), token),
            Ok(WorkerReport::Error(error)) => history.add_error(process, &error),
            Ok(WorkerReport::Stuck(stuck)) => {
                return stuck.into_iter().map(|stuck| format!("process {process}: {stuck}")).collect();
            }
            // Nobody waits for it once a fault has failed.
            Ok(report) => drop(pass_on.send(report)),
            Err(_) if history.expects_death(process) => return Vec::new(),
            Err(failure) => return vec![format!("process {process}: {failure}")],
        }
    }
}

/// Those who wait for a report have deadlines.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
const LOOK: Duration = Duration::from_millis(1);
