//! Host names: several addresses, of which some are silent, and name servers that do not answer.

use std::net::TcpListener;

use lock_core::lookup::TestName;
use lock_testkit::{RedisServer, ended, give_back, hand_over, queue_up, take, until};
use tokio::runtime::Builder;

use crate::common::{PATIENT, connect};

#[tokio::test]
async fn masters_with_names_whose_first_address_is_silent_all_vote() {
    let (mut masters, mut urls) = (Vec::new(), Vec::new());
    for name in ["one.test", "two.test", "three.test"] {
        let server = RedisServer::start().await.unwrap();
        let silent = TcpListener::bind(("127.0.0.2", server.port())).unwrap();
        urls.push(format!("{name}:{}", server.port()));
        masters.push((server, silent, TestName::new(name, [[127, 0, 0, 2], [127, 0, 0, 1]])));
    }
    let url = format!("redlock://{}?ttl=20s&{PATIENT}", urls.join(","));
    let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let guard = take(&one, "a").await;
    for (server, ..) in &masters {
        until("a vote", async || server.has_key("lock:a").await).await;
    }
    let waiter = queue_up(&other, "a").await;
    give_back(hand_over(guard, waiter).await).await;
}

#[test]
fn a_name_server_that_does_not_answer_keeps_no_runtime_from_ending() {
    let _name = TestName::unanswered("redlock.unanswered.test");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let hosts = [1, 2, 3].map(|port| format!("redlock.unanswered.test:{port}")).join(",");
    // Time: it does not answer, whatever the timeout.
    runtime.block_on(connect(&format!("redlock://{hosts}?connect_timeout=200ms"))).unwrap_err();
    ended(runtime);
}
