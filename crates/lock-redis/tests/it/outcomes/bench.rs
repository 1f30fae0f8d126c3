//! A real server, on which a lock is put into a state, operated on, and read again. What is done by scripts of a backend is its
//! own matter: [`Scripts`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lock_core::{ErrorKind, LockName, Mode, Outcome, OwnerId, Result, Token};
use lock_testkit::RedisServer;
use redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline, RedisResult, Value,
    cmd, pipe,
};
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::proof::Secret;
use redis_link::redis;
use tokio::time::timeout;

use super::laws::Step;
use super::op::Op;
use super::state::{
    Family, Fence, Lock, NAMES, Place, Stand, State, Ttl, Who, mode_of_entry, mode_text, ttl_text,
};

/// The scripts of a backend.
pub trait Scripts: Sized + Send + Sync {
    const FAMILY: Family;

    fn new(server: ConnectionInfo, tells_free: bool) -> Self;

    /// The entry of a waiter that wants the lock in this mode.
    fn entry(case: &Case, who: Who, mode: Mode) -> String;

    /// Compares what an operation did with the specification of locks, where there is one of these scripts.
    fn compare(_: &Step) {}

    /// What an operation of a client of ours answers, and the token that it got; `None` of what others do.
    fn run(&self, case: &Case, op: Op) -> impl Future<Output = Option<(String, Option<Token>)>> + Send;
}

/// How long a lock is kept for a waiter that was granted it, what an acquisition asks for, and an extension.
pub const GRACE: u32 = 100;
pub const ASKED: u32 = 300;
pub const EXTENDED: u32 = 400;
const PATIENCE: Duration = Duration::from_secs(10);
/// What is left of these is recognised while a minute has not passed.
const TTLS: [u32; 4] = [GRACE, 200, ASKED, EXTENDED];
pub const THEIRS: &str = "theirs";
const JUNK: &str = "no entry of a queue";
pub const SHARED: &str = "polylock:shared";
pub const PERMITS: &str = "polylock:permits";
/// The largest token that a master can note.
pub const LARGEST: u64 = (1 << f64::MANTISSA_DIGITS) - 1;
/// Since when whoever claims the lock of a master claims it, by its clock; 0 is also what is written of one who does not
/// say so.
pub const SINCE: u64 = 0;
/// The last message of a test: all earlier ones have arrived.
const END: &str = "end";
const FREE: &str = "polylock:free:*";

pub struct Bench<S> {
    scripts: S,
    connection: MultiplexedConnection,
    subscriptions: PubSubSink,
    messages: PubSubStream,
    heard: [bool; NAMES.len()],
    cases: u64,
    // Last, so that it outlives the connections.
    _redis: RedisServer,
}

/// One lock, its clients, and its state as last seen.
pub struct Case {
    pub keys: Arc<Keys>,
    owners: Vec<OwnerId>,
    family: Family,
    state: State,
    alive: [bool; NAMES.len()],
    /// The largest token so far.
    pub last: u64,
}

impl<S: Scripts> Bench<S> {
    pub async fn new(tells_free: bool) -> Self {
        let redis = RedisServer::start().await.unwrap();
        let scripts = S::new(redis.url().into_connection_info().unwrap(), tells_free);
        let client = Client::open(redis.url()).unwrap();
        // The default is half a second, which a busy machine may need.
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let connection = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
        let (mut subscriptions, messages) = client.get_async_pubsub().await.unwrap().split();
        subscriptions.subscribe(END).await.unwrap();
        // By a pattern, so that nobody is counted as waiting there.
        subscriptions.psubscribe(FREE).await.unwrap();
        let heard = [false; NAMES.len()];
        Self { scripts, connection, subscriptions, messages, heard, cases: 0, _redis: redis }
    }

    /// A new lock in this state.
    pub async fn case(&mut self, state: State) -> Case {
        let last = if state.fence == Fence::Full { LARGEST } else { 1000 };
        self.case_after(last, state).await
    }

    /// The same, whose last token is this one if it has any.
    pub async fn case_after(&mut self, last: u64, state: State) -> Case {
        self.cases += 1;
        let name = LockName::new(format!("case-{}", self.cases)).unwrap();
        let owners = NAMES.iter().map(|_| OwnerId::random()).collect();
        let family = S::FAMILY;
        let state = if family == Family::Single { state.of_single() } else { state };
        let mut alive = [true; NAMES.len()];
        (alive[6], alive[7]) = (false, false);
        let case = Case { keys: Arc::new(Keys::new("lock:", &name)), owners, family, state, alive, last };
        self.put(&case).await;
        self.listen_for(&case.alive).await;
        case
    }

