//! The push connection: one for each process and server, over which the server tells what becomes of locks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::OwnerId;
use rand::Rng;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::Server;
use crate::line::{Event, Line};

/// A channel without listeners stays subscribed for this long: whoever waited once may wait again.
const LINGER: Duration = Duration::from_secs(5);
/// How often a silent connection is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// One push connection, made when somebody first listens.
#[derive(Debug)]
pub(crate) struct Push {
    shared: Arc<Shared>,
}

struct Shared {
    server: Arc<Server>,
    timeout: Duration,
    /// The channel on which those of this process are told that stand in queues.
    inbox: String,
    book: Mutex<Book>,
    /// Whether the inbox is heard.
    live: watch::Sender<bool>,
    /// The set of channels changed.
    changed: Notify,
}

#[derive(Default)]
struct Book {
    topics: BTreeMap<String, Topic>,
    mailboxes: BTreeMap<String, Arc<Mail>>,
    /// The connection over which keys are read that are to be watched.
    tracking: Option<MultiplexedConnection>,
    running: bool,
    closed: bool,
    /// The server allows no pub/sub: nobody tries again.
    refused: bool,
}

#[derive(Debug)]
struct Topic {
    signal: watch::Sender<Signal>,
    idle_since: Option<Instant>,
}

/// What a listener sees of its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signal {
    /// Whether messages arrive.
    live: bool,
    /// Counts the messages, and the times that some may have been missed.
    news: u64,
}

/// Hears what is told on one channel.
#[derive(Debug)]
pub(crate) struct Listener {
    shared: Arc<Shared>,
    channel: String,
    /// `None` only while it is dropped.
    signal: Option<watch::Receiver<Signal>>,
}

/// Hears what is told to one who stands in the queue of a lock.
#[derive(Debug)]
pub(crate) struct Mailbox {
    shared: Arc<Shared>,
    owner: String,
    mail: Arc<Mail>,
    live: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct Mail {
    told: Mutex<Option<Told>>,
    arrived: Notify,
    /// The key whose changes are told as well.
    watched: Mutex<Option<String>>,
}

/// What one who stands in a queue is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// To ask: the lock was granted, or something has changed.
    Ask,
    /// To ask after this time: it is the first in the queue now.
    AskIn(Duration),
}

impl Push {
    pub(crate) fn new(server: Arc<Server>, timeout: Duration) -> Self {
        let inbox = format!("polylock:inbox:{}", OwnerId::random());
        let (book, live, changed) = (Mutex::default(), watch::Sender::new(false), Notify::new());
        Self { shared: Arc::new(Shared { server, timeout, inbox, book, live, changed }) }
    }

    /// The channel on which this process hears that a lock is granted.
    pub(crate) fn inbox(&self) -> &str {
        &self.shared.inbox
    }

    /// Whether the inbox is heard.
    pub(crate) fn is_live(&self) -> bool {
        *self.shared.live.borrow()
    }

    /// Has the inbox listened to, if it is not.
    pub(crate) fn start(&self) {
        self.shared.start();
    }

    /// Waits until the inbox is heard; for ever where the server does not allow it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn live(&self) {
        if self.shared.live.subscribe().wait_for(|live| *live).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Opens a mailbox for one who is going to stand in a queue.
    pub(crate) fn mailbox(&self, owner: OwnerId) -> Mailbox {
        let (owner, mail, live) = (owner.to_string(), Arc::default(), self.shared.live.subscribe());
        self.shared.book().mailboxes.insert(owner.clone(), Arc::clone(&mail));
        Mailbox { shared: Arc::clone(&self.shared), owner, mail, live }
    }

    /// Listens to a channel. The first news comes when the subscription is confirmed: what was told
    /// before is to be asked for then.
    pub(crate) fn listen(&self, channel: &str) -> Listener {
        let mut book = self.shared.book();
        let new = !book.topics.contains_key(channel);
        let topic = book.topics.entry(channel.to_owned()).or_insert_with(Topic::new);
        topic.idle_since = None;
        let signal = topic.signal.subscribe();
        drop(book);
        self.shared.start();
        if new {
            self.shared.changed.notify_one();
        }
        Listener { shared: Arc::clone(&self.shared), channel: channel.to_owned(), signal: Some(signal) }
    }

