//! A hand-over that a master in quarantine does not decide.

use lock_testkit::{RedisFive, RedisServer, acquiring, come, give_back, take, until};

use crate::common::{PATIENT, backend, client, lined_up, run};

/// The owner id of the only waiter for the lock `a`.
async fn queued(master: &RedisServer) -> Option<String> {
    let entries = run(master, "ZRANGE polylock:line:{lock:a} 0 -1").await;
    let [entry] = entries.array().unwrap() else { return None };
    entry.text().unwrap().split(':').next().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_handed_over_by_the_masters_that_did_not_restart() {
    let three = RedisFive::start_n(3).await.unwrap();
    let options = format!("ttl=60s&longest_ttl=60s&{PATIENT}");
    let holder = client(&three, &options).await;
    let (votes, waiting) = backend(&format!("{}?{options}", three.url())).await;
    let [restarted, second, third] = three.servers() else { unreachable!("three were started") };
    let guard = take(&holder, "a").await;
    let waiter = acquiring(waiting.mutex("a"));
    lined_up(&three, "a", 1).await;
    let before = queued(second).await;
    restarted.kill();
    restarted.start_again().await.unwrap();
    // The connection broke: it asks with another owner id, and is in the queues of those that vote.
    until("it joins the queues again", async || {
        let owner = queued(second).await;
        owner.is_some() && owner != before && owner == queued(third).await
    })
    .await;
    assert_eq!(queued(restarted).await, None);
    assert!(guard.is_valid());
    let owner = queued(second).await;
    give_back(guard).await;
    let guard = come(waiter).await;
    assert_eq!(Some(guard.owner().to_string()), owner);
    give_back(guard).await;
    assert_eq!(votes.votes().handed_over, 1, "{}", votes.votes());
}
