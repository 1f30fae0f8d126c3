//! What a server knows of one lock, in words.
//!
//! `readers:200 ann:200 bob:past | cat.x junk | ann` is a lock that ann shares for 200 more seconds; bob's share
//! has ended and nobody has noticed; cat waits to have it alone, an entry that makes no sense comes behind; ann
//! got the last token. Nobody waits when the second part is not there, and there was no token without the third.
//!
//! `me:200 | | somebody | bob cat` is a lock as one of several masters has it: bob and cat stand in its line. It does not know who got the last token, and none comes after one that is `full`. What only
//! looks like a lock of mine is `bare-me:200`, the id without what belongs behind it, and `longer-me:200`, a longer id that
//! begins as mine does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use lock_core::Mode;

/// What a server is for: the two note differently who holds a lock and which token was the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The only server of its locks.
    Single,
    /// One of several masters.
    Master,
}

/// One acquisition, each in a process of its own. The processes of the last two are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who(pub usize);

pub const NAMES: [&str; 8] = ["me", "ann", "bob", "cat", "dan", "eve", "ghost", "spook"];

/// In seconds, `None` for ever.
pub type Ttl = Option<u32>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    Free,
    Held(Who, Ttl),
    /// On a master: the id of this one and nothing else.
    Bare(Who, Ttl),
    /// On a master: held by a client whose id begins like this id.
    Longer(Who, Ttl),
    Foreign(Ttl),
    Hash,
    Readers(Ttl),
    Permits(Ttl),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Waits(Who, Mode),
    Junk,
}

/// What stands in the line. All have waited for longer who come earlier among the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stand {
    Junk,
    Waits(Who),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    Lost,
    Hash,
    /// Who got the last token, as the lock says it: nobody whom we know where it is not held, and on a master.
    Of(Option<Who>),
    /// The last token is the largest that there is.
    Full,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub lock: Lock,
    /// When the share of each ends; 0 when it has.
    pub shares: BTreeMap<Who, u32>,
    pub queue: Vec<Place>,
    pub fence: Fence,
    pub line: BTreeSet<Stand>,
}

impl State {
    /// The same, as it is known of a single server: who got the last token is a part of the lock.
    pub fn of_single(mut self) -> Self {
        if let Fence::Of(latest) = self.fence {
            self.fence = Fence::Of(match self.lock {
                Lock::Held(holder, _) => Some(holder),
                Lock::Readers(_) | Lock::Permits(_) => latest,
                _ => None,
            });
        }
        self
    }

    pub const fn is_exclusive(&self) -> bool {
        matches!(self.lock, Lock::Held(..))
    }

    /// How far above the last token the one is that is meant. Where the last one was lost, others go on from where they
    /// were.
    pub fn above(&self, by: i64) -> i64 {
        if self.fence == Fence::Lost { by.max(1) } else { by }
    }

    pub fn free() -> Self {
        let (shares, queue, line) = Default::default();
        Self { lock: Lock::Free, shares, queue, fence: Fence::Lost, line }
    }
}

pub fn mode(text: &str) -> Mode {
    match text {
        "x" => Mode::Exclusive,
        "r" => Mode::Shared,
        max => Mode::Permit { max: NonZeroU32::new(max.parse().expect("x, r or a number")).expect("not 0") },
    }
}

/// What stands in an entry of a queue, if it is a mode.
pub fn mode_of_entry(text: &str) -> Option<Mode> {
    let is_mode = text == "x" || text == "r" || text.parse::<NonZeroU32>().is_ok();
    is_mode.then(|| mode(text))
}

pub fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Shared => "r".into(),
        Mode::Permit { max } => max.to_string(),
        _ => "x".into(),
    }
}

pub fn ttl_text(ttl: Ttl) -> String {
    ttl.map_or_else(|| "never".into(), |seconds| seconds.to_string())
}

