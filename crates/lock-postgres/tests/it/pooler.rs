//! Behind PgBouncer in transaction mode: each request may go to another session of the server.

use std::time::Duration;

use lock_core::{LockOptions, Locks};
use lock_postgres::Fence;
use lock_testkit::PgBouncer;
use tokio::time::timeout;

use crate::site::{PATIENCE, Site, client, connect, take, until};

async fn through(pooler: &PgBouncer, site: &Site, options: &str) -> Locks {
    let url = format!("postgres://postgres@{}/{}?ttl=3s{options}", pooler.addr(), site.database);
    connect(&url).await.unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test]
async fn everything_works_and_waiters_poll() {
    let site = Site::open().await;
    let pooler = PgBouncer::start(&site.server, 3).await.unwrap_or_else(|error| panic!("{error}"));
    let (one, two) = (through(&pooler, &site, "").await, through(&pooler, &site, "").await);
    let guard = take(&one, "orders").await;
    assert!(two.mutex("orders").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { take(&two, "orders").await });
    until("a waiter", async || one.inspect("orders").await.unwrap().waiters == 1).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guard.is_valid() && !waiter.is_finished());

    let parameters =
        format!("host=127.0.0.1 port={} user=postgres dbname={}", pooler.addr().port(), site.database);
    let mut user = client(&parameters).await;
    let transaction = user.transaction().await.unwrap();
    guard.fence(&transaction).await.unwrap();
    transaction.commit().await.unwrap();

    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiter).await.expect("the waiter goes on").unwrap();
    next.release().await.unwrap();
    for name in ["a", "b"] {
        let (reader, permit) =
            (one.rw(name).read().await.unwrap(), one.semaphore("gpu", 2).acquire().await.unwrap());
        reader.release().await.unwrap();
        permit.release().await.unwrap();
    }
    let report = one.doctor().await.unwrap();
    assert!(report.warnings().any(|finding| finding.what.contains("pooler")), "{report}");
}

#[tokio::test]
async fn waiters_that_listen_past_the_pooler_are_notified() {
    let site = Site::open().await;
    let pooler = PgBouncer::start(&site.server, 3).await.unwrap_or_else(|error| panic!("{error}"));
    let listen = format!("&listen_host={}", site.server.addr());
    let (one, two) = (through(&pooler, &site, &listen).await, through(&pooler, &site, &listen).await);
    let report = one.doctor().await.unwrap();
    assert!(report.warnings().all(|finding| !finding.what.contains("pooler")), "{report}");
    let guard = take(&one, "orders").await;
    let waiter = tokio::spawn(async move { take(&two, "orders").await });
    let notified = "SELECT count(*) FROM polylock.waiter WHERE inbox IS NOT NULL";
    until("a waiter that listens", async || site.number(notified).await == 1).await;
    guard.release().await.unwrap();
    timeout(PATIENCE, waiter).await.expect("the waiter is notified").unwrap().release().await.unwrap();
}

/// PgBouncer then ends both connections, and says so in its own words; the session of the server goes on.
#[tokio::test]
async fn a_call_that_the_pooler_gives_up_is_rolled_back() {
    let site = Site::open().await;
    let pooler = PgBouncer::start_with(&site.server, 3, "query_timeout = 1").await;
    let pooler = pooler.unwrap_or_else(|error| panic!("{error}"));
    let locks = through(&pooler, &site, "&listen=off").await;
    take(&locks, "orders").await.release().await.unwrap();
    let admin = site.client().await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NEW; END $$;
                CREATE TRIGGER slow BEFORE UPDATE ON polylock.lock FOR EACH ROW EXECUTE FUNCTION slow()";
    admin.batch_execute(slow).await.unwrap();
    let options = LockOptions::new().ttl(Duration::from_secs(60));
    let tried = locks.mutex_with("orders", options).unwrap().try_acquire().await;
    assert!(!matches!(tried, Ok(Some(_))), "{tried:?}");
    // It waits for the calls that are under way: the grant is committed.
    admin.batch_execute("DROP TRIGGER slow ON polylock.lock").await.unwrap();
    let other = site.locks("").await;
    let guard = other.mutex("orders").try_acquire_for(Duration::from_secs(30)).await.unwrap();
    guard.expect("the lock is free").release().await.unwrap();
}
