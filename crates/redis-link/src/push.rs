//! The push connection: one for each process and server, over which the server tells what becomes of locks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Finding, OwnerId, Token};
use rand::Rng;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use crate::acquisitions::{Acquisitions, Interest};
use crate::client::RedisClient;
use crate::error::Cause;
use crate::keys::Keys;
use crate::push_connection::{Event, OnEvent, PushConnection, is_refusal};
use crate::push_rights::{PushRights, gave_up};
use crate::unclaimed_grant::{ReturnGrant, Returns, UnclaimedGrant};

/// A channel without listeners stays subscribed for this long: whoever waited once may wait again.
const LINGER: Duration = Duration::from_secs(60);
/// How often a silent server is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(5);
/// After the server said that we may not listen, it is asked again after a random part of this, half of it at least.
const REFUSED_FOR: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// The push connections: one, or one for each node of a cluster that has a lock which is waited for.
#[derive(Debug)]
pub struct Pushes {
    client: Arc<RedisClient>,
    timeout: Duration,
    /// This process, as the names of channels have it.
    process: String,
    /// Whether it was told that nobody can be told anything.
    warned: Arc<AtomicBool>,
    acquisitions: Arc<Acquisitions>,
    returns: Arc<Returns>,
    by_node: Mutex<BTreeMap<String, Push>>,
}

/// One push connection, made when somebody first listens.
#[derive(Clone, Debug)]
pub struct Push {
    shared: Arc<Shared>,
}

struct Shared {
    client: Arc<RedisClient>,
    node: String,
    timeout: Duration,
    process: String,
    /// The inbox for all locks; `None` in a cluster.
    inbox: Option<String>,
    warned: Arc<AtomicBool>,
    acquisitions: Arc<Acquisitions>,
    returns: Arc<Returns>,
    book: Mutex<Book>,
    /// The set of channels changed.
    changed: Notify,
    /// Whether anything was heard since the server was last asked whether it is there.
    heard: AtomicBool,
}

#[derive(Default)]
struct Book {
    topics: BTreeMap<String, Topic>,
    mailboxes: BTreeMap<String, Arc<Mail>>,
    /// The connection over which keys are read that are to be watched.
    tracking: Option<MultiplexedConnection>,
    running: bool,
    closed: bool,
    /// The server allowed no pub/sub the last time: nobody tries again until then.
    refused_until: Option<Instant>,
}

#[derive(Debug)]
struct Topic {
    signal: watch::Sender<Signal>,
    idle_since: Option<Instant>,
    /// Whether it is the inbox of this process, and not a channel of the lock.
    is_inbox: bool,
    /// Another node has it now.
    gone: bool,
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
pub struct Listener {
    shared: Arc<Shared>,
    channel: String,
    /// `None` only while it is dropped.
    signal: Option<watch::Receiver<Signal>>,
}

/// Hears what is told to one who stands in the queue of a lock.
#[derive(Debug)]
pub struct Mailbox {
    owner: String,
    mail: Arc<Mail>,
    listener: Listener,
}

#[derive(Debug, Default)]
struct Mail {
    told: Mutex<Option<Notification>>,
    arrived: Notify,
    /// The key whose changes are told as well.
    watched: Mutex<Option<String>>,
}

/// What one who stands in a queue is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// To ask: something has changed.
    Ask,
    /// To ask: the lock was granted.
    Granted,
    /// The lock is ours for the time that our entry in the queue names, from a moment after our first request was sent.
    HandedOver(Token),
    /// To ask after this time: it is the first in the queue now.
    AskIn(Duration),
}

impl Pushes {
    /// The push connections to this server, each made when somebody first listens. `timeout` is for each request. Grants
    /// to others than these acquisitions are given back by `returns`.
    #[must_use]
    pub fn new(
        client: Arc<RedisClient>,
        timeout: Duration,
        acquisitions: &Arc<Acquisitions>,
        returns: Arc<dyn ReturnGrant>,
    ) -> Self {
        let (process, warned, by_node) = (OwnerId::random().to_string(), Arc::default(), Mutex::default());
        let (acquisitions, returns) = (Arc::clone(acquisitions), Returns::new(returns));
        Self { client, timeout, process, warned, acquisitions, returns, by_node }
    }

    /// The acquisitions to which grants are wanted.
    pub const fn acquisitions(&self) -> &Arc<Acquisitions> {
        &self.acquisitions
    }

