//! The fake Redis of the testkit answers as Redis does, to the commands that locks use and to our scripts.
//!
//! Random commands go to both, in both protocols; answers and what is left are compared. What depends on the moment is
//! compared with slack: times to live, and numbers as long as a time in microseconds.

use lock_testkit::redis::Reply;
use lock_testkit::{FakeRedis, RedisServer, by_tier};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::common::script_text::source;

/// Our scripts, with their keys and arguments.
const SCRIPTS: &[(&str, &[&str])] = &[
    ("vote number clock last_token acquire", &["k", "tokens", "line", "value", "ttl", "token", "ttl"]),
    (
        "vote number clock last_token acquire",
        &["k", "tokens", "line", "value", "ttl", "token", "ttl", "vote entry", "since"],
    ),
    ("vote vacate number last_token hand_over", &["k", "tokens", "line", "owner", "number"]),
    ("vote vacate number last_token hand_over", &["k", "tokens", "line", "owner", "number", "vote entry"]),
    ("vote number last_token raise_vote", &["k", "tokens", "owner", "number", "ttl"]),
    ("vote extend_vote", &["k", "tokens", "owner", "ttl"]),
    ("vote extend_vote", &["k", "tokens", "owner", "ttl", "ttl"]),
    ("vote inspect_vote", &["k", "tokens", "line"]),
    (
        "clock ask_fast mint value ours waiter confirm lock ask_held queue ask",
        &["k", "tokens", "q", "holders", "owner", "ttl", "info"],
    ),
    (
        "clock ask_fast mint value ours waiter confirm lock ask_held queue ask",
        &["k", "tokens", "q", "holders", "owner", "ttl", "info", "entry", "mode", "ttl"],
    ),
    (
        "clock mint value ours waiter confirm ask_fast lock ask_held queue ask",
        &["k", "tokens", "q", "holders", "owner", "ttl", "info", "entry"],
    ),
    (
        "value ours release_fast clock mint pass_on lock waiter queue release",
        &["k", "tokens", "q", "holders", "owner"],
    ),
    (
        "value ours release_fast clock mint pass_on lock waiter queue release",
        &["k", "tokens", "q", "holders", "owner", "channel", "entry"],
    ),
    (
        "value ours clock mint lock waiter queue leave_free release",
        &["k", "tokens", "q", "holders", "owner", "nothing", "nothing", "ttl", "ttl"],
    ),
    ("value ours clock mint rotate", &["k", "tokens", "owner", "owner", "ttl", "info"]),
    ("value ours clock mint rotate", &["k", "tokens", "owner", "owner", "ttl", "info", "ttl"]),
    ("value ours waiter keep extend_fast", &["k", "tokens", "q", "owner", "ttl"]),
    ("value ours waiter keep extend_fast", &["k", "tokens", "q", "owner", "ttl", "ttl"]),
    ("value ours extend_fast lock clock mint waiter queue extend", &["k", "tokens", "owner", "ttl"]),
    (
        "value ours extend_fast lock clock mint waiter queue extend",
        &["k", "tokens", "holders", "owner", "ttl", "ttl"],
    ),
    (
        "value lock clock mint raise_last waiter queue raise",
        &["k", "tokens", "q", "holders", "owner", "number", "ttl"],
    ),
    ("value lock clock mint waiter queue inspect", &["k", "tokens", "q", "holders", "channel", "owner"]),
    ("value lock clock mint waiter queue break", &["k", "tokens", "q", "holders", "hash", "channel"]),
    (
        "value ours lock clock mint waiter queue downgrade extend",
        &["k", "tokens", "q", "holders", "owner", "ttl", "ttl", "channel"],
    ),
    (
        "clock mint setnx setnx_moved setnx_ask",
        &[
            "k", "tokens", "f", "text", "owner", "nothing", "info", "nothing", "mode", "ttl", "time", "sent",
            "unit", "now",
        ],
    ),
    ("setnx setnx_release", &["k", "tokens", "f", "owner"]),
    ("setnx setnx_extend", &["k", "tokens", "f", "owner", "nothing", "ttl", "time", "sent"]),
    ("clock mint raise_last setnx setnx_raise", &["k", "tokens", "f", "owner", "number", "ttl"]),
    ("setnx setnx_moved setnx_inspect", &["k", "tokens", "f", "text", "channel", "owner", "unit", "now"]),
    ("value ours waiter swap", &["k", "tokens", "q", "owner", "moved", "ttl", "channel"]),
    ("value lock tombstone", &["k"]),
    ("value clock mint raise_last remove_tombstone", &["k", "tokens", "moved", "number", "until", "ttl"]),
    (
        "clock setnx setnx_moved setnx_swap",
        &["k", "tokens", "f", "text", "owner", "moved", "ttl", "time", "unit", "skew"],
    ),
    ("setnx setnx_moved setnx_tombstone", &["k", "text", "unit"]),
    (
        "clock mint raise_last setnx setnx_moved setnx_value remove_tombstone",
        &["k", "tokens", "text", "moved", "number", "until", "ttl", "unit"],
    ),
    ("setnx setnx_moved setnx_break", &["k", "tokens", "f", "text", "hash", "unit", "now"]),
];

