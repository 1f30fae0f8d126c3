//! The push connection, one for each process and server: delivers notifications about locks to waiters.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Finding, OwnerId, Result, Token};
use rand::Rng;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use crate::error::{Cause, is_refusal};
use crate::notify::acquisitions::{Acquisitions, Interest};
use crate::notify::message::Message;
use crate::notify::proof::{Secret, Secrets};
use crate::notify::push_connection::{Channel, Event, OnEvent, PushConnection, RIGHTS_TEST};
use crate::notify::push_rights::{PushRights, gave_up};
use crate::notify::unclaimed_grant::{ReturnGrant, Returns, UnclaimedGrant};
use crate::route::client::RedisClient;
use crate::scripts::keys::Keys;

/// A channel without listeners stays subscribed for this long, for the next wait.
const LINGER: Duration = Duration::from_secs(60);
/// How often a silent server is pinged.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The pause after a refused subscription: a random part of this, at least half.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// How many channels are subscribed in one round trip.
const SUBSCRIBED_AT_A_TIME: usize = 128;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// The push connections: one, or in a cluster one for each node with a lock that has waiters.
#[derive(Debug)]
pub struct Pushes {
    client: Arc<RedisClient>,
    timeout: Duration,
    /// The id of this process in the names of channels.
    process: String,
    secrets: Arc<Secrets>,
    /// Whether the warning that waiters have to poll was logged.
    warned: Arc<AtomicBool>,
    acquisitions: Arc<Acquisitions>,
    returns: Arc<Returns>,
    by_node: Mutex<BTreeMap<String, Push>>,
}

/// One push connection, opened by its first listener.
#[derive(Clone, Debug)]
pub struct Push {
    state: Arc<PushState>,
}

struct PushState {
    client: Arc<RedisClient>,
    node: String,
    timeout: Duration,
    process: String,
    secrets: Arc<Secrets>,
    /// The inbox for all locks; `None` in a cluster.
    inbox: Option<String>,
    warned: Arc<AtomicBool>,
    acquisitions: Arc<Acquisitions>,
    returns: Arc<Returns>,
    subscriptions: Mutex<Subscriptions>,
    /// The set of channels changed.
    changed: Notify,
    /// Whether anything was received since the last ping.
    received: AtomicBool,
}

#[derive(Default)]
struct Subscriptions {
    topics: BTreeMap<String, Topic>,
    mailboxes: HashMap<OwnerId, Arc<Pending>>,
    /// The waiters that are notified when a key changes.
    watchers: HashMap<String, HashMap<OwnerId, Arc<Pending>>>,
    /// The connection that reads the keys to watch, with tracking enabled.
    tracking: Option<MultiplexedConnection>,
    running: bool,
    closed: bool,
    /// Until when not to try again after the server refused pub/sub.
    refused_until: Option<Instant>,
}

#[derive(Debug)]
struct Topic {
    activity: watch::Sender<Activity>,
    idle_since: Option<Instant>,
    /// Whether it is an inbox of this process, not a channel of the lock.
    is_inbox: bool,
    /// Another node of the cluster has it now.
    moved_away: bool,
}

/// The state of a channel, as its listeners see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Activity {
    /// Whether messages arrive.
    live: bool,
    /// Counts the messages, and the times that messages may have been missed.
    events: u64,
}

/// Listens to one channel.
#[derive(Debug)]
pub struct Listener {
    state: Arc<PushState>,
    channel: String,
    /// `None` only while it is dropped.
    activity: Option<watch::Receiver<Activity>>,
}

/// Receives the notifications of one waiter.
#[derive(Debug)]
pub struct Mailbox {
    owner: OwnerId,
    pending: Arc<Pending>,
    listener: Listener,
}

#[derive(Debug, Default)]
struct Pending {
    notification: Mutex<Option<Notification>>,
    arrived: Notify,
    /// The key whose changes notify the waiter too.
    watched_key: Mutex<Option<String>>,
}

/// A notification of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Ask for the lock: something has changed.
    Ask,
    /// Ask for the lock: it was granted.
    Granted,
    /// The lock is the waiter's for the grace period in its queue entry, which began after its first request was sent.
    HandedOver(Token),
    /// Ask after this time: the waiter is now the first in the queue.
    AskIn(Duration),
}