    /// Listens to a channel that is subscribed already; nothing told from now on is missed.
    pub(crate) fn listen_if_live(&self, channel: &str) -> Option<Listener> {
        let mut book = self.shared.book();
        let topic = book.topics.get_mut(channel).filter(|topic| topic.signal.borrow().live)?;
        topic.idle_since = None;
        let signal = topic.signal.subscribe();
        Some(Listener { shared: Arc::clone(&self.shared), channel: channel.to_owned(), signal: Some(signal) })
    }

    pub(crate) fn close(&self) {
        self.shared.book().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        self.close();
    }
}

impl Listener {
    /// Whether messages arrive; if not, it has to be asked for.
    pub(crate) fn is_live(&self) -> bool {
        self.signal.as_ref().is_some_and(|signal| signal.borrow().live)
    }

    /// Forgets the news so far.
    pub(crate) fn mark_seen(&mut self) {
        if let Some(signal) = &mut self.signal {
            signal.mark_unchanged();
        }
    }

    /// Waits for news since the last call.
    pub(crate) async fn news(&mut self) {
        let heard = match &mut self.signal {
            Some(signal) => signal.changed().await.is_ok(),
            None => false,
        };
        if !heard {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut book = self.shared.book();
        // Under the lock, so that of several the last one sees that it is.
        self.signal = None;
        if let Some(topic) = book.topics.get_mut(&self.channel)
            && topic.signal.receiver_count() == 0
        {
            topic.idle_since = Some(Instant::now());
        }
    }
}

impl Mailbox {
    /// Forgets what was told so far.
    pub(crate) fn mark_seen(&mut self) {
        *self.mail.told() = None;
        self.live.mark_unchanged();
    }

    /// Waits for what is told, and for the connection to come or go, since the last call.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn told(&mut self) -> Told {
        loop {
            if let Some(told) = self.mail.told().take() {
                return told;
            }
            tokio::select! {
                () = self.mail.arrived.notified() => {}
                changed = self.live.changed() => match changed {
                    Ok(()) => return Told::Ask,
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }

    /// Has changes of a key told as well, whoever makes them, and says whether it is there. `None` where
    /// that is not to be had.
    pub(crate) fn watch(&self, key: &str) -> impl Future<Output = Option<bool>> + Send + use<> {
        let connection = self.shared.book().tracking.clone();
        // Reading is what makes the server tell of the next change.
        let mut read = redis::cmd("EXISTS");
        read.arg(key);
        *self.mail.watched() = Some(key.to_owned());
        async move { read.query_async(&mut connection?).await.ok() }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.shared.book().mailboxes.remove(&self.owner);
    }
}

impl Mail {
    fn told(&self) -> MutexGuard<'_, Option<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> MutexGuard<'_, Option<String>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, news: Told) {
        {
            let mut told = self.told();
            // To ask at once is never taken back.
            if *told != Some(Told::Ask) {
                *told = Some(news);
            }
        }
        self.arrived.notify_one();
    }
}

impl Topic {
    fn new() -> Self {
        Self { signal: watch::Sender::default(), idle_since: None }
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>) {
        let mut book = self.book();
        if !book.running && !book.refused && !book.closed {
            book.running = true;
            drop(tokio::spawn(serve(Arc::clone(self))));
        }
    }

    /// Passes on what the server said.
    fn hear(&self, event: Event) {
        match event {
            Event::Message { channel, text } if channel == self.inbox => self.deliver(&text),
            Event::Message { channel, .. } => self.tell(&channel, true),
            Event::Changed(key) => {
                let book = self.book();
                let concerned = book.mailboxes.values().filter(|mail| {
                    let mut watched = mail.watched();
                    watched.take_if(|watched| key.as_ref().is_none_or(|key| key == watched)).is_some()
                });
                concerned.for_each(|mail| mail.tell(Told::Ask));
            }
        }
    }

    /// Puts a message of a script into the mailbox of the one whom it is for: see tell in lua/queue.lua.
    fn deliver(&self, text: &str) {
        let mut parts = text.splitn(3, ' ');
        let (what, owner, rest) = (parts.next(), parts.next(), parts.next());
        // Who has left in the meantime takes back by itself what was granted.
        let Some(mail) = owner.and_then(|owner| self.book().mailboxes.get(owner).cloned()) else { return };
        match (what, rest.and_then(|rest| rest.parse().ok())) {
            (Some("next"), Some(millis)) => mail.tell(Told::AskIn(Duration::from_millis(millis))),
            // The lock does not end by itself.
            (Some("next"), None) => mail.tell(Told::AskIn(Duration::MAX)),
            _ => mail.tell(Told::Ask),
        }
    }

