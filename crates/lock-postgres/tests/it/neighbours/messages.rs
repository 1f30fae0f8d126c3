//! Notifications that somebody else hears, repeats or makes. PostgreSQL has no rights for them.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use lock_core::Guard;
use lock_testkit::by_tier;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::site::{PATIENCE, Site, connect, take, until};

/// A role without any right in the schema, which listens to all inboxes.
struct Eve {
    client: Client,
    inboxes: Vec<String>,
    heard: UnboundedReceiver<(String, String)>,
}

impl Eve {
    async fn of(site: &Site) -> Self {
        let role = site.role("eve").await;
        let parameters =
            format!("host=127.0.0.1 port={} user={role} dbname={}", site.server.port(), site.database);
        let (client, mut connection) = tokio_postgres::connect(&parameters, NoTls).await.unwrap();
        let (sender, heard) = unbounded_channel();
        tokio::spawn(async move {
            let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(told) = message {
                    let _ = sender.send((told.channel().to_owned(), told.payload().to_owned()));
                }
            }
        });
        client.batch_execute("SELECT polylock.list('', 10)").await.unwrap_err();
        let sql = "SELECT application_name FROM pg_stat_activity
                   WHERE application_name LIKE 'polylock\\_%' AND datname = current_database()";
        let rows = client.query(sql, &[]).await.unwrap();
        let inboxes: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        for inbox in &inboxes {
            client.batch_execute(&format!("LISTEN {inbox}")).await.unwrap();
        }
        Self { client, inboxes, heard }
    }

    /// The next message that begins so.
    async fn hears(&mut self, kind: &str) -> (String, String) {
        let heard = async {
            loop {
                let (channel, payload) = self.heard.recv().await.unwrap();
                if payload.starts_with(kind) {
                    return (channel, payload);
                }
            }
        };
        timeout(PATIENCE, heard).await.expect("everybody hears it")
    }

    async fn sends(&self, inbox: &str, payload: &str) {
        self.client.execute("SELECT pg_notify($1, $2)", &[&inbox, &payload]).await.unwrap();
    }

    async fn sends_to_all(&self, payload: &str) {
        for inbox in &self.inboxes {
            self.sends(inbox, payload).await;
        }
    }
}

/// The guard stays as it is while its process reads what was sent to it.
async fn is_unmoved(guard: &Guard, token: u64) {
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(guard.is_valid() && guard.token().get() == token);
    }
    assert!(guard.verify().await.unwrap() == lock_core::GuardState::Valid);
}

#[tokio::test]
async fn a_grant_that_is_repeated_to_others_gives_no_second_guard() {
    let site = Site::open().await;
    let [first, second, third] =
        [site.locks("&ttl=20s").await, site.locks("&ttl=20s").await, site.locks("&ttl=20s").await];
    let mut eve = Eve::of(&site).await;
    let guard = take(&first, "orders/42").await;
    let waiter = tokio::spawn(async move { take(&second, "orders/42").await });
    until("a waiter", async || first.inspect("orders/42").await.unwrap().waiters == 1).await;
    let owner = first.inspect("orders/42").await.unwrap().holders[0].id.unwrap().to_string();
    guard.release().await.unwrap();
    let guard = timeout(PATIENCE, waiter).await.expect("it is granted").unwrap();
    let token = guard.token().get();
    let (channel, payload) = eve.hears("granted").await;
    let holder = third.inspect("orders/42").await.unwrap().holders[0].id.unwrap().to_string();
    for secret in ["orders", &owner, &holder] {
        assert!(!payload.contains(secret), "{payload} tells {secret}");
    }
    // While another process waits, and after it has taken part: to all inboxes, as it was and with another token.
    let waits = third.clone();
    let waiter = tokio::spawn(async move { take(&waits, "orders/42").await });
    until("a waiter", async || first.inspect("orders/42").await.unwrap().waiters == 1).await;
    let forged = payload.replace(&token.to_string(), &(token + 16).to_string());
    assert_ne!(forged, payload);
    for message in [&payload, &forged] {
        eve.sends(&channel, message).await;
        eve.sends_to_all(message).await;
    }
    // Even if it had learnt the key of the entry that waits.
    let key = "SELECT left(key, 16) FROM polylock.waiter WHERE name = 'orders/42'";
    let key: String = site.client().await.query_one(key, &[]).await.unwrap().get(0);
    eve.sends_to_all(&format!("granted:{key}:{}:{}", token + 16, "0".repeat(64))).await;
    is_unmoved(&guard, token).await;
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiter).await.expect("it is granted").unwrap();
    assert!(next.token().get() > token);
    let (_, own) = eve.hears("granted").await;
    let proven = next.token();
    eve.sends_to_all(&own.replace(&proven.to_string(), &(proven.get() + 1).to_string())).await;
    is_unmoved(&next, proven.get()).await;
    next.release().await.unwrap();
}

