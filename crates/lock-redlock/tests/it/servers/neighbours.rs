//! Neighbours: another user of the masters, who may listen and publish.

use lock_testkit::{RedisFive, acquiring, come, give_back, hand_over, take};

use crate::common::{PATIENT, all_have_it, client, lined_up, run};

/// Says on each master to each process that this owner was granted the lock, without its secret.
async fn forge(five: &RedisFive, owner: &str, token: &str) {
    let guess = "0".repeat(40);
    for master in five.servers() {
        let inboxes = run(master, "PUBSUB CHANNELS polylock:inbox:*").await;
        for inbox in inboxes.array().unwrap().iter().filter_map(|inbox| inbox.text()) {
            for text in [
                format!("passed {owner} {token} lock:a"),
                format!("passed {owner} {token} {guess} lock:a"),
                format!("passed {owner} 9000000000000000 {guess} lock:a"),
                format!("granted {owner} {guess} lock:a"),
            ] {
                master.call(&["PUBLISH", inbox, &text]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_hand_over_neither_gives_nor_takes_a_lock() {
    let five = RedisFive::start().await.unwrap();
    // The grace period of a hand-over is not over when it is forged: it is four times the longest round trip.
    let options = format!("ttl=60s&{PATIENT}");
    let (holder, other) = (client(&five, &options).await, client(&five, &options).await);
    // A hand-over of another lock comes behind what was said before: that was handled by then.
    let handled = async || {
        let guard = take(&holder, "b").await;
        let waiter = acquiring(other.mutex("b"));
        lined_up(&five, "b", 1).await;
        give_back(hand_over(guard, waiter).await).await;
    };
    let values = async || {
        let mut values = Vec::new();
        for master in five.servers() {
            values.push(run(master, "GET lock:a").await);
        }
        values
    };
    handled().await;
    let guard = take(&holder, "a").await;
    all_have_it(&five).await;
    let (before, token) = (values().await, guard.token());
    forge(&five, &guard.owner().to_string(), &token.to_string()).await;
    handled().await;
    assert_eq!(values().await, before, "the lock was taken from its holder");

    let waiter = acquiring(other.mutex("a"));
    lined_up(&five, "a", 1).await;
    let first = run(&five.servers()[0], "ZRANGE polylock:line:{lock:a} 0 0").await;
    let owner = first.array().unwrap()[0].text().unwrap().split(':').next().unwrap();
    forge(&five, owner, &token.to_string()).await;
    handled().await;
    assert!(!waiter.is_finished(), "a lock that another holds was granted");
    assert!(guard.is_valid());
    give_back(guard).await;
    let guard = come(waiter).await;
    assert!(guard.token() > token && guard.token().get() < 2 * token.get(), "{:?}", guard.token());
    give_back(guard).await;
}