    /// Does this to the lock, and checks what holds of every operation.
    pub async fn step(&mut self, case: &mut Case, op: Op) -> Step {
        let (answer, token) = match self.scripts.run(case, op).await {
            Some(answer) => answer,
            None => {
                self.happens(case, op).await;
                Default::default()
            }
        };
        let (after, last) = self.read(case).await;
        let notified = self.notified(case, last).await;
        let before = std::mem::replace(&mut case.state, after.clone());
        let (family, alive, previous) = (case.family, case.alive, case.last);
        let token = token.map(Token::get);
        let step = Step { op, family, alive, before, after, answer, notified, previous, token, last };
        step.check();
        S::compare(&step);
        case.last = previous.max(last.unwrap_or_default());
        if let Op::Die(who) | Op::Rise(who) = op {
            case.alive[who.0] = matches!(op, Op::Rise(_));
            self.listen_for(&case.alive).await;
        }
        step
    }

    /// The keys of a lock that do not end by themselves.
    pub async fn left_for_ever(&self, case: &Case) -> Vec<String> {
        let keys = &case.keys;
        let mut stay = Vec::new();
        for key in [keys.queue(), keys.holders(), keys.tokens(), &keys.line()] {
            if self.redis::<i64>(&["PTTL", key]).await == -1 {
                stay.push(key.to_owned());
            }
        }
        stay
    }

