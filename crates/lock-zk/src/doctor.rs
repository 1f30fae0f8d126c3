//! The examination of an ensemble.

use std::io;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use lock_core::{Finding, FindingLevel};

use crate::ZkConfig;
use crate::error::Fault;
use crate::four_letter::{ask, field, version};
use crate::session::Session;

/// Asks the ensemble, by a session and server by server, what it is, and what about it is a danger to locks.
pub(crate) async fn examine(session: &Session, config: &ZkConfig) -> Result<Vec<Finding>, Fault> {
    let mut findings = Findings::default();
    let start = Instant::now();
    session.retry_until_definite(|| session.pass_quorum("/")).await?;
    findings.session(session, config, start.elapsed());
    if config.speaks_tls() {
        findings.note("", "versions and roles are not asked for where TLS is spoken", "");
        return Ok(findings.findings);
    }
    let servers: Vec<_> = config.hosts.split(',').collect();
    let asked = servers.iter().map(|server| join(ask(server, "srvr"), ask(server, "conf")));
    let answers = join_all(asked).await;
    let mut modes = Vec::new();
    for (server, (srvr, conf)) in servers.iter().zip(&answers) {
        let mode = findings.server(server, srvr, conf);
        if let (Some("leader" | "follower"), Ok(conf)) = (mode, conf) {
            findings.tick(server, conf, session.timeout);
        }
        modes.extend(mode);
    }
    findings.ensemble(&modes, servers.len());
    Ok(findings.findings)
}

#[derive(Default)]
struct Findings {
    findings: Vec<Finding>,
}

impl Findings {
    fn session(&mut self, session: &Session, config: &ZkConfig, round_trip: Duration) {
        let (asked, given) = (config.session_timeout, session.timeout);
        self.note(
            "",
            &format!("a session lasts {given:?}, and a round trip to the quorum took {round_trip:?}"),
            "",
        );
        if asked != given {
            self.note(
                "",
                &format!("a session_timeout of {asked:?} was asked for, which the servers do not allow"),
                "see minSessionTimeout and maxSessionTimeout",
            );
        }
        if round_trip > given / 12 {
            self.warn(
                "",
                "the ensemble is slow for this session timeout: a short hiccup more ends sessions and loses locks",
                "use a longer session_timeout",
            );
        }
    }

