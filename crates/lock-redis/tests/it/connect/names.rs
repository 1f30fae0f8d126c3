//! Host names: several addresses, of which some are silent, name servers that do not answer, and names that move to another server.

use std::error::Error as _;
use std::net::TcpListener;

use lock_core::ErrorKind;
use lock_core::lookup::TestName;
use lock_redis::RedisConfig;
use lock_testkit::{RedisServer, ended, give_back, hand_over, is_renewed, queue_up, soon, take};
use tokio::runtime::Builder;

use crate::common::dial::Record;
use crate::common::{connect, try_connect};

/// A name of two addresses: the first accepts connections and is silent, the second is that of a server at this port.
fn half_silent(name: &str, port: u16) -> (TestName, TcpListener) {
    let silent = TcpListener::bind(("127.0.0.2", port)).unwrap();
    (TestName::new(name, [[127, 0, 0, 2], [127, 0, 0, 1]]), silent)
}

/// A waiter is notified, so the connection for notifications is there as well.
async fn works(url: &str) {
    let (one, other) = (connect(url).await, connect(url).await);
    let guard = take(&one, "a").await;
    let waiter = queue_up(&other, "a").await;
    give_back(hand_over(guard, waiter).await).await;
}

#[tokio::test]
async fn a_name_whose_first_address_is_silent_leads_to_the_next_one() {
    for (name, options) in [("queue.test", ""), ("notify.test", "&wait=notify")] {
        let server = RedisServer::start().await.unwrap();
        let _name = half_silent(name, server.port());
        let url = format!("redis://{name}:{}?connect_timeout=10s{options}", server.port());
        let before = connect(&url).await;
        works(&url).await;
        server.restart().await.unwrap();
        works(&url).await;
        give_back(take(&before, "b").await).await;
    }
}

#[test]
fn a_name_server_that_does_not_answer_keeps_no_runtime_from_ending() {
    let _name = TestName::unanswered("redis.unanswered.test");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Time: there is no answer.
    let config = RedisConfig::from_url("redis://redis.unanswered.test?connect_timeout=200ms").unwrap();
    let error = runtime.block_on(config.connect()).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "timeout"), "{error}");
    let why = error.source().map(ToString::to_string).unwrap_or_default();
    assert!(why.contains("name servers did not answer"), "{why}");
    ended(runtime);
}

#[test]
fn sentinels_whose_name_is_not_answered_keep_no_runtime_from_ending() {
    let _name = TestName::unanswered("sentinel.unanswered.test");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Time: there is no answer.
    let url = "redis+sentinel://sentinel.unanswered.test/main?connect_timeout=200ms";
    let error = runtime.block_on(try_connect(url)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    ended(runtime);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn over_tls_the_certificate_is_that_of_the_name_and_a_silent_address_is_passed_over() {
    use std::sync::Arc;

    use lock_testkit::Certificates;

    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = Arc::new(Certificates::new().unwrap());
    let server = RedisServer::builder().tls(&certificates, false).start().await.unwrap();
    let (ca, port) = (certificates.ca(), server.tls_addr().port());
    let url = |name: &str| format!("rediss://{name}:{port}?connect_timeout=10s&tls_ca={}", ca.display());
    let _name = half_silent("redis.lock.test", port);
    works(&url("redis.lock.test")).await;
    // Its addresses are the same, and the certificate is for another name.
    let _other = TestName::new("redis.other.test", [[127, 0, 0, 1]]);
    let refused = try_connect(&url("redis.other.test")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
}

// ---- Names that move ----

/// Whoever is connected stays with the old server, as long as it lives.
#[tokio::test]
async fn a_name_that_moves_while_the_old_server_lives_has_two_holders() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let record = Record::of(&old);
    let url = format!("{}?ttl=5s", old.url());
    let before = record.connect(&url).await;
    let first = take(&before, "a").await;
    record.moves_to(&new);
    let second = take(&record.connect(&url).await, "a").await;
    // Each is renewed at its server.
    is_renewed(&first).await;
    is_renewed(&second).await;

    // This is why the old server has to end before the name moves.
    old.kill();
    soon(first.lost()).await;
    assert!(second.is_valid());
    assert!(before.mutex("a").try_acquire().await.unwrap().is_none(), "it connects by the name");
    give_back(second).await;
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn a_master_that_is_demoted_is_left_for_the_new_one() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let record = Record::of(&old);
    let locks = record.connect(&old.url()).await;
    give_back(take(&locks, "a").await).await;
    // The connection stays, and is of no use any more.
    old.call(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).await;
    record.moves_to(&new);
    let guard = take(&locks, "a").await;
    assert!(new.has_key("lock:a").await);
    give_back(guard).await;
}
