//! Examines servers: for the doctor, and before a migration.

use std::time::{Duration, SystemTime};

use lock_core::{Finding, FindingLevel, stored_time};
use redis::{RedisResult, Value};

use crate::connect::connection::Connection;
use crate::connect::greeting::{info_field, mode};
use crate::error::{Endpoint, NAMES};
use crate::scripts::wire;

/// The settings that are read.
const SETTINGS: [&str; 4] = ["maxmemory-policy", "appendonly", "appendfsync", "min-replicas-to-write"];
/// Clocks that differ by less count as equal.
const SKEW: Duration = Duration::from_millis(100);

/// Reads version, role, commands and settings of a server in one round trip, and reports what endangers locks.
pub(crate) async fn examine(connection: &mut Connection, endpoint: &Endpoint) -> RedisResult<Vec<Finding>> {
    let mut needed = ["eval", "evalsha", "script"].map(str::to_owned).to_vec();
    needed.extend(endpoint.commands_of_scripts());
    let mut pipeline = redis::pipe();
    pipeline.ignore_errors().cmd("TIME").cmd("INFO").cmd("COMMAND").arg("INFO").arg(&needed);
    for setting in SETTINGS {
        pipeline.cmd("CONFIG").arg("GET").arg(setting);
    }
    let before = SystemTime::now();
    let answers = pipeline.query_async::<Vec<RedisResult<Value>>>(connection).await?;
    let mut answers = answers.into_iter();
    let mut examination = Examination { server: &endpoint.address, findings: Vec::new() };
    let time = answers.next().and_then(text_pair);
    let info = answers.next().and_then(|info| redis::from_redis_value::<String>(info.ok()?).ok());
    let known = answers.next().and_then(|known| redis::from_redis_value::<Vec<Value>>(known.ok()?).ok());
    let settings: Vec<Option<String>> =
        answers.map(|answer| text_pair(answer).map(|(_, value)| value)).collect();
    match &info {
        Some(info) => {
            examination.server(info);
            examination.memory(info);
        }
        None => examination.note("INFO is not allowed: version, role and replicas are unknown", ""),
    }
    examination.commands(&needed, known.as_deref());
    examination.settings(&settings, info.as_deref().unwrap_or_default());
    if let Some(time) = time {
        examination.clock(before, &time);
    }
    Ok(examination.findings)
}

/// Reports what may lose the tombstones of locks that have moved, by the answers to `INFO` and to `CONFIG GET save`.
pub(crate) fn durability(server: &str, answers: Vec<RedisResult<Value>>) -> Vec<Finding> {
    let [info, save] = answers.try_into().unwrap_or_else(|_| [Ok(Value::Nil), Ok(Value::Nil)]);
    let info = info.ok().and_then(|info| wire::text(&info));
    let save = text_pair(save).map(|(_, save)| save);
    let mut examination = Examination { server, findings: Vec::new() };
    examination.durability(info.as_deref(), save.as_deref());
    examination.findings
}

/// The findings of one server.
struct Examination<'a> {
    server: &'a str,
    findings: Vec<Finding>,
}

