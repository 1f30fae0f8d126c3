//! Examines an ensemble for what endangers locks.

use std::io;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use lock_core::{Finding, FindingLevel};
use zookeeper_client::{Acl, Permission};

use crate::config::ZkConfig;
use crate::error::Fault;
use crate::recipes::recipe::ZkRecipe;
use crate::sessions::session::Session;
use crate::wire::four_letter::{ask, field, version};
use crate::wire::login::Login;

/// Asks the ensemble by a session, and each server by four-letter words.
pub(crate) async fn examine(session: &Session, config: &ZkConfig) -> Result<Vec<Finding>, Fault> {
    let mut findings = Findings::default();
    let start = Instant::now();
    session.retry_until_definite(|| session.pass_quorum("/")).await?;
    findings.session(session.timeout, config.session_timeout, start.elapsed());
    findings.access(&open_directories(session, config).await?, &config.login);
    if config.login.speaks_tls() {
        findings.note("", "versions and roles are unknown, as servers are not asked for them over TLS", "");
        return Ok(findings.0);
    }
    let servers: Vec<_> = config.hosts.split(',').collect();
    let asked = servers.iter().map(|server| join(ask(server, "srvr"), ask(server, "conf")));
    let answers = join_all(asked).await;
    let (mut modes, mut limits) = (Vec::new(), Vec::new());
    for (server, (srvr, conf)) in servers.iter().zip(&answers) {
        limits.extend(conf.as_ref().ok().map(|conf| (*server, Limits::of(conf))));
        let mode = findings.server(server, srvr, conf);
        if let (Some("leader" | "follower"), Ok(conf)) = (mode, conf) {
            findings.tick(server, conf, session.timeout);
        }
        modes.extend(mode);
    }
    findings.ensemble(&modes, servers.len());
    findings.limits(&limits);
    Ok(findings.0)
}

/// The directory of the locks, and some of those in it, as far as everybody may create or delete nodes there.
async fn open_directories(session: &Session, config: &ZkConfig) -> Result<Vec<String>, Fault> {
    let dir = config.dir.as_str();
    let is_open = async |path: &str, unless_made: bool| {
        match session.retry_until_definite(|| session.acl(path)).await {
            Ok(acl) => Ok(acl.iter().any(is_for_everybody)),
            Err(fault) if fault.is_no_node() => Ok(unless_made),
            // Not for everybody, then.
            Err(Fault::Refused(_)) => Ok(false),
            Err(fault) => Err(fault),
        }
    };
    let mut open = Vec::new();
    if is_open(dir, config.node_acl().acls().iter().any(is_for_everybody)).await? {
        open.push(dir.to_owned());
    }
    let names = match session.retry_until_definite(|| session.children(dir)).await {
        Ok(names) if config.recipe == ZkRecipe::Queue => names,
        Ok(_) | Err(Fault::Refused(_) | Fault::Denied { .. }) => Vec::new(),
        Err(fault) => return Err(fault),
    };
    for name in names.iter().take(LOOKED_INTO) {
        let path = format!("{}/{name}", dir.trim_end_matches('/'));
        if is_open(&path, false).await? {
            open.push(path);
        }
    }
    Ok(open)
}

fn is_for_everybody(acl: &Acl) -> bool {
    let writes = acl.permission().has(Permission::CREATE) || acl.permission().has(Permission::DELETE);
    writes && acl.scheme() == "world"
}

/// What a server allows of sessions, in milliseconds: shortest, longest, and its tick.
#[derive(Debug, PartialEq)]
struct Limits<'a>([&'a str; 3]);

impl<'a> Limits<'a> {
    fn of(conf: &'a str) -> Self {
        Self(
            ["minSessionTimeout", "maxSessionTimeout", "tickTime"]
                .map(|name| field(conf, name).unwrap_or("unknown")),
        )
    }
}

/// Whether servers of this version are known to lose writes that they have acknowledged, where a leader dies and another
/// truncates its log. Sources: ZOOKEEPER-4643, 4646 and 4785, repaired in 3.8.4 and 3.9.2; ZOOKEEPER-4925, of 3.9.3.
fn loses_writes(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = [(); 3].map(|()| numbers.next().unwrap_or(0));
    matches!(version, [3, 6 | 7, _] | [3, 8, 0..=3] | [3, 9, 0 | 1 | 3])
}

#[derive(Default)]
struct Findings(Vec<Finding>);

/// How many directories of locks are looked into.
const LOOKED_INTO: usize = 100;

impl Findings {
    fn session(&mut self, granted: Duration, requested: Duration, round_trip: Duration) {
        let what =
            format!("the session timeout is {granted:?}, and a round trip to the quorum took {round_trip:?}");
        self.note("", &what, "");
        if requested != granted {
            let what =
                format!("a session_timeout of {requested:?} was requested, which the servers do not allow");
            self.note("", &what, "see minSessionTimeout and maxSessionTimeout");
        }
        if round_trip > granted / 12 {
            let what =
                "the ensemble is slow for this session timeout: a short hiccup ends sessions and loses locks";
            self.warn("", what, "use a longer session_timeout");
        }
    }

