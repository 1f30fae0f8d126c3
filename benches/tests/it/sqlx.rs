//! sqlx, which the harness has as a peer: its own lock, and the fence of PostgreSQL in its transactions.

use lock_testkit::PostgresServer;
use polylock::{Fence, Locks};
use sqlx::PgPool;
use sqlx::postgres::PgAdvisoryLock;

/// Drivers might take parts of it for placeholders.
const NAME: &str = "it's 100%s of $1 and :id?";

/// Commits only if no later holder was granted the lock. `fence` is what `guard.fence_sql()` returned.
async fn withdraw(pool: &PgPool, fence: &str) -> Result<(), sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::raw_sql(fence).execute(&mut *transaction).await?;
    sqlx::raw_sql("UPDATE account SET cents = cents - 5 WHERE id = 7").execute(&mut *transaction).await?;
    transaction.commit().await
}

#[tokio::test]
async fn sqlx_commits_nothing_of_an_earlier_holder() {
    let server = PostgresServer::start().await.unwrap();
    let (locks, pool) =
        (Locks::connect(&server.url()).await.unwrap(), PgPool::connect(&server.url()).await.unwrap());
    let account = "CREATE TABLE account (id int PRIMARY KEY, cents int); INSERT INTO account VALUES (7, 100)";
    sqlx::raw_sql(account).execute(&pool).await.unwrap();
    let earlier = locks.mutex(NAME).acquire().await.unwrap();
    let stale = earlier.fence_sql().unwrap();
    earlier.release().await.unwrap();
    let guard = locks.mutex(NAME).acquire().await.unwrap();
    let refused = withdraw(&pool, &stale).await.unwrap_err();
    let code = refused.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    assert_eq!(code.as_deref(), Some("PL001"), "{refused}");
    withdraw(&pool, &guard.fence_sql().unwrap()).await.unwrap();
    let cents: i32 = sqlx::query_scalar("SELECT cents FROM account").fetch_one(&pool).await.unwrap();
    assert_eq!(cents, 95);
    guard.release().await.unwrap();
}

async fn report(pool: &PgPool) -> Result<(), sqlx::Error> {
    let lock = PgAdvisoryLock::new("report");
    let guard = lock.acquire(pool.acquire().await?).await?;
    println!("writing");
    guard.release_now().await?;
    Ok(())
}

#[tokio::test]
async fn the_page_shows_how_locks_of_sqlx_are_used() {
    let blocks = include_str!("../../../docs/COMING-FROM.md").split("```rust,ignore\n").skip(1);
    let blocks: Vec<_> = blocks.map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 1);
    assert!(include_str!("sqlx.rs").contains(blocks[0]), "{}", blocks[0]);
    let server = PostgresServer::start().await.unwrap();
    let pool = PgPool::connect(&server.url()).await.unwrap();
    report(&pool).await.unwrap();
    let held: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(held, 0);
}
