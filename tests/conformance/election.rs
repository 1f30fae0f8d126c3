//! Elections among processes whose leader is killed again and again, and what observers see of them.
//!
//! The same program is a candidate when it is called with `--candidate URL LABEL`.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, stdin};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use lock_testkit::history::{Event, EventKind, History, Mode};
use lock_testkit::{RedisFive, RedisServer, Worker, ZooKeeper, check, now_ns};
use polylock::{GuardView, Leader, Locks, Observer};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

/// The first argument of a candidate.
const CANDIDATE: &str = "--candidate";
const ELECTION: &str = "scheduler";
const CANDIDATES: usize = 5;
const BACKENDS: [&str; 3] = ["redis", "redlock", "zk"];
/// A lease, and a session timeout, that a busy machine keeps.
// Time: it ends with each leader that is killed.
const LEASE: Duration = Duration::from_secs(2);
/// The limit for what happens within a lease, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs this program as a candidate, if it was called so.
pub(crate) fn serve(words: &[String]) -> Option<ExitCode> {
    let [url, label] = words.strip_prefix(&[CANDIDATE.to_owned()])? else { return None };
    runtime().block_on(campaign(url, label));
    Some(ExitCode::SUCCESS)
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for backend in BACKENDS {
        for (name, kills, is_quick) in
            [("two_killed_leaders_are_followed", 2, true), ("twenty_killed_leaders_are_followed", 20, false)]
        {
            let run = move || {
                runtime().block_on(killed_leaders_are_followed(backend, kills));
                Ok(())
            };
            trials
                .push(Trial::test(format!("{backend}::election::{name}"), run).with_ignored_flag(!is_quick));
        }
    }
    trials
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("the system has threads to spare")
}

/// A candidate: it says when it leads and until when, and resigns when it reads a line.
async fn campaign(url: &str, label: &str) {
    let resign = Arc::new(Notify::new());
    let resigns = Arc::clone(&resign);
    thread::spawn(move || stdin().lock().lines().for_each(|_| resigns.notify_one()));
    let locks = Locks::connect(url).await.unwrap_or_else(|error| panic!("{error}"));
    let election = locks.election(ELECTION);
    tell(EventKind::AcquireCalled);
    let body = |leadership: GuardView| {
        let resign = &resign;
        async move {
            tokio::select! {
                () = lead(&leadership) => {}
                () = resign.notified() => {}
            }
            tell(EventKind::ReleaseCalled);
        }
    };
    election.run(label, body).await.unwrap_or_else(|error| panic!("{error}"));
}

/// Reports the leadership, and every new deadline of it, for ever.
async fn lead(leadership: &GuardView) {
    let valid_until_ns = || u64::try_from(leadership.validity().until().since_boot().as_nanos()).ok();
    let mut until = valid_until_ns();
    let token = Some(leadership.token().get());
    let _reports_loss = ReportsLoss;
    tell(EventKind::Acquired { token, valid_until_ns: until, mode: Mode::Exclusive });
    loop {
        // Time: it looks again.
        sleep(Duration::from_millis(5)).await;
        if until != valid_until_ns() {
            until = valid_until_ns();
            tell(EventKind::Extended { valid_until_ns: until.unwrap_or(u64::MAX) });
        }
    }
}

/// Reports the end of a leadership when its body is dropped.
struct ReportsLoss;

impl Drop for ReportsLoss {
    fn drop(&mut self) {
        tell(EventKind::Lost);
    }
}

fn tell(kind: EventKind) {
    let process = std::process::id();
    let event = Event { process, client: 0, lock: ELECTION.to_owned(), at_ns: now_ns(), kind };
    println!("{}", json!(event));
}

/// Servers, and the URL of their locks.
enum Servers {
    Redis(RedisServer),
    Redlock(RedisFive),
    Zk(ZooKeeper),
}

impl Servers {
    async fn start(backend: &str) -> Self {
        let started = match backend {
            "redis" => RedisServer::start().await.map(Self::Redis),
            "redlock" => RedisFive::start().await.map(Self::Redlock),
            _ => ZooKeeper::start().await.map(Self::Zk),
        };
        let started = started.unwrap_or_else(|error| panic!("{error}"));
        if let Self::Redlock(five) = &started {
            five.have_been_used().await.unwrap_or_else(|error| panic!("{error}"));
        }
        started
    }

    fn url(&self) -> String {
        let seconds = LEASE.as_secs();
        match self {
            Self::Redis(server) => format!("{}?ttl={seconds}s", server.url()),
            // Time: a server that is slow to answer on a busy machine is no less alive.
            Self::Redlock(five) => format!("{}?ttl={seconds}s&master_timeout=500ms", five.url()),
            Self::Zk(server) => format!("{}?session_timeout={seconds}s", server.url()),
        }
    }
}

