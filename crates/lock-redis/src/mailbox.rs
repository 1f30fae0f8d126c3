//! Where a waiter is notified.

use std::fmt;
use std::future::pending;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::engine::{self, Kept, Message};
use lock_core::waiting::longest_pause;
use lock_core::{OwnerId, Validity};
use redis_link::acquisitions::Registration;
use redis_link::keys::Keys;
use redis_link::proof::Secret;
use redis_link::push::{Listener, Mailbox, Notification, Push, Pushes};
use redis_link::take_back::Sent;
use tokio::time::{Instant, sleep, sleep_until};

use crate::config::RedisWait;

/// The first waiter watches the key after this time without a grant. The time doubles after every change that did not
/// free the lock: holders of a shared lock change its key with each renewal.
const WATCH_AFTER: Duration = Duration::from_millis(10);
const LONGEST_WATCH_AFTER: Duration = Duration::from_millis(500);

/// With `wait=notify`, a message has a waiter ask this much after its last request at the soonest: whoever may publish on the channel can
/// wake all waiters as often as they like.
const ASK_AFTER: Duration = Duration::from_millis(10);

/// Where a waiter is notified: of its grant in the queue, or of a release.
#[derive(Debug)]
pub struct WaiterMailbox {
    push: Arc<Pushes>,
    keys: Arc<Keys>,
    wait: RedisWait,
    /// Whether every grant has to be confirmed before it counts.
    confirms: bool,
    reaches: Mutex<Reaches>,
    /// When the last request began.
    asked: Mutex<Option<Instant>>,
    /// The lock is busy, and this waiter is the first in the queue.
    is_first: bool,
    watch_after: Duration,
    /// The key did not exist when it was to be watched, and yet the lock is busy.
    watched_in_vain: bool,
}

/// By what the server reaches the waiter.
#[derive(Debug)]
enum Reaches {
    /// Not yet.
    Nothing,
    /// The channel that is being opened, or with `wait=notify` is open.
    Channel(Listener),
    /// The entry in the queue.
    Queue(Box<Queued>),
}

struct Queued {
    /// As it was sent, with its secret.
    entry: Arc<str>,
    /// `None` once it is given up: a grant is returned then.
    mailbox: Option<Mailbox>,
    /// From before the entry is sent, until its lock has ended.
    registration: Registration,
}

/// Keeps a late grant to the owner of a lease from being returned.
#[derive(Debug)]
struct KeptRegistration(#[allow(dead_code, reason = "it ends when it is dropped")] Registration);

impl Kept for KeptRegistration {}

impl WaiterMailbox {
    pub(crate) fn new(push: &Arc<Pushes>, keys: &Arc<Keys>, wait: RedisWait, confirms: bool) -> Self {
        let listens = wait == RedisWait::Notify;
        // If the channel is live already, no release is missed from now on.
        let listener = listens.then(|| push.get(keys)?.listen_if_live(&keys.channel())).flatten();
        Self {
            push: Arc::clone(push),
            keys: Arc::clone(keys),
            wait,
            confirms,
            reaches: Mutex::new(listener.map_or(Reaches::Nothing, Reaches::Channel)),
            asked: Mutex::default(),
            is_first: false,
            watch_after: WATCH_AFTER,
            watched_in_vain: false,
        }
    }

    /// The entry in the queue, if one was sent.
    pub(crate) fn entry(&self) -> Option<Arc<str>> {
        match &*self.reaches() {
            Reaches::Queue(queued) => Some(Arc::clone(&queued.entry)),
            Reaches::Nothing | Reaches::Channel(_) => None,
        }
    }

    /// Begins a request, and returns the entry to send with it: the first one once the inbox is live, as the server takes waiters without
    /// a listener for dead. Notifications from here on are new: the answer may not reflect them.
    pub(crate) fn queue_up(
        &self,
        owner: OwnerId,
        entry: impl FnOnce(&Secret, &str) -> String,
    ) -> Option<Arc<str>> {
        let mut reaches = self.reaches();
        if self.wait != RedisWait::Queue {
            if let Reaches::Channel(listener) = &mut *reaches {
                listener.mark_seen();
            }
            *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            return None;
        }
        let push = self.push.get(&self.keys);
        if let (Reaches::Nothing | Reaches::Channel(_), Some(push)) = (&*reaches, &push) {
            *reaches = Reaches::Queue(Box::new(Queued::new(&self.push, push, &self.keys, owner, entry)?));
        } else if let (Reaches::Queue(queued), Some(push)) = (&mut *reaches, &push) {
            queued.is_asking(push, &self.keys, owner);
        }
        match &*reaches {
            Reaches::Queue(queued) => Some(Arc::clone(&queued.entry)),
            Reaches::Nothing | Reaches::Channel(_) => None,
        }
    }

    /// Whether the server notifies the waiter; opens the push connection and subscribes if necessary.
    fn is_reached(&mut self, is_queued: bool) -> bool {
        let Some(push) = self.push.of(&self.keys) else { return false };
        let reaches = self.reaches.get_mut().unwrap_or_else(PoisonError::into_inner);
        match self.wait {
            RedisWait::Poll => false,
            RedisWait::Notify => {
                let is_live = matches!(reaches, Reaches::Channel(listener) if listener.is_live());
                if !is_live {
                    // Again, as the runtime of the connection may have ended.
                    *reaches = Reaches::Channel(push.listen(&self.keys.channel()));
                }
                is_live
            }
            RedisWait::Queue => {
                let inbox = push.inbox(&self.keys);
                let is_live = push.is_live(&inbox);
                if !is_live {
                    let opening = push.open_inbox(&inbox);
                    if let Reaches::Nothing | Reaches::Channel(_) = reaches {
                        *reaches = Reaches::Channel(opening);
                    }
                }
                // While the inbox was not live at the node that has the lock now, the mailbox stayed at the one before.
                let is_there = match reaches {
                    Reaches::Queue(queued) => queued.is_at(&push, &inbox),
                    Reaches::Nothing | Reaches::Channel(_) => false,
                };
                is_live && is_queued && is_there
            }
        }
    }

    fn reaches(&self) -> MutexGuard<'_, Reaches> {
        self.reaches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queued {
    /// `None` if the inbox is not live.
    fn new(
        pushes: &Pushes,
        push: &Push,
        keys: &Keys,
        owner: OwnerId,
        entry: impl FnOnce(&Secret, &str) -> String,
    ) -> Option<Self> {
        let inbox = push.inbox(keys);
        let mailbox = push.mailbox(&inbox, owner)?;
        let entry = entry(&push.secret(owner), &inbox).into();
        Some(Self { entry, mailbox: Some(mailbox), registration: pushes.acquisitions().register(owner) })
    }

    /// Whether notifications of this node arrive.
    fn is_at(&self, push: &Push, inbox: &str) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| mailbox.is_of(push, inbox))
    }

    fn is_asking(&mut self, push: &Push, keys: &Keys, owner: OwnerId) {
        let inbox = push.inbox(keys);
        match &mut self.mailbox {
            Some(mailbox) if mailbox.is_of(push, &inbox) => mailbox.mark_seen(),
            // Another node of the cluster has the lock now.
            _ => self.mailbox = push.mailbox(&inbox, owner).or_else(|| self.mailbox.take()),
        }
    }
}

