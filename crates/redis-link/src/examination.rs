//! Examines one server for the doctor.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{Finding, FindingLevel};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use crate::greeting::info_field;

/// The settings that are read.
const SETTINGS: [&str; 4] = ["maxmemory-policy", "appendonly", "appendfsync", "min-replicas-to-write"];
/// Clocks that differ by less count as equal.
const SKEW: Duration = Duration::from_millis(100);

/// Reads version, role and settings of a server in one round trip, and reports what endangers locks.
pub(crate) async fn examine(
    connection: &mut MultiplexedConnection,
    server: &str,
) -> RedisResult<Vec<Finding>> {
    let mut pipeline = redis::pipe();
    pipeline.ignore_errors().cmd("TIME").cmd("INFO");
    for setting in SETTINGS {
        pipeline.cmd("CONFIG").arg("GET").arg(setting);
    }
    let before = SystemTime::now();
    let answers = pipeline.query_async::<Vec<RedisResult<Value>>>(connection).await?;
    let mut answers = answers.into_iter();
    let mut examination = Examination { server, findings: Vec::new() };
    let time = answers.next().and_then(text_pair);
    let info = answers.next().and_then(|info| redis::from_redis_value::<String>(info.ok()?).ok());
    let settings: Vec<Option<String>> =
        answers.map(|answer| text_pair(answer).map(|(_, value)| value)).collect();
    match &info {
        Some(info) => examination.server(info),
        None => examination.note("INFO is not allowed: version, role and replicas are unknown", ""),
    }
    examination.settings(&settings, info.as_deref().unwrap_or_default());
    if let Some(time) = time {
        examination.clock(before, &time);
    }
    Ok(examination.findings)
}

/// The findings of one server.
struct Examination<'a> {
    server: &'a str,
    findings: Vec<Finding>,
}

impl Examination<'_> {
    fn server(&mut self, info: &str) {
        let field = |name| info_field(info, name).unwrap_or("unknown");
        let (version, mode, role) = (field("redis_version"), field("redis_mode"), field("role"));
        let replicas = field("connected_slaves");
        self.note(&format!("Redis {version}, {mode}, {role}, {replicas} replicas connected"), "");
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

    fn replicas(&mut self, least: &str, info: &str) {
        let number = |name| info_field(info, name).and_then(|value| value.parse::<u64>().ok());
        let connected = number("connected_slaves").unwrap_or(0);
        let (least, good) = (least.parse().unwrap_or(0), number("min_slaves_good_slaves"));
        if least > good.unwrap_or(connected) {
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
        let (Ok(seconds), Ok(micros)) = (seconds.parse::<u64>(), micros.parse::<u64>()) else { return };
        let theirs = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros);
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

fn text_pair(answer: RedisResult<Value>) -> Option<(String, String)> {
    redis::from_redis_value(answer.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks() {
        let (now, mut examination) = (SystemTime::now(), Examination { server: "h:1", findings: Vec::new() });
        let since = now.duration_since(UNIX_EPOCH).unwrap();
        for seconds in [since.as_secs() + 60, since.as_secs() - 60] {
            examination.clock(now, &(seconds.to_string(), "0".into()));
        }
        examination.clock(now, &(since.as_secs().to_string(), since.subsec_micros().to_string()));
        let what: Vec<_> = examination.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert!(what[0].contains("ahead of that") && what[1].contains("behind that"), "{what:?}");
        assert!(what[2].contains("agree"), "{what:?}");
    }
}
