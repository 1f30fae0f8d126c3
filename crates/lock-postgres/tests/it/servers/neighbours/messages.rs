//! Notifications that somebody else hears, repeats or makes. PostgreSQL has no rights for them.

use futures_util::{StreamExt, stream};
use lock_core::{Guard, GuardState, Locks, Token};
use lock_testkit::{by_tier, give_back, hand_over, queue_up, soon, take};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::{OWNER, Shared};
use crate::site::Site;

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

    /// The next message with this part.
    async fn hears(&mut self, part: &str) -> (String, String) {
        loop {
            let (channel, payload) = soon(self.heard.recv()).await.unwrap();
            if payload.contains(part) {
                return (channel, payload);
            }
        }
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

/// Waits until a process has read what was sent to it: it is notified of another grant behind that.
async fn has_read(process: &Locks, other: &Locks) {
    let guard = take(other, "behind").await;
    let waiter = queue_up(process, "behind").await;
    give_back(hand_over(guard, waiter).await).await;
}

/// The guard is as it was when its process has read what was sent to it.
async fn is_unmoved(guard: &Guard, token: Token, process: &Locks, other: &Locks) {
    has_read(process, other).await;
    assert!(guard.is_valid() && guard.token() == token);
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
}

#[tokio::test]
async fn a_grant_that_is_repeated_to_others_gives_no_second_guard() {
    let site = Site::open().await;
    let [first, second, third] =
        [site.locks("&ttl=20s").await, site.locks("&ttl=20s").await, site.locks("&ttl=20s").await];
    let mut eve = Eve::of(&site).await;
    let guard = take(&first, "orders/42").await;
    let waiter = queue_up(&second, "orders/42").await;
    let owner = first.inspect("orders/42").await.unwrap().holders[0].id.unwrap().to_string();
    let guard = hand_over(guard, waiter).await;
    let token = guard.token();
    let (channel, payload) = eve.hears("granted").await;
    let holder = third.inspect("orders/42").await.unwrap().holders[0].id.unwrap().to_string();
    for secret in ["orders", &owner, &holder] {
        assert!(!payload.contains(secret), "{payload} tells {secret}");
    }
    // While another process waits, and after it has taken part: to all inboxes, as it was and with another token.
    let waiter = queue_up(&third, "orders/42").await;
    let later = token.get() + 16;
    let forged = payload.replace(&token.to_string(), &later.to_string());
    assert_ne!(forged, payload);
    for message in [&payload, &forged] {
        eve.sends(&channel, message).await;
        eve.sends_to_all(message).await;
    }
    // Even if it had learnt the key of the entry that waits.
    let key = "SELECT left(key, 16) FROM polylock.waiter WHERE name = 'orders/42'";
    let key: String = site.client().await.query_one(key, &[]).await.unwrap().get(0);
    eve.sends_to_all(&format!("granted:{key}:{later}:{}", "0".repeat(64))).await;
    is_unmoved(&guard, token, &second, &first).await;
    has_read(&third, &first).await;
    assert!(!waiter.is_finished());
    let next = hand_over(guard, waiter).await;
    let proven = next.token();
    assert!(proven > token);
    let (_, own) = eve.hears(&format!(":{proven}:")).await;
    eve.sends_to_all(&own.replace(&proven.to_string(), &(proven.get() + 1).to_string())).await;
    is_unmoved(&next, proven, &third, &first).await;
    give_back(next).await;
}

/// A client may release what it holds, and take that back.
#[tokio::test]
async fn a_grant_that_is_rolled_back_is_told_to_nobody() {
    let Shared { site, locks, client, .. } = Shared::new().await;
    let mut eve = Eve::of(&site).await;
    let ask = format!("polylock.ask('orders', {OWNER}, 0, 60000, '{{}}', 'on', NULL, NULL, NULL, NULL)");
    client.batch_execute(&format!("SELECT {ask}")).await.unwrap();
    let waiter = queue_up(&locks, "orders").await;
    let release = format!("SELECT tell FROM polylock.release('orders', {OWNER}, 'on')");
    client.batch_execute("BEGIN").await.unwrap();
    assert!(client.query_one(&release, &[]).await.unwrap().get::<_, bool>(0));
    client.batch_execute("SELECT polylock.tell(ARRAY['orders']); ROLLBACK").await.unwrap();
    let error = client.batch_execute("SELECT polylock.told('orders')").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42501");
    assert!(!waiter.is_finished());
    client.batch_execute(&release).await.unwrap();
    client.batch_execute("SELECT polylock.tell(ARRAY['orders'])").await.unwrap();
    let guard = soon(waiter).await.unwrap();
    let (_, payload) = eve.hears("granted").await;
    assert!(payload.contains(&guard.token().to_string()), "of one grant alone: {payload}");
    give_back(guard).await;
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
    let other = site.locks("&ttl=20s").await;
    is_unmoved(&guard, guard.token(), &locks, &other).await;
    let waiter = queue_up(&other, "orders").await;
    give_back(hand_over(guard, waiter).await).await;
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
    let waiter = queue_up(&other, "orders").await;
    assert!(guard.is_valid());
    assert!(tokio::runtime::Handle::current().metrics().num_alive_tasks() < tasks + 50);
    let guard = hand_over(guard, waiter).await;
    give_back(guard).await;
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
    let locks = site.locks("&ttl=20s").await;
    let eve = Eve::of(&site).await;
    eve.sends_to_all("opened").await;
    eve.sends_to_all("opened:0000000000000000").await;
    assert!(locks.doctor().await.unwrap().warnings().all(|finding| !finding.what.contains("notify")));
}
