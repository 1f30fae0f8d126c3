//! Examines the servers before a migration.

use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use lock_core::migration::{Removal, Removed, Tombstone};
use lock_core::{Error, ErrorKind, Finding, FindingLevel, LockName, Mode, OwnerId, Result, Token};
use redis_link::keys::Keys;
use redis_link::lock_answer::LockAnswer;
use redis_link::script;
use redis_link::script::Script;
use redis_link::wire;

use crate::error::BACKEND;
use crate::recipes::request::Ask;
use crate::store::RedisStore;

static DISCARD: LazyLock<Script> = script!(discard);

/// How long the keys of a trial live, should it not come to its end.
const TRIAL_LIFE: Duration = Duration::from_secs(10);
/// How many names are drawn to find one on each master of a cluster.
const MOST_NAMES: usize = 10_000;

impl RedisStore {
    /// What would endanger a migration, beyond the findings of the doctor.
    pub(crate) async fn preflight(&self, migration: &str) -> Result<Vec<Finding>> {
        let mut findings = self.server.client.examine_durability().await?;
        findings.extend(self.server.client.other_claims(&self.prefix, migration).await?);
        for (server, name) in self.trial_names().await? {
            findings.push(self.try_move(&server, &name).await?);
        }
        findings.extend(self.server.client.examine_writers(&self.prefix).await?);
        Ok(findings)
    }

    /// An unused name for each master.
    async fn trial_names(&self) -> Result<Vec<(String, LockName)>> {
        let mut masters = self.server.client.node_names().await?;
        let mut names = Vec::new();
        for _ in 0..MOST_NAMES {
            let name = LockName::new(format!("polylock-trial/{}", OwnerId::random()))?;
            let node = self.server.client.node_name(&self.keys(&name)?);
            if let Some(at) = masters.iter().position(|master| Some(master) == node.as_ref()) {
                let master = masters.swap_remove(at);
                let server = if master.is_empty() { self.server.client.address().to_owned() } else { master };
                names.push((server, name));
            }
            if masters.is_empty() {
                break;
            }
        }
        Ok(names)
    }

    /// Moves a lock of this name and back, which shows missing rights and replicas that do not answer.
    async fn try_move(&self, server: &str, name: &LockName) -> Result<Finding> {
        let keys = self.keys(name)?;
        let tried = self.move_and_back(&keys, name).await;
        let beside = self.server.recipe().beside().map(|beside| beside(keys.lock()));
        let fence = keys.fence();
        let remains = [Some(keys.lock()), Some(&*fence), Some(keys.tokens()), beside.as_deref()];
        let remains: Vec<&str> = remains.into_iter().flatten().collect();
        let discarded = self.server.client.read(&DISCARD.on(&remains), wire::text).await.map(drop);
        match tried.and_then(|replicas| discarded.map(|()| replicas)) {
            Ok(0) => Ok(Finding::new(FindingLevel::Note, server, "a lock was moved and moved back", "")),
            Ok(replicas) => Ok(Finding::new(
                FindingLevel::Note,
                server,
                format!(
                    "a lock was moved and moved back, and all {replicas} replicas had its tombstone (WAIT)"
                ),
                "",
            )),
            Err(error) => Ok(finding(FindingLevel::Warning, server, &error)),
        }
    }

    /// Returns how many replicas had the tombstone.
    async fn move_and_back(&self, keys: &Keys, name: &LockName) -> Result<u32> {
        let owner = OwnerId::random();
        let ask = Ask {
            keys,
            owner,
            mode: Mode::Exclusive,
            ttl: TRIAL_LIFE,
            info: "",
            entry: None,
            is_confirmation: false,
        };
        let LockAnswer::Granted(token) =
            self.server.ask(self.server.moment(), &ask, &self.server.client.dispatch()).await?
        else {
            return Err(lost());
        };
        let tombstone = Tombstone {
            to: String::new(),
            namespace: String::new(),
            lock: name.clone(),
            written: UNIX_EPOCH,
            life: TRIAL_LIFE,
            newest: 0,
        };
        let replicas = self.server.client.connected_replicas(keys).await?;
        // The second time it refreshes.
        if !self.swap(keys, owner, &tombstone).await? || !self.swap(keys, owner, &tombstone).await? {
            return Err(lost());
        }
        if self.read_tombstone(name).await?.is_none_or(|read| read.tombstone != tombstone) {
            return Err(lost());
        }
        let floor = Token::new(token.get() + 1);
        let removal = Removal { name, tombstone: &tombstone, floor, until: i64::MAX as u64, ttl: TRIAL_LIFE };
        match self.remove_tombstone(keys, &removal).await? {
            Removed::Done => Ok(replicas),
            _ => Err(lost()),
        }
    }
}

fn finding(level: FindingLevel, server: &str, error: &Error) -> Finding {
    Finding::new(level, server, error.message(), error.hint().unwrap_or_default())
}

fn lost() -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message("the keys of a trial were lost or changed")
        .with_hint("try again; if the error persists, find out what deletes keys on the server")
}
