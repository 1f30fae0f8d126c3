//! Scripts that run on the server, and calls of them.

use std::sync::LazyLock;

use lock_core::TokenBlock;
use redis::{Cmd, ToRedisArgs};

use crate::scripts::wire::{LARGEST_TOKEN, LONGEST_READ, USUAL_FENCE_TTL};

/// The initial capacity of a call: number of arguments, and their total length.
const ARGUMENTS: usize = 10;
const ARGUMENTS_LENGTH: usize = 256;

/// Script part: the clock of the server, in microseconds since 1970.
pub const CLOCK: &str = include_str!("lua/clock.lua");
/// Script part: comparison of tokens.
pub const NUMBER: &str = include_str!("lua/number.lua");

/// The life of a wait queue without living waiters, in milliseconds: waiters ask again every two seconds.
const QUEUE_TTL: u32 = 5_000;

/// The commands of scripts that change nothing.
const READS: [&str; 8] = ["TIME", "EXISTS", "GET", "PTTL", "TYPE", "LLEN", "LPOS", "ZSCORE"];

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
        let size = TokenBlock::SIZE;
        let constants = format!("{size}, {LARGEST_TOKEN}, '{USUAL_FENCE_TTL}', {QUEUE_TTL}, {LONGEST_READ}");
        let names = "BLOCK, LARGEST_TOKEN, WEEK, QUEUE_TTL, LONGEST_READ";
        let source = format!("local {names} = {constants}\n{}", texts.concat());
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { parts, source, hash }
    }

    /// The names of its parts.
    #[must_use]
    pub const fn parts(&self) -> &'static str {
        self.parts
    }

    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The text of the script.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The commands that this line calls.
    pub(crate) fn commands_at(&self, line: usize) -> Vec<&str> {
        self.lines().nth(line.saturating_sub(1)).map_or_else(Vec::new, |line| commands(line).collect())
    }

    /// Whether the script has surely written nothing when its call in this line is refused: there is no other call in it, and only
    /// commands that read before it. A function that is defined before it may be called after a later line, and a loop repeats it.
    pub(crate) fn begins_with(&self, line: usize) -> bool {
        let is_once =
            |line: &str| !["function", "for ", "while ", "repeat"].iter().any(|word| line.contains(word));
        let only_reads = |line: &str| {
            let calls = line.matches("redis.call(").count() + line.matches("redis.pcall(").count();
            calls == commands(line).filter(|command| READS.contains(command)).count()
        };
        self.commands_at(line).len() == 1
            && self.lines().take(line).all(is_once)
            && self.lines().take(line.saturating_sub(1)).all(only_reads)
    }

    /// The lines without their comments.
    fn lines(&self) -> impl Iterator<Item = &str> {
        self.source.lines().map(|line| line.split("--").next().unwrap_or_default())
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

/// The commands that a line of a script calls by their names.
fn commands(line: &str) -> impl Iterator<Item = &str> {
    line.split("call('").skip(1).filter_map(|rest| rest.split('\'').next())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_no_write_can_precede_begins_a_script() {
        let text = "local one = redis.call('TIME') -- as a function, or redis.call('SET')\n\
                    local two = redis.pcall('GET', KEYS[1])\n\
                    redis.call('DEL', KEYS[1])\n\
                    redis.call('TIME')\n";
        let script = Script::of("", &[text]);
        // The first line has the constants.
        assert_eq!(
            [1, 2, 3, 4, 5, 6].map(|line| script.begins_with(line)),
            [false, true, true, true, false, false]
        );
        assert_eq!(script.commands_at(4), ["DEL"]);
        for before in [
            "local function later()",
            "redis.pcall(publish, '', '')",
            "redis.call('TIME', redis.call('DEL'))",
            "for _, key in ipairs(KEYS) do",
        ] {
            assert!(!Script::of("", &[before, "\nredis.call('TIME')"]).begins_with(3), "{before}");
        }
    }
}
