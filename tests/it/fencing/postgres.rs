//! PostgreSQL compares tokens.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use lock_testkit::{PostgresServer, take, until};
use polylock::layers::{ChaosLayer, MetricsLayer, PrefixLayer, TracingLayer};
use polylock::{ErrorKind, Fence, Guard, Locks, Token};
use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, NoTls, Transaction};

use super::python;

/// Reads an account, and refuses all smaller tokens from then on. `None`: a later holder was here.
async fn claim(client: &Client, id: i64, token: Token) -> Result<Option<i64>, Error> {
    let row = client
        .query_opt(
            "UPDATE account SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING cents",
            &[&id, &(token.get() as i64)],
        )
        .await?;
    Ok(row.map(|row| row.get("cents")))
}

/// Writes an account. `false`: a later holder was here, and nothing was written.
async fn write(client: &Client, id: i64, cents: i64, token: Token) -> Result<bool, Error> {
    let rows = client
        .execute(
            "UPDATE account SET cents = $3, fence = $2 WHERE id = $1 AND fence <= $2",
            &[&id, &(token.get() as i64), &cents],
        )
        .await?;
    Ok(rows == 1)
}

/// Writes an account that may be new. `false`: a later holder was here, and nothing was written.
async fn upsert(client: &Client, id: i64, cents: i64, token: Token) -> Result<bool, Error> {
    let rows = client
        .execute(
            "INSERT INTO account (id, fence, cents) VALUES ($1, $2, $3)
             ON CONFLICT (id) DO UPDATE SET cents = $3, fence = $2 WHERE account.fence <= $2",
            &[&id, &(token.get() as i64), &cents],
        )
        .await?;
    Ok(rows == 1)
}

/// Makes `token` the largest of this lock until the transaction ends. `false`: roll back.
async fn fence(transaction: &Transaction<'_>, lock: &str, token: Token) -> Result<bool, Error> {
    let rows = transaction
        .execute(
            "INSERT INTO fence (lock, token) VALUES ($1, $2)
             ON CONFLICT (lock) DO UPDATE SET token = $2 WHERE fence.token <= $2",
            &[&lock, &(token.get() as i64)],
        )
        .await?;
    Ok(rows == 1)
}

const SCHEMA: &str = "
CREATE TABLE account (id bigint PRIMARY KEY, cents bigint NOT NULL, fence bigint NOT NULL DEFAULT 0);
CREATE TABLE fence (lock text PRIMARY KEY, token bigint NOT NULL);
";
/// With the token of a guard in place of `:token`.
const FENCED: &str = "
BEGIN;
SELECT polylock.fence('account/7', :token);
UPDATE account SET cents = cents - 5 WHERE id = 7;
COMMIT;
";
static SERVER: Mutex<Weak<PostgresServer>> = Mutex::const_new(Weak::new());
static BANKS: AtomicUsize = AtomicUsize::new(0);

/// A database with one account of 100 cents.
struct Bank {
    server: Arc<PostgresServer>,
    name: String,
    locks: Locks,
}

impl Bank {
    async fn open() -> Self {
        let server = server().await;
        let locks = Locks::connect("memory://").await.unwrap();
        let name = format!("bank{}", BANKS.fetch_add(1, Relaxed));
        let create = format!("CREATE DATABASE {name}");
        connect(&server.connect_string()).await.batch_execute(&create).await.unwrap();
        let bank = Self { server, name, locks };
        let client = bank.client().await;
        client.batch_execute(SCHEMA).await.unwrap();
        client.execute("INSERT INTO account VALUES (7, 100)", &[]).await.unwrap();
        bank
    }

    async fn client(&self) -> Client {
        connect(&format!("{} dbname={}", self.server.connect_string(), self.name)).await
    }

    /// The tokens of a holder that lost the lock without notice, and of the next holder.
    async fn stale_and_current(&self) -> [Token; 2] {
        stale_and_current(&self.locks, "account/7").await.map(|guard| guard.token())
    }

