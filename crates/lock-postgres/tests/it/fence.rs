//! The fence in transactions of the caller: what the client adds to the functions of the server.

use futures_util::poll;
use lock_core::{ErrorKind, Guard, GuardView, Locks, MemoryConfig, Released, Token};
use lock_postgres::Fence;
use lock_testkit::{LogCapture, acquiring, come, give_back, is_renewed, take, until};
use tokio_postgres::Client;

use crate::site::Site;

const ACCOUNT: &str =
    "CREATE TABLE account (id int PRIMARY KEY, cents int); INSERT INTO account VALUES (7, 100)";
const TAKE_FIVE: &str = "UPDATE account SET cents = cents - 5 WHERE id = 7";

#[tokio::test]
async fn a_holder_that_lost_its_lock_is_told_so() {
    let site = Site::open().await;
    let (locks, mut client) = (site.locks("").await, site.client().await);
    let stale = take(&locks, "account/7").await;
    assert!(locks.break_lock("account/7").await.unwrap());
    let _next = take(&locks, "account/7").await;
    let transaction = client.transaction().await.unwrap();
    let error = stale.fence(&transaction).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Lost, Some("fence")), "{error}");
    let text = error.to_string();
    assert!(text.contains(&stale.token().to_string()) && text.contains("account/7"), "{text}");
    transaction.execute("SELECT 1", &[]).await.unwrap_err();
}

/// The next holder is another client, or another task of the same one.
#[tokio::test]
async fn nobody_is_granted_the_lock_while_a_fenced_transaction_is_open() {
    for is_alone in [false, true] {
        let (site, (log, _guard)) = (Site::open().await, LogCapture::begin());
        let (one, mut client) = (site.locks("").await, site.client().await);
        let two = if is_alone { one.clone() } else { site.locks("").await };
        let guard = take(&one, "orders").await;
        let transaction = client.transaction().await.unwrap();
        guard.fence(&transaction).await.unwrap();
        is_renewed(&guard).await;
        guard.fence(&transaction).await.unwrap();
        assert!(two.mutex("orders").try_acquire().await.unwrap().is_none());
        let blocker = two.inspect("orders").await.unwrap().blocker.expect("the transaction is open");
        assert!(
            blocker.starts_with("the transaction of process ") && blocker.contains(", since "),
            "{blocker}"
        );

        let waiter = acquiring(two.mutex("orders"));
        let release = tokio::spawn(guard.release());
        let warnings = || log.warnings("waits for the end of the transaction of process ");
        until("a warning", async || !warnings().is_empty()).await;
        assert!(!release.is_finished() && !waiter.is_finished(), "the transaction is open");
        assert_eq!(warnings().len(), 1, "{:?}", warnings());
        transaction.commit().await.unwrap();
        assert_eq!(two.inspect("orders").await.unwrap().blocker, None);
        assert_eq!(come(release).await.unwrap(), Released::Released);
        give_back(come(waiter).await).await;
    }
}

#[tokio::test]
async fn a_transaction_that_keeps_new_names_from_everybody_is_shown() {
    let site = Site::open().await;
    let (locks, mut client) = (site.locks("").await, site.client().await);
    let transaction = client.transaction().await.unwrap();
    let ask = "SELECT polylock.ask('first', gen_random_uuid(), 0, 1000, '', 'off', NULL, NULL, NULL, NULL)";
    transaction.batch_execute(ask).await.unwrap();
    let beside = "SELECT g::text FROM generate_series(1, 100000) g WHERE (hashtext(g::text) # hashtext('first')) & 1023 = 0 LIMIT 1";
    let name: String = transaction.query_one(beside, &[]).await.unwrap().get(0);
    let blocker = async || locks.inspect(&name).await.unwrap().blocker;
    let is_shown =
        async || blocker().await.is_some_and(|blocker| blocker.starts_with("the transaction of process "));
    until("it is shown", is_shown).await;
    transaction.rollback().await.unwrap();
    assert_eq!(blocker().await, None);
    give_back(take(&locks, &name).await).await;
}

/// Releases the lock while another task of the process waits for it; the guard of that task.
async fn release_to_the_next_task(locks: &Locks, guard: Guard) -> Guard {
    let name = guard.name().clone();
    let mut next = Box::pin(take(locks, name.as_str()));
    assert!(poll!(&mut next).is_pending(), "the lock is held");
    give_back(guard).await;
    next.await
}

fn sql_of(token: Token) -> String {
    format!("SELECT polylock.fence('account/7', {token})")
}