    fn access(&mut self, open: &[String], login: &Login) {
        if let Some((first, others)) = open.split_first() {
            let others = if others.is_empty() {
                String::new()
            } else {
                format!(" and in {} more directories", others.len())
            };
            let what = format!(
                "everybody may create and delete nodes in {first}{others}: a node of somebody else whose name ends in ten \
                 digits blocks a lock"
            );
            let advice = "log in by auth=sasl or over TLS, and give nodes that exist another ACL (setAcl -R)";
            // Without a login, that is how the ensemble is meant.
            if login.authenticates() { self.warn("", &what, advice) } else { self.note("", &what, advice) }
        }
        if login.shows_password() {
            let what = "the password goes over the network as it is: whoever reads it may break any lock";
            self.warn("", what, "use TLS (zks://), or auth=sasl");
        }
    }

    /// What one server reports about itself. Returns its role, if it reports that.
    fn server<'a>(
        &mut self,
        server: &str,
        srvr: &'a io::Result<String>,
        conf: &io::Result<String>,
    ) -> Option<&'a str> {
        let srvr = match srvr {
            Ok(srvr) => srvr,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let what = "srvr is not allowed: version and role are unknown";
                self.note(server, what, "add it to 4lw.commands.whitelist");
                return None;
            }
            Err(error) => {
                let what = format!("does not answer: {error}");
                self.warn(server, &what, "bring it back, or remove it from the URL");
                return None;
            }
        };
        let Some(mode) = field(srvr, "Mode") else {
            let says = srvr.lines().next().unwrap_or_default();
            self.warn(server, &format!("serves no client: {says}"), "see to a majority of the ensemble");
            return None;
        };
        let found = version(srvr).unwrap_or("of unknown version");
        self.note(server, &format!("ZooKeeper {found}, {mode}"), "");
        if matches!(found, "3.5.0" | "3.5.1" | "3.5.2") {
            let what = "has no containers: the directories of unused locks are not removed";
            self.note(server, what, "upgrade it");
        }
        if mode != "standalone" && loses_writes(found) {
            let what = "this version may lose acknowledged writes when a leader dies: a lock is granted twice, or tokens fall";
            self.warn(server, what, "upgrade it to 3.8.4, 3.9.4 or newer (ZOOKEEPER-4643, 4646, 4785, 4925)");
        }
        match mode {
            "standalone" => {
                self.note(server, "is alone: while it is down, no lock can be acquired", "run three servers");
            }
            "observer" => {
                let what = "has no vote: no session is opened through it";
                self.note(server, what, "remove it from the URL");
            }
            "read-only" => {
                let what = "is cut off from the ensemble, and cannot serve locks";
                self.warn(server, what, "bring back a majority of the ensemble");
            }
            _ => {}
        }
        let what = conf.as_ref().map_or_else(
            |_| "conf is not allowed: its limits of the session timeout are unknown".to_owned(),
            |conf| {
                let Limits([min, max, _]) = Limits::of(conf);
                format!("grants session timeouts from {min} to {max} ms")
            },
        );
        self.note(server, &what, "");
        Some(mode)
    }

    /// A leader learns of the sessions of other servers every half tick, and the validity of a session relies on a quarter of
    /// its timeout.
    fn tick(&mut self, server: &str, conf: &str, session_timeout: Duration) {
        let tick = field(conf, "tickTime").and_then(|tick| tick.parse().ok()).map(Duration::from_millis);
        if let Some(tick) = tick.filter(|tick| session_timeout < *tick * 2) {
            let what = format!(
                "a session of {session_timeout:?} is shorter than two ticks of {tick:?}: if a server dies, the session may \
                 expire before its locks are lost here"
            );
            self.warn(server, &what, "use a longer session_timeout, or a shorter tickTime on all servers");
        }
    }

    fn ensemble(&mut self, modes: &[&str], servers: usize) {
        let count = |mode| modes.iter().filter(|other| **other == mode).count();
        let (leaders, voters) = (count("leader"), count("leader") + count("follower"));
        if leaders > 1 {
            let what = "several servers say that they lead: they are of several ensembles, or an election is under way";
            self.warn(
                "",
                what,
                "name servers of one ensemble only: a lock on one does not exist on the other",
            );
        }
        if leaders > 0 && count("standalone") > 0 || count("standalone") > 1 {
            let what =
                "the servers are of several ensembles: a client of another one can acquire the same lock";
            self.warn("", what, "name servers of one ensemble only");
        }
        if voters == servers && voters.is_multiple_of(2) && voters > 0 {
            self.note(
                "",
                "an even number of voters tolerates no more failures than one fewer",
                "add a server",
            );
        }
    }

    /// A session is negotiated anew at each reconnection, and does not move to a server that grants less.
    fn limits(&mut self, servers: &[(&str, Limits<'_>)]) {
        let Some(((_, first), others)) = servers.split_first() else { return };
        if others.iter().all(|(_, limits)| limits == first) {
            return;
        }
        let each = servers
            .iter()
            .map(|(server, Limits([min, max, tick]))| format!("{server} {min} to {max}, tick {tick}"));
        let each = each.collect::<Vec<_>>().join("; ");
        let what = format!(
            "the servers differ in their limits of a session (in ms: {each}): a session does not move to a server that grants \
             less than it has, and its locks are lost if there is no other"
        );
        self.warn("", &what, "give all servers the same minSessionTimeout, maxSessionTimeout and tickTime");
    }

    fn note(&mut self, server: &str, what: &str, advice: &str) {
        self.0.push(Finding::new(FindingLevel::Note, server, what, advice));
    }

    fn warn(&mut self, server: &str, what: &str, advice: &str) {
        self.0.push(Finding::new(FindingLevel::Warning, server, what, advice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_examined_one_by_one() {
        let examined = |srvr: io::Result<&str>| {
            let (mut findings, conf) = (Findings::default(), Err(io::ErrorKind::PermissionDenied.into()));
            let srvr = srvr.map(str::to_owned);
            findings.server("h:1", &srvr, &conf);
            findings.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let says = |mode: &str| format!("Zookeeper version: 3.8.4-x, built on y\nMode: {mode}\n");
        let follower = examined(Ok(&says("follower")));
        assert!(
            follower.contains("h:1: ZooKeeper 3.8.4, follower") && follower.contains("conf is not allowed")
        );
        assert!(!follower.contains("warning"), "{follower}");
        assert!(examined(Ok(&says("observer"))).contains("has no vote"));
        assert!(examined(Ok(&says("read-only"))).contains("warning: h:1: is cut off"));
        assert!(
            examined(Ok("This ZooKeeper instance is not currently serving requests")).contains("warning")
        );
        assert!(
            examined(Err(io::ErrorKind::PermissionDenied.into())).contains("note: h:1: srvr is not allowed")
        );
        assert!(
            examined(Err(io::ErrorKind::ConnectionRefused.into())).contains("warning: h:1: does not answer")
        );
    }

    #[test]
    fn versions_that_lose_writes_are_warned_of() {
        for version in ["3.6.3", "3.7.2", "3.8.0", "3.8.3", "3.9.0", "3.9.1", "3.9.3", "3.8.0-SNAPSHOT"] {
            assert!(loses_writes(version), "{version}");
        }
        for version in ["3.5.10", "3.8.4", "3.8.6", "3.9.2", "3.9.4", "3.9.5", "3.10.0", "of unknown version"]
        {
            assert!(!loses_writes(version), "{version}");
        }
        let warnings = |mode: &str| {
            let mut findings = Findings::default();
            let srvr = Ok(format!("Zookeeper version: 3.8.0-x, built on y\nMode: {mode}\n"));
            findings.server("h:1", &srvr, &Err(io::ErrorKind::PermissionDenied.into()));
            findings.0.iter().filter(|finding| finding.level == FindingLevel::Warning).count()
        };
        assert_eq!((warnings("follower"), warnings("leader"), warnings("standalone")), (1, 1, 0));
    }

    #[test]
    fn servers_that_differ_in_their_limits_are_warned_of() {
        let warnings = |longest: [u32; 3]| {
            let confs = longest
                .map(|most| format!("tickTime=2000\nminSessionTimeout=4000\nmaxSessionTimeout={most}\n"));
            let mut findings = Findings::default();
            findings.limits(&confs.each_ref().map(|conf| ("h:1", Limits::of(conf))));
            findings.0.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(warnings([40_000; 3]), [""; 0]);
        let warnings = warnings([30_000, 30_000, 4_000]);
        assert!(warnings.len() == 1 && warnings[0].contains("h:1 4000 to 4000, tick 2000"), "{warnings:?}");
    }

    #[test]
    fn a_session_shorter_than_two_ticks_is_warned_of() {
        let warns = |conf: &str, ms| {
            let mut findings = Findings::default();
            findings.tick("h:1", conf, Duration::from_millis(ms));
            !findings.0.is_empty()
        };
        let conf = "clientPort=2181\ntickTime=2000\nminSessionTimeout=500\n";
        assert!(warns(conf, 1_000) && warns(conf, 3_999) && !warns(conf, 4_000));
        assert!(!warns("clientPort=2181\n", 1_000) && !warns("tickTime=?\n", 1_000));
    }

    #[test]
    fn servers_of_several_ensembles_are_reported() {
        let warnings = |modes: &[&str]| {
            let mut findings = Findings::default();
            findings.ensemble(modes, modes.len());
            findings.0.iter().filter(|finding| finding.level == FindingLevel::Warning).count()
        };
        assert_eq!(warnings(&["follower", "leader", "follower"]), 0);
        assert_eq!(warnings(&["standalone"]), 0);
        assert_eq!(warnings(&["standalone", "standalone"]), 1);
        assert_eq!(warnings(&["leader", "standalone"]), 1);
        assert_eq!(warnings(&["leader", "leader"]), 1);
    }
}