impl fmt::Debug for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queued").finish_non_exhaustive()
    }
}

impl engine::Mailbox for WaiterMailbox {
    fn listens(&mut self, ahead: Option<usize>) -> Option<Duration> {
        self.is_first = ahead == Some(0);
        let longest = match ahead {
            // Notified when the waiter before it confirms; but that one may have died.
            Some(1..) => longest_pause() / 2,
            _ => longest_pause(),
        };
        self.is_reached(ahead.is_some()).then_some(longest)
    }

    async fn next(&mut self) -> Message {
        let Self { reaches, keys, is_first, watch_after, watched_in_vain, confirms, asked, .. } = self;
        let queued = match reaches.get_mut().unwrap_or_else(PoisonError::into_inner) {
            Reaches::Nothing => return pending().await,
            Reaches::Channel(listener) => {
                listener.changed().await;
                if let Some(asked) = *asked.get_mut().unwrap_or_else(PoisonError::into_inner) {
                    sleep_until(asked + ASK_AFTER).await;
                }
                return Message::Ask;
            }
            Reaches::Queue(queued) => queued,
        };
        let Some(mailbox) = &mut queued.mailbox else { return pending().await };
        let message = |notification| match notification {
            Notification::Ask => Message::Ask,
            Notification::Granted => Message::Confirm,
            Notification::HandedOver(_) if *confirms => Message::Confirm,
            Notification::HandedOver(token) => Message::Granted(token),
            Notification::AskIn(span) => Message::AskIn(span),
        };
        let watches = mem::take(is_first);
        tokio::select! {
            biased;
            notification = mailbox.next() => {
                *is_first = matches!(notification, Notification::AskIn(_));
                return message(notification);
            }
            () = sleep(*watch_after), if watches => {}
        }
        let watching = mailbox.watch(keys.lock());
        let exists = tokio::select! {
            biased;
            notification = mailbox.next() => {
                *is_first = matches!(notification, Notification::AskIn(_));
                return message(notification);
            }
            exists = watching => exists,
        };
        match exists {
            // It was deleted before it could be watched.
            Some(false) if !mem::replace(watched_in_vain, true) => return Message::Ask,
            Some(true) => *watched_in_vain = false,
            _ => {}
        }
        let notification = mailbox.next().await;
        if notification == Notification::Ask {
            *watch_after = (2 * *watch_after).min(LONGEST_WATCH_AFTER);
        }
        message(notification)
    }

    fn given_up(&mut self, in_doubt: bool) {
        if let Reaches::Queue(queued) = &mut *self.reaches() {
            let sent = if in_doubt { Sent::InDoubt { connection: None } } else { Sent::Answered };
            queued.registration.ends(sent);
            queued.mailbox = None;
        }
    }

    fn held(self, validity: &Validity) -> Option<Box<dyn Kept>> {
        match self.reaches.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Reaches::Queue(queued) => {
                queued.registration.holds(validity.clone());
                Some(Box::new(KeptRegistration(queued.registration)))
            }
            Reaches::Nothing | Reaches::Channel(_) => None,
        }
    }
}