    /// What one server says of itself; its role, if it tells.
    fn server<'a>(
        &mut self,
        server: &str,
        srvr: &'a io::Result<String>,
        conf: &io::Result<String>,
    ) -> Option<&'a str> {
        let srvr = match srvr {
            Ok(srvr) => srvr,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.note(
                    server,
                    "srvr is not allowed: version and role are not known",
                    "add it to 4lw.commands.whitelist",
                );
                return None;
            }
            Err(error) => {
                self.warn(
                    server,
                    &format!("does not answer: {error}"),
                    "bring it back, or leave it out of the URL",
                );
                return None;
            }
        };
        let Some(mode) = field(srvr, "Mode") else {
            let says = srvr.lines().next().unwrap_or_default();
            self.warn(server, &format!("serves nobody: {says}"), "see to a majority of the ensemble");
            return None;
        };
        let found = version(srvr).unwrap_or("of unknown version");
        self.note(server, &format!("ZooKeeper {found}, {mode}"), "");
        if matches!(found, "3.5.0" | "3.5.1" | "3.5.2") {
            self.note(
                server,
                "has no containers: the directories of locks that nobody uses stay",
                "upgrade it",
            );
        }
        match mode {
            "standalone" => {
                self.note(server, "is alone: nobody gets a lock while it is away", "run three servers");
            }
            "observer" => {
                self.note(server, "has no vote: no session is opened through it", "leave it out of the URL");
            }
            "read-only" => self.warn(
                server,
                "is cut off from the ensemble, and of no use to locks",
                "bring back a majority of the ensemble",
            ),
            _ => {}
        }
        match conf {
            Ok(conf) => {
                let bound = |name| field(conf, name).unwrap_or("unknown");
                let (least, most) = (bound("minSessionTimeout"), bound("maxSessionTimeout"));
                self.note(server, &format!("gives session timeouts from {least} to {most} ms"), "");
            }
            Err(_) => {
                self.note(server, "conf is not allowed: its bounds of the session timeout are not known", "");
            }
        }
        Some(mode)
    }

    /// A leader hears of the sessions at other servers every half tick, and the deadline of ours counts on a quarter of
    /// the session timeout.
    fn tick(&mut self, server: &str, conf: &str, session_timeout: Duration) {
        let tick = field(conf, "tickTime").and_then(|tick| tick.parse().ok()).map(Duration::from_millis);
        if let Some(tick) = tick.filter(|tick| session_timeout < *tick * 2) {
            self.warn(
                server,
                &format!("a session of {session_timeout:?} is shorter than two ticks of {tick:?}: if a server dies, \
                          it may end before its locks are given up"),
                "use a longer session_timeout, or a shorter tickTime on all servers",
            );
        }
    }

    fn ensemble(&mut self, modes: &[&str], servers: usize) {
        let count = |mode| modes.iter().filter(|other| **other == mode).count();
        let (leaders, voters) = (count("leader"), count("leader") + count("follower"));
        if leaders > 1 {
            self.warn(
                "",
                "several servers say that they lead: they are not of one ensemble, or it elects right now",
                "name servers of one ensemble only: a lock of one is none in the other",
            );
        }
        if leaders > 0 && count("standalone") > 0 || count("standalone") > 1 {
            self.warn(
                "",
                "not all servers are of one ensemble: who is connected to another one gets the same lock",
                "name servers of one ensemble only",
            );
        }
        if voters == servers && voters.is_multiple_of(2) && voters > 0 {
            self.note(
                "",
                "an even number of voters survives the loss of no more than one fewer",
                "add a server",
            );
        }
    }

    fn note(&mut self, server: &str, what: &str, advice: &str) {
        self.find(FindingLevel::Note, server, what, advice);
    }

    fn warn(&mut self, server: &str, what: &str, advice: &str) {
        self.find(FindingLevel::Warning, server, what, advice);
    }

    fn find(&mut self, level: FindingLevel, server: &str, what: &str, advice: &str) {
        let (server, what, advice) = (server.to_owned(), what.to_owned(), advice.to_owned());
        self.findings.push(Finding::new(level, server, what, advice));
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
            findings.findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let says = |mode: &str| format!("Zookeeper version: 3.8.0-x, built on y\nMode: {mode}\n");
        let follower = examined(Ok(&says("follower")));
        assert!(
            follower.contains("h:1: ZooKeeper 3.8.0, follower") && follower.contains("conf is not allowed")
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
    fn sessions_shorter_than_two_ticks_are_warned_of() {
        let warns = |conf: &str, ms| {
            let mut findings = Findings::default();
            findings.tick("h:1", conf, Duration::from_millis(ms));
            !findings.findings.is_empty()
        };
        let conf = "clientPort=2181\ntickTime=2000\nminSessionTimeout=500\n";
        assert!(warns(conf, 1_000) && warns(conf, 3_999) && !warns(conf, 4_000));
        assert!(!warns("clientPort=2181\n", 1_000) && !warns("tickTime=?\n", 1_000));
    }

    #[test]
    fn servers_that_are_not_of_one_ensemble_are_told() {
        let warnings = |modes: &[&str]| {
            let mut findings = Findings::default();
            findings.ensemble(modes, modes.len());
            findings.findings.iter().filter(|finding| finding.level == FindingLevel::Warning).count()
        };
        assert_eq!(warnings(&["follower", "leader", "follower"]), 0);
        assert_eq!(warnings(&["standalone"]), 0);
        assert_eq!(warnings(&["standalone", "standalone"]), 1);
        assert_eq!(warnings(&["leader", "standalone"]), 1);
        assert_eq!(warnings(&["leader", "leader"]), 1);
    }
}