impl Examination<'_> {
    fn server(&mut self, info: &str) {
        let field = |name: &str| info_field(info, name);
        // Valkey tells other programs that it is Redis 7.2.
        let server = field("server_name").unwrap_or("redis");
        let version =
            field(&format!("{server}_version")).or_else(|| field("redis_version")).unwrap_or("unknown");
        let mode = mode(info).unwrap_or("unknown");
        let (role, replicas) =
            (field("role").unwrap_or("unknown"), field("connected_slaves").unwrap_or("unknown"));
        let name = match server.split_at_checked(1) {
            Some((first, rest)) => first.to_ascii_uppercase() + rest,
            None => server.to_owned(),
        };
        self.note(&format!("{name} {version}, {mode}, {role}, {replicas} replicas connected"), "");
    }

    /// Reports which of the needed commands are unknown by these answers to COMMAND INFO.
    fn commands(&mut self, needed: &[String], known: Option<&[Value]>) {
        let Some(known) = known else {
            return self.note("COMMAND INFO is not allowed: renamed commands are not noticed", "");
        };
        let unknown = needed.iter().zip(known).filter(|(_, answer)| **answer == Value::Nil);
        let mut names: Vec<_> = unknown.map(|(name, _)| name.to_ascii_uppercase()).collect();
        let lacks = |name: &str| names.iter().any(|unknown| unknown == name);
        // Either of the two brings a script.
        match (lacks("EVAL"), lacks("SCRIPT")) {
            (false, true) => {
                self.note("the server has no command SCRIPT: the first call of a script brings it", "");
            }
            (true, false) => {}
            _ => return self.lacking(&names),
        }
        names.retain(|name| !["EVAL", "SCRIPT"].contains(&name.as_str()));
        self.lacking(&names);
    }

    fn lacking(&mut self, names: &[String]) {
        if !names.is_empty() {
            self.warn(
                &format!("the server has no command {}: locks fail that need it", names.join(", ")),
                NAMES,
            );
        }
    }

    fn memory(&mut self, info: &str) {
        let number = |name| info_field(info, name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        let used = number("used_memory").saturating_sub(number("mem_not_counted_for_evict"));
        let most = number("maxmemory");
        // 0 is no limit.
        if most == 0 || used < most / 10 * 9 {
            return;
        }
        let full = if used < most { "nearly full" } else { "full" };
        self.warn(
            &format!("the memory is {full}, with {used} of {most} bytes (maxmemory): free locks are refused, or keys evicted"),
            "free memory, or raise maxmemory",
        );
    }

    fn settings(&mut self, settings: &[Option<String>], info: &str) {
        let [policy, appendonly, appendfsync, min_replicas] = settings else { return };
        let Some(policy) = policy else {
            return self.note("CONFIG GET is not allowed: memory and persistence are not examined", "");
        };
        if policy != "noeviction" {
            self.warn(
                &format!("maxmemory-policy is {policy}: the server may evict locks when its memory is full"),
                "set it to noeviction, or use a separate server for locks",
            );
        }
        match (appendonly.as_deref(), appendfsync.as_deref()) {
            (Some("yes"), Some("always")) => {
                self.note("appendonly is yes and appendfsync is always: locks survive a restart", "");
            }
            (Some("yes"), Some(fsync)) => self.note(
                &format!("appendfsync is {fsync}: a crash may lose the latest locks, and two may hold one"),
                "set it to always if locks must survive a crash of the server",
            ),
            _ => self.note(
                "appendonly is no: a restart loses the locks, and two may hold one",
                "set appendonly to yes and appendfsync to always if locks must survive a restart",
            ),
        }
        self.replicas(min_replicas.as_deref().unwrap_or("0"), info);
    }

    fn durability(&mut self, info: Option<&str>, save: Option<&str>) {
        let Some(info) = info else {
            return self.warn(
                "INFO is not allowed: a move cannot tell how many replicas have to have its tombstone",
                "give the user the right +info",
            );
        };
        let policy = info_field(info, "maxmemory_policy").unwrap_or("unknown");
        if policy != "noeviction" {
            self.warn(
                &format!("maxmemory-policy is {policy}: the server may evict tombstones, and locks that have moved are free then"),
                "set it to noeviction",
            );
        }
        match (info_field(info, "aof_enabled"), save) {
            (Some("1"), _) => {}
            (_, None) => self.warn(
                "appendonly is no, and CONFIG GET is not allowed: a restart may lose the tombstones",
                "set appendonly to yes, or give the user the right +config|get",
            ),
            (_, Some("")) => self.warn(
                "appendonly is no and save is empty: a restart loses the tombstones, and locks that have moved are free then",
                "set appendonly to yes",
            ),
            (_, Some(save)) => self.note(
                &format!("appendonly is no and save is {save:?}: a crash loses the tombstones since the last snapshot"),
                "set appendonly to yes",
            ),
        }
        if info_field(info, "connected_slaves").is_some_and(|replicas| replicas != "0") {
            self.note(
                "replicas have users of their own, and one that is promoted lets its users in",
                "close the keys on the replicas, too, before the migration ends",
            );
        }
        if is_redis_6(info) {
            self.note(
                "Redis 6 has no ACL DRYRUN: at the end, every user whose keys overlap counts as one that acquires locks",
                "switch such users off, or take their keys away",
            );
        }
    }

    fn replicas(&mut self, least: &str, info: &str) {
        let number = |name| info_field(info, name).and_then(|value| value.parse::<u64>().ok());
        let connected = number("connected_slaves").unwrap_or(0);
        let (least, good) = (least.parse().unwrap_or(0), number("min_slaves_good_slaves"));
        if least > 0 && is_redis_6(info) {
            self.warn(
                "Redis 6 does not apply min-replicas-to-write to scripts: a partitioned master goes on granting locks that a \
                 failover loses",
                "use Redis 7 or later, or see wait_replicas",
            );
        } else if least > good.unwrap_or(connected) {
            self.warn(
                &format!(
                    "min-replicas-to-write is {least}, but fewer replicas are in sync: every write is refused"
                ),
                "bring the replicas back",
            );
        } else if connected > 0 && least == 0 {
            self.note(
                "min-replicas-to-write is 0: a partitioned master goes on granting locks that a failover loses",
                "set it to 1 and min-replicas-max-lag to a few seconds, and see wait_replicas",
            );
        }
    }

    fn clock(&mut self, before: SystemTime, (seconds, micros): &(String, String)) {
        let (Ok(seconds), Ok(micros)) = (seconds.parse(), micros.parse()) else { return };
        let since = Duration::from_secs(seconds).checked_add(Duration::from_micros(micros));
        let Some(theirs) = since.and_then(stored_time) else { return };
        let after = SystemTime::now();
        // The server read it at some time between the two.
        let (skew, way) = match (theirs.duration_since(after), before.duration_since(theirs)) {
            (Ok(ahead), _) => (ahead, "ahead of"),
            (_, Ok(behind)) => (behind, "behind"),
            _ => (Duration::ZERO, ""),
        };
        if skew < SKEW {
            self.note("the clocks of the server and of this host agree", "");
        } else {
            self.note(
                &format!("the server's clock is {skew:?} {way} that of this host"),
                "leases of the default recipe do not depend on it; fencing tokens do if the server loses its data",
            );
        }
    }

    fn note(&mut self, what: &str, advice: &str) {
        self.find(FindingLevel::Note, what, advice);
    }

    fn warn(&mut self, what: &str, advice: &str) {
        self.find(FindingLevel::Warning, what, advice);
    }

    fn find(&mut self, level: FindingLevel, what: &str, advice: &str) {
        self.findings.push(Finding::new(level, self.server, what, advice));
    }
}

