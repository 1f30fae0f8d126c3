//! Host names: several addresses, of which some are silent, and name servers that do not answer.

use std::net::TcpListener;

use lock_core::lookup::TestName;
use lock_core::{ErrorKind, GuardState, Locks, Result};
use lock_testkit::ended;
use lock_zk::ZkConfig;
use tokio::runtime::Builder;

use crate::common::{give_back, hand_over, queue_up, server, take, until};

async fn connect(url: &str) -> Result<Locks> {
    ZkConfig::from_url(url)?.connect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_name_whose_first_address_is_silent_leads_to_the_next_one_and_a_restart_loses_no_lock() {
    let server = server().await;
    let port = server.addr().port();
    let silent = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let _name = TestName::new("zk.test", [[127, 0, 0, 2], [127, 0, 0, 1]]);
    let url = format!("zk://zk.test:{port}?session_timeout=60s");
    let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let (guard, waiter) = (take(&one, "orders").await, queue_up(&other, "orders").await);

    server.kill();
    server.start_again().await.unwrap();
    until("the session moves", async || guard.verify().await.is_ok_and(|state| state == GuardState::Valid))
        .await;
    assert!(!waiter.is_finished());
    give_back(hand_over(guard, waiter).await).await;

    assert_eq!(lock_zk::unreachable(&format!("zk.test:{port}")).await, [""; 0]);
    drop(silent);
}

#[test]
fn a_name_server_that_does_not_answer_keeps_no_runtime_from_ending() {
    let _name = TestName::unanswered("zk.unanswered.test");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Time: an error at connect comes after it.
    let error = runtime.block_on(connect("zk://zk.unanswered.test?connect_timeout=500ms")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let why = runtime.block_on(lock_zk::unreachable("zk.unanswered.test"));
    assert!(why[0].contains("the name servers did not answer"), "{why:?}");
    ended(runtime);
}
