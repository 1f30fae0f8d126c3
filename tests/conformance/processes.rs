//! Processes on every rung of a migration, some of which are killed or stopped while they hold the lock.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use lock_testkit::{RedisServer, Worker, ZooKeeper, migration_url};
use polylock::Rung;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use crate::sites::{Flavour, worker};

const RUNGS: [Rung; 4] = [Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move];

pub(crate) fn trials() -> Vec<Trial> {
    let servers = Arc::default();
    let mut trials = Vec::new();
    for rung in RUNGS {
        trials.extend(CASES.iter().map(|(name, case)| {
            let fleet =
                Fleet { servers: Arc::clone(&servers), rungs: [rung; 4], name: format!("{rung}/{name}") };
            trial(format!("migrate-{rung}::processes::{name}"), *case, fleet)
        }));
    }
    for first in RUNGS {
        trials.extend(CASES.iter().map(|(name, case)| {
            let mut rungs = RUNGS;
            let at = rungs.iter().position(|&rung| rung == first).expect("it is one of them");
            rungs.rotate_left(at);
            let fleet = Fleet { servers: Arc::clone(&servers), rungs, name: format!("all-{first}/{name}") };
            trial(format!("migrate-all-after-{first}::processes::{name}"), *case, fleet)
        }));
    }
    trials
}

type Case = fn(Fleet) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! cases {
    ($($case:ident),* $(,)?) => { [$((stringify!($case), (|fleet| Box::pin($case(fleet))) as Case)),*] };
}

const CASES: [(&str, Case); 3] =
    cases![a_killed_holder_is_followed, a_stopped_holder_knows_that_it_lost, a_killed_waiter_is_no_obstacle];

fn trial(name: String, case: Case, fleet: Fleet) -> Trial {
    let run = move || {
        runtime().block_on(case(fleet));
        Ok(())
    };
    Trial::test(name, run).with_ignored_flag(true)
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("the system has threads to spare")
}

type Servers = OnceCell<(RedisServer, ZooKeeper)>;

/// Four processes with a lock: the first of them holds it first.
struct Fleet {
    servers: Arc<Servers>,
    rungs: [Rung; 4],
    name: String,
}

impl Fleet {
    async fn processes(&self) -> Vec<Process> {
        let start = async || {
            let (redis, zk) = tokio::join!(RedisServer::start(), ZooKeeper::start());
            (redis.unwrap_or_else(|error| panic!("{error}")), zk.unwrap_or_else(|error| panic!("{error}")))
        };
        let (redis, zk) = self.servers.get_or_init(start).await;
        let from = format!("{}?ttl={}s", redis.url(), LEASE.as_secs());
        let to = format!("{}?session_timeout={}s", zk.url(), LEASE.as_secs());
        let url = |rung| migration_url("shop", &from, &to, &format!("&rung={rung}"));
        let processes: Vec<_> =
            self.rungs.iter().map(|&rung| Process::start(&url(rung), &self.name, rung)).collect();
        for process in &processes {
            process.hear("ready").await;
        }
        processes
    }
}

struct Process {
    worker: Worker,
    lock: String,
    rung: Rung,
}

impl Process {
    fn start(url: &str, lock: &str, rung: Rung) -> Self {
        let worker = Worker::spawn(&worker(Flavour::Dyn, url)).unwrap_or_else(|error| panic!("{error}"));
        Self { worker, lock: lock.to_owned(), rung }
    }

    async fn tell(&self, order: Value) {
        let sent = timeout(PATIENCE, self.worker.send(&order)).await;
        sent.expect("the worker listens").unwrap_or_else(|error| panic!("{error}"));
    }

    async fn hear(&self, what: &str) -> Value {
        let answer = self.worker.recv_deadline(PATIENCE).await;
        let answer = answer.unwrap_or_else(|error| panic!("{} on {}: {error}", self.lock, self.rung));
        assert_eq!(answer["is"], what, "{} on {}: {answer}", self.lock, self.rung);
        answer
    }

    async fn ask_for_the_lock(&self) {
        self.tell(json!({ "do": "acquire", "name": self.lock, "handle": "mutex" })).await;
    }

    /// Its token, once it has the lock.
    async fn holds(&self) -> u64 {
        self.hear("held").await["token"].as_u64().expect("a lock has a token")
    }

    async fn acquire(&self) -> u64 {
        self.ask_for_the_lock().await;
        self.holds().await
    }

    async fn is_valid(&self) -> bool {
        self.tell(json!({ "do": "report" })).await;
        self.hear("reported").await["valid"].as_bool().expect("it is valid or not")
    }