impl Pushes {
    /// The push connections to this server, each opened by its first listener. `timeout` applies to each request. Grants
    /// that belong to none of these acquisitions are returned through `returns`.
    #[must_use]
    pub fn new(
        client: Arc<RedisClient>,
        timeout: Duration,
        acquisitions: &Arc<Acquisitions>,
        returns: Arc<dyn ReturnGrant>,
    ) -> Self {
        let (process, secrets) = (OwnerId::random().to_string(), Arc::new(Secrets::random()));
        let (acquisitions, returns) = (Arc::clone(acquisitions), Returns::new(returns));
        let (warned, by_node) = (Arc::default(), Mutex::default());
        Self { client, timeout, process, secrets, warned, acquisitions, returns, by_node }
    }

    /// The acquisitions that accept grants.
    pub const fn acquisitions(&self) -> &Arc<Acquisitions> {
        &self.acquisitions
    }

    /// Warns now if waiters will have to poll; `queues` is true with a wait queue.
    pub async fn warn_if_polling(&self, queues: bool) {
        let rights = async {
            // One node is enough here; the doctor examines all.
            let nodes = self.client.node_names().await.ok()?;
            PushRights::of(&self.client, nodes.first()?, queues).await
        };
        if let Ok(Some(rights)) = timeout(self.timeout, rights).await
            && rights.has_to_poll()
        {
            warn_of_polling(&self.warned);
        }
    }

    /// Reports what works less well because the server user lacks rights.
    pub async fn examine(&self, queues: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for node in self.client.node_names().await.unwrap_or_default() {
            let address = if node.is_empty() { self.client.address() } else { &node };
            let rights =
                timeout(self.timeout, PushRights::of(&self.client, &node, queues)).await.ok().flatten();
            findings.extend(rights.iter().flat_map(|rights| rights.findings(address)));
            let refused = self
                .by_node()
                .get(&node)
                .is_some_and(|push| push.state.subscriptions().refused_until.is_some());
            if refused && !rights.is_some_and(|rights| rights.has_to_poll()) {
                findings.push(gave_up(address));
            }
        }
        findings
    }

    /// The push connection for this lock; `None` while its cluster node is unknown.
    pub fn of(&self, keys: &Keys) -> Option<Push> {
        let node = self.client.node_name(keys)?;
        let state = || PushState {
            client: Arc::clone(&self.client),
            node: node.clone(),
            timeout: self.timeout,
            process: self.process.clone(),
            secrets: Arc::clone(&self.secrets),
            warned: Arc::clone(&self.warned),
            acquisitions: Arc::clone(&self.acquisitions),
            returns: Arc::clone(&self.returns),
            inbox: (!self.client.is_cluster()).then(|| format!("polylock:inbox:{}", self.process)),
            subscriptions: Mutex::default(),
            changed: Notify::new(),
            received: AtomicBool::new(false),
        };
        let push = || Push { state: Arc::new(state()) };
        Some(self.by_node().entry(node.clone()).or_insert_with(push).clone())
    }

