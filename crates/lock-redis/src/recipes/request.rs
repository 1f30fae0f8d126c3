//! The requests for locks, and their parameters.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use lock_core::{BootInstant, Mode, OwnerId, Token};
use redis_link::keys::Keys;
use redis_link::proof::Secret;
use redis_link::wire::{TokenTtl, millis};

/// The exclusive mode, as the scripts encode it.
pub(crate) const EXCLUSIVE: &str = "x";

/// A request for a lock.
#[derive(Debug)]
pub struct Ask<'a> {
    /// The keys of the lock.
    pub keys: &'a Keys,
    /// The owner id of the acquisition.
    pub owner: OwnerId,
    /// The lock mode.
    pub mode: Mode,
    /// The time to live.
    pub ttl: Duration,
    /// The owner info, which `inspect` shows.
    pub info: &'a str,
    /// The entry for the wait queue if the lock is busy; `None` for an owner that does not wait.
    pub entry: Option<&'a str>,
    /// Whether it confirms a grant that the owner was notified of.
    pub is_confirmation: bool,
}

/// The outcome of a claim by plain commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The lock is granted, with this token.
    Granted(Token),
    /// The lock is granted, but others wait for it: it has to be taken back.
    OutOfTurn,
    /// The lock is granted, or may be, without a token, or with one that the server would keep for ever: the script has to follow.
    Untokened,
    /// The lock is not granted: the script has to follow.
    NotGranted,
    /// The connection broke: the lock may have been granted.
    Broken,
}

/// An entry of the wait queue of a lock.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The owner id of the acquisition.
    pub owner: OwnerId,
    /// Proves to the process that the server has granted the lock to this entry.
    pub secret: &'a Secret,
    /// The lock mode.
    pub mode: Mode,
    /// How long a granted lock is kept until the owner confirms.
    pub grace: Duration,
    /// The time to live that the owner will ask for.
    pub ttl: Duration,
    /// How long the last token is kept.
    pub token_ttl: TokenTtl,
    /// The channel on which its process listens.
    pub inbox: &'a str,
    /// The owner info, which `inspect` shows.
    pub info: &'a str,
}

/// How a lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseKind<'a> {
    /// To the next waiter, if there is one; or the owner's `entry` leaves the wait queue.
    Wanted {
        /// The entry, as it was sent.
        entry: Option<&'a str>,
    },
    /// An exclusive lock that probably nobody waits for, and whose last token has a ttl. It costs the server less.
    Unwanted,
    /// A contended lock: the server notifies the next waiter before it answers, so that on a busy host the waiter runs before the
    /// caller.
    ToNext,
    /// Left free for this long: waiters in its queue hold back, and other clients can acquire it.
    LeaveFree(Duration),
}

/// The time of sending of a request.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub(crate) at: BootInstant,
    /// Since 1970; zero for a recipe that writes no times.
    pub(crate) wall: Duration,
}

impl ReleaseKind<'_> {
    /// Of a holder, which has no entry.
    pub(crate) const WANTED: Self = Self::Wanted { entry: None };
}

impl<'a> From<Option<&'a str>> for ReleaseKind<'a> {
    fn from(entry: Option<&'a str>) -> Self {
        Self::Wanted { entry }
    }
}

impl fmt::Display for Entry<'_> {
    /// The form that the scripts parse.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, mode, inbox, info) = (self.owner, mode_name(self.mode), self.inbox, self.info);
        let (grace, lasting) = (millis(self.grace), self.token_ttl.of(self.ttl));
        write!(f, "{owner}:{} {mode} {grace} {lasting} {} {inbox} {info}", self.secret.reveal(), inbox.len())
    }
}

/// A lock mode, as the scripts encode it.
pub(crate) fn mode_name(mode: Mode) -> Cow<'static, str> {
    match mode {
        Mode::Shared => "r".into(),
        Mode::Permit { max } => max.to_string().into(),
        _ => EXCLUSIVE.into(),
    }
}
