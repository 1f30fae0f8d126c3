//! The connection on which the server notifies this process: waiters of their grants, and observers of changes, for as long as they are
//! registered.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, OwnerId, Result, Token};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Notification;

use crate::link::{Dialer, Link};
use crate::server::{Changed, Server};

/// Pauses before the next connection.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// The last one where the server does not find the listener: behind a pooler, or for a moment during a failover.
const LAST_PAUSE_UNHEARD: Duration = Duration::from_secs(60);
/// How often the connection is tried while somebody waits for a notification.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long the server is asked for changes of a lock after the last observer has gone: the next one often follows.
const OBSERVED_FOR: Duration = Duration::from_secs(10);
/// What a process notifies itself of, to find out whether it is notified.
const OPENED: &str = "opened";

/// The inbox of one `Locks`.
pub(crate) struct Inbox {
    shared: Arc<Shared>,
    /// `None` if this process shall not listen.
    dialer: Option<Arc<Dialer>>,
    /// The task that listens. `Err` once the inbox is closed.
    task: Mutex<std::result::Result<Option<JoinHandle<()>>, Closed>>,
}

#[derive(Debug)]
struct Closed;

struct Shared {
    /// 32 hexadecimal digits.
    id: String,
    server: Arc<Server>,
    listening: watch::Sender<Listening>,
    /// Acquisitions, from their first request on until nothing can be granted to them.
    owners: Mutex<HashMap<OwnerId, watch::Sender<Option<Token>>>>,
    /// Locks whose changes are observed, by their stored names.
    observed: Mutex<HashMap<Arc<str>, Observed>>,
}

/// Whether the server notifies this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listening {
    /// By this process of the server.
    By(i32),
    /// The first connection is being opened.
    Soon,
    /// It shall not, or cannot for the time being.
    Not,
}

struct Observed {
    changes: watch::Sender<()>,
    observers: usize,
}

/// Keeps an acquisition known to the inbox. A grant to an unknown one is returned to the server.
pub(crate) struct Registration {
    owner: OwnerId,
    shared: Arc<Shared>,
}

/// Where an acquisition gets its grant.
#[derive(Debug)]
pub(crate) struct Mailbox(watch::Receiver<Option<Token>>);

/// Where an observer gets the changes of a lock.
pub(crate) struct Changes {
    name: Arc<str>,
    changes: watch::Receiver<()>,
    shared: Arc<Shared>,
}

impl Inbox {
    pub(crate) fn new(server: &Arc<Server>, dialer: Option<Dialer>) -> Self {
        let shared = Shared {
            id: OwnerId::random().to_string(),
            server: Arc::clone(server),
            listening: watch::Sender::new(if dialer.is_some() { Listening::Soon } else { Listening::Not }),
            owners: Mutex::default(),
            observed: Mutex::default(),
        };
        Self { shared: Arc::new(shared), dialer: dialer.map(Arc::new), task: Mutex::new(Ok(None)) }
    }

    /// The id of the inbox.
    pub(crate) fn id(&self) -> &str {
        &self.shared.id
    }

    /// Whether the server notifies this process now.
    pub(crate) fn listening(&self) -> Listening {
        *self.shared.listening.borrow()
    }

    /// Opens the connection in the background, if that is still to be done. Returns where its state is reported.
    pub(crate) fn open(&self) -> watch::Receiver<Listening> {
        let listening = self.shared.listening.subscribe();
        let Some(dialer) = &self.dialer else { return listening };
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        // Its runtime may have been shut down.
        if let Ok(task) = &mut *task
            && task.as_ref().is_none_or(JoinHandle::is_finished)
        {
            self.shared.listening.send_replace(Listening::Soon);
            *task = Some(dialer.home.driver().spawn(Arc::clone(&self.shared).listen(Arc::clone(dialer))));
        }
        listening
    }

    /// Closes the connection for good.
    pub(crate) fn close(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(Some(task)) = std::mem::replace(&mut *task, Err(Closed)) {
            task.abort();
        }
        drop(task);
        self.shared.listening.send_replace(Listening::Not);
    }

    /// Waits until the inbox is open, or could not be opened, for this time at most. Returns whether the server notifies us.
    pub(crate) async fn opened(&self, limit: Duration) -> bool {
        let mut listening = self.open();
        let opened = timeout(limit, listening.wait_for(|listening| *listening != Listening::Soon)).await;
        opened.is_ok_and(|opened| opened.is_ok_and(|listening| matches!(*listening, Listening::By(_))))
    }

