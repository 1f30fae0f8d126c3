//! What a store of leases answers to one request.

use std::any::Any;
use std::fmt::{self, Debug};
use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::renewal::Answered;
use crate::values::error::NO_BACKEND;
use crate::{
    BootInstant, DoctorReport, Error, ErrorKind, LockName, LockState, Mode, Outcome, OwnerId, OwnerInfo,
    Result, Token, Validity,
};

/// A store of leases: what it answers to one request. [`Engine`](super::Engine) makes a [`Backend`](crate::Backend) of it.
///
/// What each request makes of a lock is specified by [`Record`](crate::record::Record).
///
/// # Contract
///
/// * **Bounded.** Each request ends within the [`command_timeout`](super::EngineOptions::command_timeout), or soon after.
/// * **Outcomes.** An error says what became of the request by its [outcome](Error::outcome): [`Error::new`] says
///   [`NotApplied`](Outcome::NotApplied), after which nothing is rolled back. A request that was answered, and may have left something all
///   the same, is [`Applied`](Outcome::Applied): it is rolled back, and not sent again. An answer that did not come is
///   [`Unknown`](Outcome::Unknown). One whose connection ended has the code `broken`: it is sent again, over another one, where that is
///   safe.
/// * **Answered once.** A request that was answered is not executed again. A client that repeats requests by itself says nothing until the last
///   one has ended.
/// * **One clock.** The end of a lease is compared with one clock, the same for all clients of the store; or it is what each client has
///   observed by its own clock, as in `lock-kv`.
/// * **Tokens.** The token of a grant is larger than all that were granted before. It may be the first of a [block](crate::TokenBlock): see
///   [`local_handovers`](super::EngineOptions::local_handovers).
/// * **Cancel safety.** A request whose future is dropped may be executed all the same, at any later time. The engine rolls it back.
/// * **One step.** The store decides and changes in one step. It never changes the lock of another owner, but to grant it to a waiter.
pub trait LeaseStore: Debug + Send + Sync + 'static {
    /// Where the lock of one name is: a row, keys. It is made once for an acquisition.
    type Place: Clone + Debug + Send + Sync + 'static;
    /// The order in which requests are executed. `()` if nothing is known of it.
    type Order: Order;
    /// Where a waiter is notified. [`Unnotified`] if it has to ask.
    type Mailbox: Mailbox;

    /// The place of this lock.
    ///
    /// # Errors
    ///
    /// For a name that the store cannot have.
    fn place(&self, name: &LockName) -> Result<Self::Place>;

    /// The order that the next request will be in: the connection, for example.
    ///
    /// # Errors
    ///
    /// When nothing can be sent.
    fn order(&self, place: &Self::Place) -> impl Future<Output = Result<Self::Order>> + Send;

    /// Grants the lock, confirms what the owner has already, or queues it up. Idempotent for an owner.
    fn ask(
        &self,
        on: &Self::Order,
        place: &Self::Place,
        ask: &Ask<'_, Self::Mailbox>,
    ) -> impl Future<Output = Result<Answer>> + Send;

    /// Removes what this owner has: the lock, its share of it, or its entry in the queue; and hands the lock over to the next waiter.
    /// [`Done`](Changed::Done) if it had the lock.
    fn release(
        &self,
        on: &Self::Order,
        place: &Self::Place,
        owner: OwnerId,
        what: Release<'_, Self::Mailbox>,
    ) -> impl Future<Output = Result<Changed>> + Send;

    /// Extends leases, by as few requests as it takes, and calls `answered` for each with its place among them as soon as its answer comes. Of
    /// those that are [`Downgrading`](Hold::Downgrading), it makes the lock a share of its owner; a store that only extends them lets no
    /// reader in.
    fn extend(
        &self,
        leases: &[Extension<'_, Self::Place>],
        answered: impl Answered<Result<Changed>>,
    ) -> impl Future<Output = ()> + Send;

    /// Whether this owner has the lock.
    fn holds(&self, place: &Self::Place, owner: OwnerId) -> impl Future<Output = Result<bool>> + Send;

    /// Makes all later tokens larger than `floor`, if this owner has the lock.
    fn raise(
        &self,
        place: &Self::Place,
        owner: OwnerId,
        floor: Token,
    ) -> impl Future<Output = Result<Changed>> + Send;

    /// Hands an exclusive lock over to another owner of this process, past the queue.
    fn hand_over(
        &self,
        on: &Self::Order,
        place: &Self::Place,
        from: OwnerId,
        to: &Ask<'_, Self::Mailbox>,
    ) -> impl Future<Output = Result<Changed<Token>>> + Send;

    /// Reads the state of the lock, with its last token, and holders with the [public](Self::shown) form of their ids.
    fn inspect(&self, place: &Self::Place) -> impl Future<Output = Result<LockState>> + Send;

    /// Removes the lock from the holder with this token, or from all that have it now, and hands it over. [`Done`](Changed::Done) if there
    /// were any. It breaks no later grant, whenever it is executed.
    fn break_lock(
        &self,
        place: &Self::Place,
        only: Option<Token>,
    ) -> impl Future<Output = Result<Changed>> + Send;

    /// Closes the connections: requests fail with [`Closed`](ErrorKind::Closed) from now on.
    fn close(&self);

    /// A mailbox for an owner that waits if the lock is busy; `None` if it is not to be notified. The default has none.
    fn mailbox(&self, place: &Self::Place) -> Option<Self::Mailbox> {
        let _ = place;
        None
    }

    /// The server that has the lock, if there are several. Leases on one are extended together, and none waits for another server. The
    /// default knows one server.
    fn node(&self, place: &Self::Place) -> Option<String> {
        let _ = place;
        None
    }

    /// How long an observer waits at least before it looks again, where changes are not notified. It is a quarter of a second, or this if that
    /// is longer, as where each look costs money.
    fn look_every(&self) -> Duration {
        Duration::ZERO
    }

    /// What ends when the lock has changed the next time; `None` if that is not notified. The default has none, and observers look now
    /// and then.
    fn next_change(
        &self,
        place: &Self::Place,
    ) -> impl Future<Output = Result<Option<BoxFuture<'static, ()>>>> + Send {
        let _ = place;
        ready(Ok(None))
    }

    /// The names of the locks that begin so, [`MAX_LISTED`](crate::seam::backend::MAX_LISTED) and one more at most. The default has no list.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Option<Vec<LockName>>>> + Send {
        let _ = prefix;
        ready(Ok(None))
    }

    /// Examines the servers. The default reports nothing.
    fn doctor(&self) -> impl Future<Output = Result<DoctorReport>> + Send {
        ready(Ok(DoctorReport::default()))
    }

    /// What has the record of the lock, where requests were answered by [`Blocked`](Answer::Blocked). The default does not know.
    fn blocker(&self, place: &Self::Place) -> impl Future<Output = Result<Option<Blocker>>> + Send {
        let _ = place;
        ready(Ok(None))
    }

    /// The error of a request that was blocked for too long.
    fn blocked(&self, by: &str) -> Error {
        Error::new(ErrorKind::Unavailable, NO_BACKEND)
            .with_message(format!("something else has the record of the lock: {by}"))
            .with_code("locked")
            .with_hint("try again when it has ended")
            .with_outcome(Outcome::NotApplied)
    }

    /// The owner, as others see it. The default shows the id itself.
    fn shown(&self, owner: OwnerId) -> OwnerId {
        owner
    }

    /// What a guard has that only this store knows: see [`Guard::backend_specific`](crate::Guard::backend_specific).
    fn specific(&self, place: &Self::Place) -> Option<Arc<dyn Any + Send + Sync>> {
        let _ = place;
        None
    }
}

