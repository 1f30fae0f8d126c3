//! Users of the masters who may not do everything.

use lock_core::ErrorKind;
use lock_testkit::{RedisFive, RedisServer, acquiring, come, give_back, hand_over, is_renewed, take, until};

use crate::common::{connect, is_free, lined_up, run};

/// Masters with a user who may do everything but this, and their URL for that user.
async fn without(command: &str) -> (RedisFive, String) {
    let user = RedisServer::builder().user("ann", &format!("on nopass ~* &* +@all -{command}"));
    let three = user.start_n(3).await.unwrap();
    let url = three.url().replace("redlock://", "redlock://ann:x@");
    (three, url)
}

async fn on_all(three: &RedisFive, line: &str) {
    for master in three.servers() {
        run(master, line).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_an_identity_does_not_vote() {
    let (three, url) = without("info").await;
    let locks = connect(&url).await.unwrap();
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("+info"), "{error}");
    is_free(&three).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_without_an_identity_after_a_restart_does_not_vote() {
    let (three, url) = without("info").await;
    // Until it is restarted.
    on_all(&three, "ACL SETUSER ann +info").await;
    let locks = connect(&url).await.unwrap();
    give_back(take(&locks, "a").await).await;
    three.servers()[0].restart().await.unwrap();
    three.servers()[1].kill();
    until("it does not vote", async || {
        let error = locks.mutex("a").try_acquire().await.unwrap_err();
        error.to_string().contains("may not read whether the master has restarted")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_that_are_named_are_enough() {
    if RedisServer::lacks("rights to sharded channels", (7, 0)) {
        return;
    }
    let three = RedisFive::start_n(3).await.unwrap();
    on_all(&three, "ACL SETUSER ann on >x").await;
    let url = three.url().replace("redlock://", "redlock://ann:x@");
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    let named: Vec<&str> = text.split_whitespace().filter(|word| word.starts_with(['+', '~', '&'])).collect();
    on_all(&three, &format!("ACL SETUSER ann {}", named.join(" "))).await;
    let (locks, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let guard = take(&locks, "a").await;
    let waiter = acquiring(other.mutex("a"));
    lined_up(&three, "a", 1).await;
    let guard = hand_over(guard, waiter).await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_that_load_no_scripts_vote() {
    let (three, url) = without("script").await;
    let url = format!("{url}?ttl=6s");
    let (locks, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let guard = take(&locks, "a").await;
    let waiter = acquiring(other.mutex("a"));
    lined_up(&three, "a", 1).await;
    on_all(&three, "SCRIPT FLUSH").await;
    is_renewed(&guard).await;
    give_back(guard).await;
    give_back(come(waiter).await).await;
}

/// It is taken by plain commands first, and what these leave is the matter of the scripts.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_where_plain_commands_take_a_lock_and_the_scripts_are_refused() {
    let (three, url) = without("pttl").await;
    let locks = connect(&format!("{url}?ttl=60s")).await.unwrap();
    // The plain commands propose a token that is not larger.
    on_all(&three, "ZADD polylock:tokens:{lock:a} 4000000000000000 last").await;
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    is_free(&three).await;
    on_all(&three, "ACL SETUSER ann +pttl").await;
    let guard = take(&locks, "a").await;
    assert!(guard.token().get() > 4_000_000_000_000_000);
    give_back(guard).await;
}