    /// Warns now if whoever waits in this way would have to poll.
    pub async fn look_ahead(&self, queues: bool) {
        let rights = async {
            // Nodes that differ in what they allow are told apart by the doctor.
            let nodes = self.client.node_names().await.ok()?;
            PushRights::of(&self.client, nodes.first()?, queues).await
        };
        if let Ok(Some(rights)) = timeout(self.timeout, rights).await
            && rights.has_to_poll()
        {
            warn_of_polling(&self.warned);
        }
    }

    /// What is done less well for want of a right, for those who wait in this way.
    pub async fn examine(&self, queues: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for node in self.client.node_names().await.unwrap_or_default() {
            let address = if node.is_empty() { self.client.address() } else { &node };
            let rights =
                timeout(self.timeout, PushRights::of(&self.client, &node, queues)).await.ok().flatten();
            findings.extend(rights.iter().flat_map(|rights| rights.findings(address)));
            let refused =
                self.by_node().get(&node).is_some_and(|push| push.shared.book().refused_until.is_some());
            if refused && !rights.is_some_and(|rights| rights.has_to_poll()) {
                findings.push(gave_up(address));
            }
        }
        findings
    }

    /// The connection over which is told what becomes of this lock; `None` while it is not known which
    /// node has it.
    pub fn of(&self, keys: &Keys) -> Option<Push> {
        let node = self.client.node_name(keys)?;
        let shared = || Shared {
            client: Arc::clone(&self.client),
            node: node.clone(),
            timeout: self.timeout,
            process: self.process.clone(),
            warned: Arc::clone(&self.warned),
            acquisitions: Arc::clone(&self.acquisitions),
            returns: Arc::clone(&self.returns),
            inbox: (!self.client.is_cluster()).then(|| format!("polylock:inbox:{}", self.process)),
            book: Mutex::default(),
            changed: Notify::new(),
            heard: AtomicBool::new(false),
        };
        let push = || Push { shared: Arc::new(shared()) };
        Some(self.by_node().entry(node.clone()).or_insert_with(push).clone())
    }

    /// As [`of`](Self::of), if somebody has asked for it before: nothing is heard over a new one.
    pub fn get(&self, keys: &Keys) -> Option<Push> {
        let node = self.client.node_name(keys)?;
        self.by_node().get(&node).cloned()
    }

    /// Closes them for good.
    pub fn close(&self) {
        self.by_node().values().for_each(Push::close);
    }

    fn by_node(&self) -> MutexGuard<'_, BTreeMap<String, Push>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        self.close();
    }
}

impl Push {
    /// The channel on which this process hears that a lock is granted: one for all locks, or in a cluster
    /// one for each, in its slot.
    pub fn inbox(&self, keys: &Keys) -> Cow<'_, str> {
        match &self.shared.inbox {
            Some(inbox) => Cow::Borrowed(inbox),
            None => Cow::Owned(keys.inbox(&self.shared.process)),
        }
    }

    /// Opens a mailbox for one who is going to stand in a queue, if the inbox is heard.
    pub fn mailbox(&self, inbox: &str, owner: OwnerId) -> Option<Mailbox> {
        let listener = self.listen_if_live(inbox)?;
        let (owner, mail) = (owner.to_string(), Arc::default());
        self.shared.book().mailboxes.insert(owner.clone(), Arc::clone(&mail));
        Some(Mailbox { owner, mail, listener })
    }

    /// Whether the inbox is heard.
    pub fn hears(&self, inbox: &str) -> bool {
        self.shared.book().topics.get(inbox).is_some_and(|topic| topic.signal.borrow().live)
    }

    /// Has the inbox listened to.
    pub fn open(&self, inbox: &str) -> Listener {
        self.listen_as(inbox, true)
    }

    /// Listens to a channel. The first news comes when the subscription is confirmed: what was told
    /// before is to be asked for then.
    pub fn listen(&self, channel: &str) -> Listener {
        self.listen_as(channel, false)
    }

    /// Listens to a channel that is subscribed already; nothing told from now on is missed.
    pub fn listen_if_live(&self, channel: &str) -> Option<Listener> {
        let mut book = self.shared.book();
        let topic = book.topics.get_mut(channel).filter(|topic| topic.signal.borrow().live)?;
        topic.idle_since = None;
        let signal = topic.signal.subscribe();
        Some(Listener { shared: Arc::clone(&self.shared), channel: channel.to_owned(), signal: Some(signal) })
    }

    fn listen_as(&self, channel: &str, is_inbox: bool) -> Listener {
        let mut book = self.shared.book();
        let topic = book.topics.entry(channel.to_owned()).or_insert_with(|| Topic::new(is_inbox));
        (topic.idle_since, topic.gone) = (None, false);
        let signal = topic.signal.subscribe();
        drop(book);
        self.shared.start();
        self.shared.changed.notify_one();
        Listener { shared: Arc::clone(&self.shared), channel: channel.to_owned(), signal: Some(signal) }
    }

    fn close(&self) {
        self.shared.book().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Listener {
    /// Whether messages arrive; if not, it has to be asked for.
    pub fn is_live(&self) -> bool {
        self.signal.as_ref().is_some_and(|signal| signal.borrow().live)
    }

    /// Forgets the news so far.
    pub fn mark_seen(&mut self) {
        if let Some(signal) = &mut self.signal {
            signal.mark_unchanged();
        }
    }

    /// Waits for news since the last call.
    pub async fn news(&mut self) {
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
            if !book.running {
                // Nobody is there to forget it later.
                book.topics.remove(&self.channel);
            }
        }
    }
}

