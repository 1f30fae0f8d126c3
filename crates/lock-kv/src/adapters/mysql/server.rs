//! What a server has to be, and how its sessions are set.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Finding, FindingLevel, Outcome, Result};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{Connection as _, Executor, Row};

use super::error::{NAME, NotOpened, read_only};

/// The longest name of a table.
pub(crate) const LONGEST_TABLE: usize = 64;
const SHOW: &str = "SHOW VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'read_only', \
     'super_read_only', 'innodb_read_only', 'wsrep_on', 'wsrep_cluster_name', 'group_replication_group_name', 'hostname', \
     'port', 'server_uuid', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')";
const SESSION: [&str; 2] = [
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    // No statement waits longer for a row, or for a change of the table. Strict: a value that does not fit is an error.
    "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
     innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, unique_checks = 1, sql_safe_updates = 0",
];
/// How long a statement may wait for a row by these settings, and until its answer has come: MySQL looks once a second for those that have
/// waited too long.
pub(super) const WAITS_FOR_A_ROW: Duration = Duration::from_millis(2_200);
/// In a Galera cluster: a statement sees what other members have committed before it; a member that has left answers nothing; and none is
/// executed twice.
const SESSION_OF_CLUSTER: &str =
    "SET SESSION wsrep_sync_wait = 7, wsrep_dirty_reads = 0, wsrep_retry_autocommit = 0";
/// The columns of the table: name, type, key and length.
const COLUMNS: [&str; 3] = ["name varbinary PRI 1040", "value longblob  ", "version bigint  "];
/// Rights by which a session writes in spite of `read_only`.
const UNSTOPPED: [&str; 4] = ["ALL PRIVILEGES", "SUPER", "READ_ONLY ADMIN", "CONNECTION_ADMIN"];
const DURABLE: [(&str, &str); 2] = [("innodb_flush_log_at_trx_commit", "1"), ("sync_binlog", "1")];

/// The variables of a server.
#[derive(Debug)]
pub(super) struct Facts(BTreeMap<String, String>);

