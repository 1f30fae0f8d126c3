//! What the gates of a migration ask of the store that locks move from, on real servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::migration::{MigrationSource, Swapped, Writer};
use lock_core::{Backend, ErrorKind, Finding, FindingLevel, LockName, Locks, Token, TokenBlock};
use lock_redis::Redis;
use lock_testkit::{RedisCluster, RedisServer, give_back, take, until};
use redis_link::redis;

use crate::common::{backend, hold, tombstone, url_without};

/// A server, and a source whose user has all rights.
async fn start() -> (RedisServer, Arc<Redis>, Locks) {
    let server = RedisServer::builder().appendonly(true).start().await.unwrap();
    let (redis, locks) = backend(&server.url()).await;
    (server, redis, locks)
}

fn source(redis: &Redis) -> &dyn MigrationSource {
    redis.migration_source().unwrap()
}

async fn move_lock(redis: &Redis, name: &str) {
    let name = LockName::new(name).unwrap();
    let mut lease = hold(redis, &name).await;
    let swapped = source(redis).swap(&mut *lease, &tombstone(&name)).await.unwrap();
    assert!(matches!(swapped, Swapped::Done { .. }), "{swapped:?}");
}

fn warnings(findings: &[Finding]) -> Vec<String> {
    let warnings = findings.iter().filter(|finding| finding.level >= FindingLevel::Warning);
    warnings.map(ToString::to_string).collect()
}

async fn preflight(redis: &Redis) -> Vec<Finding> {
    source(redis).examine("to=zk://a namespace=shop").await.unwrap()
}

// ---- Claims ----

#[tokio::test]
async fn the_locks_of_a_prefix_take_part_in_one_migration() {
    let (server, redis, _) = start().await;
    let (other, _) = backend(&format!("{}?prefix=lock:a/", server.url())).await;
    let claim = async |text| source(&redis).claim(text).await.unwrap();
    assert_eq!(claim("one").await, "one");
    assert_eq!(claim("one").await, "one");
    assert_eq!(claim("two").await, "one");
    source(&redis).unclaim("two").await.unwrap();
    assert_eq!(claim("two").await, "one");
    assert_eq!(server.text(&["PTTL", "polylock:migration:lock:"]).await, "Int(-1)");
    // A part of the same locks, and others.
    assert!(warnings(&source(&other).examine("one").await.unwrap()).is_empty(), "it is the same migration");
    let found = warnings(&source(&other).examine("two").await.unwrap());
    assert!(found.len() == 1 && found[0].contains("\"one\"") && found[0].contains("\"lock:\""), "{found:?}");
    assert_eq!(source(&other).claim("two").await.unwrap(), "two");
    let found = warnings(&source(&redis).examine("one").await.unwrap());
    assert!(found.len() == 1 && found[0].contains("\"two\""), "{found:?}");
    let (apart, _) = backend(&format!("{}?prefix=jobs:", server.url())).await;
    assert!(warnings(&source(&apart).examine("three").await.unwrap()).is_empty());
    source(&redis).unclaim("one").await.unwrap();
    assert_eq!(claim("two").await, "two");
    assert!(source(&redis).tombstones("").await.unwrap().is_empty(), "a claim is no lock");
    assert_eq!(source(&redis).longest_lease().await.unwrap(), None);
}

#[tokio::test]
async fn an_identity_names_the_keys_and_no_password() {
    let server = RedisServer::builder().password("s3cret").start().await.unwrap();
    let (redis, _) = backend(&format!("{}/2", server.url())).await;
    let identity = source(&redis).identity();
    assert_eq!(identity, format!("redis://{}/2?prefix=lock:", server.addr()));
}

// ---- Preflight ----

#[tokio::test]
async fn a_server_that_may_forget_tombstones_is_reported() {
    let server = RedisServer::builder().maxmemory_policy("allkeys-lru").start().await.unwrap();
    let (redis, _) = backend(&server.url()).await;
    let found = warnings(&preflight(&redis).await);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("allkeys-lru") && found[1].contains("appendonly is no"), "{found:?}");
    server.text(&["CONFIG", "SET", "save", "3600 1"]).await;
    server.text(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    let findings = preflight(&redis).await;
    assert!(warnings(&findings).is_empty(), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.what.contains("since the last snapshot")), "{findings:?}");
}

