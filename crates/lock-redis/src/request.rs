//! What a lock asks of the server.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use lock_core::{BootInstant, Mode, OwnerId, Token};
use redis_link::keys::Keys;
use redis_link::wire::{fence_ttl, millis};

/// The mode of one holder alone, as the scripts have it.
pub(crate) const EXCLUSIVE: &str = "x";

/// A request for a lock by an owner that may queue up.
#[derive(Debug)]
pub struct Ask<'a> {
    /// The keys of the lock.
    pub keys: &'a Keys,
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// With whom the lock may be held.
    pub mode: Mode,
    /// The time to live.
    pub ttl: Duration,
    /// What `inspect` shows of the owner.
    pub info: &'a str,
    /// The entry of the wait queue while the lock is busy; `None` for an owner that does not wait.
    pub entry: Option<&'a str>,
    /// Whether the owner was notified that it has the lock, which this then confirms.
    pub is_confirmation: bool,
}

/// An entry of the wait queue of a lock.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// With whom the lock may be held.
    pub mode: Mode,
    /// How long the lock is kept for the owner once it is granted, until the owner confirms.
    pub grace: Duration,
    /// The time to live that the owner is going to ask for.
    pub ttl: Duration,
    /// The channel on which its process listens.
    pub inbox: &'a str,
    /// What `inspect` shows of the owner.
    pub info: &'a str,
}

/// A lease that is to end later.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// The keys of the lock.
    pub keys: &'a Keys,
    /// The identity of the acquisition.
    pub owner: OwnerId,
    /// How the owner holds the lock.
    pub hold: Hold,
    /// The time to live from now on.
    pub ttl: Duration,
}

/// How an owner holds a lock whose lease is to end later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// Exclusively.
    Alone,
    /// Exclusively, since it was handed over: the next waiter does not know yet that it is the first in the queue.
    HandedOver,
    /// With others, or perhaps.
    Shared,
    /// Exclusively until now, and with other readers from now on.
    Downgrading,
}

/// What a hand-over from one owner to the next did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotated {
    /// The lock is the next owner's, with this token.
    HandedOver(Token),
    /// The lock was not the owner's.
    NotOurs,
}

/// When a request is sent.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub(crate) at: BootInstant,
    /// Since 1970; zero where the recipe writes no times.
    pub(crate) wall: Duration,
}

impl Hold {
    /// The hold of an owner that asked for this mode.
    pub(crate) const fn of(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Alone,
            _ => Self::Shared,
        }
    }
}

impl fmt::Display for Entry<'_> {
    /// As the scripts read it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, mode, inbox, info) = (self.owner, mode_name(self.mode), self.inbox, self.info);
        let (grace, lasting) = (millis(self.grace), fence_ttl(self.ttl));
        write!(f, "{owner} {mode} {grace} {lasting} {} {inbox} {info}", inbox.len())
    }
}

/// A mode as the scripts have it.
pub(crate) fn mode_name(mode: Mode) -> Cow<'static, str> {
    match mode {
        Mode::Shared => "r".into(),
        Mode::Permit { max } => max.to_string().into(),
        _ => EXCLUSIVE.into(),
    }
}
