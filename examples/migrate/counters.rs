//! What the locks protect: counters, and a store that refuses writes with tokens that are too small.
//!
//! It also looks at who enters: two at once, or with tokens that fall.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The counters, with all that was noticed about their clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    names: HashMap<String, Counter>,
    seen: Seen,
    /// The processes that are paused now.
    paused: Vec<u32>,
}

#[derive(Debug, Default)]
struct Counter {
    value: u64,
    /// Accepted writes. Each added one to the value that it had read.
    writes: u64,
    /// The largest token of a client that entered or wrote.
    token: u64,
    inside: Vec<Inside>,
}

#[derive(Debug)]
struct Inside {
    pid: u32,
    /// Whether its process was paused since: its lock may have expired, as it will notice.
    was_paused: bool,
}

/// What was noticed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) lost_updates: u64,
    pub(crate) overlaps: u64,
    pub(crate) inversions: u64,
    pub(crate) writes: u64,
    /// Writes that were refused because of their token.
    pub(crate) refused: u64,
    /// How long clients waited for their locks, by rung.
    pub(crate) waits: BTreeMap<String, Vec<Duration>>,
}

impl Counters {
    /// Serves on a port of its own until the runtime ends.
    pub(crate) async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there are free ports");
        let address = listener.local_addr().expect("it is bound");
        let counters = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counters = counters.clone();
                tokio::spawn(async move { counters.answer(stream).await });
            }
        });
        address
    }

    async fn answer(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let (read, mut write) = stream.into_split();
        let (mut lines, mut entered) = (BufReader::new(read).lines(), Vec::new());
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(request) = serde_json::from_str::<Value>(&line) else { break };
            let answer = self.state().answer(&request, &mut entered);
            if write.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                break;
            }
        }
        // It was killed inside, perhaps.
        for (name, pid) in entered {
            self.state().leave(&name, pid);
        }
    }

    /// From now on this process is paused: what it holds may expire.
    pub(crate) fn pause(&self, pid: u32) {
        let mut state = self.state();
        state.paused.push(pid);
        let inside = state.names.values_mut().flat_map(|counter| &mut counter.inside);
        inside.filter(|inside| inside.pid == pid).for_each(|inside| inside.was_paused = true);
    }

    /// This process goes on.
    pub(crate) fn go_on(&self, pid: u32) {
        self.state().paused.retain(|paused| *paused != pid);
    }

    /// What was noticed so far.
    pub(crate) fn seen(&self) -> Seen {
        let state = self.state();
        let (mut seen, counters) = (state.seen.clone(), state.names.values());
        seen.lost_updates =
            counters.clone().map(|counter| counter.writes - counter.value.min(counter.writes)).sum();
        seen.writes = counters.map(|counter| counter.writes).sum();
        seen
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn answer(&mut self, request: &Value, entered: &mut Vec<(String, u32)>) -> Value {
        let name = request["name"].as_str().unwrap_or_default().to_owned();
        let pid = u32::try_from(request["pid"].as_u64().unwrap_or_default()).unwrap_or_default();
        // Clients that only know Redis have no tokens.
        let token = request["token"].as_u64();
        match request["do"].as_str() {
            Some("enter") => {
                let rung = request["rung"].as_str().unwrap_or_default().to_owned();
                let wait = Duration::from_micros(request["waited_us"].as_u64().unwrap_or_default());
                self.seen.waits.entry(rung).or_default().push(wait);
                entered.push((name.clone(), pid));
                json!({ "value": self.enter(name, pid, token) })
            }
            Some("write") => {
                let value = request["value"].as_u64().unwrap_or_default();
                json!({ "accepted": self.write(name, pid, value, token) })
            }
            _ => {
                entered.retain(|entry| *entry != (name.clone(), pid));
                self.leave(&name, pid);
                json!({})
            }
        }
    }

    fn enter(&mut self, name: String, pid: u32, token: Option<u64>) -> u64 {
        let was_paused = self.paused.contains(&pid);
        let counter = self.names.entry(name).or_default();
        self.seen.overlaps +=
            u64::from(!was_paused && counter.inside.iter().any(|inside| !inside.was_paused));
        if let Some(token) = token {
            self.seen.inversions += u64::from(!was_paused && token <= counter.token);
            counter.token = counter.token.max(token);
        }
        counter.inside.push(Inside { pid, was_paused });
        counter.value
    }

    fn write(&mut self, name: String, pid: u32, value: u64, token: Option<u64>) -> bool {
        let counter = self.names.entry(name).or_default();
        // After clients that only know Redis no token tells that this one was paused just before it wrote.
        let was_paused = counter.inside.iter().any(|inside| inside.pid == pid && inside.was_paused);
        let is_late = was_paused && counter.value + 1 != value;
        if is_late || token.is_some_and(|token| token < counter.token) {
            self.seen.refused += 1;
            return false;
        }
        (counter.value, counter.writes) = (value, counter.writes + 1);
        true
    }

    fn leave(&mut self, name: &str, pid: u32) {
        let Some(counter) = self.names.get_mut(name) else { return };
        if let Some(at) = counter.inside.iter().position(|inside| inside.pid == pid) {
            counter.inside.swap_remove(at);
        }
    }
}
