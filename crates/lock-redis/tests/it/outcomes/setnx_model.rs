//! What a server knows of one lock of the recipe setnx-timestamp, in words, and what becomes of it.
//!
//! `+200 | me+200` is a lock that ends 200 seconds after the beginning of the case and is that of the acquisition
//! `me`, as the fence says; `-200 | me` is one that is over, after `me` has given its own back. `junk` is a value that
//! is no time, and `plain` a fence that names nobody.

use std::fmt;
use std::str::FromStr;

use super::state::Who;

/// By how many seconds the times of an acquisition, of an extension and of a request that comes late are ahead.
pub const ASKED: i64 = 300;
pub const EXTENDED: i64 = 400;
pub const LATE: i64 = 50;
/// When what is there at the beginning of a case was sent.
pub const FIRST_SENT: u64 = 1;

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

#[derive(Clone, Debug)]
pub struct Model {
    pub state: State,
    /// In seconds since the beginning.
    pub now: i64,
    /// When the last time was sent that the fence has.
    sent: u64,
    /// Whether the last operation minted a token.
    pub mints: bool,
}

impl Model {
    pub fn new(state: State) -> Self {
        Self { state, now: 0, sent: FIRST_SENT, mints: false }
    }

    /// The answer to an operation that was sent then.
    pub fn run(&mut self, op: Op, sent: u64) -> String {
        self.mints = false;
        let of = |ours, what: &str| (if ours { what } else { "not ours" }).to_owned();
        match op {
            Op::Ask(who, late) => self.ask(who, self.ends(ASKED, late), sent),
            Op::Extend(who, late) => {
                let held = self.holds(who);
                if held {
                    self.write(self.ends(EXTENDED, late), sent);
                }
                of(held, "extended")
            }
            Op::Release(who) => {
                let held = self.holds(who);
                if held {
                    self.state = State { lock: Lock::Free, fence: Fence::Given(who) };
                }
                of(held, "released")
            }
            Op::Raise(who, _) => of(self.holds(who), "raised"),
            Op::Look(who) => self.look(who),
            Op::Break => self.break_lock(),
            other => {
                self.happens(other);
                String::new()
            }
        }
    }

    pub fn holds(&self, who: Who) -> bool {
        matches!(self.state.fence, Fence::Of(owner, ends) if owner == who && self.state.lock == Lock::Ends(ends))
    }

    /// The time that a request writes.
    pub fn ends(&self, ahead: i64, late: bool) -> i64 {
        self.now + ahead - if late { LATE } else { 0 }
    }

    fn happens(&mut self, op: Op) {
        match op {
            Op::Write(ahead) => self.state.lock = Lock::Ends(self.now + ahead),
            Op::WriteJunk => self.state.lock = Lock::Junk,
            Op::WriteHash => self.state.lock = Lock::Hash,
            Op::Delete => self.state.lock = Lock::Free,
            Op::Pass(seconds) => self.now += seconds,
            Op::FlushAll => self.state = State { lock: Lock::Free, fence: Fence::Lost },
            _ => {}
        }
    }

    fn ask(&mut self, who: Who, ends: i64, sent: u64) -> String {
        if self.holds(who) {
            self.write(ends, sent);
            return "granted".into();
        }
        match self.state.lock {
            Lock::Hash => return "busy never hash".into(),
            Lock::Junk => return "busy never unreadable".into(),
            Lock::Ends(at) if at >= self.now => return format!("busy {}", at - self.now),
            Lock::Free | Lock::Ends(_) => {}
        }
        if self.state.fence == Fence::Hash {
            return "refused".into();
        }
        self.state = State { lock: Lock::Ends(ends), fence: Fence::Of(who, ends) };
        (self.sent, self.mints) = (sent, true);
        "granted".into()
    }

    /// A request that comes late changes nothing.
    fn write(&mut self, ends: i64, sent: u64) {
        if let Fence::Of(who, _) = self.state.fence
            && sent >= self.sent
        {
            self.state = State { lock: Lock::Ends(ends), fence: Fence::Of(who, ends) };
            self.sent = sent;
        }
    }

    fn look(&self, who: Who) -> String {
        let (kind, value) = match (self.state.lock, self.state.fence) {
            (Lock::Hash, _) => ("hash", String::new()),
            (Lock::Junk, _) => ("string", "junk".into()),
            (Lock::Ends(at), _) if at < self.now => ("none", String::new()),
            (Lock::Ends(at), Fence::Of(owner, ends)) if at == ends => ("string", owner.to_string()),
            (Lock::Ends(at), _) => ("string", format!("{at:+}")),
            (Lock::Free, _) => ("none", String::new()),
        };
        let last = match self.state.fence {
            Fence::Given(owner) | Fence::Of(owner, _) => format!("last={owner}"),
            _ => String::new(),
        };
        let ours = if self.holds(who) { "ours" } else { "" };
        let words = [kind, &value, &last, ours];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    fn break_lock(&mut self) -> String {
        let kind = match self.state.lock {
            Lock::Free => return "none".into(),
            Lock::Hash => return "hash".into(),
            Lock::Ends(at) if at < self.now => "none",
            Lock::Junk | Lock::Ends(_) => "string",
        };
        if let Fence::Of(who, _) = self.state.fence {
            self.state.fence = Fence::Given(who);
        }
        self.state.lock = Lock::Free;
        kind.into()
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