impl Mailbox {
    /// Whether this is the connection, and the channel, that it hears.
    pub fn is_of(&self, push: &Push, inbox: &str) -> bool {
        Arc::ptr_eq(&self.listener.shared, &push.shared) && self.listener.channel == inbox
    }

    /// Forgets what was told so far.
    pub fn mark_seen(&mut self) {
        *self.mail.told() = None;
        self.listener.mark_seen();
    }

    /// Waits for what is told, and for the connection to come or go, since the last call.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Notification {
        loop {
            if let Some(told) = self.mail.told().take() {
                return told;
            }
            tokio::select! {
                () = self.mail.arrived.notified() => {}
                () = self.listener.news() => return Notification::Ask,
            }
        }
    }

    /// Has changes of a key told as well, whoever makes them, and says whether it is there. `None` where
    /// that is not to be had.
    pub fn watch(&self, key: &str) -> impl Future<Output = Option<bool>> + Send + use<> {
        let connection = self.listener.shared.book().tracking.clone();
        // Reading is what makes the server tell of the next change.
        let mut read = redis::cmd("EXISTS");
        read.arg(key);
        *self.mail.watched() = Some(key.to_owned());
        async move { read.query_async(&mut connection?).await.ok() }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.listener.shared.book().mailboxes.remove(&self.owner);
    }
}

impl Mail {
    fn told(&self) -> MutexGuard<'_, Option<Notification>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> MutexGuard<'_, Option<String>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, news: Notification) {
        {
            let mut told = self.told();
            // To ask at once is never taken back.
            if matches!(*told, None | Some(Notification::AskIn(_)))
                || matches!(news, Notification::Granted | Notification::HandedOver(_))
            {
                *told = Some(news);
            }
        }
        self.arrived.notify_one();
    }
}

impl Topic {
    fn new(is_inbox: bool) -> Self {
        Self { signal: watch::Sender::default(), idle_since: None, is_inbox, gone: false }
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>) {
        let starts = {
            let mut book = self.book();
            let may_try = book.refused_until.is_none_or(|until| Instant::now() >= until);
            let starts = !book.running && may_try && !book.closed;
            book.running |= starts;
            starts
        };
        if starts {
            // Made here, so that it is dropped also when the runtime never polls the task.
            let running = Running(Some(Arc::clone(self)));
            drop(tokio::spawn(serve(Arc::clone(self), running)));
        }
    }

    /// Passes on what the server says, in the moment in which it does; gives back what else is to be done for it.
    fn hear(&self, event: Event) -> Option<Event> {
        self.heard.store(true, Ordering::Relaxed);
        match event {
            Event::Message { channel, text } => match self.is_inbox(&channel) {
                true => self.deliver(&channel, &text),
                false => self.tell(&channel, |signal| signal.live),
            },
            Event::Gone { .. } => return Some(event),
            Event::Changed(key) => {
                let book = self.book();
                let concerned = book.mailboxes.values().filter(|mail| {
                    let mut watched = mail.watched();
                    watched.take_if(|watched| key.as_ref().is_none_or(|key| key == watched)).is_some()
                });
                concerned.for_each(|mail| mail.tell(Notification::Ask));
            }
        }
        None
    }