/// The candidates, and what they have said.
struct Candidates {
    url: String,
    alive: BTreeMap<String, Arc<Worker>>,
    says: UnboundedSender<(String, Event)>,
    said: UnboundedReceiver<(String, Event)>,
    events: Vec<Event>,
    born: usize,
}

impl Candidates {
    fn new(url: String) -> Self {
        let (says, said) = unbounded_channel();
        Self { url, alive: BTreeMap::new(), says, said, events: Vec::new(), born: 0 }
    }

    fn start_one(&mut self) {
        let label = format!("candidate-{}", self.born);
        self.born += 1;
        let mut command = Command::new(env::current_exe().expect("a program knows where it is"));
        command.args([CANDIDATE, &self.url, &label]);
        let worker = Arc::new(Worker::spawn(&command).unwrap_or_else(|error| panic!("{error}")));
        self.alive.insert(label.clone(), Arc::clone(&worker));
        let says = self.says.clone();
        tokio::spawn(async move {
            while let Some(event) = worker.recv().await {
                let event: Event = serde_json::from_value(event).expect("a candidate reports events");
                drop(says.send((label.clone(), event)));
            }
        });
    }

    /// The next candidate that leads, and its token.
    async fn next_leader(&mut self) -> (String, u64) {
        loop {
            let said = timeout(PATIENCE, self.said.recv()).await;
            let (label, event) = said.expect("a candidate leads within the lease").expect("this end is open");
            let kind = event.kind.clone();
            self.events.push(event);
            if let EventKind::Acquired { token, .. } = kind {
                return (label, token.expect("a leader has a token"));
            }
        }
    }

    fn kill(&mut self, label: &str) {
        let worker = self.alive.remove(label).expect("the leader is one of them");
        worker.kill();
        let (process, lock) = (worker.pid(), ELECTION.to_owned());
        self.events.push(Event { process, client: 0, lock, at_ns: now_ns(), kind: EventKind::Died });
    }

    async fn ask_to_resign(&self, label: &str) {
        let asked = self.alive[label].send(&json!("resign")).await;
        asked.unwrap_or_else(|error| panic!("{error}"));
    }

    fn all_events(mut self) -> Vec<Event> {
        while let Ok((_, event)) = self.said.try_recv() {
            self.events.push(event);
        }
        self.events
    }
}

/// An observer, and the leaders that it was told of.
struct Audience {
    // Its connection lives as long as it does.
    _locks: Locks,
    observer: Observer,
    leaders: Vec<Leader>,
}

impl Audience {
    async fn of(url: &str) -> Self {
        let locks = Locks::connect(url).await.unwrap_or_else(|error| panic!("{error}"));
        let mut audience =
            Self { observer: locks.election(ELECTION).observe(), _locks: locks, leaders: Vec::new() };
        assert_eq!(audience.next().await, None, "there is no candidate yet");
        audience
    }

    async fn next(&mut self) -> Option<Leader> {
        let item = timeout(PATIENCE, self.observer.next()).await.expect("a change is reported");
        item.expect("an observer runs for ever").unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until the observer has reported the next leader.
    async fn is_told_of_a_leader(&mut self) {
        loop {
            if let Some(leader) = self.next().await {
                self.leaders.push(leader);
                return;
            }
        }
    }
}

async fn killed_leaders_are_followed(backend: &str, kills: usize) {
    let servers = Servers::start(backend).await;
    let mut candidates = Candidates::new(servers.url());
    let mut observers = [Audience::of(&candidates.url).await, Audience::of(&candidates.url).await];
    (0..CANDIDATES).for_each(|_| candidates.start_one());

    let mut leaders = Vec::new();
    for round in 0..kills + 2 {
        let (label, token) = candidates.next_leader().await;
        for observer in &mut observers {
            observer.is_told_of_a_leader().await;
        }
        match round {
            _ if round < kills => {
                candidates.kill(&label);
                candidates.start_one();
            }
            _ if round == kills => candidates.ask_to_resign(&label).await,
            _ => {}
        }
        leaders.push((label, token));
    }

    let labels: Vec<_> = leaders.iter().map(|(label, _)| label.as_str()).collect();
    for observer in &observers {
        let seen: Vec<_> = observer.leaders.iter().filter_map(Leader::label).collect();
        assert_eq!(seen, labels, "every leader once, in order");
        let tokens: Vec<_> =
            observer.leaders.iter().map(|leader| leader.token.expect("it is shown")).collect();
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        // On Redlock the token that is shown is the proposed one.
        if backend != "redlock" {
            assert!(tokens.iter().map(|token| token.get()).eq(leaders.iter().map(|(_, token)| *token)));
        }
    }
    let report = check(&History::new(candidates.all_events()));
    assert_eq!(report.holds, leaders.len(), "{report}");
    report.assert_holds();
}