#[tokio::test]
async fn a_preflight_tries_a_move_and_leaves_nothing() {
    let (server, redis, _) = start().await;
    let findings = preflight(&redis).await;
    assert!(warnings(&findings).is_empty(), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.what.contains("moved back")), "{findings:?}");
    assert_eq!(server.text(&["DBSIZE"]).await, "Int(0)");
}

#[tokio::test]
async fn a_missing_right_is_found_before_the_first_move() {
    let (server, _, _) = start().await;
    for missing in ["-pexpire", "-del", "-info"] {
        let (redis, _) = backend(&url_without(&server, &[missing]).await).await;
        let found = warnings(&preflight(&redis).await);
        assert!(found.iter().any(|found| found.contains(&missing.replace('-', "+"))), "{missing}: {found:?}");
    }
    let (redis, _) = backend(&url_without(&server, &["-@admin", "+info"]).await).await;
    let findings = preflight(&redis).await;
    let note =
        |finding: &&Finding| finding.level == FindingLevel::Note && finding.advice.contains("+acl|list");
    assert!(findings.iter().any(|finding| note(&finding)), "{findings:?}");
}

#[tokio::test]
async fn replicas_have_to_answer_in_time() {
    let (server, redis, _) = start().await;
    let replica = server.replica().await.unwrap();
    let findings = preflight(&redis).await;
    assert!(warnings(&findings).is_empty(), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.what.contains("all 1 replicas")), "{findings:?}");
    assert!(findings.iter().any(|finding| finding.what.contains("users of their own")), "{findings:?}");
    replica.stop();
    let found = warnings(&preflight(&redis).await);
    assert!(found.len() == 1 && found[0].contains("0 of 1 replicas"), "{found:?}");
    replica.cont();
    assert_eq!(server.text(&["DBSIZE"]).await, "Int(0)");
}

// ---- Writers ----

async fn users(redis: &Redis) -> Vec<(String, usize)> {
    let writers = source(redis).writers().await.unwrap();
    writers.into_iter().map(|Writer { user, connections, .. }| (user, connections)).collect()
}

#[tokio::test]
async fn everybody_who_may_acquire_a_lock_is_a_writer() {
    if RedisServer::lacks("users that may only read a key (%R~)", (7, 0)) {
        return;
    }
    let (server, redis, _) = start().await;
    let writers = source(&redis).writers().await.unwrap();
    let [default] = &writers[..] else { panic!("{writers:?}") };
    assert_eq!((default.server.as_str(), default.user.as_str()), (&*server.addr().to_string(), "default"));
    assert!(default.connections >= 1, "{default:?}");
    let add = async |user: &str, rules: &str, selector: &str| {
        let words: Vec<&str> = ["ACL", "SETUSER", user].into_iter().chain(rules.split(' ')).collect();
        let words = if selector.is_empty() { words } else { [words, vec![selector]].concat() };
        assert_eq!(server.text(&words).await, "OK", "{user}");
    };
    for (user, rules, selector) in [
        ("all", "on >p ~* +@all", ""),
        ("begin", "on >p ~lo* +set", ""),
        ("fetch", "on >p ~lock:* +getset", ""),
        ("only_script", "on >p %W~lock:* +evalsha", ""),
        ("selector", "on >p ~cache:* +@all", "(~lock:x +setnx)"),
        ("mixed", "on >p ~cache:* +set", "(%RW~lock:* +get)"),
    ] {
        add(user, rules, selector).await;
    }
    for (user, rules) in [
        ("elsewhere", "on >p ~cache:* ~locks +@all"),
        ("one_key", "on >p ~lo +@all"),
        ("reader", "on >p ~* +@read"),
        ("read_keys", "on >p %R~* +@all"),
        ("off", "off >p ~* +@all"),
        ("deleter", "on >p ~* +del +unlink +expire"),
        ("nothing", "on >p ~* -@all"),
    ] {
        add(user, rules, "").await;
    }
    let found: BTreeSet<String> = users(&redis).await.into_iter().map(|(user, _)| user).collect();
    let expected = ["all", "begin", "default", "fetch", "mixed", "only_script", "selector"];
    assert_eq!(found, expected.map(str::to_owned).into());
}