    pub async fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut self.connection.clone()).await.unwrap()
    }

    async fn put(&self, case: &Case) {
        let (keys, state) = (&case.keys, &case.state);
        let mut pipe = pipe();
        match &state.lock {
            Lock::Free => {}
            Lock::Hash => hash(&mut pipe, keys.lock()),
            Lock::Held(who, ttl) => set(&mut pipe, keys.lock(), &case.held(*who), *ttl),
            Lock::Bare(who, ttl) => set(&mut pipe, keys.lock(), &case.owner(*who).to_string(), *ttl),
            Lock::Longer(who, ttl) => set(&mut pipe, keys.lock(), &case.longer(*who), *ttl),
            Lock::Foreign(ttl) => set(&mut pipe, keys.lock(), THEIRS, *ttl),
            Lock::Readers(ttl) => set(&mut pipe, keys.lock(), &case.shared(SHARED), *ttl),
            Lock::Permits(ttl) => set(&mut pipe, keys.lock(), &case.shared(PERMITS), *ttl),
        }
        let now = self.now().await;
        for (who, ttl) in &state.shares {
            let ends = if *ttl == 0 { 1 } else { now + u64::from(*ttl) * 1000 };
            pipe.cmd("ZADD").arg(keys.holders()).arg(ends).arg(case.owner(*who).to_string());
        }
        for place in &state.queue {
            let entry = match place {
                Place::Waits(who, mode) if case.family == Family::Single => S::entry(case, *who, *mode),
                // A master knows nothing of it.
                Place::Waits(who, mode) => format!("{} {}", case.owner(*who), mode_text(*mode)),
                Place::Junk => JUNK.to_owned(),
            };
            pipe.cmd("RPUSH").arg(keys.queue()).arg(entry);
        }
        for stand in &state.line {
            let (since, entry) = match stand {
                Stand::Waits(who) => (since(*who), S::entry(case, *who, Mode::Exclusive)),
                Stand::Junk => (0, JUNK.to_owned()),
            };
            pipe.cmd("ZADD").arg(keys.line()).arg(since).arg(entry);
        }
        match state.fence {
            Fence::Lost => {}
            Fence::Hash => hash(&mut pipe, keys.tokens()),
            Fence::Of(_) | Fence::Full => {
                pipe.cmd("ZADD").arg(keys.tokens()).arg(case.last).arg("last");
            }
        }
        if !pipe.is_empty() {
            let _: Value = pipe.query_async(&mut self.connection.clone()).await.unwrap();
        }
    }

    async fn happens(&self, case: &Case, op: Op) {
        let key = case.keys.lock();
        let command = match op {
            Op::Set(ttl) => set_if(key, "NX", ttl),
            Op::Overwrite(ttl) => set_if(key, "XX", ttl),
            // On a string it is refused.
            Op::SetHash => cmd("HSET").arg(key).arg("field").arg(1).to_owned(),
            Op::Delete => cmd("UNLINK").arg(key).to_owned(),
            Op::Expire(who) => {
                let mut command = cmd("ZADD");
                command.arg(case.keys.holders()).arg("XX").arg(1).arg(case.owner(who).to_string()).to_owned()
            }
            Op::FlushAll => cmd("FLUSHALL"),
            Op::ScriptFlush => cmd("SCRIPT").arg("FLUSH").to_owned(),
            _ => return,
        };
        let _: RedisResult<Value> = command.query_async(&mut self.connection.clone()).await;
    }

    /// The notifications since the last call. `last` is the last token now.
    async fn notified(&mut self, case: &Case, last: Option<u64>) -> Vec<String> {
        let _: u64 = self.redis(&["PUBLISH", END, ""]).await;
        let mut notified = Vec::new();
        loop {
            let message = timeout(PATIENCE, self.messages.next()).await.unwrap().unwrap();
            let (channel, text) = (message.get_channel_name(), message.get_payload::<String>().unwrap());
            let key = case.keys.lock();
            let text = text.replace(key, "KEY");
            match text.split(' ').collect::<Vec<_>>()[..] {
                _ if channel == END => return notified,
                _ if channel == case.keys.channel() => notified.push("free".into()),
                ["granted", owner, proof, "KEY"] => {
                    assert_eq!(proof, proof_of("granted", owner, key), "{text}");
                    notified.push(format!("{} granted", case.addressee(owner, channel)));
                }
                ["passed", owner, token, proof, "KEY"] if Some(token.parse().unwrap()) == last => {
                    assert_eq!(proof, proof_of(token, owner, key), "{text}");
                    notified.push(format!("{} passed", case.addressee(owner, channel)));
                }
                ["next", owner, millis] => {
                    let ends_in = ttl_text(label(millis.parse().unwrap()));
                    notified.push(format!("{} next {ends_in}", case.addressee(owner, channel)));
                }
                _ => panic!("{channel} got {text:?}"),
            }
        }
    }

    /// The state of the lock, and the last token.
    async fn read(&self, case: &Case) -> (State, Option<u64>) {
        let keys = &case.keys;
        let mut reads = pipe();
        reads.ignore_errors();
        reads.cmd("TYPE").arg(keys.lock()).cmd("GET").arg(keys.lock()).cmd("PTTL").arg(keys.lock());
        reads.cmd("ZRANGE").arg(keys.holders()).arg(0).arg(-1).arg("WITHSCORES");
        reads.cmd("LRANGE").arg(keys.queue()).arg(0).arg(-1);
        reads.cmd("TYPE").arg(keys.tokens());
        reads.cmd("ZRANGE").arg(keys.tokens()).arg(0).arg(-1).arg("WITHSCORES");
        reads.cmd("ZRANGE").arg(keys.line()).arg(0).arg(-1);
        let now = self.now().await;
        let answers: Vec<RedisResult<Value>> = reads.query_async(&mut self.connection.clone()).await.unwrap();
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap();

        let kind: String = text(next());
        let (value, ttl) = (text(next()), label(from(next())));
        let lock = match (kind.as_str(), value.as_str()) {
            ("none", _) => Lock::Free,
            ("hash", _) => Lock::Hash,
            (_, THEIRS) => Lock::Foreign(ttl),
            (_, value) if value.starts_with(SHARED) => Lock::Readers(ttl),
            (_, value) if value.starts_with(PERMITS) => Lock::Permits(ttl),
            (_, value) => case.lock(value, ttl),
        };
        let shares: Vec<(String, f64)> = from(next());
        let shares = shares.into_iter().map(|(owner, ends)| (case.who(&owner).unwrap(), left(ends, now)));
        let shares: BTreeMap<_, _> = shares.collect();
        let entries: Vec<String> = from(next());
        let queue = entries.iter().map(|entry| case.place(entry)).collect();
        let (kind, noted) = (text(next()), next());
        let line: Vec<String> = from(next());
        let stand = |entry: &String| {
            let is_of = |who: &Who| *entry == S::entry(case, *who, Mode::Exclusive);
            (0..NAMES.len()).map(Who).find(is_of).map_or(Stand::Junk, Stand::Waits)
        };
        let line = line.iter().map(stand).collect();
        let (fence, token) = match kind.as_str() {
            "none" => (Fence::Lost, None),
            "hash" => (Fence::Hash, None),
            _ => match last_token(&from::<Vec<(String, f64)>>(noted)) {
                (Fence::Of(_), token) => (Fence::Of(case.latest(&value)), token),
                full => full,
            },
        };
        (State { lock, shares, queue, fence, line }, token)
    }

    async fn listen_for(&mut self, alive: &[bool; NAMES.len()]) {
        for (who, alive) in alive.iter().enumerate() {
            if *alive && !self.heard[who] {
                self.subscriptions.subscribe(inbox(Who(who))).await.unwrap();
            } else if !*alive && self.heard[who] {
                self.subscriptions.unsubscribe(inbox(Who(who))).await.unwrap();
            }
        }
        self.heard = *alive;
    }

    /// In milliseconds.
    async fn now(&self) -> u64 {
        let (seconds, micros): (u64, u64) = self.redis(&["TIME"]).await;
        seconds * 1000 + micros / 1000
    }
}

