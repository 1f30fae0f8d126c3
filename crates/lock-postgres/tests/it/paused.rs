//! A holder that is paused between every two steps of its transaction, until its lease has expired: the fence beside the naive
//! comparison of tokens.

use std::env;
use std::io::{self, BufRead};
use std::process::Command;
use std::time::Duration;

use lock_core::{Guard, Locks, Token};
use lock_postgres::Fence;
use lock_testkit::Worker;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::time::timeout;
use tokio_postgres::{Client, GenericClient};

use crate::site::{PATIENCE, Site, client, connect, take};

const TTL: &str = "&ttl=500ms";
/// Longer than the lease of a holder that is paused.
const EXPIRED: Duration = Duration::from_millis(1_500);
const HOLDER: &str = "POLYLOCK_PAUSED_HOLDER";
/// After each of them but the last, the holder is paused.
const STEPS: [&str; 5] = ["acquired", "begun", "fenced", "written", "committed"];

/// The account after the work of both, and whether the holder was told that its own work is done.
#[derive(Debug)]
struct Outcome {
    cents: i64,
    is_done: bool,
    is_stale: bool,
}

impl Outcome {
    /// Whether an update was reported as done, and is lost.
    fn has_lost(&self) -> bool {
        self.cents != 100 + DEPOSIT - if self.is_done { WITHDRAWAL } else { 0 }
    }
}

const WITHDRAWAL: i64 = 30;
const DEPOSIT: i64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: waits for leases that expire"]
async fn of_a_fenced_holder_no_commit_is_stale_and_of_a_naive_one_some_are() {
    let bank = Bank::open().await;
    for pause in &STEPS[..4] {
        let fenced = bank.round("fence", pause).await;
        assert!(!fenced.is_stale && !fenced.has_lost(), "paused when {pause}: {fenced:?}");
        // Once it is fenced, the pause does not even lose it.
        assert_eq!(fenced.is_done, matches!(*pause, "fenced" | "written"), "paused when {pause}");
        let naive = bank.round("naive", pause).await;
        assert!(naive.is_stale && naive.has_lost(), "paused when {pause}: {naive:?}");
    }
}

struct Bank {
    site: Site,
    locks: Locks,
    holder: Worker,
}

impl Bank {
    async fn open() -> Self {
        let site = Site::open().await;
        let locks = site.locks(TTL).await;
        let account = "CREATE TABLE account (id text PRIMARY KEY, cents bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)";
        site.client().await.batch_execute(account).await.unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "paused::the_holder", "--nocapture", "--quiet"]);
        command.env(HOLDER, format!("{}{TTL}", site.url()));
        let holder = Worker::spawn(&command).unwrap();
        Self { site, locks, holder }
    }

    /// The holder withdraws, and is paused after this step; meanwhile the next one is granted the lock and reads, if it can. It
    /// deposits when the holder has ended.
    async fn round(&self, how: &str, pause: &str) -> Outcome {
        let id = format!("{how} {pause}");
        let bank = self.site.client().await;
        bank.execute("INSERT INTO account VALUES ($1, 100)", &[&id]).await.unwrap();
        self.holder.send(&json!({ "how": how, "id": id })).await.unwrap();
        while self.says().await != pause {
            self.holder.send(&json!("go on")).await.unwrap();
        }
        self.holder.stop();
        let next = self.locks.mutex(&id).try_acquire_for(EXPIRED).await.unwrap();
        let read = cents(&bank, &id).await;
        self.holder.cont();
        let mut is_done = None;
        while is_done.is_none() {
            self.holder.send(&json!("go on")).await.unwrap();
            is_done = match &*self.says().await {
                "committed" => Some(true),
                "refused" => Some(false),
                _ => None,
            };
        }
        let is_stale = next.is_some() && is_done == Some(true);
        let (next, read) = match next {
            Some(next) => (next, read),
            None => (take(&self.locks, &id).await, cents(&bank, &id).await),
        };
        deposit(&bank, how, &id, &next, read).await;
        next.release().await.unwrap();
        Outcome { cents: cents(&bank, &id).await, is_done: is_done == Some(true), is_stale }
    }

    async fn says(&self) -> String {
        let said = self.holder.recv_deadline(PATIENCE).await.unwrap_or_else(|error| panic!("{error}"));
        said.as_str().unwrap_or_else(|| panic!("{said}")).to_owned()
    }
}

/// The account as it was committed last.
async fn cents(client: &Client, id: &str) -> i64 {
    client.query_one("SELECT cents FROM account WHERE id = $1", &[&id]).await.unwrap().get(0)
}

/// Writes what the next holder has computed from what it read.
async fn deposit(client: &Client, how: &str, id: &str, guard: &Guard, read: i64) {
    if how == "fence" {
        let sql = guard.fence_sql().unwrap();
        let update = format!("UPDATE account SET cents = {} WHERE id = '{id}'", read + DEPOSIT);
        client.batch_execute(&format!("BEGIN; {sql}; {update}; COMMIT")).await.unwrap();
    } else {
        assert!(write_naively(client, id, read + DEPOSIT, guard.token()).await);
    }
}

/// Whether a row that remembers the largest token has accepted this one.
async fn write_naively(client: &(impl GenericClient + Sync), id: &str, cents: i64, token: Token) -> bool {
    let sql =
        format!("UPDATE account SET cents = {cents}, fence = {token} WHERE id = '{id}' AND fence <= {token}");
    client.execute(&sql, &[]).await.unwrap() == 1
}

/// The process of the holder, when the test above starts this program so.
#[test]
fn the_holder() {
    let Ok(url) = env::var(HOLDER) else { return };
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = connect(&url).await.unwrap_or_else(|error| panic!("{error}"));
        let address = url.trim_end_matches(TTL).trim_end_matches('?');
        let mut client = client(address).await;
        while let Some(work) = hears() {
            withdraw(&locks, &mut client, work["how"].as_str().unwrap(), work["id"].as_str().unwrap()).await;
        }
    });
}

/// Withdraws from an account, and waits for a word after each step.
async fn withdraw(locks: &Locks, client: &mut Client, how: &str, id: &str) {
    let guard = timeout(PATIENCE, locks.mutex(id).acquire()).await.unwrap().unwrap();
    step("acquired");
    let transaction = client.transaction().await.unwrap();
    step("begun");
    if how == "fence" && guard.fence(&transaction).await.is_err() {
        transaction.rollback().await.unwrap();
        return say("refused");
    }
    let sql = "SELECT cents FROM account WHERE id = $1";
    let read: i64 = transaction.query_one(sql, &[&id]).await.unwrap().get(0);
    step("fenced");
    let cents = read - WITHDRAWAL;
    if how == "fence" {
        let update = format!("UPDATE account SET cents = {cents} WHERE id = '{id}'");
        transaction.execute(&update, &[]).await.unwrap();
    } else if !write_naively(&transaction, id, cents, guard.token()).await {
        transaction.rollback().await.unwrap();
        return say("refused");
    }
    step("written");
    transaction.commit().await.unwrap();
    say("committed");
    drop(guard.release().await);
}

fn step(name: &str) {
    say(name);
    hears();
}

fn say(text: &str) {
    println!("{}", json!(text));
}

fn hears() -> Option<Value> {
    let line = io::stdin().lock().lines().next()?.ok()?;
    Some(serde_json::from_str(&line).unwrap())
}