#[tokio::test]
async fn a_disabled_user_counts_as_long_as_it_is_connected() {
    let (server, redis, _) = start().await;
    let (_, worker) = backend(&format!("{}?wait=poll", url_without(&server, &[]).await)).await;
    let guard = take(&worker, "a").await;
    server.call(&["ACL", "SETUSER", "worker", "off"]).await;
    let of_worker = async || users(&redis).await.into_iter().find(|(user, _)| user == "worker");
    assert_eq!(of_worker().await, Some(("worker".into(), 1)));
    guard.verify().await.unwrap();
    // Its connection goes on.
    drop(take(&worker, "b").await);
    server.call(&["CLIENT", "KILL", "USER", "worker"]).await;
    assert_eq!(of_worker().await, None);
}

#[tokio::test]
async fn who_may_not_see_the_users_is_told_which_rights_it_needs() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let (server, _, _) = start().await;
    for missing in ["-acl|list", "-acl|dryrun", "-client|list", "-info"] {
        let (redis, _) = backend(&url_without(&server, &[missing]).await).await;
        let error = source(&redis).writers().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{missing}: {error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains(&missing.replace('-', "+")), "{hint}");
    }
}

#[tokio::test]
async fn a_server_that_was_demoted_is_not_believed() {
    let (server, redis, _) = start().await;
    let master = RedisServer::start().await.unwrap();
    server.text(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
    let error = source(&redis).writers().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "replica"), "{error}");
}

// ---- Leases, after the keys were closed ----

/// Leaves only the right to read to everybody.
async fn close(server: &RedisServer) {
    server.text(&["ACL", "SETUSER", "default", "resetkeys", "%R~*"]).await;
}

#[tokio::test]
async fn the_longest_lease_is_read_when_nobody_may_write() {
    if RedisServer::lacks("users that may only read a key (%R~)", (7, 0)) {
        return;
    }
    let (server, redis, locks) = start().await;
    assert_eq!(source(&redis).longest_lease().await.unwrap(), None);
    move_lock(&redis, "moved").await;
    let guard = take(&locks, "a").await;
    server.text(&["SET", "lock:other", "x", "PX", "60000"]).await;
    server.text(&["SET", "elsewhere", "x"]).await;
    close(&server).await;
    assert!(source(&redis).writers().await.unwrap().is_empty());
    let longest = source(&redis).longest_lease().await.unwrap().unwrap();
    assert!(longest > Duration::from_secs(50) && longest <= Duration::from_secs(60), "{longest:?}");
    let listed = source(&redis).tombstones("").await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    server.text(&["ACL", "SETUSER", "default", "~*"]).await;
    server.text(&["DEL", "lock:other"]).await;
    let longest = source(&redis).longest_lease().await.unwrap().unwrap();
    assert!(longest > Duration::from_secs(10) && longest <= Duration::from_secs(30), "{longest:?}");
    give_back(guard).await;
    assert_eq!(source(&redis).longest_lease().await.unwrap(), None);
    // As Redisson has its locks.
    server.text(&["HSET", "lock:hash", "id", "1"]).await;
    assert_eq!(source(&redis).longest_lease().await.unwrap(), Some(Duration::MAX));
    server.text(&["PEXPIRE", "lock:hash", "90000"]).await;
    assert!(source(&redis).longest_lease().await.unwrap() <= Some(Duration::from_secs(90)));
    server.text(&["DEL", "lock:hash"]).await;
    let shared = locks.rw("shared").read().await.unwrap();
    assert!(source(&redis).longest_lease().await.unwrap() > Some(Duration::from_secs(10)));
    give_back(shared).await;
    assert_eq!(source(&redis).longest_lease().await.unwrap(), None);
}

#[tokio::test]
async fn the_largest_token_is_read_when_nobody_may_write() {
    if RedisServer::lacks("users that may only read a key (%R~)", (7, 0)) {
        return;
    }
    let (server, redis, locks) = start().await;
    assert_eq!(source(&redis).largest_token().await.unwrap(), None);
    let mut largest = None;
    // The last one has a hash tag of its own.
    for (name, ahead) in [("a", 5), ("b", 700_000_000_000_000), ("{orders}/42", 900_000_000_000_000)] {
        let guard = take(&locks, name).await;
        let raised = Token::new(guard.token().get() + ahead);
        guard.raise_token(raised).await.unwrap();
        give_back(guard).await;
        // Up to the end of its block.
        largest = Some(Token::new(TokenBlock::end(raised.get())));
        assert_eq!(source(&redis).largest_token().await.unwrap(), largest, "{name}");
    }
    // Of another prefix, and of another type.
    server.text(&["ZADD", "polylock:tokens:{elsewhere:a}", "8999999999999999", "last"]).await;
    server.text(&["HSET", "polylock:tokens:{lock:odd}", "a", "b"]).await;
    close(&server).await;
    assert_eq!(source(&redis).largest_token().await.unwrap(), largest);
}

