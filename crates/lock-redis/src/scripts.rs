//! The scripts that run on the server.

use std::sync::LazyLock;

use redis::{Cmd, ToRedisArgs};

/// How many arguments a call has room for from the beginning, and how long they may be together.
const ARGUMENTS: usize = 10;
const ARGUMENTS_LENGTH: usize = 256;

/// A script and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: &'static str,
    hash: String,
}

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) command: Cmd,
    /// What is sent with it, ahead of it, and of no consequence.
    pub(crate) ahead: Option<Cmd>,
}

/// A script of these parts. What is usual comes first and ends there, so that it costs no more than it needs.
macro_rules! script {
    ($($part:tt)+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("lua/", stringify!($part), ".lua"))),+)))
    };
}

pub(crate) static ACQUIRE: LazyLock<Script> = script!(vote number clock last_token acquire);
pub(crate) static VACATE: LazyLock<Script> = script!(vote vacate);
pub(crate) static RAISE_VOTE: LazyLock<Script> = script!(vote number last_token raise_vote);
pub(crate) static INSPECT_VOTE: LazyLock<Script> = script!(vote inspect_vote);
pub(crate) static EXTEND_VOTE: LazyLock<Script> = script!(vote extend_vote);
pub(crate) static ASK: LazyLock<Script> =
    script!(clock ask_fast mint_fast number mint value lock waiter ask_held queue ask);
pub(crate) static CONFIRM: LazyLock<Script> =
    script!(value waiter confirm clock ask_fast mint_fast number mint lock ask_held queue ask);
pub(crate) static RELEASE: LazyLock<Script> =
    script!(value release_fast clock mint_fast pass_on number mint pass_on_late lock waiter queue release);
pub(crate) static LEAVE_FREE: LazyLock<Script> =
    script!(value clock mint_fast number mint lock waiter queue leave_free release);
pub(crate) static ROTATE: LazyLock<Script> = script!(clock mint_fast rotate_fast number mint rotate);
pub(crate) static EXTEND: LazyLock<Script> =
    script!(value extend_fast lock clock mint_fast number mint waiter queue extend);
pub(crate) static KEEP: LazyLock<Script> = script!(value waiter keep extend_fast);
pub(crate) static DOWNGRADE: LazyLock<Script> =
    script!(value lock clock mint_fast number mint waiter queue downgrade extend);
pub(crate) static RAISE: LazyLock<Script> =
    script!(value lock clock mint_fast number mint waiter queue raise);
pub(crate) static INSPECT: LazyLock<Script> =
    script!(value lock clock mint_fast number mint waiter queue inspect);
pub(crate) static BREAK: LazyLock<Script> =
    script!(value lock clock mint_fast number mint waiter queue break);

static SETNX_ASK: LazyLock<Script> = script!(clock mint_fast number mint setnx setnx_ask);
static SETNX_RELEASE: LazyLock<Script> = script!(setnx setnx_release);
static SETNX_EXTEND: LazyLock<Script> = script!(setnx setnx_extend);
static SETNX_RAISE: LazyLock<Script> = script!(clock mint_fast number setnx setnx_raise);
static SETNX_INSPECT: LazyLock<Script> = script!(setnx setnx_inspect);
static SETNX_BREAK: LazyLock<Script> = script!(setnx setnx_break);

/// What the scripts of one recipe are for.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// How many of [all keys](crate::Keys::all) they have.
    pub(crate) keys: usize,
    pub(crate) ask: &'static LazyLock<Script>,
    /// Does the same, sooner when the lock is the owner's already.
    pub(crate) confirm: &'static LazyLock<Script>,
    pub(crate) release: &'static LazyLock<Script>,
    pub(crate) extend: &'static LazyLock<Script>,
    pub(crate) raise: &'static LazyLock<Script>,
    pub(crate) inspect: &'static LazyLock<Script>,
    pub(crate) break_lock: &'static LazyLock<Script>,
}

pub(crate) static SET_NX_PX: Scripts = Scripts {
    keys: 4,
    ask: &ASK,
    confirm: &CONFIRM,
    release: &RELEASE,
    extend: &EXTEND,
    raise: &RAISE,
    inspect: &INSPECT,
    break_lock: &BREAK,
};

pub(crate) static SETNX_TIMESTAMP: Scripts = Scripts {
    keys: 2,
    ask: &SETNX_ASK,
    confirm: &SETNX_ASK,
    release: &SETNX_RELEASE,
    extend: &SETNX_EXTEND,
    raise: &SETNX_RAISE,
    inspect: &SETNX_INSPECT,
    break_lock: &SETNX_BREAK,
};

/// Those that are loaded with every new connection. The others are when they are first used.
pub(crate) fn all() -> [&'static Script; 14] {
    [
        &ACQUIRE,
        &VACATE,
        &EXTEND_VOTE,
        &RAISE_VOTE,
        &INSPECT_VOTE,
        &ASK,
        &CONFIRM,
        &RELEASE,
        &ROTATE,
        &KEEP,
        &EXTEND,
        &RAISE,
        &INSPECT,
        &BREAK,
    ]
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source, hash: redis::Script::new(source).get_hash().to_owned() }
    }

    /// The script with these keys; the arguments follow.
    pub(crate) fn on(&'static self, keys: &[&str]) -> Call {
        let length: usize = keys.iter().map(|key| key.len()).sum();
        let mut command = Cmd::with_capacity(3 + keys.len() + ARGUMENTS, length + 64 + ARGUMENTS_LENGTH);
        command.arg("EVALSHA").arg(&self.hash).arg(keys.len()).arg(keys);
        Call { script: self, command, ahead: None }
    }

    /// The command that loads it.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.source);
        command
    }
}

impl Call {
    /// The keys: a cluster routes by them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut words = self.command.args_iter().filter_map(|word| match word {
            redis::Arg::Simple(bytes) => Some(bytes),
            _ => None,
        });
        let count = words.nth(2).and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
        words.take(count.unwrap_or(0))
    }

    /// Has the server write to those whom the script tells something before it writes the answer.
    ///
    /// Redis writes to its clients in the reverse order of when each of them got something to be written. The answer to a
    /// command ahead makes ours the first of them.
    pub(crate) fn answered_last(mut self) -> Self {
        let mut command = redis::cmd("EXISTS");
        command.arg(self.keys().next());
        self.ahead = Some(command);
        self
    }

    pub(crate) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// With these arguments, of which the script does not need those at the end that are as usual: each one costs the
    /// server most of a microsecond.
    pub(crate) fn unless_usual<const N: usize>(self, given: [&str; N], usual: [&str; N]) -> Self {
        let needed = (0..N).rfind(|&at| given[at] != usual[at]).map_or(0, |last| last + 1);
        given[..needed].iter().fold(self, |call, argument| call.arg(*argument))
    }
}