/// The names of keys among those.
const KEYS: [&str; 7] = ["k", "f", "q", "holders", "text", "tokens", "line"];

/// Scripts that show how values are turned into each other.
const CONVERSIONS: &[&str] = &[
    "return 3.99",
    "return -2.5",
    "return 1e15 + 0.5",
    "return {1, 2.7, 'x', false, true, nil, 4}",
    "return {{1}, {'a', {}}, {ok='fine'}, {err='MY error'}}",
    "return false",
    "return true",
    "return nil",
    "return '\\0\\255'",
    "return redis.status_reply('FINE')",
    "return redis.error_reply('MY error')",
    "return redis.error_reply('-MY error')",
    "return redis.error_reply('error')",
    "return redis.error_reply()",
    "return {ok='x', 1}",
    "return {err='MY x', ok='y'}",
    "return {double=3.5}",
    "return redis.call('GET', KEYS[1])",
    "return redis.pcall('LPUSH', KEYS[1], 'x')",
    "return redis.pcall('LPUSH', KEYS[1], 'x').err or 'none'",
    "return redis.call('nosuch', KEYS[1])",
    "return redis.call('GET')",
    "return redis.call()",
    "return redis.pcall('GET', {})",
    "return redis.call('SUBSCRIBE', 'x')",
    "return redis.call('TYPE', KEYS[1]).ok",
    "return redis.call('TYPE', KEYS[1])",
    "return type(redis.call('GET', KEYS[1]))",
    "return type(redis.call('LPOP', KEYS[1]))",
    "return #redis.call('LRANGE', KEYS[1], 0, -1)",
    "return {redis.call('ZRANGE', KEYS[1], 0, -1)}",
    "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')",
    "return redis.call('ZSCORE', KEYS[1], 'a')",
    "return redis.call('SET', KEYS[1], 1.5, 'PX', 100000)",
    "return redis.call('SET', KEYS[1], 1e20)",
    "return redis.call('SET', KEYS[1], 2 ^ 53)",
    "return redis.call('SET', KEYS[1], 1 / 3)",
    "return {pcall(redis.call, 'LLEN', KEYS[1])}",
    "local ok, error = pcall(redis.call, 'NOSUCH'); return type(error)",
    "return nosuch",
    "made = 1",
    "error('by hand')",
    "error({err='MY own'})",
    "return KEYS[1] .. ARGV[1]",
    "return #KEYS * 10 + #ARGV",
    "return string.format('%.0f', tonumber('9007199254740991') + 1)",
    "return string.match('12 ab x', '^(%d+) (%x+) ')",
    "return {string.sub(redis.sha1hex(KEYS[1]), 1, 20), string.sub(redis.sha1hex(''), 21)}",
    "return tostring(nil) .. tostring(12) .. tostring(0.1)",
    "return redis.call('PUBLISH', ARGV[1], '')",
    "return #redis.call('TIME')",
    "return redis.call('TIME')[1] == redis.call('TIME')[1]",
    "return {redis.call('SET', KEYS[1], 'v', 'NX'), redis.call('SET', KEYS[1], 'v', 'NX')}",
    "this is no script",
];

