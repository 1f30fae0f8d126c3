//! The fence of PostgreSQL in transactions of sqlx, which the harness has as a peer.

use lock_testkit::PostgresServer;
use polylock::{Fence, Locks};
use sqlx::PgPool;

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
