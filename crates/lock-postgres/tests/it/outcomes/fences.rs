//! The fence against everything else, by two connections.

use lock_testkit::{come, soon, until};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::bench::{Bench, pid, waits_for_a_lock};

const REFUSED: &str = "PL001";

/// Fences an open transaction; the SQLSTATE if it is refused.
async fn fence(client: &Client, name: &str, token: i64) -> Result<i64, SqlState> {
    let row = client.query_one("SELECT fence($1, $2)", &[&name, &token]).await;
    row.map(|row| row.get(0)).map_err(|error| error.code().unwrap().clone())
}

/// Fences in a task of its own, and returns when that waits for a row.
async fn wait_to_fence(
    bench: &Bench,
    client: Client,
    name: &str,
    token: i64,
) -> JoinHandle<Result<i64, SqlState>> {
    let (pid, name, other) = (pid(&client).await, name.to_owned(), bench.connection().await);
    let fenced = tokio::spawn(async move { fence(&client, &name, token).await });
    until("it waits", async || waits_for_a_lock(&other, pid).await).await;
    fenced
}

async fn begin(bench: &Bench, how: &str) -> Client {
    let client = bench.connection().await;
    client.batch_execute(&format!("BEGIN {how}")).await.unwrap();
    client
}

#[rustfmt::skip]
#[tokio::test]
async fn fence_by_token() {
    Bench::new().await.check(&[
        ("none",             "fence 1600", REFUSED,  "", "none"),
        ("me:200",           "fence 1599", REFUSED,  "", "me:200"),
        ("me:200",           "fence 1600", "1600",   "", "me:200"),
        ("me:200",           "fence 1615", "1615",   "", "me:200"),
        ("me:200",           "fence 1616", REFUSED,  "", "me:200"),
        // Only a later grant counts: not an expired lease, nor a release.
        ("me:0",             "fence 1601", "1601",   "", "me:0"),
        ("free",             "fence 1601", "1601",   "", "free"),
        ("me:200 | ann",     "fence 1601", "1601",   "", "me:200 | ann"),
        ("r ann:200 me:200", "fence 1601", "1601",   "", "r ann:200 me:200"),
        ("me:200",           "lease/fence 1600", "1600", "", "me:200"),
    ]).await;
}

#[tokio::test]
async fn tokens_of_a_block_are_fenced_in_rising_order() {
    let mut bench = Bench::new().await;
    let name = bench.name("me:200").await;
    for (token, answer) in
        [(1600, "1600"), (1602, "1602"), (1602, "1602"), (1601, REFUSED), (1600, REFUSED), (1603, "1603")]
    {
        assert_eq!(bench.call(&name, &format!("fence {token}")).await, answer, "{token}");
    }
}

#[tokio::test]
async fn a_token_of_an_older_block_is_refused() {
    let mut bench = Bench::new().await;
    for calls in [
        &["ask ann 0", "granted"][..],
        &["break 9999", "broken"],
        &["release me", "released", "ask ann 0", "granted"],
        &["hand_over me ann", "granted"],
    ] {
        let state = if calls[0].starts_with("ask") { "me:0" } else { "me:200" };
        let name = bench.name(state).await;
        for call in calls.chunks(2) {
            assert_eq!(bench.call(&name, call[0]).await, call[1]);
        }
        assert_eq!(bench.call(&name, "fence 1615").await, REFUSED, "{calls:?}");
    }
    // No grant has a token below 16, which is the block of a lock that was broken or never granted.
    for state in ["me:200", "free"] {
        let name = bench.name(state).await;
        bench.client.execute("UPDATE lock SET token = 0 WHERE name = $1", &[&name]).await.unwrap();
        for token in [-1, 0, 15] {
            assert_eq!(bench.call(&name, &format!("fence {token}")).await, REFUSED);
        }
    }
    // A raised token is none of a grant.
    let name = bench.name("me:200").await;
    assert_eq!(bench.call(&name, "raise me 3200").await, "raised");
    assert_eq!(bench.call(&name, "fence 3200").await, REFUSED);
    assert_eq!(bench.call(&name, "fence 1600").await, "1600");
}

