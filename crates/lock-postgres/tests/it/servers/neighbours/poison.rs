//! Calls of a role that may use locks, which would make calls of others fail.

use lock_testkit::{come, give_back, take, until};

use super::{OWNER, Shared};
use crate::site::{Site, connect};

const INBOX: &str = "repeat('a', 32)";

#[tokio::test]
async fn values_out_of_bounds_are_refused_at_the_door() {
    let shared = Shared::new().await;
    let Shared { site, locks, .. } = &shared;
    let guard = take(locks, "orders").await;
    let key = "repeat('b', 48)";
    let ask = |mode: &str, ttl: &str, info: &str, grace: &str, inbox: &str, key: &str| {
        format!("ask('orders', {OWNER}, {mode}, {ttl}, {info}, 'on', {grace}, {inbox}, 1, {key})")
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
        format!("ask(repeat('x', 3000), {OWNER}, 0, 1000, '', 'on', NULL, NULL, NULL, NULL)"),
        format!(
            "extend(ARRAY['orders'], ARRAY[{OWNER}::uuid], ARRAY[9223372036854775807], ARRAY[true], 'on')"
        ),
        format!("downgrade('orders', '{}', 9223372036854775807, 'on')", guard.owner()),
        format!("hand_over('orders', '{0}', '{0}', 9223372036854775807, '', 'on')", guard.owner()),
        "observe('orders', repeat('x', 100), 1, repeat('0', 16))".to_owned(),
        "observe('orders', NULL, 1, repeat('0', 16))".to_owned(),
    ] {
        assert_eq!(shared.refused(&call).await, "22023", "{call}");
    }
    // Nothing of it is in the way of anybody.
    assert!(guard.is_valid());
    assert_eq!(locks.inspect("orders").await.unwrap().waiters, 0);
    give_back(guard).await;
    give_back(take(&connect(&site.url_of(&shared.app)).await.unwrap(), "orders").await).await;
}

/// A floor of all new names is taken only from names that are behind the clock.
#[tokio::test]
async fn no_call_moves_the_tokens_of_other_names_into_the_future() {
    let shared = Shared::new().await;
    for call in [
        format!("ask('far', {OWNER}, 0, 60000, '', 'on', NULL, NULL, NULL, NULL)"),
        format!("raise('far', {OWNER}, 1::bigint << 62, 'on')"),
        format!("release('far', {OWNER}, 'on')"),
    ] {
        shared.call(&call).await;
    }
    for idle in ["-9000000000000000", "0", "9223372036854775807"] {
        shared.call(&format!("sweep('', 1000000, {idle}, 'on')")).await;
    }
    let guard = take(&shared.locks, "new").await;
    assert!(guard.token().get() < 1 << 60, "{}", guard.token());
    give_back(guard).await;
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
    give_back(take(&locks, "orders").await).await;
    let swept = "SELECT removed::bigint FROM polylock.sweep('', 1000, 0, 'on')";
    assert_eq!(site.number(swept).await, 1);
}