/// A client may release what it holds, and take that back.
#[tokio::test]
async fn a_grant_that_is_rolled_back_is_told_to_nobody() {
    let site = Site::open().await;
    let app = site.role("app").await;
    let locks = site.locks("&ttl=20s").await;
    site.grant(&app).await;
    let mut eve = Eve::of(&site).await;
    let client = site.client_of(&app).await;
    let me = "'00000000-0000-0000-0000-00000000000e'";
    client
        .batch_execute(&format!(
            "SELECT polylock.ask('orders', {me}, 0, 60000, '{{}}', 'on', NULL, NULL, NULL, NULL)"
        ))
        .await
        .unwrap();
    let waiter = {
        let locks = locks.clone();
        tokio::spawn(async move { take(&locks, "orders").await })
    };
    until("a waiter", async || locks.inspect("orders").await.unwrap().waiters == 1).await;
    let release = format!("SELECT tell FROM polylock.release('orders', {me}, 'on')");
    client.batch_execute("BEGIN").await.unwrap();
    assert!(client.query_one(&release, &[]).await.unwrap().get::<_, bool>(0));
    client.batch_execute("SELECT polylock.tell(ARRAY['orders']); ROLLBACK").await.unwrap();
    let error = client.batch_execute("SELECT polylock.told('orders')").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42501");
    assert!(!waiter.is_finished());
    client.batch_execute(&release).await.unwrap();
    client.batch_execute("SELECT polylock.tell(ARRAY['orders'])").await.unwrap();
    let guard = timeout(PATIENCE, waiter).await.expect("it is granted").unwrap();
    let (_, payload) = eve.hears("granted").await;
    assert!(payload.contains(&guard.token().to_string()), "of one grant alone: {payload}");
    guard.release().await.unwrap();
}

/// Of version 1, beyond what a token is, without a form, and very long.
#[tokio::test]
async fn messages_without_sense_change_nothing() {
    let site = Site::open().await;
    let locks = site.locks("&ttl=20s").await;
    let guard = take(&locks, "orders").await;
    let eve = Eve::of(&site).await;
    let (token, owner) = (guard.token().get(), guard.owner());
    for payload in [
        format!("granted {owner} {token} 2500 orders"),
        format!("granted {owner} 18446744073709551615 2500 orders"),
        format!("granted:{}:18446744073709551615:x", &owner.to_string()[..16]),
        format!("granted:{}:{token}:{}", &owner.to_string()[..16], "0".repeat(64)),
        "granted::::".to_owned(),
        "changed:".to_owned(),
        "opened:".to_owned(),
        "x".repeat(7_900),
    ] {
        eve.sends_to_all(&payload).await;
    }
    is_unmoved(&guard, token).await;
    let other = site.locks("&ttl=20s").await;
    let waiter = tokio::spawn(async move { take(&other, "orders").await });
    until("a waiter", async || locks.inspect("orders").await.unwrap().waiters == 1).await;
    guard.release().await.unwrap();
    timeout(PATIENCE, waiter).await.expect("notifications still come").unwrap().release().await.unwrap();
}

/// One statement sends 300 000 messages. They are read one by one, and nothing is kept of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: a flood takes seconds"]
async fn a_flood_of_messages_costs_no_memory_and_no_lock() {
    let site = Site::open().await;
    let locks = site.locks("&ttl=20s").await;
    let guard = take(&locks, "orders").await;
    let eve = Eve::of(&site).await;
    let before = resident();
    let flood = format!(
        "SELECT count(pg_notify('{}', 'granted:' || lpad(to_hex(i), 16, '0') || ':1600:' || repeat('0', 64)))
         FROM generate_series(1, {}) i",
        eve.inboxes[0],
        by_tier(100_000, 300_000, 300_000)
    );
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    eve.client.batch_execute(&format!("UNLISTEN *; {flood}")).await.unwrap();
    let other = site.locks("&ttl=20s").await;
    let waiter = tokio::spawn(async move { take(&other, "orders").await });
    until("a waiter", async || locks.inspect("orders").await.unwrap().waiters == 1).await;
    assert!(guard.is_valid());
    assert!(tokio::runtime::Handle::current().metrics().num_alive_tasks() < tasks + 50);
    guard.release().await.unwrap();
    let guard = timeout(PATIENCE, waiter).await.expect("it is granted").unwrap();
    guard.release().await.unwrap();
    assert!(resident() < before + 100_000, "{before} KiB were in use before, and {} are now", resident());
}

/// The memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Behind a pooler, the session that listens may be another one's next time.
#[tokio::test]
async fn what_another_process_tells_itself_is_not_taken_for_ones_own() {
    let site = Site::open().await;
    let locks = connect(&format!("{}&ttl=20s", site.url())).await.unwrap();
    let eve = Eve::of(&site).await;
    eve.sends_to_all("opened").await;
    eve.sends_to_all("opened:0000000000000000").await;
    assert!(locks.doctor().await.unwrap().warnings().all(|finding| !finding.what.contains("notify")));
}
