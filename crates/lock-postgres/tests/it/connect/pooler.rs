//! Behind PgBouncer: each request may go to another session of the server.

use std::time::Duration;

use lock_core::{LockOptions, Locks};
use lock_postgres::Fence;
use lock_testkit::{PgBouncer, give_back, hand_over, queue_up, take, until};

use crate::servers::shared::contend;
use crate::site::{Site, client, connect};

/// Clients through a pooler with these lines of its configuration.
async fn through(site: &Site, more: &'static str, options: &str) -> (PgBouncer, [Locks; 2]) {
    site.install().await;
    let pooler = PgBouncer::start_with(&site.server, 30, more).await.unwrap();
    let url = format!("postgres://postgres@{}/{}?ttl=60s{options}", pooler.addr(), site.database);
    let clients = [connect(&url).await.unwrap(), connect(&url).await.unwrap()];
    (pooler, clients)
}

async fn warns(locks: &Locks) -> bool {
    locks.doctor().await.unwrap().warnings().any(|finding| finding.what.contains("pooler"))
}

#[tokio::test]
async fn the_doctor_warns_of_a_pooler_and_fences_work() {
    let site = Site::open().await;
    let (pooler, [locks, _]) = through(&site, "", "").await;
    assert!(warns(&locks).await);
    let guard = take(&locks, "orders").await;
    let port = pooler.addr().port();
    let parameters = format!("host=127.0.0.1 port={port} user=postgres dbname={}", site.database);
    let mut user = client(&parameters).await;
    let transaction = user.transaction().await.unwrap();
    guard.fence(&transaction).await.unwrap();
    transaction.commit().await.unwrap();
    give_back(guard).await;
}

#[tokio::test]
async fn waiters_that_listen_past_the_pooler_are_notified() {
    let site = Site::open().await;
    // Past one in transaction mode; and through one in session mode, with the address of its client in the name of a session.
    let sessions = "pool_mode = session\napplication_name_add_host = 1";
    for (more, options) in [("", &*format!("&listen_host={}", site.server.addr())), (sessions, "")] {
        let (_pooler, [one, two]) = through(&site, more, options).await;
        assert!(!warns(&one).await);
        let guard = take(&one, "orders").await;
        let waiter = queue_up(&two, "orders").await;
        let notified = "SELECT count(*) FROM polylock.waiter WHERE inbox IS NOT NULL";
        until("a waiter that listens", async || site.number(notified).await == 1).await;
        give_back(hand_over(guard, waiter).await).await;
    }
}

/// A pooler has sessions of its own, which nobody else's settings reach.
#[tokio::test]
async fn where_the_pooler_takes_no_settings_calls_are_repeated() {
    let site = Site::open().await;
    site.set("default_transaction_isolation = 'repeatable read'").await;
    let takes_none = "ignore_startup_parameters = extra_float_digits";
    let (_pooler, clients) = through(&site, takes_none, "&listen=off").await;
    contend(clients).await;
}

/// PgBouncer then ends both connections, and says so in its own words; the session of the server goes on.
#[tokio::test]
async fn a_call_that_the_pooler_gives_up_is_rolled_back() {
    let site = Site::open().await;
    let (_pooler, [locks, _]) = through(&site, "query_timeout = 1", "&listen=off").await;
    give_back(take(&locks, "orders").await).await;
    // Time: longer than the pooler waits.
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NEW; END $$";
    site.execute(slow).await;
    site.execute("CREATE TRIGGER slow BEFORE UPDATE ON polylock.lock FOR EACH ROW EXECUTE FUNCTION slow()")
        .await;
    let options = LockOptions::new().ttl(Duration::from_secs(120));
    let tried = locks.mutex_with("orders", options).unwrap().try_acquire().await;
    assert!(!matches!(tried, Ok(Some(_))), "{tried:?}");
    // It waits for the calls that are under way: the grant is committed.
    site.execute("DROP TRIGGER slow ON polylock.lock").await;
    give_back(take(&site.locks("").await, "orders").await).await;
}