fn is_redis_6(info: &str) -> bool {
    info_field(info, "redis_version").is_some_and(|version| version.starts_with("6."))
}

fn text_pair(answer: RedisResult<Value>) -> Option<(String, String)> {
    redis::from_redis_value(answer.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_called_by_its_name() {
        let mut examination = Examination { server: "h:1", findings: Vec::new() };
        examination
            .server("redis_version:6.2.5\r\nredis_mode:cluster\r\nrole:master\r\nconnected_slaves:2\r\n");
        examination.server(
            "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\nserver_mode:standalone\r\n",
        );
        let what: Vec<_> = examination.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "Redis 6.2.5, cluster, master, 2 replicas connected",
                "Valkey 9.1.2, standalone, unknown, unknown replicas connected"
            ]
        );
    }

    #[test]
    fn replicas_that_are_missing() {
        for (version, least, what) in [
            ("7.0.15", "1", Some("every write is refused")),
            ("6.2.5", "1", Some("does not apply min-replicas-to-write to scripts")),
            ("6.2.5", "0", None),
        ] {
            let mut examination = Examination { server: "h:1", findings: Vec::new() };
            examination.replicas(least, &format!("redis_version:{version}\r\nconnected_slaves:0\r\n"));
            let found = examination.findings.first().map(|finding| finding.what.as_str());
            assert_eq!(found.is_some(), what.is_some(), "{version} {least}: {found:?}");
            assert!(what.is_none_or(|what| found.unwrap().contains(what)), "{version} {least}: {found:?}");
        }
    }

    #[test]
    fn durability() {
        let warnings = |info: Option<&str>, save: Option<&str>| {
            let mut examination = Examination { server: "h:1", findings: Vec::new() };
            examination.durability(info, save);
            let findings = examination.findings.into_iter();
            let warnings = findings.filter(|finding| finding.level == FindingLevel::Warning);
            warnings.map(|finding| finding.what).collect::<Vec<_>>()
        };
        let info = |policy: &str, aof: u8| {
            format!(
                "redis_version:7.2.1\r\nmaxmemory_policy:{policy}\r\naof_enabled:{aof}\r\nconnected_slaves:1\r\n"
            )
        };
        let (good, snapshots) = (info("noeviction", 1), info("noeviction", 0));
        assert!(warnings(Some(&good), None).is_empty());
        assert!(warnings(Some(&snapshots), Some("3600 1")).is_empty());
        for (info, save, what) in [
            (Some(&info("allkeys-lru", 1)), Some(""), "allkeys-lru"),
            (Some(&snapshots), Some(""), "save is empty"),
            (Some(&snapshots), None, "CONFIG GET"),
            (None, Some(""), "INFO"),
        ] {
            let warnings = warnings(info.map(String::as_str), save);
            assert!(warnings.len() == 1 && warnings[0].contains(what), "{warnings:?}");
        }
    }

    #[test]
    fn memory() {
        let warnings = |used: u64, uncounted: u64, most: u64| {
            let mut examination = Examination { server: "h:1", findings: Vec::new() };
            examination.memory(&format!(
                "used_memory:{used}\r\nmaxmemory:{most}\r\nmem_not_counted_for_evict:{uncounted}\r\n"
            ));
            examination.findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert_eq!(
            [warnings(1 << 40, 0, 0), warnings(899, 0, 1_000), warnings(950, 60, 1_000)],
            [const { Vec::<String>::new() }; 3]
        );
        assert!(warnings(900, 0, 1_000)[0].starts_with("the memory is nearly full, with 900 of 1000 bytes"));
        assert!(warnings(1_000, 0, 1_000)[0].starts_with("the memory is full"));
    }

    #[test]
    fn clocks() {
        let (now, mut examination) = (SystemTime::now(), Examination { server: "h:1", findings: Vec::new() });
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        for seconds in [since.as_secs() + 60, since.as_secs() - 60] {
            examination.clock(now, &(seconds.to_string(), "0".into()));
        }
        examination.clock(now, &(since.as_secs().to_string(), since.subsec_micros().to_string()));
        let what: Vec<_> = examination.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert!(what[0].contains("ahead of that") && what[1].contains("behind that"), "{what:?}");
        assert!(what[2].contains("agree"), "{what:?}");
    }
}
