//! Clients in other languages, as programs that speak JSON lines.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_testkit::Worker;
use serde_json::{Value, json};

use super::{Client, Peer, Site};

/// A client behind the pipes of a process of its own.
pub struct Program {
    client: Client,
    servers: Vec<String>,
    site: Arc<Site>,
    language: Language,
    worker: Option<Worker>,
    /// A call has been sent and not been answered.
    calling: bool,
}

/// Processes that are ready for the next client: to start one costs more than most of what it is asked.
#[derive(Debug, Default)]
pub struct Idle(Mutex<Vec<(Language, Worker)>>);

impl Program {
    pub async fn start(client: Client, site: &Arc<Site>) -> Self {
        let language = if client == Client::NodeRedlock { Language::Node } else { Language::Python };
        let worker = match site.idle.take(language) {
            Some(worker) => worker,
            None => language.start().await,
        };
        let (servers, site) = (site.urls().await, Arc::clone(site));
        Self { client, servers, site, language, worker: Some(worker), calling: false }
    }

    async fn call(&mut self, request: Value, patience: Duration) -> bool {
        let Some(worker) = &self.worker else { unreachable!("a program has its worker until it is dropped") };
        self.calling = true;
        worker.send(&request).await.unwrap_or_else(|error| panic!("{}: {error}", self.client));
        let answer = answer(worker, patience + ANSWER).await;
        self.calling = false;
        answer.unwrap_or_else(|error| panic!("{}: {request}: {error}", self.client))
    }
}

#[async_trait]
impl Peer for Program {
    async fn acquire(&mut self, name: &str, ttl: Option<Duration>, wait: Duration) -> bool {
        let request = json!({
            "call": "acquire",
            "client": self.client.to_string(),
            "servers": self.servers,
            "name": name,
            "ttl": ttl.map(millis),
            "wait": millis(wait),
        });
        self.call(request, wait).await
    }

    async fn extend(&mut self, ttl: Duration) -> bool {
        self.call(json!({ "call": "extend", "ttl": millis(ttl) }), Duration::ZERO).await
    }

    async fn release(&mut self) -> Option<bool> {
        Some(self.call(json!({ "call": "release" }), Duration::ZERO).await)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take()
            && !self.calling
        {
            self.site.idle.put(self.language, worker);
        }
    }
}

impl Idle {
    fn take(&self, language: Language) -> Option<Worker> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().position(|(kind, _)| *kind == language)?;
        Some(idle.swap_remove(at).1)
    }

    fn put(&self, language: Language, worker: Worker) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((language, worker));
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Language {
    Python,
    Node,
}

impl Language {
    async fn start(self) -> Worker {
        let folder = self.installed();
        let mut command = match self {
            Self::Python => Command::new(folder.join("bin/python")),
            Self::Node => Command::new("node"),
        };
        command.arg(sources().join(self.program())).current_dir(&folder);
        let worker = Worker::spawn(&command).unwrap_or_else(|error| panic!("{error}"));
        answer(&worker, START).await.unwrap_or_else(|error| panic!("{}: {error}", self.program()));
        worker
    }

    /// Where the packages are, in the versions that are pinned.
    fn installed(self) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("peers").join(self.folder());
        let pins = fs::read(sources().join(self.pins())).expect("the versions are in the sources");
        let installed = fs::read(folder.join("installed")).is_ok_and(|installed| installed == pins);
        assert!(
            installed,
            "{} does not hold what tests/peers/{} asks for: install it with `cargo xtask setup`",
            folder.display(),
            self.pins()
        );
        folder
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    fn pins(self) -> &'static str {
        match self {
            Self::Python => "requirements.txt",
            Self::Node => "package-lock.json",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Python => "peer.py",
            Self::Node => "peer.mjs",
        }
    }
}

async fn answer(worker: &Worker, patience: Duration) -> Result<bool, String> {
    let answer = worker.recv_deadline(patience).await.map_err(|error| error.to_string())?;
    answer["ok"].as_bool().ok_or_else(|| answer["error"].to_string())
}

fn sources() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers"))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("tests do not last for ages")
}

/// Generous: many may start at once on a small machine.
const START: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(30);