    fn tell(&self, channel: &str, live: bool) {
        if channel == self.inbox {
            self.live.send_replace(live);
        } else if let Some(topic) = self.book().topics.get(channel) {
            topic.signal.send_modify(|signal| *signal = Signal { live, news: signal.news + 1 });
        }
    }

    fn tell_all_down(&self) {
        self.live.send_replace(false);
        let mut book = self.book();
        book.tracking = None;
        for topic in book.topics.values() {
            topic.signal.send_modify(|signal| *signal = Signal { live: false, news: signal.news + 1 });
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Notes that the task has ended, also when its runtime was shut down under it.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.book().running = false;
        self.0.tell_all_down();
    }
}

async fn serve(shared: Arc<Shared>) {
    let running = Running(Arc::clone(&shared));
    let mut pause = FIRST_PAUSE;
    loop {
        match timeout(shared.timeout, Line::connect(&shared.server)).await {
            Ok(Ok(mut line)) => {
                pause = FIRST_PAUSE;
                let ended = follow(&shared, &mut line).await;
                shared.tell_all_down();
                if ended {
                    break;
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "no push connection"),
            Err(_) => tracing::debug!("no push connection in time"),
        }
        if shared.book().closed {
            break;
        }
        let jitter = lock_core::random::rng().random_range(0.5..=1.0);
        sleep(pause.mul_f64(jitter)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
    drop(running);
}

/// Follows one connection, and says whether that was all.
async fn follow(shared: &Shared, line: &mut Line) -> bool {
    match timeout(shared.timeout, line.track()).await {
        Ok(Ok(tracking)) => shared.book().tracking = tracking,
        _ => return false,
    }
    let mut subscribed: Vec<String> = Vec::new();
    loop {
        match subscribe(shared, line, &mut subscribed).await {
            Subscribed::Yes => {}
            Subscribed::Broken => return false,
            Subscribed::Refused => {
                tracing::warn!(
                    "the server allows no SUBSCRIBE or no PUBLISH; waiting for locks falls back to polling"
                );
                shared.book().refused = true;
                return true;
            }
        }
        if shared.book().closed {
            return true;
        }
        tokio::select! {
            event = line.next() => match event {
                Some(event) => shared.hear(event),
                None => return false,
            },
            () = shared.changed.notified() => {}
            () = sleep(PING_EVERY) => {
                if !matches!(timeout(shared.timeout, line.ping()).await, Ok(Ok(_))) {
                    return false;
                }
            }
        }
    }
}

enum Subscribed {
    Yes,
    Broken,
    Refused,
}

/// Brings the subscriptions in line with the topics.
async fn subscribe(shared: &Shared, line: &mut Line, subscribed: &mut Vec<String>) -> Subscribed {
    let (wanted, unwanted) = shared.book().differ(&shared.inbox, subscribed);
    for channel in &wanted {
        match timeout(shared.timeout, line.subscribe(channel)).await {
            Ok(Ok(())) if *channel == shared.inbox && !line.may_publish(channel).await => {
                return Subscribed::Refused;
            }
            Ok(Ok(())) => shared.tell(channel, true),
            Ok(Err(error)) if error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoPerm) => {
                return Subscribed::Refused;
            }
            _ => return Subscribed::Broken,
        }
    }
    for channel in &unwanted {
        if !matches!(timeout(shared.timeout, line.unsubscribe(channel)).await, Ok(Ok(()))) {
            return Subscribed::Broken;
        }
    }
    subscribed.retain(|channel| !unwanted.contains(channel));
    subscribed.extend(wanted);
    Subscribed::Yes
}

impl Book {
    /// What is to be subscribed beside the inbox, and what no longer; topics that nobody needs are
    /// forgotten.
    fn differ(&mut self, inbox: &str, subscribed: &[String]) -> (Vec<String>, Vec<String>) {
        self.topics.retain(|_, topic| topic.idle_since.is_none_or(|since| since.elapsed() < LINGER));
        let wanted = self.topics.keys().map(String::as_str).chain([inbox]);
        let wanted = wanted.filter(|channel| !subscribed.iter().any(|other| other == channel));
        let unwanted = subscribed.iter().filter(|other| *other != inbox && !self.topics.contains_key(*other));
        (wanted.map(str::to_owned).collect(), unwanted.cloned().collect())
    }
}
