//! The connection on which the server notifies this process: waiters of their grants, and observers of changes, for as long as they are
//! registered.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::engine::{self, Message};
use lock_core::poison::lock;
use lock_core::waiting::longest_pause;
use lock_core::{Error, ErrorKind, OwnerId, Result, Token};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::connect::link::{Dialer, Link, Notified};
use crate::message::{Key, Notification, Secret, channel};
use crate::server::Server;

/// Pauses before the next connection.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// The last one where the server does not find the listener: behind a pooler, or for a moment during a failover.
const LAST_PAUSE_UNHEARD: Duration = Duration::from_secs(60);
/// How often the connection is tried while somebody waits for a notification.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long the server is asked for changes of a lock after the last observer has gone: the next one often follows.
const OBSERVED_FOR: Duration = Duration::from_secs(10);
/// When the end of an observation is tried again.
const END_AGAIN: Duration = Duration::from_secs(1);
/// Between two looks at a lock, however often the server says that it has changed: everybody can say so.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a registration stands without a new one.
const REGISTERED_FOR: Duration = Duration::from_secs(60);

/// The inbox of one `Locks`. It closes when it is dropped: else its task would listen, and keep the pool, for as long as its runtime
/// lives.
pub(crate) struct Inbox(Arc<Opener>);

/// What opens it.
struct Opener {
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
    /// The mailboxes of acquisitions.
    waiters: Mutex<HashMap<Key, Waiter>>,
    /// Locks whose changes are observed.
    observed: Mutex<HashMap<Key, Observed>>,
    /// Registrations of locks that nobody observes any more.
    ending: Mutex<HashMap<Key, Arc<str>>>,
    /// Notified when a lock has lost its last observer.
    unobserved: Notify,
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

struct Waiter {
    secret: Secret,
    granted: watch::Sender<Option<Token>>,
}

struct Observed {
    /// As the server stores it.
    name: Arc<str>,
    changes: watch::Sender<()>,
    observers: usize,
    /// When the last observer has gone.
    idle_since: Instant,
    /// When an observer was last notified of a change.
    looked: Option<Instant>,
    /// By which listener the server knows of it, and since when.
    registered: Option<(i32, Instant)>,
}

/// Where an acquisition gets its grant. One to an acquisition that has none any more ends with its grace period.
pub struct Mailbox {
    pub(crate) key: Key,
    secret: Secret,
    /// The listener that the server was told of, if the last request told it of one.
    told: Mutex<Listening>,
    granted: watch::Receiver<Option<Token>>,
    /// Reports when the inbox opens or closes.
    listening: watch::Receiver<Listening>,
    opener: Arc<Opener>,
}

/// What the connection that listens does with what it is told: at once, so that nothing piles up, whoever sends it.
struct Delivery {
    shared: Arc<Shared>,
    /// What this connection tells itself, and whether it has.
    nonce: String,
    opened: watch::Sender<bool>,
}

/// Where an observer gets the changes of a lock.
pub(crate) struct Changes {
    key: Key,
    changes: watch::Receiver<()>,
    /// When it may look again.
    next_look: Option<Instant>,
    shared: Arc<Shared>,
}

impl Inbox {
    pub(crate) fn new(server: &Arc<Server>, dialer: Option<Dialer>) -> Self {
        let shared = Shared {
            id: OwnerId::random().to_string(),
            server: Arc::clone(server),
            listening: watch::Sender::new(if dialer.is_some() { Listening::Soon } else { Listening::Not }),
            waiters: Mutex::default(),
            observed: Mutex::default(),
            ending: Mutex::default(),
            unobserved: Notify::new(),
        };
        let (shared, dialer) = (Arc::new(shared), dialer.map(Arc::new));
        Self(Arc::new(Opener { shared, dialer, task: Mutex::new(Ok(None)) }))
    }

    /// The id of the inbox.
    pub(crate) fn id(&self) -> &str {
        &self.0.shared.id
    }

    /// Whether the server notifies this process now.
    pub(crate) fn listening(&self) -> Listening {
        *self.0.shared.listening.borrow()
    }

    /// Closes the connection for good.
    pub(crate) fn close(&self) {
        let closed = std::mem::replace(&mut *lock(&self.0.task), Err(Closed));
        if let Ok(Some(task)) = closed {
            task.abort();
        }
        self.0.shared.listening.send_replace(Listening::Not);
    }

    /// Waits until the inbox is open, or could not be opened, for this time at most. Returns whether the server notifies us.
    pub(crate) async fn opened(&self, limit: Duration) -> bool {
        self.0.open();
        let mut listening = self.0.shared.listening.subscribe();
        let opened = timeout(limit, listening.wait_for(|listening| *listening != Listening::Soon)).await;
        opened.is_ok_and(|opened| opened.is_ok_and(|listening| matches!(*listening, Listening::By(_))))
    }