    /// As [`of`](Self::of), if it exists already: a new one has no live channels yet.
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
    /// The channel on which this process is notified of grants: one for all locks, or in a cluster one for each lock, in
    /// its slot.
    pub fn inbox(&self, keys: &Keys) -> Cow<'_, str> {
        match &self.state.inbox {
            Some(inbox) => Cow::Borrowed(inbox),
            None => Cow::Owned(keys.inbox(&self.state.process)),
        }
    }

    /// The secret in the queue entry of this owner, by which its grants are proved.
    #[must_use]
    pub fn secret(&self, owner: OwnerId) -> Secret {
        self.state.secrets.of(owner)
    }

    /// Creates the mailbox of a waiter, if the inbox is live.
    pub fn mailbox(&self, inbox: &str, owner: OwnerId) -> Option<Mailbox> {
        let listener = self.listen_if_live(inbox)?;
        let pending = Arc::default();
        self.state.subscriptions().mailboxes.insert(owner, Arc::clone(&pending));
        Some(Mailbox { owner, pending, listener })
    }

    /// Whether the inbox is subscribed.
    pub fn is_live(&self, inbox: &str) -> bool {
        self.state.subscriptions().topics.get(inbox).is_some_and(|topic| topic.activity.borrow().live)
    }

    /// Subscribes to the inbox.
    pub fn open_inbox(&self, inbox: &str) -> Listener {
        self.listen_as(inbox, true)
    }

    /// Subscribes to a channel. The first event is the confirmed subscription: earlier messages may have been missed.
    pub fn listen(&self, channel: &str) -> Listener {
        self.listen_as(channel, false)
    }

    /// Listens to a channel that is already subscribed; no message is missed from now on.
    pub fn listen_if_live(&self, channel: &str) -> Option<Listener> {
        let mut subscriptions = self.state.subscriptions();
        let topic = subscriptions.topics.get_mut(channel).filter(|topic| topic.activity.borrow().live)?;
        topic.idle_since = None;
        let activity = topic.activity.subscribe();
        Some(Listener {
            state: Arc::clone(&self.state),
            channel: channel.to_owned(),
            activity: Some(activity),
        })
    }

    fn listen_as(&self, channel: &str, is_inbox: bool) -> Listener {
        let mut subscriptions = self.state.subscriptions();
        let topic = subscriptions.topics.entry(channel.to_owned()).or_insert_with(|| Topic::new(is_inbox));
        (topic.idle_since, topic.moved_away) = (None, false);
        let activity = topic.activity.subscribe();
        drop(subscriptions);
        self.state.start();
        self.state.changed.notify_one();
        Listener { state: Arc::clone(&self.state), channel: channel.to_owned(), activity: Some(activity) }
    }

    fn close(&self) {
        self.state.subscriptions().closed = true;
        self.state.changed.notify_one();
    }
}

impl Listener {
    /// Whether messages arrive; without them, a waiter has to poll.
    pub fn is_live(&self) -> bool {
        self.activity.as_ref().is_some_and(|activity| activity.borrow().live)
    }

    /// Ignores the events so far.
    pub fn mark_seen(&mut self) {
        if let Some(activity) = &mut self.activity {
            activity.mark_unchanged();
        }
    }

    /// Waits for an event since the last call: a message, or a change of the connection.
    pub async fn changed(&mut self) {
        let has_changed = match &mut self.activity {
            Some(activity) => activity.changed().await.is_ok(),
            None => false,
        };
        if !has_changed {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut subscriptions = self.state.subscriptions();
        // Inside the mutex, so that the last of several listeners sees that it is the last.
        self.activity = None;
        if let Some(topic) = subscriptions.topics.get_mut(&self.channel)
            && topic.activity.receiver_count() == 0
        {
            topic.idle_since = Some(Instant::now());
            if !subscriptions.running {
                // No task is running that would remove it later.
                subscriptions.topics.remove(&self.channel);
            }
        }
    }
}

impl Mailbox {
    /// Whether it belongs to this connection and channel.
    pub fn is_of(&self, push: &Push, inbox: &str) -> bool {
        Arc::ptr_eq(&self.listener.state, &push.state) && self.listener.channel == inbox
    }

    /// Whether it has been on one connection since it was created: the notifications are of the server that it was on then.
    #[must_use]
    pub fn is_uninterrupted(&self) -> bool {
        self.listener.activity.as_ref().is_some_and(|activity| matches!(activity.has_changed(), Ok(false)))
    }

    /// Drops the pending notification.
    pub fn mark_seen(&mut self) {
        *self.pending.notification() = None;
        self.listener.mark_seen();
    }

    /// Waits for the next notification, or for a change of the connection since the last call.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn next(&mut self) -> Notification {
        loop {
            if let Some(notification) = self.pending.notification().take() {
                return notification;
            }
            tokio::select! {
                () = self.pending.arrived.notified() => {}
                () = self.listener.changed() => return Notification::Ask,
            }
        }
    }

    /// Watches a key, for changes by any client, and reports whether it exists. `None` if tracking is not available.
    pub fn watch(&self, key: &str) -> impl Future<Output = Option<bool>> + Send + use<> {
        // The read makes the server report the next change.
        let mut read = redis::cmd("EXISTS");
        read.arg(key);
        let mut subscriptions = self.listener.state.subscriptions();
        subscriptions.watch(self.owner, &self.pending, Some(key));
        let connection = subscriptions.tracking.clone();
        drop(subscriptions);
        async move { read.query_async(&mut connection?).await.ok() }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let mut subscriptions = self.listener.state.subscriptions();
        subscriptions.watch(self.owner, &self.pending, None);
        subscriptions.mailboxes.remove(&self.owner);
    }
}