/// The order in which a store executes requests.
pub trait Order: Clone + Debug + Send + Sync + 'static {
    /// Whether a request that is sent on it now is executed after all those that were sent on it before; and one that was just answered
    /// was.
    fn is_open(&self) -> bool;

    /// How many requests for a lock were sent on this clone, or may have been. The default says one.
    fn requests(&self) -> usize {
        1
    }

    /// Keeps a request that was not sent yet from being sent: nobody waits for it. The default does nothing.
    fn withdraw(&self) {}

    /// When the first request was sent at the earliest, if it was asked for at this moment: its lease counts from then. The default says
    /// at this moment.
    fn counts_from(&self, asked: BootInstant) -> BootInstant {
        asked
    }
}

impl Order for () {
    fn is_open(&self) -> bool {
        false
    }
}

/// Where a waiter is notified. Messages may be lost, repeated, late, or of somebody else: see [`Message`].
pub trait Mailbox: Debug + Send + Sync + 'static {
    /// Called when the lock was busy, with the number of waiters that come before this one. For how long the waiter relies on being
    /// notified; `None` if it is not, and asks now and then.
    fn listens(&mut self, ahead: Option<usize>) -> Option<Duration>;

    /// The next message. It waits until there is one: a waiter asks the store at once.
    ///
    /// # Cancel safety
    ///
    /// It has to be cancel safe.
    fn next(&mut self) -> impl Future<Output = Message> + Send;

    /// Called when the acquisition is rolled back: whether its last request got no answer. The mailbox lives as long as that takes. The
    /// default does nothing.
    fn given_up(&mut self, in_doubt: bool) {
        let _ = in_doubt;
    }

    /// Called when the acquisition has the lock. What it returns lives as long as the lease. The default keeps nothing.
    fn held(self, validity: &Validity) -> Option<Box<dyn Kept>>
    where
        Self: Sized,
    {
        let _ = validity;
        None
    }
}

/// What a lease keeps of a [mailbox](Mailbox::held).
pub trait Kept: Debug + Send + Sync {}

/// A mailbox that there is none of.
#[derive(Debug)]
pub enum Unnotified {}