    /// A mailbox for an acquisition.
    pub(crate) fn register(&self) -> Mailbox {
        let (key, secret, sender) = (Key::random(), Secret::random(), watch::Sender::new(None));
        let (granted, listening) = (sender.subscribe(), self.0.shared.listening.subscribe());
        lock(&self.0.shared.waiters).insert(key, Waiter { secret, granted: sender });
        let told = Mutex::new(Listening::Not);
        Mailbox { key, secret, told, granted, listening, opener: Arc::clone(&self.0) }
    }

    /// Asks the server to notify this inbox of changes of a lock. `None` if this process does not listen now.
    pub(crate) async fn observe(&self, name: &Arc<str>) -> Result<Option<Changes>> {
        self.0.open();
        let Listening::By(listener) = self.listening() else { return Ok(None) };
        let shared = &self.0.shared;
        let (changes, is_registered) = shared.observed_by_one_more(name, listener);
        if is_registered {
            return Ok(Some(changes));
        }
        let is_observed = shared.server.observe(name, &shared.id, changes.key, Some(listener)).await?;
        if is_observed && let Some(entry) = lock(&shared.observed).get_mut(&changes.key) {
            entry.registered = Some((listener, Instant::now()));
        }
        Ok(is_observed.then_some(changes))
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl Opener {
    /// Opens the connection in the background, if that is still to be done.
    fn open(&self) {
        let Some(dialer) = &self.dialer else { return };
        // Its runtime may have been shut down.
        if let Ok(task) = &mut *lock(&self.task)
            && task.as_ref().is_none_or(JoinHandle::is_finished)
        {
            self.shared.listening.send_replace(Listening::Soon);
            *task = Some(dialer.home.driver().spawn(Arc::clone(&self.shared).listen(Arc::clone(dialer))));
        }
    }
}

impl Shared {
    /// Listens for as long as the locks are open.
    async fn listen(self: Arc<Self>, dialer: Arc<Dialer>) {
        let (mut pause, mut is_reported) = (FIRST_PAUSE, false);
        loop {
            let ended = self.listen_once(&dialer).await;
            if matches!(self.listening.send_replace(Listening::Not), Listening::By(_)) {
                pause = FIRST_PAUSE;
            }
            self.unregister_all();
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
                    if pause > LAST_PAUSE && !std::mem::replace(&mut is_reported, true) {
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
    async fn listen_once(self: &Arc<Self>, dialer: &Dialer) -> std::result::Result<(), Unheard> {
        let channel = channel(&self.id);
        let mut targets = dialer.targets.clone();
        // By this name, the server finds the session of a waiter.
        for target in &mut targets {
            target.application_name(&channel);
        }
        let (nonce, opened) = (Key::random().to_string(), watch::Sender::new(false));
        let mut is_told = opened.subscribe();
        let delivery = Delivery { shared: Arc::clone(self), nonce: nonce.clone(), opened };
        let link = dialer.open_as(targets, Some(Box::new(delivery))).await?;
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
        self.server.notify(&channel, &format!("opened:{nonce}")).await?;
        let told = timeout(limit, is_told.wait_for(|is_told| *is_told)).await;
        let has_heard = told.is_ok_and(|told| told.is_ok());
        if !link.is_open() {
            let broke = dialer.endpoint.error(ErrorKind::Unavailable, "the connection that listens broke");
            return Err(Unheard::Error(broke.with_code("broken")));
        }
        let Some(pid) = listener.filter(|_| has_heard) else { return Err(Unheard::BehindAPooler) };
        self.listening.send_replace(Listening::By(pid));
        self.watch(&link, is_told).await;
        Ok(())
    }

    /// Waits until the connection has ended, or the server does not answer on it.
    async fn watch(&self, link: &Link, mut lives: watch::Receiver<bool>) {
        let unheard = async {
            loop {
                sleep(HEARTBEAT).await;
                if self.is_awaited() && !self.is_heard(link).await {
                    return;
                }
            }
        };
        tokio::select! {
            // Nothing else comes: it ends with the connection.
            _ = lives.changed() => {}
            // Also while its answer is waited for. The server may take it for one that hears, and hand locks over into the void.
            () = self.server.abandoned.notified() => link.give_up(),
            () = unheard => link.give_up(),
            never = self.end_observations() => match never {},
        }
    }

    /// Whether the server answers on this connection, and is the one that requests go to: it may have a successor.
    async fn is_heard(&self, link: &Link) -> bool {
        let Ok(Some(listener)) = self.server.hears(link, &self.id).await else { return false };
        self.server.finds(&self.id, listener).await.unwrap_or(true)
    }

    fn is_awaited(&self) -> bool {
        !lock(&self.waiters).is_empty() || !lock(&self.observed).is_empty()
    }

    /// Where one more observer gets the changes of a lock, and whether this listener is registered for it.
    fn observed_by_one_more(self: &Arc<Self>, name: &Arc<str>, listener: i32) -> (Changes, bool) {
        let (mut observed, now) = (lock(&self.observed), Instant::now());
        let known = observed.iter().find(|(_, entry)| entry.name == *name).map(|(key, _)| *key);
        let key = known.unwrap_or_else(Key::random);
        let entry = observed.entry(key).or_insert_with(|| Observed {
            name: Arc::clone(name),
            changes: watch::Sender::new(()),
            observers: 0,
            idle_since: now,
            looked: None,
            registered: None,
        });
        entry.observers += 1;
        let next_look = entry.looked.map(|looked| looked + LOOK_EVERY);
        let stands = |(by, since)| by == listener && now < since + REGISTERED_FOR;
        let is_registered = entry.registered.is_some_and(stands);
        let changes = entry.changes.subscribe();
        (Changes { key, changes, next_look, shared: Arc::clone(self) }, is_registered)
    }

    /// The server notifies observers no more: they look by themselves, until they can register again. It removes what is registered for
    /// a listener that has ended.
    fn unregister_all(&self) {
        lock(&self.ending).clear();
        let mut observed = lock(&self.observed);
        observed.retain(|_, entry| entry.observers > 0);
        for entry in observed.values_mut() {
            entry.registered = None;
            entry.changes.send_replace(());
        }
    }

    /// Ends the observations of locks that nobody observes any more. Else the server would notify us in vain, for as long as this
    /// session lasts.
    async fn end_observations(&self) -> Infallible {
        loop {
            match self.next_end() {
                Some(next) => sleep_until(next).await,
                None => {
                    self.unobserved.notified().await;
                    continue;
                }
            }
            let ending: Vec<_> =
                lock(&self.ending).iter().map(|(key, name)| (*key, Arc::clone(name))).collect();
            for (key, name) in ending {
                // A transaction may have the row.
                if self.server.observe(&name, &self.id, key, None).await.is_ok_and(|is_ended| is_ended) {
                    lock(&self.ending).remove(&key);
                }
            }
        }
    }

    /// Notes which observations are over, and returns when to end those, or the next ones. `None` if there are none without observers.
    fn next_end(&self) -> Option<Instant> {
        let now = Instant::now();
        let (mut observed, mut ending) = (lock(&self.observed), lock(&self.ending));
        let over = observed
            .extract_if(|_, entry| entry.observers == 0 && entry.idle_since + OBSERVED_FOR <= now)
            .map(|(key, entry)| (key, entry.name));
        let before = ending.len();
        ending.extend(over);
        let idle = observed.values().filter(|entry| entry.observers == 0);
        let next = idle.map(|entry| entry.idle_since + OBSERVED_FOR).min();
        match (before, ending.len()) {
            (_, 0) => next,
            (0, _) => Some(now),
            // Those of before are tried again.
            _ => Some(next.unwrap_or(now + END_AGAIN).min(now + END_AGAIN)),
        }
    }
}

impl Notified for Delivery {
    fn notified(&self, payload: &str) {
        match Notification::parse(payload) {
            Some(Notification::Granted { to, token, proof }) => {
                if let Some(waiter) = lock(&self.shared.waiters).get(&to)
                    && waiter.secret.proves(token, proof)
                {
                    waiter.granted.send_replace(Some(token));
                }
            }
            Some(Notification::Changed(key)) => {
                if let Some(observed) = lock(&self.shared.observed).get(&key) {
                    observed.changes.send_replace(());
                }
            }
            Some(Notification::Opened(nonce)) if nonce == self.nonce => drop(self.opened.send_replace(true)),
            _ => tracing::trace!("a notification that nobody waits for"),
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
    /// What the server, which is told of this listener now, needs to prove a grant.
    pub(crate) fn tell(&self, listening: Listening) -> Secret {
        *lock(&self.told) = listening;
        self.secret
    }
}

impl engine::Mailbox for Mailbox {
    /// Opens the inbox, if necessary.
    fn listens(&mut self, _: Option<usize>) -> Option<Duration> {
        self.opener.open();
        let listening = *self.listening.borrow_and_update();
        let is_told = matches!(listening, Listening::By(_)) && *lock(&self.told) == listening;
        is_told.then(longest_pause)
    }

    /// It asks again when the inbox opens or closes.
    async fn next(&mut self) -> Message {
        let Self { granted, listening, .. } = self;
        let granted = async {
            loop {
                if granted.changed().await.is_err() {
                    // Its sender lives as long as it does.
                    pending::<()>().await;
                }
                if let Some(token) = *granted.borrow_and_update() {
                    return token;
                }
            }
        };
        let reported = async {
            if listening.changed().await.is_err() {
                pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            token = granted => Message::Granted(token),
            () = reported => Message::Ask,
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
            pending::<()>().await;
        }
        if let Some(next_look) = self.next_look {
            sleep_until(next_look).await;
        }
        if let Some(entry) = lock(&self.shared.observed).get_mut(&self.key) {
            entry.looked = Some(Instant::now());
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        lock(&self.opener.shared.waiters).remove(&self.key);
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut observed = lock(&self.shared.observed);
        let Some(entry) = observed.get_mut(&self.key) else { return };
        entry.observers -= 1;
        if entry.observers == 0 {
            entry.idle_since = Instant::now();
            self.shared.unobserved.notify_one();
        }
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("listening", &self.listening()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("key", &self.key).finish_non_exhaustive()
    }
}
