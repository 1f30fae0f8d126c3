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
use crate::error::ends_connection;

/// How long the server waits for that lock at most.
const COMMIT_WITHIN: Duration = Duration::from_millis(500);
/// How long the end of a lock waits for its notifications: a process may exit right after it.
const NOTICED: Duration = Duration::from_millis(100);
/// As many names as one call takes, and as are kept for the next connection.
const AT_MOST: usize = 1_000;

/// The settings for the commit of a notification, in SQL. They last until the end of the transaction: those of the function would be over
/// before.
pub(crate) fn for_the_commit(command_timeout: Duration) -> String {
    // Zero would be no limit.
    let limit = COMMIT_WITHIN.min(command_timeout / 4).as_millis().max(1);
    // It has that lock while it waits for a disk or a standby, and it may: a row that it reads may be pruned, which is a write.
    format!(
        "pg_catalog.set_config('lock_timeout', '{limit}ms', true), pg_catalog.set_config('synchronous_commit', 'off', true)"
    )
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
        let sql = format!("SELECT {}, {schema}tell($1)", for_the_commit(command_timeout));
        let (queue, ended) = (Mutex::default(), watch::Sender::new(0));
        Arc::new(Self { sql, command_timeout, queue, ended })
    }

    /// Notifies the waiters and observers of these locks in a transaction of its own, also if the caller is dropped. Waits for that for a
    /// moment, unless the caller has a lock meanwhile. If this connection ends before, they are notified over the next one.
    pub(crate) async fn tell(
        self: &Arc<Self>,
        on: &Connection,
        next: impl Future<Output = Option<Connection>> + Send + 'static,
        runtime: &Handle,
        names: Vec<String>,
        waits: bool,
    ) {
        let (round, begins) = {
            let mut queue = self.queue();
            queue.names.extend(names);
            (queue.begun + 1, queue.begin())
        };
        if begins {
            // Outside the mutex: a runtime that was shut down drops the task at once, which locks it again.
            let (running, on) = (Running::new(self), on.clone());
            drop(runtime.spawn(async move {
                // Once: those that are left after that are notified with the names of the next caller.
                if let Some(teller) = running.run(on).await
                    && let Some(on) = next.await
                    && teller.queue().begin()
                {
                    Running::new(&teller).run(on).await;
                }
            }));
        }
        if waits {
            let mut ended = self.ended.subscribe();
            let _ = timeout(NOTICED, ended.wait_for(|ended| *ended >= round)).await;
        }
    }

    /// Returns false if the connection has ended.
    async fn send(&self, on: &Connection, names: &[String]) -> bool {
        if !Link::is_open(on) {
            return false;
        }
        match on.in_time(self.command_timeout, on.call(&self.sql, &[(&names, Type::TEXT_ARRAY)])).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::debug!(%error, "waiters were not notified");
                // Those who are not notified ask again.
                error.as_db_error().is_some_and(|refusal| !ends_connection(refusal))
            }
            Err(_) => {
                on.give_up();
                false
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Whether the caller is to begin the task.
    fn begin(&mut self) -> bool {
        !mem::replace(&mut self.is_running, true)
    }
}

/// The task that notifies. What it leaves when it ends early, as its runtime or its connection does, is notified by the next one.
struct Running {
    teller: Arc<Teller>,
    /// Those of this round that are still to be notified.
    names: Vec<String>,
    /// By itself, which is noted already.
    has_ended: bool,
}

impl Running {
    fn new(teller: &Arc<Teller>) -> Self {
        Self { teller: Arc::clone(teller), names: Vec::new(), has_ended: false }
    }

    /// Returns the teller if the connection has ended, and names are left.
    async fn run(mut self, on: Connection) -> Option<Arc<Teller>> {
        while let Some(round) = self.next_round() {
            while !self.names.is_empty() {
                let sent = self.names.len().min(AT_MOST);
                if !self.teller.send(&on, &self.names[..sent]).await {
                    return Some(Arc::clone(&self.teller));
                }
                drop(self.names.drain(..sent));
            }
            self.teller.ended.send_replace(round);
        }
        None
    }

    /// Takes the names of the next round, and returns its number.
    fn next_round(&mut self) -> Option<u64> {
        let mut queue = self.teller.queue();
        if queue.names.is_empty() {
            queue.is_running = false;
            self.has_ended = true;
            return None;
        }
        queue.begun += 1;
        self.names = mem::take(&mut queue.names);
        self.names.sort_unstable();
        self.names.dedup();
        Some(queue.begun)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut queue = self.teller.queue();
        queue.is_running = false;
        // The waiters of others ask again.
        let room = AT_MOST.saturating_sub(queue.names.len());
        queue.names.extend(self.names.drain(..).take(room));
    }
}