/// Commands with words that are replaced by random ones.
const COMMANDS: &str = "\
get k|set k v|set k v PX ttl|set k v NX|set k v NX PX ttl|set k v KEEPTTL|set k v PX bad|set k v PXAT far
set k v PXAT far PX 100|set k v PX x|set k v PX 100 KEEPTTL|set k|get k k
del k|del k k|exists k k|type k|pttl k|pexpire k ttl|pexpire k bad|pexpire k ttl NX|pexpire k ttl ZZ|pexpireat k far|keys *|keys k*
dbsize|flushall|lpush k v|lpush k v v|rpush k v|rpush k v v v|lpop k|llen k|lindex k n|lrange k n n|lrange k 0 -1|lpos k v
lpos k v MAXLEN n|lpos k v MAXLEN|lrem k n v|zadd k n v|zadd k n v n v|zadd k NX n v|zadd k XX CH n v|zadd k GT n v|zadd k LT CH n v
zadd k NX XX n v|zadd k x v|zadd k 1.5 v|zadd k inf v|zrem k v|zcard k|zscore k v|zrange k 0 -1|zrange k n n WITHSCORES
zremrangebyscore k n n|zremrangebyscore k (n +inf|zremrangebyscore k x n|zpopmin k
publish channel v|spublish channel v|pubsub numsub channel channel|pubsub shardnumsub channel|ping|ping v
config set maxmemory 1|config set maxmemory 0
select 0|select x|config get maxmemory-policy|script exists v|role|wait 0 0|client getname|client setname v|nosuch k v
subscribe|evalsha v 0|eval v|client tracking on|client tracking off|client no-evict on|hello 9|hello x
set lock value NX PX ttl|set lock owner|set lock v|get lock|del lock|pexpire lock ttl|zadd tokens GT CH token last
zadd tokens GT CH number last|zadd tokens huge last|zscore tokens last|pexpire tokens ttl|del tokens|rpush tokens v v
zcard line|del line|zadd line n v|zadd line NX n v|flushall";

/// What only the commands and scripts on a lock of several masters have.
const OF_MASTERS: [&str; 3] = ["lock", "tokens", "line"];

#[test]
fn random_commands_and_scripts_are_answered_alike() {
    if !RedisServer::version().starts_with("Redis 7.0") {
        return RedisServer::leave_out("answers like those of Redis 7.0, which the fake imitates");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let real = runtime.block_on(RedisServer::start()).unwrap();
    for resp3 in [false, true] {
        let config = Config { cases: by_tier(30, 40, 150), failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new(config);
        let ran = runner.run(&commands(), |commands| {
            runtime.block_on(compare(&real, resp3, &commands)).map_err(TestCaseError::fail)
        });
        if let Err(failure) = ran {
            panic!("RESP3 {resp3}: {failure}");
        }
    }
}

#[tokio::test]
async fn our_scripts_are_whole() {
    let mut runner = TestRunner::deterministic();
    for (parts, names) in SCRIPTS {
        let (keys, arguments): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| KEYS.contains(name));
        // Of a single server, and of one of several masters.
        for value in
            ["cafe 7 5 {}", "cafe 5 {}", "beef 7 me and you", "polylock:shared cafe 7 5 {}"].repeat(15)
        {
            let redis = FakeRedis::new();
            drop(redis.command(&["SET", "k", value, "PX", "100000"]));
            let arguments = words(arguments.iter().copied()).new_tree(&mut runner).unwrap().current();
            let rest = keys.iter().map(|key| (*key).to_owned()).chain(arguments).collect();
            let eval = eval(source(parts), keys.len(), rest);
            let answer = redis.command(&eval.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(!format!("{answer:?}").contains("Error"), "{names:?} {value}: {answer:?}");
        }
    }
}

#[test]
fn the_comparison_sees_a_fake_that_differs() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let real = RedisServer::start().await.unwrap();
        let list = [["rpush", "k1", "a"].map(String::from).to_vec()];
        assert_eq!(compare(&real, true, &list).await, Ok(()));
        let (mut real, mut fake) = both(&real, true).await;
        drop(run(&mut fake, &["pexpire", "k1", "50000"].map(String::from)).await);
        drop(run(&mut real, &["rpush", "k1", "a"].map(String::from)).await);
        assert!(same_state(&mut real, &mut fake).await.is_err());
    });
}

/// Commands mostly on keys of one type, so that something becomes of them, or on all.
fn commands() -> impl Strategy<Value = Vec<Vec<String>>> {
    select(&["l", "z", "k", "any", "masters", "all"]).prop_flat_map(|theme| vec(command(theme), 1..100))
}

