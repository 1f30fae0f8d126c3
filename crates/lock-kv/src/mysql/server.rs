//! What a server has to be, and how its sessions are set.

use std::collections::BTreeMap;

use lock_core::{Error, ErrorKind, Finding, FindingLevel, Outcome, Result};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{Executor, Row};

use super::error::{NAME, read_only};

/// The longest name of a table.
pub(crate) const LONGEST_TABLE: usize = 64;
const SHOW: &str = "SHOW VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'read_only', \
     'super_read_only', 'innodb_read_only', 'wsrep_on', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')";
const SESSION: [&str; 2] = [
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    // No statement waits longer for a row, or for a change of the table. Strict: a value that does not fit is an error.
    "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, unique_checks = 1, sql_safe_updates = 0",
];
/// In a Galera cluster: a statement sees what other members have committed before it; a member that has left answers nothing; and none is
/// executed twice.
const SESSION_OF_CLUSTER: &str =
    "SET SESSION wsrep_sync_wait = 7, wsrep_dirty_reads = 0, wsrep_retry_autocommit = 0";
/// The columns of the table: name, type, key and length.
const COLUMNS: [&str; 3] = ["name varbinary PRI 1040", "value longblob  ", "version bigint  "];
const DURABLE: [(&str, &str); 2] = [("innodb_flush_log_at_trx_commit", "1"), ("sync_binlog", "1")];

/// The variables of a server.
#[derive(Debug)]
pub(super) struct Facts(BTreeMap<String, String>);

/// Sets a session, in which locks can be kept, and which has the table.
pub(super) async fn set_up(session: &mut MySqlConnection, table: &str) -> Result<Facts, SetUp> {
    let rows = session.fetch_all(SHOW).await?;
    let facts = Facts(rows.iter().map(|row| (text(row, 0).to_lowercase(), text(row, 1))).collect());
    facts.check_writable()?;
    for statement in SESSION.into_iter().chain(facts.is_cluster().then_some(SESSION_OF_CLUSTER)) {
        session.execute(statement).await?;
    }
    // Who may not make it can use one that is there.
    if look(session, table).await?.is_empty() {
        let make = format!(
            "CREATE TABLE IF NOT EXISTS `{table}` (name VARBINARY(1040) NOT NULL PRIMARY KEY, \
             version BIGINT NOT NULL, value LONGBLOB NOT NULL) ENGINE = InnoDB ROW_FORMAT = DYNAMIC"
        );
        session.execute(make.as_str()).await?;
    }
    check_table(table, &look(session, table).await?)?;
    Ok(facts)
}

/// Why a session cannot be set.
#[derive(Debug)]
pub(super) enum SetUp {
    Failed(sqlx::Error),
    Refused(Error),
}

impl From<sqlx::Error> for SetUp {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Error> for SetUp {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Facts {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Whether it is a member of a Galera cluster.
    pub(super) fn is_cluster(&self) -> bool {
        is_on(self.get("wsrep_on"))
    }

    /// A user with more rights could write to a replica all the same.
    fn check_writable(&self) -> Result<()> {
        let why =
            ["super_read_only", "read_only", "innodb_read_only"].into_iter().find(|why| is_on(self.get(why)));
        why.map_or(Ok(()), |why| Err(read_only(&format!("{why} is {}", self.get(why)))))
    }

    /// What there is to know of the server of this name.
    pub(super) fn findings(&self, server: &str) -> Vec<Finding> {
        let version =
            format!("{} {}, the table is of InnoDB", self.get("version"), self.get("version_comment"));
        let mut findings = vec![Finding::new(FindingLevel::Note, server, version, "")];
        let role = if self.is_cluster() {
            "it is a member of a Galera cluster"
        } else {
            "it takes writes: read_only is OFF"
        };
        findings.push(Finding::new(FindingLevel::Note, server, role, ""));
        for (name, safe) in DURABLE {
            let is_used = name != "sync_binlog" || is_on(self.get("log_bin"));
            if is_used && self.get(name) != safe {
                let what = format!("{name} is {}: a crash of the host may lose locks", self.get(name));
                findings.push(Finding::new(FindingLevel::Warning, server, what, format!("set it to {safe}")));
            }
        }
        findings
    }
}

/// Whether the server gets its data from another one.
pub(super) async fn replication(session: &mut MySqlConnection, server: &str) -> Finding {
    let note = |what: &str| Finding::new(FindingLevel::Note, server, what, "");
    match session.fetch_all("SHOW REPLICA STATUS").await {
        Ok(sources) if sources.is_empty() => note("it replicates no other server"),
        Ok(_) => Finding::new(
            FindingLevel::Warning,
            server,
            "it replicates another server, and takes writes: the locks of both would differ",
            "set read_only on replicas, and name the primary",
        ),
        Err(_) => note(
            "whether it replicates another server may not be asked by this user (REPLICATION CLIENT, SLAVE MONITOR)",
        ),
    }
}

/// The engine of the table, and its columns in the order of their names; nothing if there is no table.
async fn look(session: &mut MySqlConnection, table: &str) -> Result<Vec<String>, sqlx::Error> {
    // The name has letters, digits and underlines alone.
    let look = format!(
        "SELECT CONCAT_WS(' ', TABLE_TYPE, ENGINE) FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"
    );
    let kind = session.fetch_all(look.as_str()).await?;
    let look = format!(
        "SELECT CONCAT_WS(' ', LOWER(COLUMN_NAME), LOWER(DATA_TYPE), COLUMN_KEY, IF(DATA_TYPE = 'varbinary', \
         CHARACTER_MAXIMUM_LENGTH, '')) FROM information_schema.COLUMNS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}' ORDER BY COLUMN_NAME"
    );
    let columns = session.fetch_all(look.as_str()).await?;
    Ok(kind.iter().chain(&columns).map(|row| text(row, 0)).collect())
}

fn check_table(table: &str, found: &[String]) -> Result<()> {
    let refuse = |what: &str, hint: &str| {
        Err(Error::new(ErrorKind::InvalidConfig, NAME)
            .with_message(format!("the table {table} {what}"))
            .with_hint(hint)
            .with_outcome(Outcome::NotApplied))
    };
    let Some((kind, columns)) = found.split_first() else {
        return refuse("does not show", "grant SELECT, INSERT and UPDATE on it");
    };
    if !kind.eq_ignore_ascii_case("BASE TABLE InnoDB") {
        let hint = "only InnoDB commits and compares as locks need it: ALTER TABLE .. ENGINE = InnoDB, or name another one by table=";
        return refuse(&format!("is not one of InnoDB, but {kind}"), hint);
    }
    if columns != COLUMNS {
        return refuse(
            &format!("has other columns: {columns:?}"),
            "name another one by table=, which is made then",
        );
    }
    Ok(())
}

fn is_on(value: &str) -> bool {
    !matches!(value.to_ascii_uppercase().as_str(), "" | "OFF" | "0")
}

/// Servers differ in the types of these.
fn text(row: &MySqlRow, at: usize) -> String {
    let bytes = row.try_get_unchecked::<Option<Vec<u8>>, _>(at).ok().flatten();
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}