    /// Until some client waits for a row or for the end of a transaction.
    async fn wait_for_a_lock_on_a_row(&self) {
        let client = self.client().await;
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until("nobody waits for a row", async || {
            client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) != 0
        })
        .await;
    }

    async fn cents(&self) -> i64 {
        self.client().await.query_one("SELECT cents FROM account WHERE id = 7", &[]).await.unwrap().get(0)
    }
}

/// A bank, a client of it, and the tokens of an old holder and of the current one.
async fn contested() -> (Bank, Client, [Token; 2]) {
    let bank = Bank::open().await;
    let (client, tokens) = (bank.client().await, bank.stale_and_current().await);
    (bank, client, tokens)
}

/// The server of all tests that run at the same time: to make one takes longer than a test.
async fn server() -> Arc<PostgresServer> {
    let mut shared = SERVER.lock().await;
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(PostgresServer::start().await.unwrap_or_else(|error| panic!("{error}")));
    *shared = Arc::downgrade(&server);
    server
}

async fn connect(to: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(to, NoTls).await.unwrap();
    // It fails when the server ends first.
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn a_late_write_is_refused() {
    let (bank, client, [stale, current]) = contested().await;
    assert_eq!(claim(&client, 7, stale).await.unwrap(), Some(100));
    assert_eq!(claim(&client, 7, current).await.unwrap(), Some(100));
    assert!(!write(&client, 7, 1, stale).await.unwrap());
    assert_eq!(claim(&client, 7, stale).await.unwrap(), None);
    assert!(write(&client, 7, 120, current).await.unwrap());
    assert_eq!(bank.cents().await, 120);
}

#[tokio::test]
async fn a_holder_writes_twice() {
    let (bank, client, [_, current]) = contested().await;
    assert!(write(&client, 7, 120, current).await.unwrap());
    assert!(write(&client, 7, 130, current).await.unwrap());
    let less = "UPDATE account SET cents = $3, fence = $2 WHERE id = $1 AND fence < $2";
    let rows = client.execute(less, &[&7_i64, &(current.get() as i64), &140_i64]).await.unwrap();
    assert_eq!((rows, bank.cents().await), (0, 130), "`<` refuses the holder's own write");
}

/// A token protects from a late write only once the resource has seen a larger one.
#[tokio::test]
async fn a_holder_that_only_reads_does_not_stop_a_late_write() {
    let (bank, client, [stale, current]) = contested().await;
    let read = bank.cents().await;
    assert!(
        write(&client, 7, read - 30, stale).await.unwrap(),
        "nothing has told the row of the next holder"
    );
    assert!(write(&client, 7, read + 20, current).await.unwrap());
    assert_eq!(bank.cents().await, 120, "the withdrawal is overwritten, though it was reported as done");
}

#[tokio::test]
async fn a_late_write_that_waits_for_the_row_is_refused() {
    let bank = Bank::open().await;
    assert!(!late_write(&bank, "").await.unwrap());
    assert_eq!(bank.cents().await, 120);
}

#[tokio::test]
async fn a_late_write_that_waits_in_a_repeatable_read_fails() {
    let bank = Bank::open().await;
    let late = late_write(&bank, "SET default_transaction_isolation = 'repeatable read'").await;
    assert_eq!(late.unwrap_err().code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
    assert_eq!(bank.cents().await, 120);
}

/// The write of an old holder, in a session that began with these statements: it waits for the row until the write of the
/// current holder is committed.
async fn late_write(bank: &Bank, session: &str) -> Result<bool, Error> {
    let [stale, current] = bank.stale_and_current().await;
    let mut client = bank.client().await;
    let transaction = client.transaction().await.unwrap();
    let update = "UPDATE account SET cents = 120, fence = $1 WHERE id = 7";
    transaction.execute(update, &[&(current.get() as i64)]).await.unwrap();
    let late = bank.client().await;
    late.batch_execute(session).await.unwrap();
    let late = tokio::spawn(async move { write(&late, 7, 1, stale).await });
    bank.wait_for_a_lock_on_a_row().await;
    transaction.commit().await.unwrap();
    late.await.unwrap()
}

#[tokio::test]
async fn a_row_that_does_not_exist_yet_is_fenced() {
    let (_bank, client, [stale, current]) = contested().await;
    assert!(!write(&client, 8, 5, current).await.unwrap(), "no row is as little as a refusal");
    assert!(upsert(&client, 8, 5, current).await.unwrap());
    assert!(upsert(&client, 8, 6, current).await.unwrap());
    assert!(!upsert(&client, 8, 1, stale).await.unwrap());
    assert_eq!(claim(&client, 8, current).await.unwrap(), Some(6));
}

#[tokio::test]
async fn a_transaction_over_many_rows_is_fenced_as_a_whole() {
    let (bank, mut client, [stale, current]) = contested().await;
    let transaction = client.transaction().await.unwrap();
    assert!(fence(&transaction, "account/7", current).await.unwrap());
    // The late transaction waits for the row of the lock until this one ends.
    let mut late = bank.client().await;
    let late = tokio::spawn(async move {
        let transaction = late.transaction().await?;
        let accepted = fence(&transaction, "account/7", stale).await?;
        transaction.rollback().await.map(|()| accepted)
    });
    bank.wait_for_a_lock_on_a_row().await;
    transaction.batch_execute("UPDATE account SET cents = 120 WHERE id = 7").await.unwrap();
    transaction.commit().await.unwrap();
    assert!(!late.await.unwrap().unwrap());
    let transaction = client.transaction().await.unwrap();
    assert!(fence(&transaction, "account/7", current).await.unwrap(), "the holder's second transaction");
    transaction.rollback().await.unwrap();
    assert_eq!(bank.cents().await, 120);
}

#[tokio::test]
async fn a_transaction_is_fenced_by_the_locks_of_its_database() {
    let mut bank = Bank::open().await;
    bank.locks = locks_of(&bank).await;
    let [stale, current] = bank.stale_and_current().await;
    let client = bank.client().await;
    let fenced = |token: Token| FENCED.replace(":token", &token.to_string());
    let refused = client.batch_execute(&fenced(stale)).await.unwrap_err();
    assert_eq!(refused.code().map(SqlState::code), Some("PL001"), "{refused}");
    client.batch_execute("ROLLBACK").await.unwrap();
    client.batch_execute(&fenced(current)).await.unwrap();
    assert_eq!(bank.cents().await, 95);
}

#[tokio::test]
async fn a_transaction_is_fenced_through_layers() {
    let bank = Bank::open().await;
    let locks = locks_of(&bank).await.layer(PrefixLayer::new("shop/").unwrap());
    let locks = locks.layer(MetricsLayer::new()).layer(TracingLayer::new()).layer(ChaosLayer::new(1));
    let [stale, current] = stale_and_current(&locks, "account/7").await;
    assert!(current.fence_sql().unwrap().contains("'shop/account/7'"));
    let mut client = bank.client().await;
    let transaction = client.transaction().await.unwrap();
    assert_eq!(stale.fence(&transaction).await.unwrap_err().kind(), ErrorKind::Lost);
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    current.fence(&transaction).await.unwrap();
    transaction.commit().await.unwrap();
}

/// A name that drivers might take for placeholders, and the text of the fence.
#[tokio::test]
#[ignore = "full: needs Python packages"]
async fn psycopg_sends_the_text_of_the_fence() {
    let bank = Bank::open().await;
    let locks = locks_of(&bank).await;
    let guards = stale_and_current(&locks, "it's 100%s of $1 and :id?").await;
    let [stale, current] = guards.map(|guard| guard.fence_sql().unwrap());
    let address = format!("{} dbname={}", bank.server.connect_string(), bank.name);
    python("postgres", "postgres.py", &[&address, &stale, &current]).await;
    assert_eq!(bank.cents().await, 95);
}

async fn locks_of(bank: &Bank) -> Locks {
    let url = format!("postgres://postgres@{}/{}", bank.server.addr(), bank.name);
    Locks::connect(&url).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A holder that lost the lock without notice, and the next holder.
async fn stale_and_current(locks: &Locks, name: &str) -> [Guard; 2] {
    let stale = take(locks, name).await;
    assert!(locks.break_lock(name).await.unwrap());
    [stale, take(locks, name).await]
}
