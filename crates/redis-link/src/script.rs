//! Scripts that run on the server, and calls of them.

use std::sync::LazyLock;

use lock_core::TokenBlock;
use redis::{Cmd, ToRedisArgs};

use crate::wire::{LARGEST_TOKEN, USUAL_FENCE_TTL};

/// The initial capacity of a call: number of arguments, and their total length.
const ARGUMENTS: usize = 10;
const ARGUMENTS_LENGTH: usize = 256;

/// Script part: the clock of the server, in microseconds since 1970.
pub const CLOCK: &str = include_str!("lua/clock.lua");
/// Script part: comparison of tokens.
pub const NUMBER: &str = include_str!("lua/number.lua");

/// The life of a wait queue without living waiters, in milliseconds: waiters ask again every two seconds.
const QUEUE_TTL: u32 = 5_000;

/// Scripts, in the order of loading.
pub type ScriptList = &'static [&'static LazyLock<Script>];

/// A script and its hash.
#[derive(Debug)]
pub struct Script {
    parts: &'static str,
    source: String,
    hash: String,
}

/// A script with its keys and arguments.
#[derive(Debug)]
pub struct Call {
    pub(crate) script: &'static Script,
    pub(crate) command: Cmd,
    /// A command that goes out before the call, in the same write. Its answer is ignored.
    pub(crate) ahead: Option<Box<Cmd>>,
}

/// A script concatenated from these files of `lua/`, in a `LazyLock`. The common case comes first and returns early, which
/// keeps it cheap for the server.
#[macro_export]
macro_rules! script {
    ($($part:tt)+) => {
        std::sync::LazyLock::new(|| $crate::script::Script::of(stringify!($($part)+), &[$($crate::script_part!($part)),+]))
    };
}

/// A part of a [`script!`].
#[doc(hidden)]
#[macro_export]
macro_rules! script_part {
    (clock) => {
        $crate::script::CLOCK
    };
    (number) => {
        $crate::script::NUMBER
    };
    ($part:tt) => {
        include_str!(concat!("lua/", stringify!($part), ".lua"))
    };
}

impl Script {
    /// Concatenates the texts of the parts of a script, after the constants that scripts share with each other and with Rust.
    #[must_use]
    pub fn of(parts: &'static str, texts: &[&str]) -> Self {
        let constants = format!("{}, {LARGEST_TOKEN}, '{USUAL_FENCE_TTL}', {QUEUE_TTL}", TokenBlock::SIZE);
        let source = format!("local BLOCK, LARGEST_TOKEN, WEEK, QUEUE_TTL = {constants}\n{}", texts.concat());
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { parts, source, hash }
    }

    /// The names of its parts.
    #[must_use]
    pub const fn parts(&self) -> &'static str {
        self.parts
    }

    /// The text of the script.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// A call with these keys; [`Call::arg`] adds the arguments.
    pub fn on(&'static self, keys: &[&str]) -> Call {
        let length: usize = keys.iter().map(|key| key.len()).sum();
        let mut command = Cmd::with_capacity(3 + keys.len() + ARGUMENTS, length + 64 + ARGUMENTS_LENGTH);
        command.arg("EVALSHA").arg(&self.hash).arg(keys.len()).arg(keys);
        Call { script: self, command, ahead: None }
    }

    /// The command that loads the script.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.source);
        command
    }
}

impl Call {
    /// The call by the text of its script, for a server that loads no scripts.
    pub(crate) fn by_source(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.source);
        for word in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = word {
                command.arg(bytes);
            }
        }
        command
    }

    /// The keys, which determine the cluster node.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut words = self.command.args_iter().filter_map(|word| match word {
            redis::Arg::Simple(bytes) => Some(bytes),
            _ => None,
        });
        let count = words.nth(2).and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
        words.take(count.unwrap_or(0))
    }

    /// Makes the server write the messages of the script before its answer.
    ///
    /// Redis writes to its clients in the reverse order in which they first got output. The answer to a command ahead of
    /// the script makes this client the first of them, and so the last to be written to.
    #[must_use]
    pub fn answered_last(mut self) -> Self {
        let mut command = redis::cmd("EXISTS");
        command.arg(self.keys().next());
        self.ahead = Some(Box::new(command));
        self
    }

    /// The call with one more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// The call with these arguments, without trailing ones that have their usual value: each costs the server most of a
    /// microsecond.
    #[must_use]
    pub fn unless_usual<const N: usize>(self, given: [&str; N], usual: [&str; N]) -> Self {
        let needed = (0..N).rfind(|&at| given[at] != usual[at]).map_or(0, |last| last + 1);
        given[..needed].iter().fold(self, |call, argument| call.arg(*argument))
    }
}