impl Case {
    pub fn owner(&self, who: Who) -> OwnerId {
        self.owners[who.0]
    }

    pub fn proposed(&self, by: i64) -> Token {
        Token::new(self.last.checked_add_signed(self.state.above(by)).unwrap())
    }

    /// What the key of the lock is set to.
    fn held(&self, who: Who) -> String {
        match self.family {
            Family::Single => format!("{} {} 1 {who}", self.owner(who), self.last),
            Family::Master => format!("{} {SINCE} {who}", self.owner(who)),
        }
    }

    /// The same of a lock that several may hold.
    fn shared(&self, marker: &str) -> String {
        match self.state.fence {
            Fence::Of(Some(who)) => format!("{marker} {}", self.held(who)),
            _ => marker.to_owned(),
        }
    }

    /// The same, by a client whose id begins like this one's.
    fn longer(&self, who: Who) -> String {
        format!("{}0 {SINCE} {who}", self.owner(who))
    }

    /// The lock, when its key has a value that is known.
    fn lock(&self, value: &str, ttl: Ttl) -> Lock {
        let is = |text: String| value == text;
        let who = (0..NAMES.len()).map(Who).find(|who| value.starts_with(&self.owner(*who).to_string()));
        match who {
            Some(who) if self.latest(value) == Some(who) => Lock::Held(who, ttl),
            Some(who) if is(self.held(who)) || self.is_handed_over(value, who) => Lock::Held(who, ttl),
            Some(who) if is(self.longer(who)) => Lock::Longer(who, ttl),
            Some(who) if is(self.owner(who).to_string()) => Lock::Bare(who, ttl),
            _ => panic!("the lock is {value:?}"),
        }
    }

    /// Whether a master has handed the lock over to this one: the value has the proposed token in place of the start.
    fn is_handed_over(&self, value: &str, who: Who) -> bool {
        let words: Vec<_> = value.split(' ').collect();
        let [owner, since, name] = words[..] else { return false };
        let is_master = self.family == Family::Master;
        is_master
            && owner == self.owner(who).to_string()
            && since.parse::<u64>().is_ok()
            && name == NAMES[who.0]
    }

    /// The holder that a single server names in the value of the lock, which tells about it: the latest of several.
    fn latest(&self, value: &str) -> Option<Who> {
        let held =
            value.strip_prefix(SHARED).or_else(|| value.strip_prefix(PERMITS)).unwrap_or(value).trim_start();
        let [owner, token, since, name] = held.split(' ').collect::<Vec<_>>()[..] else { return None };
        let who = self.who(owner).filter(|_| self.family == Family::Single)?;
        assert_eq!(name, NAMES[who.0], "what is told about the owner");
        token.parse::<u64>().ok().zip(since.parse::<u64>().ok()).map(|_| who)
    }

    pub fn who(&self, owner: &str) -> Option<Who> {
        self.owners.iter().position(|other| other.to_string() == owner).map(Who)
    }