    /// Notes that the server allows what it refused before.
    fn note_allowed(&self) {
        if self.book().refused_until.take().is_some() {
            self.warned.store(false, Ordering::Relaxed);
            tracing::info!(
                server = self.client.address(),
                "the server allows SUBSCRIBE and PUBLISH again; waiting for locks polls no longer"
            );
        }
    }

    /// What hears for us as long as we are there.
    fn hearing(self: &Arc<Self>) -> Arc<OnEvent> {
        let shared = Arc::downgrade(self);
        Arc::new(move |event| shared.upgrade()?.hear(event))
    }

    /// Another node has the channel now.
    fn lose(&self, channel: &str) {
        self.tell(channel, |_| false);
        if let Some(topic) = self.book().topics.get_mut(channel) {
            topic.gone = true;
        }
    }

    /// Puts a message of a script into the mailbox of the owner that it names: see tell in lua/waiter.lua.
    fn deliver(&self, inbox: &str, text: &str) {
        let mut parts = text.splitn(3, ' ');
        let (Some(what), Some(owner), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return;
        };
        let mail = self.book().mailboxes.get(owner).cloned();
        let Some(mail) = mail else { return self.return_unwanted(inbox, what, owner, rest) };
        // Behind the number of a grant comes its lock.
        match (what, rest.split(' ').next().and_then(|number| number.parse().ok())) {
            ("passed", Some(token)) => mail.tell(Notification::HandedOver(Token::new(token))),
            ("next", Some(millis)) => mail.tell(Notification::AskIn(Duration::from_millis(millis))),
            // The lock does not end by itself.
            ("next", None) => mail.tell(Notification::AskIn(Duration::MAX)),
            _ => mail.tell(Notification::Granted),
        }
    }

    /// Gives back at once what was granted to an owner that has no mailbox, unless it got the lock already.
    fn return_unwanted(&self, inbox: &str, what: &str, owner: &str, rest: &str) {
        let Some(grant) = UnclaimedGrant::read(what, owner, rest, inbox) else { return };
        match self.acquisitions.interest(grant.owner) {
            Interest::Wanted => {}
            interest => self.returns.give_back(grant, interest == Interest::Unwanted),
        }
    }

    fn is_inbox(&self, channel: &str) -> bool {
        self.book().topics.get(channel).is_some_and(|topic| topic.is_inbox)
    }

    /// Tells those who listen to a channel that there is news, and whether messages arrive.
    fn tell(&self, channel: &str, live: impl Fn(&Signal) -> bool) {
        if let Some(topic) = self.book().topics.get(channel) {
            topic.signal.send_modify(|signal| *signal = Signal { live: live(signal), news: signal.news + 1 });
        }
    }