impl Pending {
    fn notification(&self) -> MutexGuard<'_, Option<Notification>> {
        self.notification.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched_key(&self) -> MutexGuard<'_, Option<String>> {
        self.watched_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, notification: Notification) {
        {
            let mut pending = self.notification();
            // A pending `Ask` stays, unless a grant replaces it.
            if matches!(*pending, None | Some(Notification::AskIn(_)))
                || matches!(notification, Notification::Granted | Notification::HandedOver(_))
            {
                *pending = Some(notification);
            }
        }
        self.arrived.notify_one();
    }
}

impl Topic {
    fn new(is_inbox: bool) -> Self {
        Self { activity: watch::Sender::default(), idle_since: None, is_inbox, moved_away: false }
    }
}

impl PushState {
    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>) {
        let starts = {
            let mut subscriptions = self.subscriptions();
            let may_try = subscriptions.refused_until.is_none_or(|until| Instant::now() >= until);
            let starts = !subscriptions.running && may_try && !subscriptions.closed;
            subscriptions.running |= starts;
            starts
        };
        if starts {
            // Created here, so that it is dropped even if the runtime never polls the task.
            let running = Running(Some(Arc::clone(self)));
            drop(self.client.home().driver().spawn(serve(Arc::clone(self), running)));
        }
    }

    /// Delivers an event synchronously; returns an event that the task has to handle.
    fn on_event(&self, event: Event) -> Option<Event> {
        if matches!(&event, Event::Message { text, channel } if text == RIGHTS_TEST && self.is_inbox(channel))
        {
            // Sent by this process: it is no sign of life after it.
            return None;
        }
        self.received.store(true, Ordering::Relaxed);
        match event {
            Event::Message { channel, text } => match self.is_inbox(&channel) {
                true => self.deliver(&text),
                false => self.notify(&channel, |activity| activity.live),
            },
            Event::Unsubscribed { .. } => return Some(event),
            Event::Changed(key) => {
                let concerned = self.subscriptions().take_watchers(key.as_deref());
                for pending in concerned {
                    pending.notify(Notification::Ask);
                }
            }
        }
        None
    }

    /// Notes that the server allows pub/sub again.
    fn note_allowed(&self) {
        if self.subscriptions().refused_until.take().is_some() {
            self.warned.store(false, Ordering::Relaxed);
            tracing::info!(
                server = self.client.address(),
                "the server allows SUBSCRIBE and PUBLISH again; waiters no longer poll"
            );
        }
    }

    /// The handler of events; it does nothing once this state is dropped.
    fn event_handler(self: &Arc<Self>) -> Arc<OnEvent> {
        let state = Arc::downgrade(self);
        Arc::new(move |event| state.upgrade()?.on_event(event))
    }

    /// Notes that another node has the channel now.
    fn mark_moved(&self, channel: &str) {
        self.notify(channel, |_| false);
        if let Some(topic) = self.subscriptions().topics.get_mut(channel) {
            topic.moved_away = true;
        }
    }

    /// Puts a message into the mailbox of its owner.
    fn deliver(&self, text: &str) {
        match Message::read(text, &self.secrets) {
            Some(Message::Next { owner, after }) => {
                if let Some(pending) = self.mailbox_of(owner) {
                    pending.notify(Notification::AskIn(after));
                }
            }
            Some(Message::Granted { owner, token, lock }) => match (self.mailbox_of(owner), token) {
                (Some(pending), Some(token)) => pending.notify(Notification::HandedOver(token)),
                (Some(pending), None) => pending.notify(Notification::Granted),
                (None, token) => self.return_unwanted(UnclaimedGrant { owner, token, keys: Keys::of(lock) }),
            },
            None => tracing::debug!(server = self.client.address(), "ignored a message that proves no grant"),
        }
    }

    /// Returns a grant to an owner without a mailbox, unless its acquisition already holds the lock.
    fn return_unwanted(&self, grant: UnclaimedGrant) {
        match self.acquisitions.interest(grant.owner) {
            Interest::Wanted => {}
            interest => self.returns.give_back(grant, interest == Interest::Unwanted),
        }
    }

    fn mailbox_of(&self, owner: OwnerId) -> Option<Arc<Pending>> {
        self.subscriptions().mailboxes.get(&owner).cloned()
    }

    fn is_inbox(&self, channel: &str) -> bool {
        self.subscriptions().topics.get(channel).is_some_and(|topic| topic.is_inbox)
    }

    /// Notifies the listeners of a channel, and sets whether it is live.
    fn notify(&self, channel: &str, live: impl Fn(&Activity) -> bool) {
        if let Some(topic) = self.subscriptions().topics.get(channel) {
            topic.activity.send_modify(|activity| {
                *activity = Activity { live: live(activity), events: activity.events + 1 }
            });
        }
    }

    fn mark_all_down(&self) {
        let mut subscriptions = self.subscriptions();
        subscriptions.tracking = None;
        for topic in subscriptions.topics.values() {
            topic
                .activity
                .send_modify(|activity| *activity = Activity { live: false, events: activity.events + 1 });
        }
    }
}