/// Sharers hold the lock at the same time, and only the last of them is let through.
#[tokio::test]
async fn a_writer_that_became_a_reader_fences_until_the_next_reader_was_granted_the_lock() {
    let mut bench = Bench::new().await;
    let name = bench.name("me:200").await;
    assert_eq!(bench.call(&name, "downgrade me").await, "shared");
    assert_eq!(bench.call(&name, "fence 1600").await, "1600");
    let transaction = begin(&bench, "").await;
    assert_eq!(fence(&transaction, &name, 1600).await, Ok(1600));
    assert_eq!(bench.call(&name, "ask ann -1").await, "locked");
    transaction.batch_execute("COMMIT").await.unwrap();

    assert_eq!(bench.call(&name, "ask ann -1").await, "granted");
    let (second, _) = bench.tokens(&name).await;
    assert_eq!(bench.call(&name, "fence 1600").await, REFUSED);
    assert_eq!(bench.call(&name, "release me").await, "released");
    assert_eq!(bench.call(&name, "ask bob -1").await, "granted");
    let (third, _) = bench.tokens(&name).await;
    assert_eq!(bench.call(&name, &format!("fence {second}")).await, REFUSED);
    assert_eq!(bench.call(&name, &format!("fence {third}")).await, third.to_string());
}

#[tokio::test]
async fn an_open_fence_blocks_the_lock_and_not_its_renewal() {
    let mut bench = Bench::new().await;
    for (state, call, answer) in [
        ("me:0", "ask ann 0", "locked"),
        ("me:0", "ask ann -1 wait", "locked"),
        ("me:0 | ann", "ask ann 0 wait", "locked"),
        ("free", "ask ann 0", "locked"),
        ("me:200", "ask ann 0", "busy -1 200"),
        ("me:200", "ask ann 0 wait", "locked"),
        ("me:200", "release me", "locked"),
        ("me:200 | ann", "release me", "locked"),
        ("me:200", "extend me", "{1,0}"),
        ("me:200", "holds me", "true"),
        ("me:200", "downgrade me", "locked"),
        ("me:200", "hand_over me ann", "locked"),
        ("me:200", "raise me 5000", "locked"),
        ("me:200", "break 9999", "locked"),
        ("me:200", "observe", "locked"),
        ("free", "sweep", "0"),
    ] {
        let name = bench.name(state).await;
        let transaction = begin(&bench, "").await;
        assert_eq!(fence(&transaction, &name, 1600).await, Ok(1600));
        let got = soon(bench.call(&name, call)).await;
        assert_eq!(got, answer, "{state}; {call}");

        let blocker = bench.client.query_one("SELECT pid, open_ms FROM blocker($1)", &[&name]).await.unwrap();
        assert_eq!(blocker.get::<_, i32>(0), pid(&transaction).await);
        assert!(blocker.get::<_, i64>(1) >= 0);
        transaction.batch_execute("COMMIT").await.unwrap();
        assert!(bench.client.query_opt("SELECT FROM blocker($1)", &[&name]).await.unwrap().is_none());
        bench.client.execute("DELETE FROM lock WHERE name = $1", &[&name]).await.unwrap();
    }
}

/// A grant that is not committed yet, then a fence of the holder before.
#[tokio::test]
async fn a_fence_waits_for_a_grant_and_is_refused() {
    let mut bench = Bench::new().await;
    for (isolation, refusal) in
        [("READ COMMITTED", REFUSED), ("REPEATABLE READ", "40001"), ("SERIALIZABLE", "40001")]
    {
        let name = bench.name("me:0").await;
        bench.client.batch_execute("BEGIN").await.unwrap();
        assert_eq!(bench.call(&name, "ask ann 0").await, "granted");
        let late = begin(&bench, &format!("ISOLATION LEVEL {isolation}")).await;
        let fenced = wait_to_fence(&bench, late, &name, 1600).await;
        bench.client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(come(fenced).await.unwrap_err().code(), refusal, "{isolation}");
    }
}

#[tokio::test]
async fn a_fence_waits_for_one_of_its_block() {
    let mut bench = Bench::new().await;
    for (end, second) in [("COMMIT", Err(SqlState::from_code(REFUSED))), ("ROLLBACK", Ok(1601))] {
        let name = bench.name("me:200").await;
        let (one, two) = (begin(&bench, "").await, begin(&bench, "").await);
        assert_eq!(fence(&one, &name, 1602).await, Ok(1602));
        let fenced = wait_to_fence(&bench, two, &name, 1601).await;
        one.batch_execute(end).await.unwrap();
        assert_eq!(come(fenced).await, second, "{end}");
    }
}