    fn place(&self, entry: &str) -> Place {
        let mut words = entry.split(' ');
        let who = words.next().and_then(|owner| self.who(owner.split(':').next()?));
        let mode = words.next().and_then(mode_of_entry);
        match (who, mode) {
            (Some(who), Some(mode)) => Place::Waits(who, mode),
            _ => Place::Junk,
        }
    }

    fn addressee(&self, owner: &str, channel: &str) -> Who {
        let who = self.who(owner).unwrap();
        assert_eq!(channel, inbox(who), "notified on the wrong channel");
        who
    }
}

fn hash(pipe: &mut Pipeline, key: &str) {
    pipe.cmd("HSET").arg(key).arg("field").arg(1);
}

fn set(pipe: &mut Pipeline, key: &str, value: &str, ttl: Ttl) {
    pipe.cmd("SET").arg(key).arg(value);
    if let Some(seconds) = ttl {
        pipe.arg("EX").arg(seconds);
    }
}

fn set_if(key: &str, condition: &str, ttl: Ttl) -> Cmd {
    let mut command = cmd("SET");
    command.arg(key).arg(THEIRS).arg(condition);
    if let Some(seconds) = ttl {
        command.arg("EX").arg(seconds);
    }
    command
}

pub fn verdict(verdict: Result<LockAnswer>) -> (String, Option<Token>) {
    match verdict {
        Ok(LockAnswer::Granted(token)) => ("granted".into(), Some(token)),
        Ok(LockAnswer::Busy { ends_in, foreign_type, position: place }) => {
            let ends_in = ends_in.map_or_else(
                || "never".into(),
                |left| ttl_text(label(i64::try_from(left.as_millis()).unwrap())),
            );
            let kind = foreign_type.map(|kind| format!(" {kind}")).unwrap_or_default();
            let place = place.map(|place| format!(" place={place}")).unwrap_or_default();
            (format!("busy {ends_in}{kind}{place}"), None)
        }
        Ok(LockAnswer::Broken) => panic!("the connection broke"),
        Err(error) => (refused(&error), None),
    }
}

pub fn refused(error: &lock_core::Error) -> String {
    let what = (error.kind(), error.outcome());
    assert_eq!(what, (ErrorKind::Unexpected, Outcome::NotApplied), "{error}");
    let text = error.to_string();
    let names_the_prefix = text.contains("WRONGTYPE") && text.contains("prefix");
    assert!(names_the_prefix || text.contains("centuries ahead"), "{error}");
    "refused".into()
}

pub fn inbox(who: Who) -> String {
    format!("inbox:{who}")
}

/// In microseconds since 1970.
pub fn since(who: Who) -> u64 {
    1_700_000_000_000_000 + who.0 as u64
}

pub fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

fn left(ends: f64, now: u64) -> u32 {
    let left = ends as i64 - now as i64;
    if left <= 0 { 0 } else { label(left).unwrap() }
}

/// What a time to live in milliseconds was when it was set.
fn label(millis: i64) -> Ttl {
    match millis {
        -1 => None,
        ..=0 => Some(0),
        millis => {
            let set = TTLS.into_iter().find(|ttl| {
                let ttl = i64::from(*ttl) * 1000;
                millis <= ttl && millis > ttl - 60_000
            });
            Some(set.unwrap_or_else(|| panic!("a time to live of {millis} ms")))
        }
    }
}

fn from<T: redis::FromRedisValue>(answer: RedisResult<Value>) -> T {
    redis::from_redis_value_ref(&answer.unwrap()).unwrap()
}

/// What a master knows of the last token, and that token.
fn last_token(noted: &[(String, f64)]) -> (Fence, Option<u64>) {
    let [(member, token)] = noted else { panic!("it notes one token: {noted:?}") };
    assert_eq!(member, "last");
    let token = *token as u64;
    (if token == LARGEST { Fence::Full } else { Fence::Of(None) }, Some(token))
}

/// A string; empty where there is none, or something else.
fn text(answer: RedisResult<Value>) -> String {
    answer.ok().and_then(|value| redis::from_redis_value_ref(&value).ok()).unwrap_or_default()
}

/// Those that are not empty, one behind the other.
pub fn words(words: &[&str]) -> String {
    words.iter().copied().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// What the server makes of the secret of this owner, which is the owner id again.
fn proof_of(what: &str, owner: &str, key: &str) -> String {
    Secret::new(OwnerId::decode(owner).unwrap()).proof(what, key)
}