impl fmt::Debug for PushState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushState").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Notes that the task has ended, also when its runtime was shut down under it.
struct Running(Option<Arc<PushState>>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(state) = self.0.take() else { return };
        state.mark_all_down();
        state.subscriptions().running = false;
    }
}

async fn serve(state: Arc<PushState>, mut running: Running) {
    let mut pause = FIRST_PAUSE;
    loop {
        match timeout(state.timeout, connect(&state)).await {
            Ok(Ok((mut connection, moves))) => {
                let ended = listen_on(&state, &mut connection, moves).await;
                state.mark_all_down();
                match ended {
                    Ended::Done => break,
                    // One that breaks soon is not made again and again without a pause.
                    Ended::Broken { has_lasted } if has_lasted => pause = FIRST_PAUSE,
                    Ended::Broken { .. } => {}
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "the push connection failed"),
            Err(_) => tracing::debug!("the push connection timed out"),
        }
        if state.subscriptions().ends() {
            running.0 = None;
            return;
        }
        let jitter = lock_core::random::rng().random_range(0.5..=1.0);
        sleep(pause.mul_f64(jitter)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
    drop(running);
}

/// Opens a push connection, and reports when it may lead to another server than the requests.
async fn connect(state: &Arc<PushState>) -> Result<(PushConnection, Option<watch::Receiver<()>>)> {
    // Before the server is looked up, so that no move is missed.
    let moves = state.client.moves().await?;
    let connection = PushConnection::connect(&state.client, &state.node, state.event_handler()).await?;
    Ok((connection, moves))
}

/// Why a push connection is served no longer.
enum Ended {
    /// The task is done.
    Done,
    /// Another one has to be made.
    Broken {
        /// Whether all channels were subscribed until a ping.
        has_lasted: bool,
    },
}

/// Serves the listeners over one connection until it breaks, or leads to another server than the requests.
async fn listen_on(
    state: &PushState,
    connection: &mut PushConnection,
    moves: Option<watch::Receiver<()>>,
) -> Ended {
    // In a cluster, another master has another name.
    let follows = moves.is_some();
    let mut moved = pin!(moved(moves));
    let mut has_lasted = false;
    match timeout(state.timeout, connection.begin()).await {
        Ok(Ok((_, true))) if follows => return Ended::Broken { has_lasted },
        Ok(Ok((tracking, _))) => state.subscriptions().tracking = tracking,
        _ => return Ended::Broken { has_lasted },
    }
    let mut subscribed = BTreeMap::new();
    let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        match subscribe(state, connection, &mut subscribed).await {
            Subscribed::Yes => state.note_allowed(),
            Subscribed::Broken => return Ended::Broken { has_lasted },
            Subscribed::Refused => return fall_back_to_polling(state),
        }
        if state.subscriptions().closed {
            return Ended::Done;
        }
        tokio::select! {
            event = connection.next() => match event {
                Some(Event::Unsubscribed { channel }) => {
                    subscribed.remove(&channel);
                    state.mark_moved(&channel);
                }
                Some(_) => {}
                None => return Ended::Broken { has_lasted },
            },
            () = state.changed.notified() => {}
            () = &mut moved => return Ended::Broken { has_lasted },
            _ = pings.tick() => {
                let has_received = state.received.swap(false, Ordering::Relaxed);
                match ping(state, connection).await {
                    // A replica passes on what is published at the master, which takes its subscribers for dead.
                    Ping::Replica if follows => return Ended::Broken { has_lasted },
                    Ping::Silent if !has_received => return Ended::Broken { has_lasted },
                    Ping::Answered if has_lost_rights(state, connection, &subscribed).await => {
                        return fall_back_to_polling(state);
                    }
                    _ => has_lasted = true,
                }
            }
        }
    }
}

/// Has the waiters poll for a while: the server refused pub/sub.
fn fall_back_to_polling(state: &PushState) -> Ended {
    warn_of_polling(&state.warned);
    let part = lock_core::random::rng().random_range(0.5..=1.0);
    state.subscriptions().refused_until = Some(Instant::now() + REFUSED_FOR.mul_f64(part));
    Ended::Done
}

/// Whether the right to publish was withdrawn. Servers close subscribers only when they lose rights to channels.
async fn has_lost_rights(
    state: &PushState,
    connection: &PushConnection,
    subscribed: &BTreeMap<String, bool>,
) -> bool {
    let inbox = subscribed.iter().find(|(name, _)| state.is_inbox(name));
    let inbox = inbox.map(|(name, sharded)| Channel { name: name.clone(), sharded: *sharded });
    timeout(state.timeout, connection.may_publish(&state.client, inbox.iter())).await == Ok(false)
}

enum Ping {
    Answered,
    /// The server is a replica.
    Replica,
    Silent,
}

/// Pings the server. An error reply counts as an answer.
async fn ping(state: &PushState, connection: &mut PushConnection) -> Ping {
    match timeout(state.timeout, connection.ping()).await {
        Ok(Ok(true)) => Ping::Replica,
        Ok(Ok(false)) => Ping::Answered,
        Ok(Err(error)) if error.code().is_some() => Ping::Answered,
        _ => Ping::Silent,
    }
}

/// Logs the warning once for all nodes.
fn warn_of_polling(warned: &AtomicBool) {
    if !warned.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "the server refuses SUBSCRIBE or PUBLISH: waiting for locks falls back to polling, and tries again within a \
             minute; give the user the rights that the doctor names"
        );
    }
}