    fn tell_all_down(&self) {
        let mut book = self.book();
        book.tracking = None;
        for topic in book.topics.values() {
            topic.signal.send_modify(|signal| *signal = Signal { live: false, news: signal.news + 1 });
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Notes that the task has ended, also when its runtime was shut down under it.
struct Running(Option<Arc<Shared>>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        shared.tell_all_down();
        shared.book().running = false;
    }
}

async fn serve(shared: Arc<Shared>, mut running: Running) {
    let mut pause = FIRST_PAUSE;
    loop {
        // From before it is asked where the server is.
        let moves = shared.client.moves();
        match timeout(shared.timeout, PushConnection::connect(&shared.client, &shared.node, shared.hearing()))
            .await
        {
            Ok(Ok(mut connection)) => {
                pause = FIRST_PAUSE;
                let ended = follow(&shared, &mut connection, moves).await;
                shared.tell_all_down();
                if ended {
                    break;
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "no push connection"),
            Err(_) => tracing::debug!("no push connection in time"),
        }
        if shared.book().ends() {
            running.0 = None;
            return;
        }
        let jitter = lock_core::random::rng().random_range(0.5..=1.0);
        sleep(pause.mul_f64(jitter)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
    drop(running);
}

/// Follows one connection, and says whether that was all.
async fn follow(
    shared: &Shared,
    connection: &mut PushConnection,
    moves: Option<watch::Receiver<()>>,
) -> bool {
    let mut moved = pin!(moved(moves));
    match timeout(shared.timeout, connection.track()).await {
        Ok(Ok(tracking)) => shared.book().tracking = tracking,
        _ => return false,
    }
    let mut subscribed = BTreeSet::new();
    let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        match subscribe(shared, connection, &mut subscribed).await {
            Subscribed::Yes => shared.note_allowed(),
            Subscribed::Broken => return false,
            Subscribed::Refused => {
                warn_of_polling(&shared.warned);
                let part = lock_core::random::rng().random_range(0.5..=1.0);
                shared.book().refused_until = Some(Instant::now() + REFUSED_FOR.mul_f64(part));
                return true;
            }
        }
        if shared.book().closed {
            return true;
        }
        tokio::select! {
            event = connection.next() => match event {
                Some(Event::Gone { channel }) => {
                    subscribed.retain(|subscribed| subscribed.name != channel);
                    shared.lose(&channel);
                }
                Some(_) => {}
                None => return false,
            },
            () = shared.changed.notified() => {}
            () = &mut moved => return false,
            _ = pings.tick() => {
                let is_there = shared.heard.swap(false, Ordering::Relaxed) || answers(shared, connection).await;
                if !is_there {
                    return false;
                }
            }
        }
    }
}

/// Whether the server is still there. An error that it answers with is a sign of life as well.
async fn answers(shared: &Shared, connection: &mut PushConnection) -> bool {
    match timeout(shared.timeout, connection.ping()).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => error.code().is_some(),
        Err(_) => false,
    }
}

/// Warns once for all nodes.
fn warn_of_polling(warned: &AtomicBool) {
    if !warned.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "the server allows no SUBSCRIBE or no PUBLISH; waiting for locks falls back to polling, and tries again \
             within a minute"
        );
    }
}

/// Waits until another server is to be listened to: whoever is not heard there is taken for dead.
async fn moved(moves: Option<watch::Receiver<()>>) {
    if let Some(mut moves) = moves
        && moves.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

enum Subscribed {
    Yes,
    Broken,
    Refused,
}

/// Brings the subscriptions in line with the topics.
async fn subscribe(
    shared: &Shared,
    connection: &mut PushConnection,
    subscribed: &mut BTreeSet<Channel>,
) -> Subscribed {
    let (wanted, unwanted) = shared.book().differ(subscribed, shared.client.is_cluster());
    for Channel { name, sharded } in wanted {
        match timeout(shared.timeout, connection.subscribe(&name, sharded)).await {
            Ok(Ok(())) if shared.is_inbox(&name) && !connection.may_publish(&name, sharded).await => {
                return Subscribed::Refused;
            }
            Ok(Ok(())) => {
                shared.tell(&name, |_| true);
                subscribed.insert(Channel { name, sharded });
            }
            Ok(Err(error)) if error.is_cluster_error() => shared.lose(&name),
            Ok(Err(error)) if is_refusal(&error) => {
                tracing::debug!(error = %Cause::of(&error), "no subscription");
                return Subscribed::Refused;
            }
            _ => return Subscribed::Broken,
        }
    }
    for channel in unwanted {
        let Channel { name, sharded } = &channel;
        if !matches!(timeout(shared.timeout, connection.unsubscribe(name, *sharded)).await, Ok(Ok(()))) {
            return Subscribed::Broken;
        }
        subscribed.remove(&channel);
    }
    Subscribed::Yes
}

/// A channel that is subscribed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Channel {
    name: String,
    sharded: bool,
}

impl Book {
    /// What is to be subscribed, and what no longer; topics that nobody needs are forgotten.
    fn differ(&mut self, subscribed: &mut BTreeSet<Channel>, cluster: bool) -> (Vec<Channel>, Vec<Channel>) {
        self.topics.retain(|_, topic| topic.idle_since.is_none_or(|since| since.elapsed() < LINGER));
        subscribed.retain(|channel| !self.topics.get(&channel.name).is_some_and(|topic| topic.gone));
        let topics = self.topics.iter().filter(|(_, topic)| !topic.gone);
        let channels: BTreeSet<Channel> = topics
            .map(|(name, topic)| Channel { name: name.clone(), sharded: cluster && topic.is_inbox })
            .collect();
        let unwanted = subscribed.difference(&channels).cloned().collect();
        let wanted = channels.difference(subscribed).cloned().collect();
        (wanted, unwanted)
    }

    /// Ends the running if nobody wants a connection any more.
    fn ends(&mut self) -> bool {
        if self.closed || self.topics.values().all(|topic| topic.signal.receiver_count() == 0) {
            self.running = false;
        }
        !self.running
    }
}