/// One owner that waits, is handed the lock over all the same, and shares it: its entry is never removed.
#[tokio::test]
async fn no_order_of_calls_keeps_others_from_a_name_or_a_sweep_from_the_rest() {
    let shared = Shared::new().await;
    let Shared { site, locks, client, .. } = &shared;
    client.batch_execute(&format!("SET application_name = 'polylock_{}'", "a".repeat(32))).await.unwrap();
    let id = |number: u32| format!("'00000000-0000-0000-0000-{number:012}'");
    let (x, y, z, inbox) = (id(1), id(2), id(3), format!("{INBOX}, pg_backend_pid(), repeat('b', 48)"));
    for call in [
        format!("ask('po', {x}, 0, 60000, '{{}}', 'off', NULL, NULL, NULL, NULL)"),
        format!("ask('po', {z}, 0, 60000, '{{}}', 'off', 2500, NULL, NULL, NULL)"),
        format!("ask('po', {y}, -1, 60000, '{{}}', 'off', 2500, {inbox})"),
        format!("hand_over('po', {x}, {y}, 60000, '{{}}', 'off')"),
        format!("downgrade('po', {y}, 600000, 'off')"),
    ] {
        shared.call(&call).await;
    }
    // Its other waiter has died.
    let died = "UPDATE polylock.waiter SET renewed = renewed - interval '1 minute'";
    site.execute(died).await;
    let reader = locks.rw("po").read().await.unwrap();
    give_back(reader).await;
    shared.call("sweep('', 1000, 0, 'off')").await;

    for call in [
        "release('po', NULL, 'off')",
        "ask('po', NULL, 0, 1000, '', 'off', NULL, NULL, NULL, NULL)",
        "hand_over('po', '00000000-0000-0000-0000-000000000002', NULL, 1000, '', 'off')",
    ] {
        assert_eq!(shared.refused(call).await, "22023", "{call}");
    }
    shared
        .call(&format!("ask('po', {x}, 0, 1000, '', 'off', 2500, NULL, NULL, repeat('x', 50000000))"))
        .await;
    assert_eq!(site.number("SELECT coalesce(max(length(key)), 0)::bigint FROM polylock.waiter").await, 0);
}

/// The id of an inbox is public: it is the name of a session.
#[tokio::test]
async fn nobody_ends_the_observation_of_another_process() {
    let shared = Shared::new().await;
    let Shared { site, locks, .. } = &shared;
    let guard = take(locks, "orders").await;
    let name = lock_core::LockName::new("orders").unwrap();
    let seen = locks.inspect("orders").await.unwrap();
    let observer = tokio::spawn({
        let locks = locks.clone();
        async move { locks.backend().await_change(&name, &seen).await }
    });
    let observers = "SELECT count(*) FROM polylock.observer WHERE listener <> 99";
    until("it observes", async || site.number(observers).await == 1).await;
    let inbox = "(SELECT substr(application_name, 10) FROM pg_stat_activity
                  WHERE datname = current_database() AND application_name LIKE 'polylock\\_%')";
    for call in [
        format!("observe('orders', {inbox}, 99, repeat('0', 16))"),
        format!("unobserve('orders', {inbox}, repeat('0', 16))"),
    ] {
        shared.call(&call).await;
    }
    assert_eq!(site.number(observers).await, 1);
    give_back(guard).await;
    assert!(!come(observer).await.unwrap().is_held());
}

/// What `inspect` shows of an owner gives nobody a right on its lock.
#[tokio::test]
async fn a_client_that_sees_a_holder_can_do_nothing_to_it() {
    let shared = Shared::new().await;
    let Shared { locks, client, .. } = &shared;
    let guard = take(locks, "orders").await;
    let shown = locks.inspect("orders").await.unwrap().holders[0].id.unwrap();
    assert_eq!(shown, guard.owner());
    for (call, answer) in [
        (format!("release('orders', '{shown}', 'on')"), "lost"),
        (format!("hand_over('orders', '{shown}', {OWNER}, 60000, '', 'on')"), "lost"),
        (format!("downgrade('orders', '{shown}', 60000, 'on')"), "lost"),
        (format!("raise('orders', '{shown}', 1::bigint << 62, 'on')"), "lost"),
        (format!("ask('orders', '{shown}', 0, 60000, '', 'on', NULL, NULL, NULL, NULL)"), "busy"),
    ] {
        let row = client.query_one(&format!("SELECT polylock.{call}::text"), &[]).await.unwrap();
        let got: String = row.get(0);
        assert!(got.trim_start_matches('(').starts_with(answer), "{call}: {got}");
    }
    let extend = format!(
        "SELECT (polylock.extend(ARRAY['orders'], ARRAY['{shown}'::uuid], ARRAY[60000::bigint], ARRAY[true], 'on'))[1]"
    );
    assert_eq!(client.query_one(&extend, &[]).await.unwrap().get::<_, i32>(0), 0);
    assert_eq!(guard.verify().await.unwrap(), lock_core::GuardState::Valid);
    give_back(guard).await;
}