/// Sets a session, in which locks can be kept, and which has the table.
pub(super) async fn set_up(session: &mut MySqlConnection, table: &str) -> Result<Facts, NotOpened> {
    let facts = facts(session).await?;
    if let Some(why) = facts.takes_no_writes() {
        return Err(read_only(&why).into());
    }
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

async fn facts(session: &mut MySqlConnection) -> Result<Facts, sqlx::Error> {
    let rows = session.fetch_all(SHOW).await?;
    Ok(Facts(rows.iter().map(|row| (text(row, 0).to_lowercase(), text(row, 1))).collect()))
}

/// What there is to know of the server of this name. It ends the session.
pub(super) async fn examine(
    mut session: MySqlConnection,
    server: &str,
) -> Result<(Facts, Vec<Finding>), NotOpened> {
    let facts = facts(&mut session).await?;
    let mut findings = facts.findings(server);
    findings.push(replication(&mut session, &facts, server).await?);
    findings.extend(rights(&mut session, server).await?);
    session.close().await?;
    Ok((facts, findings))
}

/// Whether the servers that take writes are one cluster.
pub(super) fn one_writer(servers: &[(String, Facts)]) -> Option<Finding> {
    let writers = || servers.iter().filter(|(_, facts)| facts.takes_no_writes().is_none());
    let stores: BTreeSet<_> = writers().map(|(_, facts)| facts.store()).collect();
    let names: Vec<_> = writers().map(|(name, _)| name.as_str()).collect();
    (stores.len() > 1).then(|| {
        let what = "all of them take writes, and are no cluster: each would grant the same lock";
        Finding::new(FindingLevel::Warning, names.join(", "), what, "set read_only on all but the primary")
    })
}

impl Facts {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Whether it is a member of a Galera cluster.
    pub(super) fn is_cluster(&self) -> bool {
        is_on(self.get("wsrep_on"))
    }

    /// Which setting says so, if it does. A user with more rights could write to a replica all the same.
    fn takes_no_writes(&self) -> Option<String> {
        let mut settings = ["super_read_only", "read_only", "innodb_read_only"].into_iter();
        let why = settings.find(|why| is_on(self.get(why)))?;
        Some(format!("{why} is {}", self.get(why)))
    }

    /// What has one set of locks: the cluster, or the server by itself, which may have several names.
    fn store(&self) -> Vec<&str> {
        let of_group = self.get("group_replication_group_name");
        match (self.is_cluster(), of_group) {
            (true, _) => vec![self.get("wsrep_cluster_name")],
            (false, "") => ["hostname", "port", "server_uuid"].map(|part| self.get(part)).to_vec(),
            (false, of_group) => vec![of_group],
        }
    }

    fn findings(&self, server: &str) -> Vec<Finding> {
        let role = match self.takes_no_writes() {
            Some(why) => format!("it takes no writes: {why}"),
            None if self.is_cluster() => "it is a member of a Galera cluster".to_owned(),
            None => "it takes writes: read_only is OFF".to_owned(),
        };
        let version = format!("{} {}", self.get("version"), self.get("version_comment"));
        let mut findings: Vec<_> =
            [version, role].map(|what| Finding::new(FindingLevel::Note, server, what, "")).into();
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
async fn replication(
    session: &mut MySqlConnection,
    facts: &Facts,
    server: &str,
) -> Result<Finding, sqlx::Error> {
    let note = |what: String| Finding::new(FindingLevel::Note, server, what, "");
    Ok(match answered(session.fetch_all("SHOW REPLICA STATUS").await)? {
        Ok(sources) if sources.is_empty() => note("it replicates no other server".to_owned()),
        Ok(_) if facts.takes_no_writes().is_some() => note("it replicates another server".to_owned()),
        Ok(_) => Finding::new(
            FindingLevel::Warning,
            server,
            "it replicates another server, and takes writes: the locks of both would differ",
            "set read_only on replicas, and name the primary",
        ),
        Err(why) => note(format!("whether it replicates another server is not known: {why}")),
    })
}

/// Whether `read_only` stops the user of the session.
async fn rights(session: &mut MySqlConnection, server: &str) -> Result<Option<Finding>, sqlx::Error> {
    let grants = match answered(session.fetch_all("SHOW GRANTS").await)? {
        Ok(grants) => grants,
        Err(why) => {
            let what = format!("the rights of the user are not known: {why}");
            return Ok(Some(Finding::new(FindingLevel::Note, server, what, "")));
        }
    };
    Ok(grants.iter().find_map(|grant| unstopped_by(&text(grant, 0))).map(|right| {
        let what = format!("the user has {right}, and so writes on where read_only is set: after a switch-over two guards may be valid");
        let advice = "give locks a user with SELECT, INSERT and UPDATE on the table alone";
        Finding::new(FindingLevel::Warning, server, what, advice)
    }))
}

/// The right of this grant by which `read_only` stops nobody.
fn unstopped_by(grant: &str) -> Option<&'static str> {
    let (rights, _) = grant.strip_prefix("GRANT ")?.split_once(" ON *.* TO ")?;
    UNSTOPPED.into_iter().find(|unstopped| rights.split(',').any(|right| right.trim() == *unstopped))
}

/// What the server says instead of an answer, unless the connection has failed.
fn answered<T>(answer: Result<T, sqlx::Error>) -> Result<Result<T, String>, sqlx::Error> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(sqlx::Error::Database(refusal)) => Ok(Err(refusal.message().to_owned())),
        Err(error) => Err(error),
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
         CHARACTER_MAXIMUM_LENGTH, ''), IF(COLUMN_TYPE LIKE '%unsigned%', 'unsigned', NULL)) FROM information_schema.COLUMNS \
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_past_read_only_are_found_in_grants() {
        for (grant, right) in [
            (
                "GRANT ALL PRIVILEGES ON *.* TO `me`@`%` IDENTIFIED BY PASSWORD '*00' WITH GRANT OPTION",
                Some("ALL PRIVILEGES"),
            ),
            ("GRANT SELECT, RELOAD, SUPER ON *.* TO `me`@`%`", Some("SUPER")),
            (
                "GRANT AUDIT_ADMIN,CONNECTION_ADMIN,XA_RECOVER_ADMIN ON *.* TO `me`@`%`",
                Some("CONNECTION_ADMIN"),
            ),
            ("GRANT READ_ONLY ADMIN, BINLOG ADMIN ON *.* TO `me`@`%`", Some("READ_ONLY ADMIN")),
            ("GRANT ALL PRIVILEGES ON `app`.* TO `me`@`%`", None),
            ("GRANT USAGE ON *.* TO `me`@`%`", None),
            ("GRANT `SUPER` TO `me`@`%`", None),
            ("GRANT SELECT, REPLICA MONITOR ON *.* TO `me`@`%`", None),
        ] {
            assert_eq!(unstopped_by(grant), right, "{grant}");
        }
    }

    #[test]
    fn servers_that_take_writes_are_one_cluster_or_one_server() {
        let server = |name: &str, facts: &[(&str, &str)]| {
            let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            (name.to_owned(), Facts(facts.collect()))
        };
        let alone = |host| server(host, &[("hostname", host), ("port", "3306")]);
        let in_galera =
            |host| server(host, &[("hostname", host), ("wsrep_on", "ON"), ("wsrep_cluster_name", "c")]);
        let in_group = |host| server(host, &[("hostname", host), ("group_replication_group_name", "g")]);
        let replica = server("r", &[("hostname", "r"), ("read_only", "ON")]);
        for fine in [
            vec![],
            vec![alone("a"), replica],
            vec![alone("a"), alone("a")],
            vec![in_galera("a"), in_galera("b")],
            vec![in_group("a"), in_group("b")],
        ] {
            assert!(one_writer(&fine).is_none(), "{fine:?}");
        }
        let warning = one_writer(&[alone("a"), alone("b")]).unwrap();
        assert_eq!((warning.level, warning.server.as_str()), (FindingLevel::Warning, "a, b"));
        assert!(one_writer(&[in_galera("a"), alone("b")]).is_some());
    }
}
