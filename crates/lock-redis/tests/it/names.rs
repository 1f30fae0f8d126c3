//! Host names: several addresses, of which some are silent, and name servers that do not answer.

use std::error::Error as _;
use std::net::TcpListener;

use lock_core::lookup::TestName;
use lock_core::{ErrorKind, Locks};
use lock_redis::RedisConfig;
use lock_testkit::{RedisServer, acquiring, come, ended, give_back, until};
use tokio::runtime::Builder;

use crate::common::connect;

/// A name of two addresses: the first accepts connections and is silent, the second is that of a server at this port.
fn half_silent(name: &str, port: u16) -> (TestName, TcpListener) {
    let silent = TcpListener::bind(("127.0.0.2", port)).unwrap();
    (TestName::new(name, [[127, 0, 0, 2], [127, 0, 0, 1]]), silent)
}

/// A waiter is notified, so the connection for notifications is there as well.
async fn works(one: &Locks, other: &Locks) {
    let guard = one.mutex("a").acquire().await.unwrap();
    let waiter = acquiring(other.mutex("a"));
    until("a waiter", async || one.inspect("a").await.unwrap().waiters == 1).await;
    give_back(guard).await;
    give_back(come(waiter).await).await;
}

#[tokio::test]
async fn a_name_whose_first_address_is_silent_leads_to_the_next_one() {
    for (name, options) in [("queue.test", ""), ("notify.test", "&wait=notify")] {
        let server = RedisServer::start().await.unwrap();
        let _name = half_silent(name, server.port());
        let url = format!("redis://{name}:{}?connect_timeout=10s{options}", server.port());
        let (one, other) = (connect(&url).await, connect(&url).await);
        works(&one, &other).await;
        // All connect anew.
        server.kill();
        server.start_again().await.unwrap();
        works(&one, &other).await;
    }
}

#[test]
fn a_name_server_that_does_not_answer_keeps_no_runtime_from_ending() {
    let _name = TestName::unanswered("redis.unanswered.test");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
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
    let url = "redis+sentinel://sentinel.unanswered.test/main?connect_timeout=200ms";
    let error = runtime.block_on(RedisConfig::from_url(url).unwrap().connect()).unwrap_err();
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
    works(&connect(&url("redis.lock.test")).await, &connect(&url("redis.lock.test")).await).await;
    // Its addresses are the same, and the certificate is for another name.
    let _other = TestName::new("redis.other.test", [[127, 0, 0, 1]]);
    let refused = RedisConfig::from_url(&url("redis.other.test")).unwrap().connect().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
}