#[tokio::test]
async fn tombstones_are_listed_as_they_are() {
    let (server, redis, _) = start().await;
    for name in ["orders/1", "orders/2", "jobs/1"] {
        move_lock(&redis, name).await;
    }
    server.text(&["PEXPIRE", "lock:orders/1", "100000"]).await;
    let listed = source(&redis).tombstones("orders/").await.unwrap();
    let names: Vec<&str> = listed.iter().map(|reading| reading.tombstone.lock.as_str()).collect();
    assert_eq!(names, ["orders/1", "orders/2"]);
    let left = listed[0].until.saturating_duration_since(listed[0].sent);
    assert!(left > Duration::from_secs(60) && left <= Duration::from_secs(100), "{left:?}");
    let pttl = server.call(&["PTTL", "lock:orders/1"]).await.int().unwrap();
    assert!(pttl <= 100_000, "a listing refreshes nothing");
    for reading in &listed {
        assert!(source(&redis).is_current(reading, &reading.tombstone.lock));
    }
    server.restart().await.unwrap();
    let name = LockName::new("a").unwrap();
    until("there is a connection", async || redis.inspect(&name).await.is_ok()).await;
    assert!(!source(&redis).is_current(&listed[0], &listed[0].tombstone.lock));
}

#[tokio::test]
async fn there_is_no_limit_to_the_number_of_tombstones() {
    let (server, redis, _) = start().await;
    let client = redis::Client::open(server.url()).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let number = lock_core::backend::MAX_LISTED + 1000;
    for first in (0..number).step_by(1000) {
        let mut commands = redis::pipe();
        for at in first..(first + 1000).min(number) {
            let name = LockName::new(format!("many/{at}")).unwrap();
            let key = format!("lock:{name}");
            commands.cmd("SET").arg(key).arg(tombstone(&name).to_string()).arg("EX").arg(86_400).ignore();
        }
        commands.query_async::<()>(&mut connection).await.unwrap();
    }
    assert_eq!(source(&redis).tombstones("many/").await.unwrap().len(), number);
    assert_eq!(source(&redis).longest_lease().await.unwrap(), None);
}

// ---- Clusters ----

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn every_master_of_a_cluster_is_asked() {
    if RedisServer::lacks("users that may only read a key (%R~)", (7, 0)) {
        return;
    }
    let cluster = RedisCluster::start().await.unwrap();
    let (redis, locks) = backend(&cluster.url()).await;
    assert!(source(&redis).identity().starts_with("redis+cluster://127.0.0.1:"));
    let findings = preflight(&redis).await;
    let tried = findings.iter().filter(|finding| finding.what.contains("moved back"));
    assert_eq!(tried.count(), 3, "{findings:?}");
    for name in ["a", "b", "c", "d", "e", "f"] {
        move_lock(&redis, name).await;
    }
    assert_eq!(source(&redis).tombstones("").await.unwrap().len(), 6);
    assert_eq!(source(&redis).longest_lease().await.unwrap(), None);
    let guard = take(&locks, "g").await;
    assert!(source(&redis).longest_lease().await.unwrap().is_some());
    give_back(guard).await;
    assert_eq!(source(&redis).claim("one").await.unwrap(), "one");
    assert_eq!(source(&redis).claim("two").await.unwrap(), "one");
    assert_eq!(warnings(&source(&redis).examine("two").await.unwrap()).len(), 4, "three have no persistence");
    source(&redis).unclaim("one").await.unwrap();
    let servers = |writers: Vec<Writer>| writers.into_iter().map(|writer| writer.server).collect::<Vec<_>>();
    assert_eq!(servers(source(&redis).writers().await.unwrap()).len(), 3);
    close(&cluster.masters()[0]).await;
    close(&cluster.masters()[2]).await;
    let open = servers(source(&redis).writers().await.unwrap());
    assert_eq!(open, [cluster.masters()[1].addr().to_string()]);
    cluster.masters()[1].kill();
    assert_eq!(source(&redis).writers().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(source(&redis).longest_lease().await.unwrap_err().kind(), ErrorKind::Unavailable);
}
