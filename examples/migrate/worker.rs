//! A process of the fleet: it increments counters under locks.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polylock::{Guard, LockName, Locks, Migration, MigrationConfig, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The first argument of a process of the fleet; the URL and the address of the counters follow.
pub(crate) const WORKER: &str = "--worker";
/// How many locks a process waits for at once.
const TASKS: u64 = 4;
/// So few that tasks often meet.
pub(crate) const NAMES: u64 = 20;
/// So long that tasks often meet, and that a process is often killed or paused while it holds a lock.
const HOLD: Duration = Duration::from_millis(100);
/// How long a task does something else between two locks: the fleet works, and the machine is not busy with it alone.
const REST: Duration = Duration::from_millis(900);

/// Runs until it is killed.
pub(crate) async fn run(arguments: &[String]) -> ExitCode {
    let [url, counters] = arguments else { return ExitCode::FAILURE };
    let tasks = async {
        let migration = Arc::new(connect(url).await?);
        let locks = Locks::from(Arc::clone(&migration) as Arc<dyn polylock::backend::Backend>);
        let tasks = (0..TASKS).map(|at| {
            let (migration, locks, counters) = (Arc::clone(&migration), locks.clone(), counters.clone());
            tokio::spawn(async move { work(&migration, &locks, &counters, at).await })
        });
        for task in tasks.collect::<Vec<_>>() {
            let _ = task.await;
        }
        Ok::<_, polylock::Error>(())
    };
    match tasks.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// As `Locks::connect(url)` does; this way the story can ask for the rung of a name.
async fn connect(url: &str) -> Result<Migration> {
    let (config, from, to) = MigrationConfig::from_url(url)?;
    let (from, to) = (Locks::connect_lazy(&from)?, Locks::connect_lazy(&to)?);
    config.open(Arc::clone(from.backend()), Arc::clone(to.backend())).await
}

async fn work(migration: &Migration, locks: &Locks, counters: &str, task: u64) {
    let mut counters = Connection::open(counters).await;
    let mut number = u64::from(std::process::id()) * 31 + task;
    loop {
        // Not random, but different for each task.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let name = name_of((number >> 33) % NAMES);
        let rung = LockName::new(&*name).map(|name| migration.rung(&name).to_string()).unwrap_or_default();
        let began = Instant::now();
        // Otherwise it is busy, or a store is closed or away: the work waits.
        if let Ok(Some(guard)) = locks.mutex(&*name).try_acquire_for(Duration::from_secs(2)).await {
            increment(&mut counters, &name, &guard, &rung, began.elapsed()).await;
            let _ = guard.release().await;
        }
        tokio::time::sleep(REST).await;
    }
}

/// One in ten names is that of a report.
pub(crate) fn name_of(at: u64) -> String {
    if at.is_multiple_of(10) { format!("reports/{at}") } else { format!("orders/{at}") }
}

async fn increment(counters: &mut Connection, name: &str, guard: &Guard, rung: &str, waited: Duration) {
    if !guard.is_valid() {
        return;
    }
    let (pid, token) = (std::process::id(), guard.token().get());
    let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
    let enter =
        json!({ "do": "enter", "name": name, "pid": pid, "token": token, "rung": rung, "waited_us": waited });
    let value = counters.ask(&enter).await["value"].as_u64().unwrap_or_default();
    tokio::time::sleep(HOLD).await;
    // A process that was paused must not write; the token is for the moment between this line and the next.
    if guard.is_valid() {
        let write = json!({ "do": "write", "name": name, "pid": pid, "token": token, "value": value + 1 });
        counters.ask(&write).await;
    }
    counters.ask(&json!({ "do": "leave", "name": name, "pid": pid })).await;
}

/// A connection to the counters. Without them the process ends.
struct Connection {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Connection {
    async fn open(address: &str) -> Self {
        let Ok(stream) = TcpStream::connect(address).await else { std::process::exit(1) };
        let _ = stream.set_nodelay(true);
        let (read, write) = stream.into_split();
        Self { lines: BufReader::new(read).lines(), write }
    }

    async fn ask(&mut self, request: &Value) -> Value {
        let sent = self.write.write_all(format!("{request}\n").as_bytes()).await;
        let answer = match sent {
            Ok(()) => self.lines.next_line().await.ok().flatten(),
            Err(_) => None,
        };
        let Some(answer) = answer else { std::process::exit(1) };
        serde_json::from_str(&answer).unwrap_or_default()
    }
}
