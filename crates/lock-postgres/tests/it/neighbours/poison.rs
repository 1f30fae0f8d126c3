//! Calls of a role that may use locks, which would make calls of others fail.

use lock_postgres::schema::{Grants, install};

use crate::site::{Site, connect, take};

const OWNER: &str = "'00000000-0000-0000-0000-00000000000e'";
const INBOX: &str = "repeat('a', 32)";

#[tokio::test]
async fn values_out_of_bounds_are_refused_at_the_door() {
    let site = Site::open().await;
    let app = site.role("app").await;
    site.client().await.batch_execute(&install("polylock", &Grants::default())).await.unwrap();
    site.grant(&app).await;
    let locks = site.locks("&ttl=20s").await;
    let guard = take(&locks, "orders").await;
    let client = site.client_of(&app).await;
    let key = "repeat('b', 48)";
    let ask = |mode: &str, ttl: &str, info: &str, grace: &str, inbox: &str, key: &str| {
        format!("polylock.ask('orders', {OWNER}, {mode}, {ttl}, {info}, 'on', {grace}, {inbox}, 1, {key})")
    };
    for call in [
        ask("0", "1000", "''", "9223372036854775807", INBOX, key),
        ask("0", "1000", "''", "-1", INBOX, key),
        ask("0", "1000", "''", "600001", INBOX, key),
        ask("0", "9223372036854775807", "''", "1000", INBOX, key),
        ask("0", "0", "''", "1000", INBOX, key),
        ask("-2", "1000", "''", "1000", INBOX, key),
        ask("0", "1000", "repeat('x', 5000000)", "1000", INBOX, key),
        ask("0", "1000", "''", "1000", "repeat('x', 100)", key),
        ask("0", "1000", "''", "1000", "repeat('A', 32)", key),
        ask("0", "1000", "''", "1000", INBOX, "'short'"),
        ask("0", "1000", "''", "1000", INBOX, "NULL"),
        format!("polylock.ask(repeat('x', 3000), {OWNER}, 0, 1000, '', 'on', NULL, NULL, NULL, NULL)"),
        format!("polylock.extend(ARRAY['orders'], ARRAY[{OWNER}::uuid], ARRAY[9223372036854775807], 'on')"),
        format!("polylock.downgrade('orders', '{}', 9223372036854775807, 'on')", guard.owner()),
        format!("polylock.hand_over('orders', '{0}', '{0}', 9223372036854775807, '', 'on')", guard.owner()),
        "polylock.observe('orders', repeat('x', 100), 1, repeat('0', 16))".to_owned(),
        "polylock.observe('orders', NULL, 1, repeat('0', 16))".to_owned(),
    ] {
        let error = client.batch_execute(&format!("SELECT {call}")).await.unwrap_err();
        let code = error.code().unwrap().code().to_owned();
        assert_eq!(code, "22023", "{call}: {error:?}");
    }
    // Nothing of it is in the way of anybody.
    assert!(guard.is_valid());
    assert_eq!(locks.inspect("orders").await.unwrap().waiters, 0);
    guard.release().await.unwrap();
    take(&connect(&site.url_of(&app)).await.unwrap(), "orders").await.release().await.unwrap();
}

/// A floor of all new names is taken only from names that are behind the clock.
#[tokio::test]
async fn no_call_moves_the_tokens_of_other_names_into_the_future() {
    let site = Site::open().await;
    let app = site.role("app").await;
    let locks = site.locks("&ttl=20s").await;
    site.grant(&app).await;
    let client = site.client_of(&app).await;
    let raise = format!(
        "SELECT polylock.ask('far', {OWNER}, 0, 60000, '', 'on', NULL, NULL, NULL, NULL);
         SELECT polylock.raise('far', {OWNER}, 1::bigint << 62, 'on');
         SELECT polylock.release('far', {OWNER}, 'on')"
    );
    client.batch_execute(&raise).await.unwrap();
    for idle in ["-9000000000000000", "0", "9223372036854775807"] {
        client.batch_execute(&format!("SELECT polylock.sweep('', 1000000, {idle}, 'on')")).await.unwrap();
    }
    let guard = take(&locks, "new").await;
    assert!(guard.token().get() < 1 << 60, "{}", guard.token());
    guard.release().await.unwrap();
}

/// Locks of an application's own choosing, which every role may take.
#[tokio::test]
async fn advisory_locks_of_others_are_in_nobodys_way() {
    let site = Site::open().await;
    let eve = site.client_of(&site.role("eve").await).await;
    for number in ["'polylock install'", "'polylock sweep polylock'", "'polylock:orders'"] {
        eve.batch_execute(&format!("SELECT pg_advisory_lock(hashtextextended({number}, 0))")).await.unwrap();
    }
    let locks = site.locks("&ttl=20s").await;
    take(&locks, "orders").await.release().await.unwrap();
    let swept = "SELECT removed::bigint FROM polylock.sweep('', 1000, 0, 'on')";
    assert_eq!(site.number(swept).await, 1);
}