    /// A mailbox for an acquisition.
    pub(crate) fn register(&self, owner: OwnerId) -> (Mailbox, Registration) {
        let sender = watch::Sender::new(None);
        let mailbox = Mailbox(sender.subscribe());
        self.shared.owners().insert(owner, sender);
        (mailbox, Registration { owner, shared: Arc::clone(&self.shared) })
    }

    /// Asks the server to notify this inbox of changes of a lock. `None` if this process does not listen now.
    pub(crate) async fn observe(&self, name: &Arc<str>) -> Result<Option<Changes>> {
        drop(self.open());
        let Listening::By(listener) = self.listening() else { return Ok(None) };
        let changes = {
            let mut observed = lock(&self.shared.observed);
            let entry = observed
                .entry(Arc::clone(name))
                .or_insert_with(|| Observed { changes: watch::Sender::new(()), observers: 0 });
            entry.observers += 1;
            Changes {
                name: Arc::clone(name),
                changes: entry.changes.subscribe(),
                shared: Arc::clone(&self.shared),
            }
        };
        let is_observed = self.shared.server.observe(name, &self.shared.id, Some(listener)).await?;
        Ok(is_observed.then_some(changes))
    }
}

impl Drop for Inbox {
    /// Else the task would listen, and keep the pool, for as long as its runtime lives.
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Listens for as long as the locks are open.
    async fn listen(self: Arc<Self>, dialer: Arc<Dialer>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let ended = self.listen_once(&dialer).await;
            if matches!(self.listening.send_replace(Listening::Not), Listening::By(_)) {
                pause = FIRST_PAUSE;
            }
            // The server notifies them no more: they look by themselves, until they can register again.
            for observed in lock(&self.observed).values() {
                observed.changes.send_replace(());
            }
            let longest = match ended {
                Ok(()) => {
                    tracing::debug!("the connection that listens has ended");
                    LAST_PAUSE
                }
                Err(Unheard::Error(error)) => {
                    tracing::debug!(%error, "this process cannot listen; waiters ask again meanwhile");
                    LAST_PAUSE
                }
                Err(Unheard::BehindAPooler) => {
                    if pause > LAST_PAUSE {
                        tracing::warn!(
                            "the server does not find the session that listens: waiters poll. Give the server's own address, past \
                             the pooler, as listen_host=, or listen=off"
                        );
                    }
                    LAST_PAUSE_UNHEARD
                }
            };
            pause = pause.min(longest);
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Opens the connection, and delivers notifications until it ends.
    async fn listen_once(&self, dialer: &Dialer) -> std::result::Result<(), Unheard> {
        let channel = format!("polylock_{}", self.id);
        let mut targets = dialer.targets.clone();
        // By this name, the server finds the session of a waiter.
        for target in &mut targets {
            target.application_name(&channel);
        }
        let (sender, mut notifications) = unbounded_channel();
        let link = dialer.open_as(targets, Some(sender)).await?;
        let limit = self.server.command_timeout();
        let listen = format!("LISTEN {channel}");
        match timeout(limit, link.batch(&listen)).await {
            Ok(listens) => listens
                .map_err(|error| Unheard::Error(dialer.endpoint.of(crate::error::During::Call, &error)))?,
            Err(_) => {
                link.give_up();
                return Err(Unheard::Error(dialer.endpoint.silent(limit)));
            }
        }
        let listener = self.server.hears(&link, &self.id).await?;
        // From another session: a pooler delivers to whoever has this one then.
        self.server.notify(&channel, OPENED).await?;
        let opened =
            async { while notifications.recv().await.is_some_and(|told| told.payload() != OPENED) {} };
        let is_told = timeout(limit, opened).await.is_ok();
        if !link.is_open() {
            let broke = dialer.endpoint.error(ErrorKind::Unavailable, "the connection that listens broke");
            return Err(Unheard::Error(broke.with_code("broken")));
        }
        let Some(pid) = listener.filter(|_| is_told) else { return Err(Unheard::BehindAPooler) };
        self.listening.send_replace(Listening::By(pid));
        self.deliver_all(&link, &mut notifications).await;
        Ok(())
    }

    /// Delivers notifications until the connection ends, or the server does not answer on it.
    async fn deliver_all(&self, link: &Link, notifications: &mut UnboundedReceiver<Notification>) {
        loop {
            tokio::select! {
                notification = notifications.recv() => match notification {
                    Some(notification) => self.deliver(notification.payload()),
                    None => return,
                },
                // The server may take it for one that hears, and hand locks over into the void.
                () = self.server.abandoned.notified() => {
                    link.give_up();
                    return;
                }
                () = sleep(HEARTBEAT) => {
                    if self.is_awaited() && !self.is_heard_while_delivering(link, notifications).await {
                        link.give_up();
                        return;
                    }
                }
            }
        }
    }

    /// As [`is_heard`](Self::is_heard), and delivers notifications until that is known.
    async fn is_heard_while_delivering(
        &self,
        link: &Link,
        notifications: &mut UnboundedReceiver<Notification>,
    ) -> bool {
        let mut heard = pin!(self.is_heard(link));
        loop {
            tokio::select! {
                is_heard = &mut heard => return is_heard,
                notification = notifications.recv() => match notification {
                    Some(notification) => self.deliver(notification.payload()),
                    None => return false,
                },
            }
        }
    }

    /// Whether the server answers on this connection, and is the one that requests go to: it may have a successor.
    async fn is_heard(&self, link: &Link) -> bool {
        let Ok(Some(listener)) = self.server.hears(link, &self.id).await else { return false };
        self.server.finds(&self.id, listener).await.unwrap_or(true)
    }

    fn is_awaited(&self) -> bool {
        !self.owners().is_empty() || !lock(&self.observed).is_empty()
    }

    fn deliver(&self, payload: &str) {
        match payload.split_once(' ') {
            Some(("granted", rest)) => {
                let mut words = rest.splitn(4, ' ');
                let owner = words.next().and_then(OwnerId::decode);
                let token = words.next().and_then(|token| token.parse().ok()).map(Token::new);
                let (Some(owner), Some(token), Some(name)) = (owner, token, words.nth(1)) else { return };
                match self.owners().get(&owner) {
                    Some(waiter) => drop(waiter.send_replace(Some(token))),
                    None => self.return_grant(name.into(), owner),
                }
            }
            Some(("changed", name)) => {
                if let Some(observed) = lock(&self.observed).get(name) {
                    observed.changes.send_replace(());
                }
            }
            _ => tracing::debug!(payload, "a notification has another form"),
        }
    }

    /// Returns a grant to an acquisition that has ended.
    fn return_grant(&self, name: Arc<str>, owner: OwnerId) {
        let (server, counted) = (Arc::clone(&self.server), self.server.cleanup.count());
        drop(tokio::spawn(async move {
            let _counted = counted;
            for _ in 0..10 {
                let Ok(on) = server.connection().await else { return };
                match server.release(&on, &name, owner).await {
                    Ok(Changed::Locked) => sleep(Duration::from_millis(20)).await,
                    _ => return,
                }
            }
        }));
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<OwnerId, watch::Sender<Option<Token>>>> {
        lock(&self.owners)
    }

    /// Ends the observation of a lock that nobody observes any more.
    async fn stop_observing(self: Arc<Self>, name: Arc<str>) {
        sleep(OBSERVED_FOR).await;
        let is_over = {
            let mut observed = lock(&self.observed);
            let is_over = observed.get(&name).is_some_and(|observed| observed.observers == 0);
            if is_over {
                observed.remove(&name);
            }
            is_over
        };
        if is_over {
            // Else the server notifies us in vain, until this session ends.
            let _ = self.server.observe(&name, &self.id, None).await;
            if let Some(observed) = lock(&self.observed).get(&name) {
                // A new observer, whose registration may have been ended with that of the old one: it registers again.
                observed.changes.send_replace(());
            }
        }
    }
}

/// Why a connection does not notify us.
enum Unheard {
    Error(Error),
    BehindAPooler,
}

impl From<Error> for Unheard {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Mailbox {
    /// Waits for a grant, and takes its token.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(crate) async fn granted(&mut self) -> Token {
        loop {
            if self.0.changed().await.is_err() {
                // It lives as long as its registration.
                return std::future::pending().await;
            }
            if let Some(token) = *self.0.borrow_and_update() {
                return token;
            }
        }
    }
}

impl Changes {
    /// Waits for the next change.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(crate) async fn next(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.owners().remove(&self.owner);
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut observed = lock(&self.shared.observed);
        let Some(entry) = observed.get_mut(&self.name) else { return };
        entry.observers -= 1;
        if entry.observers == 0
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn(Arc::clone(&self.shared).stop_observing(Arc::clone(&self.name))));
        }
    }
}

fn lock<K: Eq + Hash, V>(map: &Mutex<HashMap<K, V>>) -> MutexGuard<'_, HashMap<K, V>> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("listening", &self.listening()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.owner).finish()
    }
}