impl Mailbox for Unnotified {
    fn listens(&mut self, _: Option<usize>) -> Option<Duration> {
        None
    }

    fn next(&mut self) -> impl Future<Output = Message> + Send {
        pending()
    }
}

/// What a waiter is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// It was granted the lock, with this token. Only for a message that nobody but the store can have made: by a secret of the mailbox, for
    /// example. Else it is [`Ask`](Self::Ask).
    Granted(Token),
    /// It was granted the lock, as it seems: it asks the store to confirm that.
    Confirm,
    /// It is to ask again.
    Ask,
    /// It is to ask again after this time.
    AskIn(Duration),
}

/// A request for a lock.
#[derive(Debug)]
#[non_exhaustive]
pub struct Ask<'a, M> {
    /// Who asks.
    pub owner: OwnerId,
    /// For what.
    pub mode: Mode,
    /// For how long.
    pub ttl: Duration,
    /// What others are to see of the owner.
    pub info: &'a Arc<OwnerInfo>,
    /// Whether it is the first request of this owner.
    pub is_first: bool,
    /// Whether the owner was notified that it has the lock.
    pub is_confirmation: bool,
    /// How it waits; `None` if it does not.
    pub queue: Option<QueueUp<'a, M>>,
}

/// How an owner waits.
#[derive(Debug)]
#[non_exhaustive]
pub struct QueueUp<'a, M> {
    /// How long a lock that is granted to it is kept until it confirms.
    pub grace: Duration,
    /// Where it is notified; `None` if it polls.
    pub mailbox: Option<&'a M>,
}

/// The answer to a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The owner has the lock, with this token.
    Granted(Token),
    /// Others have it, or come first.
    Busy {
        /// How many waiters come before this one; `None` if it is not in the queue: the request has left nothing.
        ahead: Option<usize>,
        /// When the lease in the way ends.
        ends_in: Option<Duration>,
    },
    /// Something else has the record of the lock: nothing was changed.
    Blocked,
}

/// What is released.
#[derive(Debug)]
pub enum Release<'a, M> {
    /// What an acquisition may have left: the lock, or an entry in the queue, with this mailbox if it waited.
    Acquisition(Option<&'a M>),
    /// A lock that is held.
    Lock {
        /// How.
        hold: Hold,
        /// Whether its owner had to wait. Then there are probably other waiters.
        is_contended: bool,
    },
}

/// How an owner has the lock, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Exclusively.
    Alone,
    /// Exclusively, by a grant that it was notified of: this request confirms it.
    Granted,
    /// Shared, or perhaps shared.
    Shared,
    /// Exclusively until now, and shared from now on.
    Downgrading,
}

/// The answer to a request that changes what an owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed<T = ()> {
    /// It was changed.
    Done(T),
    /// The owner does not have the lock.
    NotHeld,
    /// The owner does not have the lock; an earlier copy of this request may have removed it.
    NotHeldAnyMore,
    /// Something else has the record of the lock: nothing was changed.
    Blocked,
}

/// An extension of a lease.
#[derive(Debug)]
#[non_exhaustive]
pub struct Extension<'a, P> {
    /// Where.
    pub place: &'a P,
    /// Whose.
    pub owner: OwnerId,
    /// The time to live from now on.
    pub ttl: Duration,
    /// Whether a longer one is to be shortened. Else it stays, so that a late request shortens no other.
    pub shortens: bool,
    /// Whether its guard is gone: nobody counts on the lease, and no other extension follows.
    pub leaves: bool,
    /// How the owner has the lock. No other extension of this lease is under way.
    pub hold: Hold,
}

/// What has the record of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// What it is.
    pub what: String,
    /// For how long it has been at work, if that is known.
    pub open: Option<Duration>,
}

impl<'a, M> Ask<'a, M> {
    /// A request of an owner that does not wait.
    #[must_use]
    pub const fn new(owner: OwnerId, mode: Mode, ttl: Duration, info: &'a Arc<OwnerInfo>) -> Self {
        Self { owner, mode, ttl, info, is_first: true, is_confirmation: false, queue: None }
    }
}

impl<'a, M> QueueUp<'a, M> {
    /// A wait that is notified in this mailbox, if there is one.
    #[must_use]
    pub const fn new(grace: Duration, mailbox: Option<&'a M>) -> Self {
        Self { grace, mailbox }
    }
}

impl Hold {
    /// How an owner has the lock that asked for this mode.
    #[must_use]
    pub const fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Alone,
            _ => Self::Shared,
        }
    }
}

impl<P> Clone for Extension<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Extension<'_, P> {}

impl<'a, P> Extension<'a, P> {
    /// An extension that shortens nothing.
    #[must_use]
    pub const fn new(place: &'a P, owner: OwnerId, ttl: Duration) -> Self {
        Self { place, owner, ttl, shortens: false, leaves: false, hold: Hold::Alone }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.open.map_or(Ok(()), |open| write!(f, ", since {open:?}"))
    }
}
