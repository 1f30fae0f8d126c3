//! What is done to a lock, in words such as `queue me x`.

use std::fmt;
use std::str::FromStr;

use lock_core::Mode;

use super::state::{Ttl, Who, mode, mode_text, ttl_text};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// As a master of a quorum is asked; with how far above the last token the one is that is proposed, if one is.
    Claim(Who, Option<i64>),
    /// As a master of a quorum is asked without a script, with how far above the last token the proposed one is.
    Outright(Who, i64),
    /// As a claim at one master, by a waiter that joins the queue.
    LineUp(Who),
    /// Released as on one master of a quorum; with whether by a waiter that leaves the queue.
    Vacate(Who, bool),
    /// By a client that does not wait.
    Ask(Who, Mode),
    /// By a waiter.
    Queue(Who, Mode),
    /// By a waiter that was notified of its grant.
    Confirm(Who, Mode),
    Release(Who),
    /// By an owner that may have a queue entry.
    Leave(Who, Mode),
    Rotate(Who, Who),
    Extend(Who),
    /// The first renewal of a lock that was handed over.
    Keep(Who),
    /// Of an exclusive holder.
    Downgrade(Who),
    /// To so much above the last token.
    Raise(Who, i64),
    Look(Who),
    Break,
    /// A client of another library: SET NX.
    Set(Ttl),
    /// A client of another library: SET XX.
    Overwrite(Ttl),
    /// A client of another library that uses a hash.
    SetHash,
    /// DEL of the lock, or its end.
    Delete,
    /// The end of a share.
    Expire(Who),
    FlushAll,
    ScriptFlush,
    /// A process that no longer listens.
    Die(Who),
    Rise(Who),
}

impl Op {
    /// Who does it.
    pub const fn who(self) -> Option<Who> {
        match self {
            Self::Claim(who, _) | Self::Outright(who, _) | Self::LineUp(who) | Self::Vacate(who, _) => {
                Some(who)
            }
            Self::Ask(who, _) | Self::Queue(who, _) | Self::Confirm(who, _) | Self::Leave(who, _) => {
                Some(who)
            }
            Self::Release(who) | Self::Rotate(who, _) | Self::Extend(who) | Self::Keep(who) => Some(who),
            Self::Downgrade(who) | Self::Raise(who, _) | Self::Look(who) => Some(who),
            _ => None,
        }
    }

    /// Who shall get the lock.
    pub const fn gets(self) -> Option<Who> {
        match self {
            Self::Claim(who, _) | Self::Outright(who, _) | Self::LineUp(who) | Self::Rotate(_, who) => {
                Some(who)
            }
            Self::Ask(who, _) | Self::Queue(who, _) | Self::Confirm(who, _) => Some(who),
            _ => None,
        }
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split_whitespace().collect();
        let ttl = |text: &str| if text == "never" { Ok(None) } else { text.parse().map(Some) };
        let ttl = |text: &str| ttl(text).map_err(|_| format!("{text} is no time"));
        Ok(match words[..] {
            ["claim", who] => Self::Claim(who.parse()?, None),
            ["claim", who, by] => Self::Claim(who.parse()?, Some(number(by)?)),
            ["outright", who, by] => Self::Outright(who.parse()?, number(by)?),
            ["claim", who, "in", "line"] => Self::LineUp(who.parse()?),
            ["vacate", who] => Self::Vacate(who.parse()?, false),
            ["vacate", who, "leave"] => Self::Vacate(who.parse()?, true),
            ["ask", who, how] => Self::Ask(who.parse()?, mode(how)),
            ["queue", who, how] => Self::Queue(who.parse()?, mode(how)),
            ["confirm", who, how] => Self::Confirm(who.parse()?, mode(how)),
            ["release", who] => Self::Release(who.parse()?),
            ["leave", who, how] => Self::Leave(who.parse()?, mode(how)),
            ["rotate", from, to] => Self::Rotate(from.parse()?, to.parse()?),
            ["extend", who] => Self::Extend(who.parse()?),
            ["keep", who] => Self::Keep(who.parse()?),
            ["downgrade", who] => Self::Downgrade(who.parse()?),
            ["raise", who, by] => Self::Raise(who.parse()?, number(by)?),
            ["look", who] => Self::Look(who.parse()?),
            ["break"] => Self::Break,
            ["set", text] => Self::Set(ttl(text)?),
            ["overwrite", text] => Self::Overwrite(ttl(text)?),
            ["expire", who] => Self::Expire(who.parse()?),
            _ => return Err(format!("what is {text:?}?")),
        })
    }
}

fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(who, None) => write!(f, "claim {who}"),
            Self::Claim(who, Some(by)) => write!(f, "claim {who} {by:+}"),
            Self::Outright(who, by) => write!(f, "outright {who} {by:+}"),
            Self::LineUp(who) => write!(f, "claim {who} in line"),
            Self::Vacate(who, leaves) => write!(f, "vacate {who}{}", if *leaves { " leave" } else { "" }),
            Self::Ask(who, how) => write!(f, "ask {who} {}", mode_text(*how)),
            Self::Queue(who, how) => write!(f, "queue {who} {}", mode_text(*how)),
            Self::Confirm(who, how) => write!(f, "confirm {who} {}", mode_text(*how)),
            Self::Release(who) => write!(f, "release {who}"),
            Self::Leave(who, how) => write!(f, "leave {who} {}", mode_text(*how)),
            Self::Rotate(from, to) => write!(f, "rotate {from} {to}"),
            Self::Extend(who) => write!(f, "extend {who}"),
            Self::Keep(who) => write!(f, "keep {who}"),
            Self::Downgrade(who) => write!(f, "downgrade {who}"),
            Self::Raise(who, by) => write!(f, "raise {who} {by}"),
            Self::Look(who) => write!(f, "look {who}"),
            Self::Break => f.write_str("break"),
            Self::Set(ttl) => write!(f, "set {}", ttl_text(*ttl)),
            Self::Overwrite(ttl) => write!(f, "overwrite {}", ttl_text(*ttl)),
            Self::SetHash => f.write_str("set a hash"),
            Self::Delete => f.write_str("delete"),
            Self::Expire(who) => write!(f, "expire {who}"),
            Self::FlushAll => f.write_str("flush all"),
            Self::ScriptFlush => f.write_str("flush the scripts"),
            Self::Die(who) => write!(f, "{who} dies"),
            Self::Rise(who) => write!(f, "{who} is back"),
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