fn command(theme: &'static str) -> impl Strategy<Value = Vec<String>> {
    let templates = COMMANDS.lines().flat_map(|line| line.split('|'));
    let themed: Vec<&str> = templates.filter(|template| theme == "all" || home(template) == theme).collect();
    let plain = select(themed).prop_flat_map(|template| {
        let home = home(template);
        words(template.split(' ').map(move |name| if name == "k" { home } else { name }))
    });
    let is_ours = |(_, names): &&(_, &[&str])| theme != "masters" || of_masters(names.iter().copied());
    let scripts: Vec<_> = SCRIPTS.iter().filter(is_ours).collect();
    let scripts = select(scripts).prop_flat_map(|(parts, names)| {
        let keys = names.iter().filter(|name| KEYS.contains(name)).count();
        words(names.iter().copied()).prop_map(move |rest| eval(source(parts), keys, rest))
    });
    let conversions = select(CONVERSIONS)
        .prop_flat_map(|source| words(["k", "k", "channel"]).prop_map(move |rest| eval(source, 2, rest)));
    let (ours, others) = match theme {
        "masters" => (16, 1),
        "k" | "any" | "all" => (5, 3),
        _ => (1, 1),
    };
    prop_oneof![8 => plain, ours => scripts, others => conversions]
}

/// The sort of key that a command is mostly used with, so that it seldom meets a key of another type.
fn home(template: &str) -> &'static str {
    match template.split(' ').next().unwrap_or_default() {
        _ if of_masters(template.split(' ')) => "masters",
        "type" | "pttl" | "pexpire" | "exists" => "any",
        name if name.starts_with(['l', 'r']) => "l",
        name if name.starts_with('z') => "z",
        _ => "k",
    }
}

fn of_masters<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| OF_MASTERS.contains(&name))
}

fn eval(source: &str, keys: usize, rest: Vec<String>) -> Vec<String> {
    let mut words = vec!["eval".to_owned(), source.to_owned(), keys.to_string()];
    words.extend(rest);
    words
}

fn words<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<BoxedStrategy<String>> {
    names.into_iter().map(word).collect()
}

fn word(name: &str) -> BoxedStrategy<String> {
    let choices: &'static [&'static str] = match name {
        "k" => &["k1", "k2"],
        "l" => &["l1", "l1", "l1", "l1", "l2", "k2"],
        "z" => &["z1", "z1", "z1", "z1", "z2", "k2"],
        "any" => &["k1", "k2", "l1", "z1", "f1"],
        "f" => &["f1", "f2", "k2"],
        "v" => {
            &["a", "a", "b", "", "7", "12 cafe 5 x", "cafe 5 {}", "cafe 7 5 {}", "polylock:shared a 5 5 {}"]
        }
        "owner" => &["cafe", "beef", "a"],
        // On one of several masters.
        "value" => &["cafe 5 {}", "cafe 5 {}", "beef 7 me and you", "a 5 "],
        "lock" => &["k1", "k1", "k1", "k2"],
        "tokens" => &["t1", "t1", "t1", "t1", "k2"],
        "line" => &["n1", "n1", "n1", "n1", "k2"],
        // Of those who are passed over, as nobody listens.
        "vote entry" => &["cafe:1 100000 5000000 2 c1 {}", "beef:2 100000 604800000 2 c2 me and you", "a b"],
        "since" => &["5", "7", "80"],
        "huge" => &["9007199254740990", "9007199254740991", "1e17", "1.5"],
        "info" => &["{}", "me and you"],
        "ttl" => &["100000", "200000", "5000000"],
        "bad" => &["0", "-1", "-100", "x", "9223372036854775807"],
        "far" => &["4000000000000", "5000000000000"],
        "token" => &["", "5", "77", "1234567890", "99999999999"],
        "number" => &["5", "80", "2234567890"],
        "nothing" => &[""],
        "until" => &["5", "4000000000000000"],
        "skew" => &["0", "1000"],
        // In either unit, over or not.
        "time" => &["1700000300000", "1700000100000", "1700000300", "1700000100", "90000000000000"],
        // Of a lock that has moved.
        "text" => &["x1", "k2"],
        "moved" => &["polylock:moved to=zk", "polylock:moved to=zk", "7"],
        "now" => &["1700000000000", "1700000200000"],
        "unit" => &["1", "1000"],
        "sent" => &["5", "7"],
        "n" => &["0", "1", "2", "-1", "-2", "5", "-100"],
        "(n" => &["(0", "(1", "(5"],
        "channel" => &["", "c1", "c2"],
        // Of the value "beef 7 me and you".
        "hash" => &["", "97ce6453960d02ba7f7382ccb0857f64ecdab736"],
        "q" => &["q1", "q1", "q1", "q1", "k2"],
        "holders" => &["w1", "w1", "w1", "w1", "k2"],
        "mode" => &["x", "x", "r", "1", "2"],
        "entry" => &[
            "",
            "cafe:1 x 100000 5000000 2 c1 {}",
            "beef:2 r 100000 5000000 2 c1 {}",
            "a:3 2 100000 5000000 2 c2 {}",
            "junk",
        ],
        other => return Just(other.to_owned()).boxed(),
    };
    select(choices).prop_map(str::to_owned).boxed()
}

