//! The push connection: one for each process and server, on which releases are told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use rand::Rng;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::Server;

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

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    timeout: Duration,
    topics: Mutex<Topics>,
    /// The set of channels changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Topics {
    by_channel: BTreeMap<String, Topic>,
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

impl Push {
    pub(crate) fn new(server: Arc<Server>, timeout: Duration) -> Self {
        let shared = Shared { server, timeout, topics: Mutex::default(), changed: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Listens to a channel. The first news comes when the subscription is confirmed: what was told
    /// before is to be asked for then.
    pub(crate) fn listen(&self, channel: &str) -> Listener {
        let mut topics = self.shared.topics();
        let new = !topics.by_channel.contains_key(channel);
        let topic = topics.by_channel.entry(channel.to_owned()).or_insert_with(Topic::new);
        topic.idle_since = None;
        let signal = topic.signal.subscribe();
        if !topics.running && !topics.refused && !topics.closed {
            topics.running = true;
            drop(tokio::spawn(serve(Arc::clone(&self.shared))));
        } else if new {
            self.shared.changed.notify_one();
        }
        Listener { shared: Arc::clone(&self.shared), channel: channel.to_owned(), signal: Some(signal) }
    }

    /// Listens to a channel that is subscribed already; nothing told from now on is missed.
    pub(crate) fn listen_if_live(&self, channel: &str) -> Option<Listener> {
        let mut topics = self.shared.topics();
        let topic = topics.by_channel.get_mut(channel).filter(|topic| topic.signal.borrow().live)?;
        topic.idle_since = None;
        let signal = topic.signal.subscribe();
        Some(Listener { shared: Arc::clone(&self.shared), channel: channel.to_owned(), signal: Some(signal) })
    }

    pub(crate) fn close(&self) {
        self.shared.topics().closed = true;
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
        let mut topics = self.shared.topics();
        // Under the lock, so that of several the last one sees that it is.
        self.signal = None;
        if let Some(topic) = topics.by_channel.get_mut(&self.channel)
            && topic.signal.receiver_count() == 0
        {
            topic.idle_since = Some(Instant::now());
        }
    }
}

impl Topic {
    fn new() -> Self {
        Self { signal: watch::Sender::default(), idle_since: None }
    }
}

impl Shared {
    fn topics(&self) -> MutexGuard<'_, Topics> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, channel: &str, live: bool) {
        if let Some(topic) = self.topics().by_channel.get(channel) {
            topic.signal.send_modify(|signal| *signal = Signal { live, news: signal.news + 1 });
        }
    }

    fn tell_all_down(&self) {
        for topic in self.topics().by_channel.values() {
            topic.signal.send_modify(|signal| *signal = Signal { live: false, news: signal.news + 1 });
        }
    }
}

/// Notes that the task has ended, also when its runtime was shut down under it.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.topics().running = false;
        self.0.tell_all_down();
    }
}

async fn serve(shared: Arc<Shared>) {
    let running = Running(Arc::clone(&shared));
    let mut pause = FIRST_PAUSE;
    loop {
        match timeout(shared.timeout, connect(&shared.server)).await {
            Ok(Ok((mut sink, mut messages))) => {
                pause = FIRST_PAUSE;
                let ended = follow(&shared, &mut sink, &mut messages).await;
                shared.tell_all_down();
                if ended {
                    break;
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "no push connection"),
            Err(_) => tracing::debug!("no push connection in time"),
        }
        if shared.topics().closed {
            break;
        }
        let jitter = lock_core::random::rng().random_range(0.5..=1.0);
        sleep(pause.mul_f64(jitter)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
    drop(running);
}

async fn connect(server: &Server) -> redis::RedisResult<(PubSubSink, PubSubStream)> {
    Ok(server.messages().await?.split())
}

/// Follows one connection, and says whether that was all.
async fn follow(shared: &Shared, sink: &mut PubSubSink, messages: &mut PubSubStream) -> bool {
    let mut subscribed: Vec<String> = Vec::new();
    loop {
        match subscribe(shared, sink, &mut subscribed).await {
            Subscribed::Yes => {}
            Subscribed::Broken => return false,
            Subscribed::Refused => {
                tracing::warn!("the server allows no SUBSCRIBE; waiting for locks falls back to polling");
                shared.topics().refused = true;
                return true;
            }
        }
        if shared.topics().closed {
            return true;
        }
        tokio::select! {
            message = messages.next() => match message {
                Some(message) => shared.tell(message.get_channel_name(), true),
                None => return false,
            },
            () = shared.changed.notified() => {}
            () = sleep(PING_EVERY) => {
                if !matches!(timeout(shared.timeout, sink.ping::<redis::Value>()).await, Ok(Ok(_))) {
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
async fn subscribe(shared: &Shared, sink: &mut PubSubSink, subscribed: &mut Vec<String>) -> Subscribed {
    let (wanted, unwanted) = shared.topics().differ(subscribed);
    for channel in &wanted {
        match timeout(shared.timeout, sink.subscribe(channel)).await {
            Ok(Ok(())) => shared.tell(channel, true),
            Ok(Err(error)) if error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoPerm) => {
                return Subscribed::Refused;
            }
            _ => return Subscribed::Broken,
        }
    }
    for channel in &unwanted {
        if !matches!(timeout(shared.timeout, sink.unsubscribe(channel)).await, Ok(Ok(()))) {
            return Subscribed::Broken;
        }
    }
    subscribed.retain(|channel| !unwanted.contains(channel));
    subscribed.extend(wanted);
    Subscribed::Yes
}

impl Topics {
    /// What is to be subscribed, and what no longer; topics that nobody needs are forgotten.
    fn differ(&mut self, subscribed: &[String]) -> (Vec<String>, Vec<String>) {
        self.by_channel.retain(|_, topic| topic.idle_since.is_none_or(|since| since.elapsed() < LINGER));
        let wanted =
            self.by_channel.keys().filter(|channel| !subscribed.contains(channel)).cloned().collect();
        let unwanted = subscribed.iter().filter(|channel| !self.by_channel.contains_key(*channel));
        (wanted, unwanted.cloned().collect())
    }
}