/// The snapshot is older than a later grant: the transaction cannot be repeated with this token.
#[tokio::test]
async fn an_older_snapshot_is_refused() {
    let mut bench = Bench::new().await;
    let name = bench.name("me:0").await;
    let late = begin(&bench, "ISOLATION LEVEL REPEATABLE READ").await;
    late.batch_execute("SELECT FROM lock").await.unwrap();
    assert_eq!(bench.call(&name, "ask ann 0").await, "granted");
    assert_eq!(fence(&late, &name, 1600).await, Err(SqlState::T_R_SERIALIZATION_FAILURE));
    late.batch_execute("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    assert_eq!(fence(&late, &name, 1600).await.unwrap_err().code(), REFUSED);
}

/// It protects nothing from then on: the corner that the docs name.
#[tokio::test]
async fn a_savepoint_undoes_a_fence() {
    let mut bench = Bench::new().await;
    let name = bench.name("me:0").await;
    let transaction = begin(&bench, "").await;
    transaction.batch_execute("SAVEPOINT before").await.unwrap();
    assert_eq!(fence(&transaction, &name, 1600).await, Ok(1600));
    assert_eq!(bench.call(&name, "ask ann 0").await, "locked");
    transaction.batch_execute("ROLLBACK TO SAVEPOINT before").await.unwrap();
    assert_eq!(bench.call(&name, "ask ann 0").await, "granted");

    // A fence before it lasts.
    let name = bench.name("me:0").await;
    assert_eq!(fence(&transaction, &name, 1600).await, Ok(1600));
    transaction.batch_execute("SAVEPOINT after").await.unwrap();
    assert_eq!(fence(&transaction, &name, 1601).await, Ok(1601));
    assert_eq!(bench.client.query("SELECT pid FROM blocker($1)", &[&name]).await.unwrap().len(), 1);
    transaction.batch_execute("ROLLBACK TO SAVEPOINT after").await.unwrap();
    assert_eq!(bench.call(&name, "ask ann 0").await, "locked");
    assert_eq!(bench.client.query("SELECT pid FROM blocker($1)", &[&name]).await.unwrap().len(), 1);
}

/// It lasts as long as its transaction: that statement. The corner that the docs name.
#[tokio::test]
async fn a_fence_outside_of_a_transaction_protects_nothing() {
    let mut bench = Bench::new().await;
    let name = bench.name("me:0").await;
    let autocommit = bench.connection().await;
    assert_eq!(fence(&autocommit, &name, 1600).await, Ok(1600));
    assert_eq!(bench.call(&name, "ask ann 0").await, "granted");
}

/// A block with `EXCEPTION` is a savepoint: what it catches undoes the fence in it. The corner that the docs name.
#[tokio::test]
async fn a_block_that_catches_an_exception_undoes_a_fence() {
    let mut bench = Bench::new().await;
    for (begins_outside, blocks) in [(false, "granted"), (true, "locked")] {
        let name = bench.name("me:0").await;
        let fence = format!("PERFORM fence('{name}', 1600);");
        let (outside, inside) = if begins_outside { (&*fence, "") } else { ("", &*fence) };
        let body = format!(
            "{outside} BEGIN {inside} RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END;"
        );
        let transaction = begin(&bench, "").await;
        transaction.batch_execute(&format!("DO $$ BEGIN {body} END $$")).await.unwrap();
        assert_eq!(bench.call(&name, "ask ann 0").await, blocks, "{body}");
        transaction.batch_execute("ROLLBACK").await.unwrap();
    }
    // A block that catches nothing undoes nothing.
    let name = bench.name("me:0").await;
    let transaction = begin(&bench, "").await;
    let block =
        format!("BEGIN PERFORM fence('{name}', 1600); EXCEPTION WHEN division_by_zero THEN NULL; END");
    transaction.batch_execute(&format!("DO $$ {block} $$")).await.unwrap();
    assert_eq!(bench.call(&name, "ask ann 0").await, "locked");
}

/// A killed holder leaves its fence behind for no time.
#[tokio::test]
async fn a_fence_ends_with_its_connection() {
    let mut bench = Bench::new().await;
    let name = bench.name("me:0").await;
    let transaction = begin(&bench, "").await;
    assert_eq!(fence(&transaction, &name, 1600).await, Ok(1600));
    let holder = pid(&transaction).await;
    let ended = bench.client.query_one("SELECT pg_terminate_backend($1, 30000)", &[&holder]).await;
    assert!(ended.unwrap().get::<_, bool>(0));
    assert_eq!(bench.call(&name, "ask ann 0").await, "granted");
    assert_eq!(bench.call(&name, "fence 1600").await, REFUSED);
}