impl FromStr for Who {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        NAMES.iter().position(|other| *other == name).map(Self).ok_or_else(|| format!("who is {name}?"))
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES[self.0])
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split('|').map(str::trim);
        let mut words = parts.next().unwrap_or_default().split_whitespace();
        let lock = lock(words.next().unwrap_or("free"))?;
        let shares = words.map(share).collect::<Result<_, _>>()?;
        let queue =
            parts.next().unwrap_or_default().split_whitespace().map(place).collect::<Result<_, _>>()?;
        let fence = match parts.next().unwrap_or_default() {
            "" => Fence::Lost,
            "hash" => Fence::Hash,
            "somebody" => Fence::Of(None),
            "full" => Fence::Full,
            name => Fence::Of(Some(name.parse()?)),
        };
        let line =
            parts.next().unwrap_or_default().split_whitespace().map(stand).collect::<Result<_, _>>()?;
        Ok(Self { lock, shares, queue, fence, line })
    }
}

fn lock(word: &str) -> Result<Lock, String> {
    let (what, ttl) = word.split_once(':').unwrap_or((word, "never"));
    let ttl = if ttl == "never" { None } else { Some(seconds(ttl)?) };
    Ok(match what {
        "free" => Lock::Free,
        "hash" => Lock::Hash,
        "foreign" => Lock::Foreign(ttl),
        "readers" => Lock::Readers(ttl),
        "permits" => Lock::Permits(ttl),
        name => match name.split_once('-') {
            Some(("bare", name)) => Lock::Bare(name.parse()?, ttl),
            Some(("longer", name)) => Lock::Longer(name.parse()?, ttl),
            _ => Lock::Held(name.parse()?, ttl),
        },
    })
}

fn share(word: &str) -> Result<(Who, u32), String> {
    let (name, ttl) = word.split_once(':').ok_or("a share is who:seconds")?;
    Ok((name.parse()?, if ttl == "past" { 0 } else { seconds(ttl)? }))
}

fn place(word: &str) -> Result<Place, String> {
    match word.split_once('.') {
        Some((name, how)) => Ok(Place::Waits(name.parse()?, mode(how))),
        None => Ok(Place::Junk),
    }
}

fn stand(word: &str) -> Result<Stand, String> {
    if word == "junk" { Ok(Stand::Junk) } else { word.parse().map(Stand::Waits) }
}

fn seconds(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text} is no number of seconds"))
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lock {
            Lock::Free => f.write_str("free")?,
            Lock::Hash => f.write_str("hash")?,
            Lock::Held(who, ttl) => write!(f, "{who}:{}", ttl_text(*ttl))?,
            Lock::Bare(who, ttl) => write!(f, "bare-{who}:{}", ttl_text(*ttl))?,
            Lock::Longer(who, ttl) => write!(f, "longer-{who}:{}", ttl_text(*ttl))?,
            Lock::Foreign(ttl) => write!(f, "foreign:{}", ttl_text(*ttl))?,
            Lock::Readers(ttl) => write!(f, "readers:{}", ttl_text(*ttl))?,
            Lock::Permits(ttl) => write!(f, "permits:{}", ttl_text(*ttl))?,
        }
        for (who, ttl) in &self.shares {
            match ttl {
                0 => write!(f, " {who}:past")?,
                seconds => write!(f, " {who}:{seconds}")?,
            }
        }
        let has_line = !self.line.is_empty();
        if !self.queue.is_empty() || self.fence != Fence::Lost || has_line {
            f.write_str(" |")?;
        }
        for place in &self.queue {
            match place {
                Place::Waits(who, how) => write!(f, " {who}.{}", mode_text(*how))?,
                Place::Junk => f.write_str(" junk")?,
            }
        }
        match self.fence {
            Fence::Lost if has_line => f.write_str(" |")?,
            Fence::Lost => {}
            Fence::Hash => f.write_str(" | hash")?,
            Fence::Of(None) => f.write_str(" | somebody")?,
            Fence::Full => f.write_str(" | full")?,
            Fence::Of(Some(who)) => write!(f, " | {who}")?,
        }
        if has_line {
            f.write_str(" |")?;
        }
        for stand in &self.line {
            match stand {
                Stand::Waits(who) => write!(f, " {who}")?,
                Stand::Junk => f.write_str(" junk")?,
            }
        }
        Ok(())
    }
}