/// Waits until another server is the master: it takes processes that are not subscribed there for dead.
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
    state: &PushState,
    connection: &mut PushConnection,
    subscribed: &mut BTreeMap<String, bool>,
) -> Subscribed {
    let (wanted, unwanted) = state.subscriptions().diff(subscribed, state.client.is_cluster());
    for wanted in wanted.chunks(SUBSCRIBED_AT_A_TIME) {
        let Ok(answers) = timeout(state.timeout, connection.subscribe_all(wanted)).await else {
            return Subscribed::Broken;
        };
        let inboxes = wanted.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        let inboxes = inboxes.map(|(channel, _)| channel).filter(|channel| state.is_inbox(&channel.name));
        if !connection.may_publish(&state.client, inboxes).await {
            return Subscribed::Refused;
        }
        for (Channel { name, sharded }, answer) in wanted.iter().zip(answers) {
            match answer {
                Ok(()) => {
                    state.notify(name, |_| true);
                    subscribed.insert(name.clone(), *sharded);
                }
                Err(error) if error.is_cluster_error() => state.mark_moved(name),
                Err(error) if is_refusal(&error) => {
                    tracing::debug!(error = %Cause::of(&error), "the server refused the subscription");
                    return Subscribed::Refused;
                }
                Err(_) => return Subscribed::Broken,
            }
        }
    }
    for Channel { name, sharded } in unwanted {
        if !matches!(timeout(state.timeout, connection.unsubscribe(&name, sharded)).await, Ok(Ok(()))) {
            return Subscribed::Broken;
        }
        subscribed.remove(&name);
    }
    Subscribed::Yes
}

impl Subscriptions {
    /// Has this waiter notified of the next change of this key, and of no other.
    fn watch(&mut self, owner: OwnerId, pending: &Arc<Pending>, key: Option<&str>) {
        let before = mem::replace(&mut *pending.watched_key(), key.map(str::to_owned));
        if let Some(before) = before.filter(|before| Some(&**before) != key)
            && let Some(watchers) = self.watchers.get_mut(&before)
        {
            watchers.remove(&owner);
            if watchers.is_empty() {
                self.watchers.remove(&before);
            }
        }
        if let Some(key) = key {
            self.watchers.entry(key.to_owned()).or_default().insert(owner, Arc::clone(pending));
        }
    }

