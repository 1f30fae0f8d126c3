//! Notifies waiters and observers, over one connection at a time.
//!
//! The commit of a notification waits for a lock of the whole server, which every role may keep busy. A waiter that is not notified asks
//! again, so this costs neither the connections that requests need nor the time of who has a lock.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::types::Type;

use crate::connect::connection::Connection;
use crate::connect::link::Link;

/// How long the server waits for that lock at most.
const COMMIT_WITHIN: Duration = Duration::from_millis(500);
/// How long the end of a lock waits for its notifications: a process may exit right after it.
const NOTICED: Duration = Duration::from_millis(100);
/// As many names as one call takes.
const AT_MOST: usize = 1_000;

/// The limit for the commit of a notification, in SQL. It lasts until the end of the transaction: a limit of the function would be over
/// before.
pub(crate) fn commit_limit(command_timeout: Duration) -> String {
    // Zero would be no limit.
    let limit = COMMIT_WITHIN.min(command_timeout / 4).as_millis().max(1);
    format!("pg_catalog.set_config('lock_timeout', '{limit}ms', true)")
}

#[derive(Debug)]
pub(crate) struct Teller {
    sql: String,
    command_timeout: Duration,
    queue: Mutex<Queue>,
    /// The number of the last round that has ended.
    ended: watch::Sender<u64>,
}

/// The names that the next round is for.
#[derive(Debug, Default)]
struct Queue {
    names: Vec<String>,
    /// The number of rounds that have begun.
    begun: u64,
    is_running: bool,
}

impl Teller {
    /// For the functions of this schema.
    pub(crate) fn new(schema: &str, command_timeout: Duration) -> Arc<Self> {
        let sql = format!("SELECT {}, {schema}tell($1)", commit_limit(command_timeout));
        let (queue, ended) = (Mutex::default(), watch::Sender::new(0));
        Arc::new(Self { sql, command_timeout, queue, ended })
    }

    /// Notifies the waiters and observers of these locks in a transaction of its own, also if the caller is dropped. Waits for that for a
    /// moment, unless the caller has a lock meanwhile.
    pub(crate) async fn tell(
        self: &Arc<Self>,
        on: &Connection,
        runtime: &Handle,
        names: Vec<String>,
        waits: bool,
    ) {
        let (round, begins) = {
            let mut queue = self.queue();
            queue.names.extend(names);
            (queue.begun + 1, !mem::replace(&mut queue.is_running, true))
        };
        if begins {
            // Outside the mutex: a runtime that was shut down drops the task at once, which locks it again.
            let running = Running(Some(Arc::clone(self)));
            drop(runtime.spawn(running.run(on.clone())));
        }
        if waits {
            let mut ended = self.ended.subscribe();
            let _ = timeout(NOTICED, ended.wait_for(|ended| *ended >= round)).await;
        }
    }

    /// The names of the next round, and its number.
    fn next_round(&self) -> Option<(Vec<String>, u64)> {
        let mut queue = self.queue();
        if queue.names.is_empty() {
            queue.is_running = false;
            return None;
        }
        queue.begun += 1;
        Some((mem::take(&mut queue.names), queue.begun))
    }

    async fn send(&self, on: &Connection, names: &[String]) {
        match on.in_time(self.command_timeout, on.call(&self.sql, &[(&names, Type::TEXT_ARRAY)])).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "waiters were not notified"),
            Err(_) => on.give_up(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that notifies. When it ends early, as its runtime does, the next one to notify somebody begins another one.
struct Running(Option<Arc<Teller>>);

impl Running {
    async fn run(mut self, on: Connection) {
        while let Some(teller) = &self.0 {
            let Some((mut names, round)) = teller.next_round() else {
                self.0 = None;
                return;
            };
            names.sort_unstable();
            names.dedup();
            for names in names.chunks(AT_MOST) {
                // Those who are not notified ask again.
                if Link::is_open(&on) {
                    teller.send(&on, names).await;
                }
            }
            teller.ended.send_replace(round);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(teller) = &self.0 {
            teller.queue().is_running = false;
        }
    }
}
