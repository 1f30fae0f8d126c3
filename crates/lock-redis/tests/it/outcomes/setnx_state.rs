//! What a server knows of one lock of the recipe setnx-timestamp, in words, and what is done to it.
//!
//! `+200 | me+200` is a lock that ends 200 seconds after the beginning of the case and is that of the acquisition
//! `me`, as the fence says; `-200 | me` is one that is over, after `me` has given its own back. `junk` is a value that
//! is no time, and `plain` a fence that names nobody.

use std::fmt;
use std::str::FromStr;

use super::state::Who;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    Free,
    Hash,
    Junk,
    Ends(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    Lost,
    /// Fence and last token have another type.
    Hash,
    Plain,
    /// Who had it last, and has given it back.
    Given(Who),
    /// Who has it if the lock ends then.
    Of(Who, i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub lock: Lock,
    pub fence: Fence,
}

/// With whether a request comes late: it was sent before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Ask(Who, bool),
    Extend(Who, bool),
    Release(Who),
    /// To so much above the last token.
    Raise(Who, i64),
    Look(Who),
    Break,
    /// A client of another library writes a time that is so far ahead, or something else.
    Write(i64),
    WriteJunk,
    WriteHash,
    Delete,
    /// So many seconds.
    Pass(i64),
    FlushAll,
}

impl Op {
    pub const fn is_late(self) -> bool {
        matches!(self, Self::Ask(_, true) | Self::Extend(_, true))
    }

    /// Who does it, of our clients.
    pub const fn who(self) -> Option<Who> {
        match self {
            Self::Ask(who, _) | Self::Extend(who, _) => Some(who),
            Self::Release(who) | Self::Raise(who, _) | Self::Look(who) => Some(who),
            _ => None,
        }
    }
}

impl State {
    pub fn is_held_by(&self, who: Who) -> bool {
        matches!(self.fence, Fence::Of(owner, ends) if owner == who && self.lock == Lock::Ends(ends))
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (lock, fence) = text.split_once('|').unwrap_or((text, ""));
        let lock = match lock.trim() {
            "free" => Lock::Free,
            "hash" => Lock::Hash,
            "junk" => Lock::Junk,
            ends => Lock::Ends(number(ends)?),
        };
        let fence = fence.trim();
        let fence = match (fence, fence.find(['+', '-'])) {
            ("", _) => Fence::Lost,
            ("hash", _) => Fence::Hash,
            ("plain", _) => Fence::Plain,
            (_, Some(at)) => Fence::Of(fence[..at].parse()?, number(&fence[at..])?),
            (name, None) => Fence::Given(name.parse()?),
        };
        Ok(Self { lock, fence })
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["ask", who] => Self::Ask(who.parse()?, false),
            ["ask", who, "late"] => Self::Ask(who.parse()?, true),
            ["extend", who] => Self::Extend(who.parse()?, false),
            ["extend", who, "late"] => Self::Extend(who.parse()?, true),
            ["release", who] => Self::Release(who.parse()?),
            ["raise", who, by] => Self::Raise(who.parse()?, number(by)?),
            ["look", who] => Self::Look(who.parse()?),
            ["break"] => Self::Break,
            _ => return Err(format!("what is {text:?}?")),
        })
    }
}

fn number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lock {
            Lock::Free => f.write_str("free")?,
            Lock::Hash => f.write_str("hash")?,
            Lock::Junk => f.write_str("junk")?,
            Lock::Ends(at) => write!(f, "{at:+}")?,
        }
        match self.fence {
            Fence::Lost => Ok(()),
            Fence::Hash => f.write_str(" | hash"),
            Fence::Plain => f.write_str(" | plain"),
            Fence::Given(who) => write!(f, " | {who}"),
            Fence::Of(who, ends) => write!(f, " | {who}{ends:+}"),
        }
    }
}