async fn assert_refused(client: &Client, sql: &str, what: &str) {
    let error = client.batch_execute(&format!("BEGIN; {sql}; {TAKE_FIVE}; COMMIT")).await.unwrap_err();
    assert_eq!(error.code().map(|code| code.code()), Some("PL001"), "{what}: {error}");
    client.batch_execute("ROLLBACK").await.unwrap();
}

/// How a task learns its token, and the fence that it runs with it later.
type Reads = (&'static str, fn(&Guard) -> String);

#[tokio::test]
async fn a_task_that_knows_its_token_commits_nothing_after_the_next_task_was_granted_the_lock() {
    const WAYS: [Reads; 5] = [
        ("the text of its fence", |guard| guard.fence_sql().unwrap()),
        ("its token", |guard| sql_of(guard.token())),
        ("the token of a view", |guard| sql_of(guard.view().token())),
        ("a printed guard", |guard| sql_of(printed(&format!("{guard:?}")))),
        ("a printed view", |guard| sql_of(printed(&format!("{:?}", guard.view())))),
    ];
    let site = Site::open().await;
    let (locks, client) = (site.locks("&ttl=10s").await, site.client().await);
    client.batch_execute(ACCOUNT).await.unwrap();
    for (what, read) in WAYS {
        let stale = take(&locks, "account/7").await;
        let sql = read(&stale);
        let next = release_to_the_next_task(&locks, stale).await;
        assert_refused(&client, &sql, what).await;
        client.batch_execute(&format!("BEGIN; {}; COMMIT", next.fence_sql().unwrap())).await.unwrap();
        give_back(next).await;
    }
    assert_eq!(site.number("SELECT cents::bigint FROM account").await, 100);
}

/// The token in the output of `Debug`.
fn printed(debug: &str) -> Token {
    let (_, rest) = debug.split_once("token: Token(").expect("it is shown");
    Token::new(rest.split(')').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_view_that_outlives_its_guard_fences_nothing_after_the_next_task_was_granted_the_lock() {
    let site = Site::open().await;
    let (locks, client) = (site.locks("&ttl=10s").await, site.client().await);
    client.batch_execute(ACCOUNT).await.unwrap();
    let stale = take(&locks, "account/7").await;
    let view = stale.view();
    let next = release_to_the_next_task(&locks, stale).await;
    assert_refused(&client, &sql_of(view.token()), "a token that is read late").await;
    give_back(next).await;
}

/// Tasks that pass the lock on share its owner id, and the tokens of one grant.
#[tokio::test]
async fn a_lock_whose_token_nobody_knows_goes_to_the_next_task_without_a_request() {
    let site = Site::open().await;
    let locks = site.locks("&ttl=10s").await;
    let first = take(&locks, "account/7").await;
    let (owner, granted) = (first.owner(), locks.inspect("account/7").await.unwrap().token.unwrap());
    // A view whose token nobody has read.
    assert!(first.view().validity().is_valid());
    let second = release_to_the_next_task(&locks, first).await;
    assert_eq!(second.owner(), owner, "the server was asked");
    assert_eq!(second.token(), Token::new(granted.get() + 1), "the token is of the same grant");
    // Now one is known.
    let third = release_to_the_next_task(&locks, second).await;
    assert!(third.owner() != owner && third.token().get() > granted.get() + 15, "{third:?}");
    give_back(third).await;

    let mutex = locks.mutex("account/7");
    let run = || mutex.run(|view: GuardView| async move { view.owner() });
    let (one, other) = tokio::join!(run(), run());
    assert_eq!(one.unwrap(), other.unwrap(), "the server was asked for the second run");
}

#[tokio::test]
async fn names_and_backends_are_checked() {
    let site = Site::open().await;
    let (locks, mut client) = (site.locks("&schema=it's").await, site.client().await);
    for name in ["it's", r"back\slash", "a\0b", "\"quoted\"", "$1", "ünïcode"] {
        let guard = take(&locks, name).await;
        let transaction = client.transaction().await.unwrap();
        guard.fence(&transaction).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        transaction.commit().await.unwrap();
        client.batch_execute(&guard.fence_sql().unwrap()).await.unwrap();
        give_back(guard).await;
    }
    let memory = MemoryConfig::new().connect().unwrap();
    let elsewhere = take(&memory, "orders").await;
    let error = elsewhere.fence_sql().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the lock is not in PostgreSQL"), "{error}");
}