    /// The waiters that watch this key, or any key, which they do no longer.
    fn take_watchers(&mut self, key: Option<&str>) -> Vec<Arc<Pending>> {
        let taken = match key {
            Some(key) => self.watchers.remove(key).into_iter().collect(),
            None => mem::take(&mut self.watchers).into_values().collect::<Vec<_>>(),
        };
        let taken: Vec<_> = taken.into_iter().flat_map(HashMap::into_values).collect();
        taken.iter().for_each(|pending| *pending.watched_key() = None);
        taken
    }

    /// The channels to subscribe and to unsubscribe. Removes topics that have been idle for long.
    fn diff(
        &mut self,
        subscribed: &mut BTreeMap<String, bool>,
        cluster: bool,
    ) -> (Vec<Channel>, Vec<Channel>) {
        self.topics.retain(|_, topic| topic.idle_since.is_none_or(|since| since.elapsed() < LINGER));
        subscribed.retain(|name, _| !self.topics.get(name).is_some_and(|topic| topic.moved_away));
        let channel = |name: &String, sharded| Channel { name: name.clone(), sharded };
        // The names of all the others are not copied: there may be many, and this is called for each new one.
        let unwanted = subscribed.iter().filter(|(name, _)| !self.topics.contains_key(*name));
        let unwanted = unwanted.map(|(name, sharded)| channel(name, *sharded)).collect();
        let topics = self.topics.iter().filter(|(_, topic)| !topic.moved_away);
        let wanted = topics.filter(|(name, _)| !subscribed.contains_key(*name));
        let wanted = wanted.map(|(name, topic)| channel(name, cluster && topic.is_inbox)).collect();
        (wanted, unwanted)
    }

    /// Ends the task if no listener is left; returns whether it ended.
    fn ends(&mut self) -> bool {
        if self.closed || self.topics.values().all(|topic| topic.activity.receiver_count() == 0) {
            self.running = false;
        }
        !self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each change of a key is looked up in the index, and touches its own waiters alone.
    #[test]
    fn a_change_notifies_the_waiters_of_its_key_once() {
        let mut subscriptions = Subscriptions::default();
        let waiters: Vec<_> =
            (0..1_000).map(|at| (OwnerId::random(), Arc::<Pending>::default(), at / 2)).collect();
        for (owner, pending, key) in &waiters {
            subscriptions.watch(*owner, pending, Some("before"));
            subscriptions.watch(*owner, pending, Some(&format!("lock:{key}")));
        }
        assert_eq!(subscriptions.watchers.len(), 500);
        let taken = |subscriptions: &mut Subscriptions, key| subscriptions.take_watchers(key).len();
        assert_eq!(taken(&mut subscriptions, Some("before")), 0);
        assert_eq!([(); 2].map(|()| taken(&mut subscriptions, Some("lock:7"))), [2, 0]);
        let (owner, pending, _) = &waiters[0];
        subscriptions.watch(*owner, pending, None);
        assert_eq!(taken(&mut subscriptions, Some("lock:0")), 1, "the other one");
        assert_eq!(taken(&mut subscriptions, None), 996);
        assert!(subscriptions.watchers.is_empty());
        assert!(waiters.iter().all(|(_, pending, _)| pending.watched_key().is_none()));
    }

    #[test]
    fn channels_are_subscribed_once_and_left_when_nobody_needs_them() {
        let mut subscriptions = Subscriptions::default();
        let names =
            |channels: Vec<Channel>| channels.into_iter().map(|channel| channel.name).collect::<Vec<_>>();
        for name in ["a", "b", "c"] {
            subscriptions.topics.insert(name.to_owned(), Topic::new(name == "a"));
        }
        let mut subscribed = BTreeMap::from([("b".to_owned(), false), ("d".to_owned(), false)]);
        let (wanted, unwanted) = subscriptions.diff(&mut subscribed, true);
        assert!(wanted[0].sharded && !wanted[1].sharded);
        assert_eq!((names(wanted), names(unwanted)), (vec!["a".into(), "c".into()], vec!["d".into()]));
        // Another node has it now.
        subscriptions.topics.get_mut("b").unwrap().moved_away = true;
        let (wanted, _) = subscriptions.diff(&mut subscribed, true);
        assert_eq!(names(wanted), ["a", "c"]);
        assert!(!subscribed.contains_key("b"));
    }
}