    /// Whether it held the lock until then.
    async fn release(&self) -> bool {
        self.tell(json!({ "do": "release" })).await;
        self.hear("released").await["was_ours"].as_bool().expect("it was or was not")
    }
}

/// The first of these that gets the lock, within a lease, and its token. The others are excluded.
async fn next_holder(waiting: &mut Vec<Process>, last: u64) -> (Process, u64) {
    let limit = Instant::now() + LEASE + SLACK;
    let (at, answer) = loop {
        assert!(Instant::now() < limit, "nobody gets the lock of a process that is gone");
        let mut answers = Vec::new();
        for process in &*waiting {
            // Time: it asks one after the other.
            answers.push(process.worker.recv_deadline(Duration::from_millis(20)).await.ok());
        }
        if let Some(at) = answers.iter().position(Option::is_some) {
            assert_eq!(answers.iter().flatten().count(), 1, "two holders: {answers:?}");
            break (at, answers.swap_remove(at).unwrap_or_default());
        }
    };
    let process = waiting.swap_remove(at);
    assert_eq!(answer["is"], "held", "{} on {}: {answer}", process.lock, process.rung);
    let token = answer["token"].as_u64().expect("a lock has a token");
    assert!(token > last, "token {token} on {} came after {last}", process.rung);
    // Time: another one would get it.
    sleep(MOMENT).await;
    are_excluded(waiting, &process).await;
    assert!(process.is_valid().await);
    (process, token)
}

async fn are_excluded(waiting: &[Process], holder: &Process) {
    for other in waiting {
        // Time: what there is already.
        let answer = other.worker.recv_deadline(Duration::from_millis(1)).await;
        assert!(answer.is_err(), "{} beside {}: {answer:?}", other.rung, holder.rung);
    }
}

/// All of these get the lock, one after the other, with growing tokens. Returns the last token.
async fn pass_it_on(mut waiting: Vec<Process>, mut last: u64) -> u64 {
    while !waiting.is_empty() {
        let (process, token) = next_holder(&mut waiting, last).await;
        assert!(process.release().await, "it lost the lock");
        last = token;
    }
    last
}

async fn a_killed_holder_is_followed(fleet: Fleet) {
    let mut processes = fleet.processes().await;
    let holder = processes.remove(0);
    let token = holder.acquire().await;
    for process in &processes {
        process.ask_for_the_lock().await;
    }
    // Time: renewed as long as the process lives.
    sleep(LEASE + LEASE / 2).await;
    are_excluded(&processes, &holder).await;
    holder.worker.kill();
    pass_it_on(processes, token).await;
}

async fn a_stopped_holder_knows_that_it_lost(fleet: Fleet) {
    let mut processes = fleet.processes().await;
    let holder = processes.remove(0);
    let token = holder.acquire().await;
    assert!(holder.is_valid().await);
    for process in &processes {
        process.ask_for_the_lock().await;
    }
    // Time: the others wait, of which not every store tells.
    sleep(MOMENT).await;
    holder.worker.stop();
    let (next, next_token) = next_holder(&mut processes, token).await;
    // It checks its guard as soon as it continues.
    holder.tell(json!({ "do": "report" })).await;
    // Time: the pause is longer than its lease.
    sleep(LEASE).await;
    holder.worker.cont();
    let report = holder.hear("reported").await;
    assert_eq!(report["valid"], false, "the next process has the lock beside a stopped one: {report}");
    assert!(!holder.release().await, "it held the lock all the time");
    // Time: another one would get it.
    sleep(MOMENT).await;
    are_excluded(&processes, &next).await;
    assert!(next.is_valid().await, "the late release freed the next holder");
    assert!(next.release().await);
    // The process can acquire again.
    holder.ask_for_the_lock().await;
    processes.push(holder);
    pass_it_on(processes, next_token).await;
}

async fn a_killed_waiter_is_no_obstacle(fleet: Fleet) {
    let mut processes = fleet.processes().await;
    let (holder, waiter) = (processes.remove(0), processes.remove(0));
    let token = holder.acquire().await;
    waiter.ask_for_the_lock().await;
    // Time: it stands before the others.
    sleep(MOMENT).await;
    for process in &processes {
        process.ask_for_the_lock().await;
    }
    // Time: all of them wait, of which not every store tells.
    sleep(MOMENT).await;
    waiter.worker.kill();
    assert!(holder.release().await);
    pass_it_on(processes, token).await;
}

/// The ttl on Redis, and the session timeout on ZooKeeper.
// Time: it ends while nobody extends it.
const LEASE: Duration = Duration::from_secs(4);
// Time: as above.
const MOMENT: Duration = Duration::from_millis(300);
/// A server looks for ended sessions once per tick; the rest is for a busy machine.
const SLACK: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);
