//! What a process registers about itself, and the operator reads.

use std::time::SystemTime;

use lock_core::migration::MemberState;
use serde::{Deserialize, Serialize};

use crate::rungs::record::Phase;
use crate::rungs::rung::Rung;

/// A process that takes part in a migration, as one of its sessions has registered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemberInfo {
    /// The process: the same in all its sessions.
    pub process: String,
    /// Its host.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// The version of this library.
    pub version: String,
    /// The version of the record that this session has seen; none if there was no record.
    pub record: Option<i32>,
    /// The generation of that record.
    pub generation: u64,
    /// Where the migration was in that record.
    pub phase: Option<Phase>,
    /// The rung that its URL says, whatever the record does.
    pub pinned: Option<Rung>,
    /// The lowest rung in force for any name.
    pub rung: Rung,
    /// When that rung came into force.
    pub since: SystemTime,
    /// The lowest rung of a guard that is still held, if it is below the rung in force.
    pub behind: Option<Rung>,
    /// The longest time to live of a lease on the old store, in ms.
    pub longest_ttl_ms: u64,
    /// At least the largest token of the old store that it has seen; 0 if it has seen none.
    #[serde(default)]
    pub largest_token: u64,
    /// The servers that the old store had within a day of its last answer to this process: masters and replicas.
    #[serde(default)]
    pub old_servers: Vec<String>,
    /// Whether the old store answered this process some seconds ago. It no longer looks after the seal.
    #[serde(default)]
    pub reaches_old: bool,
    /// How often its shadow locks found that the old store had granted a lock twice.
    pub double_grants: u64,
}

/// What is registered by one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session.
    pub session: String,
    /// The process; none for one whose text cannot be read, as of a later version of this library.
    pub member: Option<MemberInfo>,
}

impl SessionInfo {
    pub(crate) fn parse(state: MemberState) -> Self {
        let member = serde_json::from_slice(&state.data).ok();
        Self { session: state.session, member }
    }

    /// Who it is, for people.
    pub(crate) fn who(&self) -> String {
        match &self.member {
            Some(MemberInfo { host, pid, .. }) => format!("{host} (pid {pid})"),
            None => format!("the session {}, whose registration this version cannot read", self.session),
        }
    }
}

impl MemberInfo {
    /// The lowest rung on which it has or acquires locks.
    #[must_use]
    pub fn lowest(&self) -> Rung {
        self.behind.unwrap_or(self.rung).min(self.rung)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_version_registered_is_read() {
        let text = r#"{"process": "1", "host": "h", "pid": 7, "version": "0.1.0", "record": 3, "generation": 1, "phase": "open",
            "pinned": null, "rung": "move", "since": {"secs_since_epoch": 0, "nanos_since_epoch": 0}, "behind": null,
            "longest_ttl_ms": 5000, "double_grants": 0, "of_a_later_one": []}"#;
        let session = SessionInfo::parse(MemberState::new("s".into(), text.into()));
        let member = session.member.unwrap();
        assert_eq!((member.largest_token, member.old_servers.len(), member.reaches_old), (0, 0, false));
    }
}
