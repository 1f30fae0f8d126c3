//! Statements that sessions keep prepared.

use lock_core::Locks;
use lock_testkit::{PgBouncer, give_back, take};

use crate::site::{Site, connect};

/// Has each call that changes a lock run this in its session.
async fn in_sessions(site: &Site, sql: &str) {
    let functions = format!(
        "CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {sql}; RETURN NEW; END $$;
         CREATE TRIGGER seen BEFORE UPDATE ON polylock.lock FOR EACH ROW EXECUTE FUNCTION seen()"
    );
    site.execute(&functions).await;
}

/// How many statements a session has prepared, at most, while these clients use a lock.
pub(crate) async fn prepared_by(site: &Site, clients: &[Locks]) -> i64 {
    site.execute("CREATE TABLE prepared (number bigint); GRANT ALL ON prepared TO PUBLIC").await;
    in_sessions(site, "INSERT INTO public.prepared SELECT count(*) FROM pg_catalog.pg_prepared_statements")
        .await;
    for _ in 0..10 {
        for locks in clients {
            give_back(take(locks, "orders").await).await;
        }
    }
    site.number("SELECT max(number) FROM prepared").await
}

#[tokio::test]
async fn a_session_of_our_own_keeps_what_is_called_often() {
    let site = Site::open().await;
    let locks = site.locks("").await;
    let prepared = prepared_by(&site, &[locks]).await;
    assert!((1..=4).contains(&prepared), "{prepared}");
}

/// Its sessions have statements of nobody.
#[tokio::test]
async fn behind_a_pooler_nothing_is_prepared() {
    let site = Site::open().await;
    site.install().await;
    let pooler = PgBouncer::start(&site.server, 2).await.unwrap();
    let url = format!("postgres://postgres@{}/{}?ttl=60s&listen=off", pooler.addr(), site.database);
    let clients = [connect(&url).await.unwrap(), connect(&url).await.unwrap()];
    assert_eq!(prepared_by(&site, &clients).await, 0);
}

#[tokio::test]
async fn a_session_that_has_lost_its_statements_is_called_without() {
    let site = Site::open().await;
    let locks = site.locks("").await;
    give_back(take(&locks, "orders").await).await;
    in_sessions(&site, "EXECUTE 'DEALLOCATE ALL'").await;
    for _ in 0..10 {
        give_back(take(&locks, "orders").await).await;
    }
}