async fn compare(real: &RedisServer, resp3: bool, commands: &[Vec<String>]) -> Result<(), String> {
    let (mut real, mut fake) = both(real, resp3).await;
    for command in commands {
        let (expected, got) = (run(&mut real, command).await, run(&mut fake, command).await);
        if !alike(&expected, &got) {
            return Err(format!("{command:?}: Redis says {expected}, the fake {got}"));
        }
    }
    same_state(&mut real, &mut fake).await
}

/// A connection to either; both servers are empty.
async fn both(real: &RedisServer, resp3: bool) -> (MultiplexedConnection, MultiplexedConnection) {
    let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
    let info = RedisConnectionInfo::default().set_protocol(protocol);
    let redis = FakeRedis::new();
    redis.step_clock(now_ms(&real.command(&["TIME"]).await.unwrap()) - now_ms(&redis.command(&["TIME"])));
    let stream = redis.connect().unwrap();
    let config = AsyncConnectionConfig::new();
    let (fake, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await.unwrap();
    drop(tokio::spawn(driver));
    let address = redis::IntoConnectionInfo::into_connection_info(real.url()).unwrap();
    let client = Client::open(address.set_redis_settings(info)).unwrap();
    let mut real = client.get_multiplexed_async_connection().await.unwrap();
    for command in ["flushall", "config set maxmemory 0"] {
        let words: Vec<_> = command.split(' ').map(str::to_owned).collect();
        drop(run(&mut real, &words).await);
    }
    (real, fake)
}

/// What is done while a connection watches: to the keys by another connection, or by itself.
const DEEDS: &str = "\
self get k1|self get k2|self pttl k1|self exists k1 k2|self set k1 v|self eval return(redis.call('GET',KEYS[1])) 1 k1
self eval return(redis.call('SET',KEYS[1],'v')) 1 k2|self subscribe c1|self unsubscribe c1|self ssubscribe c1
self client tracking off|self client tracking on|self client tracking on noloop|set k1 v|set k2 v NX|get k1|del k1|del k2
pexpire k1 50000|rpush l1 v|self llen l1|lrem l1 0 x|lrem l1 0 v|publish c1 v|spublish c1 v|flushall
eval redis.call('DEL',KEYS[1]);redis.call('SET',KEYS[1],'v') 1 k1|pexpire k2 0|self flushall";

#[test]
fn what_is_pushed_is_alike() {
    if RedisServer::lacks("sharded channels", (7, 0)) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let real = runtime.block_on(RedisServer::start()).unwrap();
    let deeds: Vec<&str> = DEEDS.lines().flat_map(|line| line.split('|')).collect();
    let mut runner = TestRunner::new(Config {
        cases: by_tier(20, 30, 100),
        failure_persistence: None,
        ..Config::default()
    });
    let ran = runner.run(&vec(select(deeds), 1..40), |deeds| {
        runtime.block_on(compare_pushes(&real, &deeds)).map_err(TestCaseError::fail)
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
}

async fn compare_pushes(real: &RedisServer, deeds: &[&str]) -> Result<(), String> {
    let fake = FakeRedis::new();
    drop(real.command(&["FLUSHALL"]).await.unwrap());
    let ((mut watching_real, mut real_pushes), (mut watching_fake, mut fake_pushes)) =
        (watching(tcp(real).await).await, watching(fake.connect().unwrap()).await);
    for deed in deeds {
        match deed.strip_prefix("self ") {
            Some(deed) => {
                let words: Vec<String> = deed.split(' ').map(str::to_owned).collect();
                drop((run(&mut watching_real, &words).await, run(&mut watching_fake, &words).await));
            }
            None => {
                let words: Vec<&str> = deed.split(' ').collect();
                drop((real.command(&words).await.unwrap(), fake.command(&words)));
            }
        }
        let expected = pushed(&mut watching_real, &mut real_pushes).await;
        let got = pushed(&mut watching_fake, &mut fake_pushes).await;
        if expected != got {
            return Err(format!("after {deed:?} Redis pushes {expected:?}, the fake {got:?}"));
        }
    }
    Ok(())
}

async fn tcp(real: &RedisServer) -> TcpStream {
    TcpStream::connect(real.addr()).await.unwrap()
}

async fn watching(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> (MultiplexedConnection, UnboundedReceiver<PushInfo>) {
    let (sender, pushes) = unbounded_channel();
    let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let (mut connection, driver) =
        MultiplexedConnection::new_with_config(&info, stream, config).await.unwrap();
    drop(tokio::spawn(driver));
    drop(run(&mut connection, &["client", "tracking", "on"].map(String::from)).await);
    (connection, pushes)
}

/// What was pushed so far: whatever came before the answer to a PING.
async fn pushed(
    connection: &mut MultiplexedConnection,
    pushes: &mut UnboundedReceiver<PushInfo>,
) -> Vec<String> {
    drop(run(connection, &["ping".to_owned()]).await);
    std::iter::from_fn(|| pushes.try_recv().ok()).map(|push| format!("{push:?}")).collect()
}

fn now_ms(time: &Reply) -> i64 {
    time.array().unwrap()[0].int().unwrap() * 1000
}

async fn run(connection: &mut MultiplexedConnection, words: &[String]) -> String {
    let mut command = redis::cmd(&words[0]);
    command.arg(&words[1..]);
    let shown = match command.query_async::<Value>(connection).await {
        Ok(Value::Array(mut elements)) if words[0] == "keys" => {
            elements.sort_by_key(show);
            show(&Value::Array(elements))
        }
        Ok(value) => show(&value),
        Err(error) => error.to_string(),
    };
    without_details(&shown)
}

fn show(value: &Value) -> String {
    format!("{value:?}")
}

/// Without the place in a script, and without what Lua says about errors in it.
fn without_details(shown: &str) -> String {
    let shown = shown.split(" script: ").next().unwrap_or_default();
    match shown.split_once("user_script:") {
        Some((before, _)) => before.trim_end_matches(['@', ' ']).to_owned(),
        None => shown.to_owned(),
    }
}

/// Equal but for numbers, and hashes of values, that depend on the moment.
fn alike(expected: &str, got: &str) -> bool {
    let [expected, got] = [expected, got].map(without_hashes);
    let ([expected_rest, got_rest], [expected_numbers, got_numbers]) =
        ([&*expected, &*got].map(without_numbers), [&*expected, &*got].map(numbers));
    expected_rest == got_rest
        && expected_numbers.len() == got_numbers.len()
        && expected_numbers.iter().zip(got_numbers).all(|(expected, got)| {
            // The fake's clock began in 2023.
            let moments = expected.abs() > 1e15 && got.abs() > 1e15 && expected.abs() < 5e15;
            let slack = if *expected >= 3_000.0 {
                2_000.0
            } else if *expected >= 90.0 {
                2.0
            } else {
                0.0
            };
            moments || (expected - got).abs() <= slack
        })
}

fn without_hashes(text: &str) -> String {
    let is_hex = |letter: char| letter.is_ascii_hexdigit();
    let hashes = text.split(|letter| !is_hex(letter)).filter(|part| part.len() == 40);
    hashes.fold(text.to_owned(), |rest, hash| rest.replace(hash, "hash"))
}

fn is_digit(letter: char) -> bool {
    letter.is_ascii_digit()
}

fn without_numbers(text: &str) -> String {
    text.split(is_digit).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
}

fn numbers(text: &str) -> Vec<f64> {
    text.split(|letter| !is_digit(letter)).filter_map(|part| part.parse().ok()).collect()
}

async fn same_state(
    real: &mut MultiplexedConnection,
    fake: &mut MultiplexedConnection,
) -> Result<(), String> {
    let looks = ["type", "get", "lrange # 0 -1", "zrange # 0 -1 withscores", "pttl"];
    for key in ["k1", "k2", "f1", "f2", "l1", "l2", "z1", "z2", "t1", "n1", "u1"] {
        for look in looks {
            let template = if look.contains('#') { look.to_owned() } else { format!("{look} #") };
            let words: Vec<String> =
                template.split(' ').map(|word| if word == "#" { key } else { word }.to_owned()).collect();
            let (expected, got) = (run(real, &words).await, run(fake, &words).await);
            if !alike(&expected, &got) {
                return Err(format!("in the end {words:?}: Redis says {expected}, the fake {got}"));
            }
        }
    }
    let (expected, got) = (run(real, &["dbsize".into()]).await, run(fake, &["dbsize".into()]).await);
    if expected == got { Ok(()) } else { Err(format!("Redis has {expected} keys, the fake {got}")) }
}
