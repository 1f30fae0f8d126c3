//! A server with the functions, and calls as text.
//!
//! | text | the call |
//! |---|---|
//! | `ask me 0` | asks for the lock alone for 300 s, without waiting; `-1` is a reader, `2` one of 2 permits |
//! | `ask me 0 wait`, `ask me 0 poll` | the same, and joins the queue |
//! | `extend me`, `shorten me` | extends the lease to 300 s; the second one also a longer one |
//! | `hand_over me ann`, `raise me 2000`, `break_if 1603` | with the next owner, a floor, a token |
//!
//! Another transaction has the row of the lock with `row/ask me 0`, that of the lease with `lease/..`, and those of all sharers
//! with `share/..`.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lock_postgres::schema::{Grants, install};
use lock_testkit::postgres::PostgresServer;
use lock_testkit::soon;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use super::record;
use super::state::{OBSERVER, key, owner, read, write};

pub(super) struct Bench {
    /// A schema of its own on the server of all tests.
    pub(super) schema: String,
    inbox: String,
    pub(super) client: Client,
    _listener: Client,
    pub(super) listener: i32,
    names: u32,
}

/// State, call, answer, notifications, state after.
pub(super) type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

impl Bench {
    pub(super) async fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let count = COUNT.fetch_add(1, Relaxed);
        let (schema, inbox) = (format!("\"schema\" {count}"), format!("{count:032x}"));
        let client = open("public").await;
        client.batch_execute(&install(&schema, &Grants::default())).await.unwrap();
        client.batch_execute(&search(&schema)).await.unwrap();
        let listener = listen(&inbox).await;
        let pid = pid(&listener).await;
        Self { schema, inbox, client, _listener: listener, listener: pid, names: 0 }
    }

    /// Another connection, which finds tables and functions.
    pub(super) async fn connection(&self) -> Client {
        open(&self.schema).await
    }

    pub(super) async fn check(&mut self, rows: &[Row]) {
        for (number, (before, call, answer, notified, after)) in rows.iter().enumerate() {
            record::check(before, call, answer, notified, after);
            let name = self.name(before).await;
            let (lock, call) = call.split_once('/').map_or((None, *call), |(lock, call)| (Some(lock), call));
            let blocker = self.connection().await;
            if let Some(lock) = lock {
                let table = ["row", "lease", "share"]
                    .iter()
                    .position(|it| *it == lock)
                    .map(|at| ["lock", "lease", "sharer"][at]);
                let sql =
                    format!("BEGIN; SELECT FROM {} WHERE name = '{name}' FOR NO KEY UPDATE", table.unwrap());
                blocker.batch_execute(&sql).await.unwrap();
            }
            let tokens = self.tokens(&name).await;
            // No call waits.
            let (got, tells) = soon(self.call_and_tell(&name, call)).await;
            let told = if tells { self.notified(&name).await } else { String::new() };
            let seen = (got.as_str(), told, read(&self.client, &name, self.listener).await);
            let wanted = (*answer, (*notified).to_owned(), (*after).to_owned());
            assert_eq!(seen, wanted, "row {number}: {before}; {}{call}", lock.unwrap_or(""));
            self.check_tokens(&name, tokens, before, after, call).await;
        }
    }

    /// A new name in this state.
    pub(super) async fn name(&mut self, state: &str) -> String {
        self.names += 1;
        let name = format!("a name {}", self.names);
        write(&self.client, &name, state, (&self.inbox, self.listener)).await;
        name
    }

    /// The block of the last grant, and the last token.
    pub(super) async fn tokens(&self, name: &str) -> (i64, i64) {
        let row =
            self.client.query_opt("SELECT token, last FROM lock WHERE name = $1", &[&name]).await.unwrap();
        row.map_or((0, 0), |row| (row.get(0), row.get(1)))
    }

    /// Whoever is new among the holders has a new block; else tokens stay, unless they are raised or broken.
    async fn check_tokens(&self, name: &str, before: (i64, i64), old: &str, new: &str, call: &str) {
        let holders = |state: &'static str| state.split(" | ").next().unwrap_or("").split(' ');
        let who = |holder: &'static str| holder.split(':').next();
        let (old, new): (&'static str, &'static str) = (leak(old), leak(new));
        let is_new = |holder: &str| {
            let is_held = |before: &str| before.ends_with(":0") || who(leak(before)) != who(leak(holder));
            holder.contains(':') && !holder.ends_with(":0") && holders(old).all(is_held)
        };
        let (token, last) = self.tokens(name).await;
        if holders(new).any(is_new) {
            assert!(
                token % 16 == 0 && token > before.1 && token == last,
                "{token} of {last} after {before:?}"
            );
        } else if call.starts_with("break") {
            assert_eq!(last, before.1);
        } else if !call.starts_with("raise") && new != "none" && old != "none" {
            assert_eq!((token, last), before, "{call}");
        }
    }

    /// Makes a call, and returns its answer: times in seconds, rounded up to tens.
    pub(super) async fn call(&self, name: &str, call: &str) -> String {
        self.call_and_tell(name, call).await.0
    }

    /// The same, and whether somebody is to be notified.
    async fn call_and_tell(&self, name: &str, call: &str) -> (String, bool) {
        let words: Vec<_> = call.split(' ').collect();
        let id = words.get(1).map(|who| owner(who)).unwrap_or_default();
        let sql = match words.as_slice() {
            ["ask", _, mode, wait @ ..] => {
                let queue = match wait {
                    [] => "NULL, NULL, NULL, NULL".to_owned(),
                    ["poll"] => "100000, NULL, NULL, NULL".to_owned(),
                    _ => format!("100000, '{}', {}, '{}'", self.inbox, self.listener, key(words[1])),
                };
                format!(
                    "SELECT concat_ws(' ', status, ahead, CASE WHEN ends_in > 0 THEN ceil((ends_in - 1000) / 10000.0) * 10 ELSE ends_in END), tell
                     FROM ask('{name}', '{id}', {mode}, 300000, 'info', 'off', {queue})"
                )
            }
            ["release", _] => format!("SELECT * FROM release('{name}', '{id}', 'off')"),
            ["extend" | "shorten", _] => {
                let shortens = words[0] == "shorten";
                format!(
                    "SELECT extend('{{{name},other}}', '{{{id},{id}}}', '{{300000,300000}}', '{{{shortens},false}}', 'off')::text"
                )
            }
            ["holds", _] => format!("SELECT holds('{name}', '{id}')::text"),
            ["hand_over", _, next] => {
                format!(
                    "SELECT status, tell FROM hand_over('{name}', '{id}', '{}', 300000, 'info', 'off')",
                    owner(next)
                )
            }
            ["downgrade", _] => format!("SELECT * FROM downgrade('{name}', '{id}', 300000, 'off')"),
            ["raise", _, floor] => format!("SELECT raise('{name}', '{id}', {floor}, 'off')"),
            ["break", last] => format!("SELECT * FROM break_lock('{name}', {last}, 'off')"),
            ["break_if", token] => format!("SELECT * FROM break_if('{name}', {token}, 'off')"),
            ["observe"] => {
                format!("SELECT observe('{name}', '{}', {}, '{OBSERVER}')", self.inbox, self.listener)
            }
            ["unobserve"] => format!("SELECT unobserve('{name}', '{}', '{OBSERVER}')", self.inbox),
            ["fence", token] => format!("SELECT fence('{name}', {token})::text"),
            ["list"] => format!("SELECT list('{name}', 10)"),
            ["sweep"] => "SELECT concat_ws(' ', removed, next) FROM sweep('', 1000000, 0, NULL)".to_owned(),
            other => panic!("{other:?}"),
        };
        match self.client.query_opt(&sql, &[]).await {
            Ok(Some(row)) => (row.get(0), row.len() > 1 && row.get::<_, Option<bool>>(1).unwrap_or_default()),
            Ok(None) => Default::default(),
            Err(error) => (error.code().unwrap_or_else(|| panic!("{error}")).code().to_owned(), false),
        }
    }

    /// Who is notified of what.
    async fn notified(&self, name: &str) -> String {
        let last = self.tokens(name).await.1;
        let sql = "SELECT inbox, payload FROM told($1) ORDER BY payload LIKE 'granted%'";
        let rows = self.client.query(sql, &[&name]).await.unwrap();
        let all = rows.iter().map(|row| {
            assert_eq!(row.get::<_, String>(0), self.inbox);
            match row.get::<_, &str>(1).split(':').collect::<Vec<_>>().as_slice() {
                ["changed", OBSERVER] => "changed".to_owned(),
                ["granted", entry, token, proof] => {
                    let who =
                        ["me", "ann", "bob", "carl"].into_iter().find(|who| key(who).starts_with(entry));
                    let who = who.expect("a waiter");
                    assert!(token.parse::<i64>().unwrap() <= last);
                    let proven = Sha256::digest(format!("{token}:{}", &key(who)[16..]));
                    assert_eq!(*proof, proven.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
                    format!("granted {who}")
                }
                other => panic!("{other:?}"),
            }
        });
        let mut all: Vec<_> = all.collect();
        all.sort();
        all.join(", ")
    }
}

fn leak(text: &str) -> &'static str {
    String::leak(text.to_owned())
}

async fn server() -> &'static PostgresServer {
    static SERVER: OnceCell<PostgresServer> = OnceCell::const_new();
    SERVER.get_or_init(|| async { PostgresServer::start().await.unwrap() }).await
}

/// A connection that finds what is in this schema.
pub(super) async fn open(schema: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&server().await.connect_string(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&search(schema)).await.unwrap();
    client
}

fn search(schema: &str) -> String {
    format!("SET search_path = \"{}\"", schema.replace('"', "\"\""))
}

/// A connection that the server finds as that of the inbox.
async fn listen(inbox: &str) -> Client {
    let connect = format!("{} application_name=polylock_{inbox}", server().await.connect_string());
    let (client, connection) = tokio_postgres::connect(&connect, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(super) async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Whether a session waits for a lock.
pub(super) async fn waits_for_a_lock(client: &Client, pid: i32) -> bool {
    let sql = "SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = $1";
    client.query_one(sql, &[&pid]).await.unwrap().get(0)
}
