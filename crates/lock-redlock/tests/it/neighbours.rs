//! Neighbours: another user of the masters, who may listen and publish.

use std::time::Duration;

use lock_testkit::{RedisFive, RedisServer, acquiring, come, give_back, until};
use tokio::time::timeout;

use crate::common::connect;

const PATIENCE: Duration = Duration::from_secs(60);
const LINE: &str = "polylock:line:{lock:a}";

async fn inboxes(master: &RedisServer) -> Vec<String> {
    let channels = master.call(&["PUBSUB", "CHANNELS", "polylock:inbox:*"]).await;
    channels.array().unwrap().iter().map(|channel| channel.text().unwrap().to_owned()).collect()
}

/// Says on each master to each process that this owner was granted the lock, without its secret; then waits until all processes have
/// handled that, as they have answered what came behind it.
async fn forge(five: &RedisFive, owner: &str, token: &str) {
    let guess = "0".repeat(40);
    for master in five.servers() {
        for inbox in inboxes(master).await {
            for text in [
                format!("passed {owner} {token} lock:a"),
                format!("passed {owner} {token} {guess} lock:a"),
                format!("passed {owner} 9000000000000000 {guess} lock:a"),
                format!("granted {owner} {guess} lock:a"),
            ] {
                master.call(&["PUBLISH", &inbox, &text]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_hand_over_neither_gives_nor_takes_a_lock() {
    let five = RedisFive::start().await.unwrap();
    // The grace period of a hand-over is not over when it is forged: it is a quarter of the longest answer.
    let url = format!("{}?ttl=60s&master_timeout=10s&connect_timeout=20s", five.url());
    let (holder, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let take = async |name| timeout(PATIENCE, holder.mutex(name).acquire()).await.unwrap().unwrap();
    // Who waits hands over another lock to it, behind what was said before.
    let handled = async || {
        let guard = take("b").await;
        let waiter = acquiring(other.mutex("b"));
        for master in five.servers() {
            let line = "polylock:line:{lock:b}";
            until("it waits", async || master.call(&["ZCARD", line]).await.int() == Some(1)).await;
        }
        give_back(guard).await;
        give_back(come(waiter).await).await;
    };
    handled().await;
    let guard = take("a").await;
    let values = async || {
        let mut values = Vec::new();
        for master in five.servers() {
            values.push(master.call(&["GET", "lock:a"]).await.text().unwrap_or_default().to_owned());
        }
        values
    };
    until("all masters grant it", async || values().await.iter().all(|value| !value.is_empty())).await;
    let (before, token) = (values().await, guard.token().to_string());

    forge(&five, &guard.owner().to_string(), &token).await;
    handled().await;
    assert_eq!(values().await, before, "the lock was taken from its holder");

    let waiter = acquiring(other.mutex("a"));
    for master in five.servers() {
        until("it waits", async || master.call(&["ZCARD", LINE]).await.int() == Some(1)).await;
    }
    let first = five.servers()[0].call(&["ZRANGE", LINE, "0", "0"]).await;
    let owner = first.array().unwrap()[0].text().unwrap().split(':').next().unwrap().to_owned();
    forge(&five, &owner, &token).await;
    handled().await;
    assert!(!waiter.is_finished(), "a lock that another holds was granted");
    assert!(guard.is_valid());
    let last = guard.token();
    give_back(guard).await;
    let guard = come(waiter).await;
    assert!(guard.token() > last && guard.token().get() < 2 * last.get(), "{:?}", guard.token());
    give_back(guard).await;
}
