//! Examines the server, and the rights of its user.

use std::time::Duration;

use lock_core::{DoctorReport, Finding, FindingLevel, Result};
use serde_json::Value;

use crate::config::PostgresSync;
use crate::error::unexpected;
use crate::schema::VERSION;
use crate::server::blocker_text;
use crate::store::PostgresStore;

/// How long the examination waits for the connection that listens.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// A fenced transaction that is open for longer blocks its lock.
const LONG_OPEN: Duration = Duration::from_secs(10);
/// From then on autovacuum does not keep up.
const MANY_DEAD_ROWS: u64 = 1_000_000;
/// So many transactions after a snapshot, the rows of a lock that is used all the time are slow to find.
const OLD_SNAPSHOT: u64 = 10_000;

impl PostgresStore {
    pub(crate) async fn examined(&self) -> Result<DoctorReport> {
        let facts = self.server.doctor().await?;
        let facts: Value = serde_json::from_str(&facts)
            .map_err(|error| unexpected(format!("doctor() returned no JSON: {error}")))?;
        let mut findings = Findings { server: self.server.endpoint.servers.clone(), all: Vec::new() };
        findings.version(&facts);
        findings.durability(&facts, self.server.sync());
        findings.load(&facts);
        findings.fences(&facts);
        if !self.listens {
            findings.note("waiters poll, as listen=off says", "");
        } else if !self.inbox.opened(HEARD_WITHIN).await {
            findings.warn(
                "the server cannot notify this process, perhaps because of a pooler in transaction mode: waiters poll",
                "give the server's own address, past the pooler, as listen_host=, or accept that with listen=off",
            );
        }
        Ok(DoctorReport::new(findings.all))
    }
}

struct Findings {
    server: String,
    all: Vec<Finding>,
}

impl Findings {
    fn version(&mut self, facts: &Value) {
        let version = facts["server_version_num"].as_u64().unwrap_or_default();
        self.note(
            &format!(
                "PostgreSQL {}.{}, schema version {}",
                version / 10_000,
                version % 10_000,
                facts["schema_version"]
            ),
            "",
        );
        if facts["schema_version"].as_i64().is_some_and(|version| version < i64::from(VERSION)) {
            self.warn(
                &format!("the schema has an older version than {VERSION}, which the next release refuses"),
                "let an administrator run `polylock install`",
            );
        }
        if facts["standby"] == true {
            self.warn("it is a standby: no lock can be acquired here", "name the primary in the URL");
        }
    }

    fn durability(&mut self, facts: &Value, sync: PostgresSync) {
        if facts["fsync"] == false {
            self.warn(
                "fsync is off: a crash of the machine may lose granted locks, and corrupt the database",
                "set fsync = on",
            );
        }
        if facts["full_page_writes"] == false {
            self.warn(
                "full_page_writes is off: a crash of the machine may corrupt the database",
                "set it on",
            );
        }
        if sync == PostgresSync::Off {
            self.warn(
                "sync=off: a server that crashes may lose the grants of its last second, and two holders be valid at once",
                "leave sync= out, or fence what the lock protects",
            );
        }
        let synchronous = facts["synchronous_standby_names"].as_str().unwrap_or_default();
        match facts["standbys"].as_u64() {
            Some(standbys @ 1..) if synchronous.is_empty() => self.warn(
                &format!("it has {standbys} standbys, all asynchronous: a failover may lose the last grants"),
                "set synchronous_standby_names, or fence what the lock protects",
            ),
            _ => {}
        }
    }

    fn load(&mut self, facts: &Value) {
        let number = |key: &str| facts[key].as_u64().unwrap_or_default();
        let (connections, most) = (number("connections"), number("max_connections"));
        if most > 0 && connections * 10 >= most * 9 {
            self.warn(
                &format!("{connections} of {most} connections are in use"),
                "raise max_connections, or use a pooler",
            );
        }
        if facts["notify_queue"].as_f64().is_some_and(|usage| usage > 0.5) {
            self.warn(
                "the queue of NOTIFY is more than half full: a session that listens is in a long transaction",
                "end that transaction; when the queue is full, waiters and observers are not notified, and poll",
            );
        }
        let oldest = &facts["oldest"];
        if let Some(age @ OLD_SNAPSHOT..) = oldest["transactions"].as_u64() {
            self.warn(
                // What others call themselves.
                &format!(
                    "{:?} keeps the dead rows of {age} transactions",
                    oldest["who"].as_str().unwrap_or_default()
                ),
                "end it: locks that are used all the time become slower and slower",
            );
        }
        if number("dead_rows") > MANY_DEAD_ROWS {
            self.warn(
                &format!("the tables have {} dead rows", number("dead_rows")),
                "check autovacuum, and end transactions that are open for hours",
            );
        }
    }

    fn fences(&mut self, facts: &Value) {
        for fence in facts["fences"].as_array().into_iter().flatten() {
            let open = fence["open_ms"].as_u64().map(Duration::from_millis);
            if open.is_none_or(|open| open >= LONG_OPEN) {
                let age = open.map(|open| format!(" for {open:?}")).unwrap_or_default();
                let pid = fence["pid"].as_i64().unwrap_or_default();
                let whose = blocker_text(pid, fence["application_name"].as_str());
                self.warn(
                    &format!("a transaction with a fence of the lock {} is open{age}: {whose}", fence["name"]),
                    "nobody is granted the lock meanwhile: commit it, or end it by pg_terminate_backend or ROLLBACK PREPARED",
                );
            }
        }
    }

    fn note(&mut self, what: &str, advice: &str) {
        self.all.push(Finding::new(FindingLevel::Note, &*self.server, what, advice));
    }

    fn warn(&mut self, what: &str, advice: &str) {
        self.all.push(Finding::new(FindingLevel::Warning, &*self.server, what, advice));
    }
}
