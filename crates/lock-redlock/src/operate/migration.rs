//! The store that locks move from, without tombstones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::backend::Support;
use lock_core::migration::{MigrationSource, Reading, Removal, Removed, Swapped, Tombstone, Writer};
use lock_core::{Error, ErrorKind, Finding, FindingLevel, Lease, LockName, Result, Token};

use crate::backend::Redlock;
use crate::context::Context;
use crate::error::{BACKEND, no_quorum};
use crate::servers::master::Master;
use crate::servers::masters::{ask_all, of_a_quorum};
use crate::voting::quorum::quorum;

const NO_TOMBSTONES: &str =
    "the quarantine of restarted masters, which may have lost a tombstone, ends long before tombstones would";

#[async_trait]
impl MigrationSource for Redlock {
    fn keeps_tombstones(&self) -> Support {
        Support::No(NO_TOMBSTONES)
    }

    fn identity(&self) -> String {
        self.context().identity.clone()
    }

    async fn claimed(&self) -> Result<Option<String>> {
        self.context().claimed().await
    }

    async fn claim(&self, migration: &str) -> Result<String> {
        self.context().claim(migration).await
    }

    async fn unclaim(&self, migration: &str) -> Result<()> {
        self.context().unclaim(migration).await
    }

    async fn examine(&self, migration: &str) -> Result<Vec<Finding>> {
        let mut findings = self.context().other_claims(migration).await?;
        findings.extend(self.context().examine_writers().await?);
        Ok(findings)
    }

    async fn servers(&self) -> Result<Vec<String>> {
        let answers = self.context().each(|master, _| async move { master.client.servers().await }).await;
        let (servers, silent): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        match servers.is_empty() {
            true => Err(no_quorum(silent.len(), 0, silent.into_iter().filter_map(Result::err))),
            false => Ok(servers.into_iter().flatten().flatten().collect()),
        }
    }

    async fn writers(&self) -> Result<Vec<Writer>> {
        let answers =
            self.context().each(|master, prefix| async move { master.client.writers(&prefix).await });
        // Of every master: a majority that is closed, and a master that is unreachable now, may let a holder in later.
        let mut writers: Vec<_> = answers.await.into_iter().collect::<Result<Vec<_>>>()?.concat();
        writers.sort();
        Ok(writers)
    }

    async fn longest_lease(&self) -> Result<Option<Duration>> {
        self.context().longest_lease().await
    }

    /// The largest of a quorum of masters: each token that was handed out is on a quorum.
    async fn largest_token(&self) -> Result<Option<Token>> {
        let answers = self.context().each(|master, prefix| async move {
            let largest = master.client.largest_token(&prefix).await?;
            // One that has restarted may have forgotten tokens.
            master.may_vote().map(|()| largest)
        });
        Ok(of_a_quorum(answers.await)?.into_iter().flatten().flatten().max())
    }

    async fn swap(&self, _: &mut dyn Lease, _: &Tombstone) -> Result<Swapped> {
        Err(no_tombstones())
    }

    async fn read_tombstone(&self, _: &LockName) -> Result<Option<Reading>> {
        Err(no_tombstones())
    }

    fn is_current(&self, _: &Reading, _: &LockName) -> bool {
        true
    }

    async fn remove_tombstone(&self, _: &Removal<'_>) -> Result<Removed> {
        Err(no_tombstones())
    }

    async fn tombstones(&self, _: &str) -> Result<Vec<Reading>> {
        Ok(Vec::new())
    }

    /// The median of the masters' clocks.
    async fn time(&self, _: &LockName) -> Result<u64> {
        let clocks = ask_all(&self.context().masters, |master| async move { master.client.time().await });
        let mut clocks: Vec<_> = of_a_quorum(clocks.await)?.into_iter().flatten().collect();
        clocks.sort_unstable();
        Ok(u64::try_from(clocks[clocks.len() / 2].as_micros()).unwrap_or(u64::MAX))
    }
}

impl Context {
    /// The migration that most masters have noted.
    async fn claimed(&self) -> Result<Option<String>> {
        let answers = ask_all(&self.masters, |master| {
            let prefix = self.prefix.clone();
            async move { master.client.claimed_keys(&prefix).await }
        });
        let mut votes: BTreeMap<String, usize> = BTreeMap::new();
        for noted in of_a_quorum(answers.await)?.into_iter().flatten().flatten() {
            *votes.entry(noted).or_default() += 1;
        }
        Ok(votes.into_iter().max_by_key(|(_, count)| *count).map(|(noted, _)| noted))
    }

    /// Notes a migration on all masters: it is noted once a quorum has it.
    async fn claim(&self, migration: &str) -> Result<String> {
        let answers = ask_all(&self.masters, |master| {
            let (prefix, migration) = (self.prefix.clone(), migration.to_owned());
            async move { master.client.claim_keys(&prefix, &migration).await }
        });
        let mut votes: BTreeMap<String, usize> = BTreeMap::new();
        for noted in of_a_quorum(answers.await)?.into_iter().flatten() {
            *votes.entry(noted).or_default() += 1;
        }
        let masters = self.masters.len();
        if let Some((noted, _)) = votes.iter().find(|(_, count)| **count >= quorum(masters)) {
            if noted != migration {
                self.unclaim(migration).await?;
            }
            return Ok(noted.clone());
        }
        let ours = votes.get(migration).copied().unwrap_or_default();
        let unseen = masters - votes.values().sum::<usize>();
        if ours + unseen < quorum(masters) {
            // Another one may then be noted on a quorum.
            self.unclaim(migration).await?;
        }
        let others = votes.keys().filter(|noted| *noted != migration).map(|other| {
            Error::new(ErrorKind::Unavailable, BACKEND)
                .with_message(format!("some have noted another migration, {other:?}"))
                .with_hint("try again; if the error persists, end the other migration")
        });
        Err(no_quorum(masters, ours, others))
    }

    async fn unclaim(&self, migration: &str) -> Result<()> {
        let answers = ask_all(&self.masters, |master| {
            let (prefix, migration) = (self.prefix.clone(), migration.to_owned());
            async move { master.client.unclaim_keys(&prefix, &migration).await }
        });
        of_a_quorum(answers.await).map(drop)
    }

    /// Other migrations over the same keys: a warning where a quorum may have noted them.
    async fn other_claims(&self, migration: &str) -> Result<Vec<Finding>> {
        let answers = self.each(|master, prefix| {
            let migration = migration.to_owned();
            async move { master.client.other_claims(&prefix, &migration).await }
        });
        let answers = of_a_quorum(answers.await)?;
        let unseen = answers.iter().filter(|answer| answer.is_err()).count();
        let mut claims: BTreeMap<(String, String), usize> = BTreeMap::new();
        for finding in answers.into_iter().flatten().flatten() {
            *claims.entry((finding.what, finding.advice)).or_default() += 1;
        }
        let masters = self.masters.len();
        let finding = |((what, advice), count): ((String, String), usize)| {
            let is_noted = count + unseen >= quorum(masters);
            let level = if is_noted { FindingLevel::Warning } else { FindingLevel::Note };
            Finding::new(level, "", format!("on {count} of {masters} masters, {what}"), advice)
        };
        Ok(claims.into_iter().map(finding).collect())
    }

    /// Who may acquire locks. The doctor reports unreachable masters.
    async fn examine_writers(&self) -> Result<Vec<Finding>> {
        let answers =
            self.each(|master, prefix| async move { master.client.examine_writers(&prefix).await }).await;
        Ok(of_a_quorum(answers)?.into_iter().flatten().flatten().collect())
    }

    /// The longest remaining life of a key of a lock on a quorum of masters: no lease lasts longer, as a quorum has confirmed
    /// it.
    async fn longest_lease(&self) -> Result<Option<Duration>> {
        let answers = self.each(|master, prefix| async move {
            let mut longest = None;
            let visit = |read: redis_link::scan::ReadKey| {
                longest = longest.max(Some(read.left.unwrap_or(Duration::MAX)));
            };
            master.client.read_keys(&prefix, None, visit).await?;
            // One that has restarted may have forgotten locks.
            master.may_vote().map(|()| longest)
        });
        Ok(of_a_quorum(answers.await)?.into_iter().flatten().flatten().max())
    }

    /// Asks all masters for the keys of all locks, which takes long.
    async fn each<T, F: Future<Output = Result<T>>>(
        &self,
        ask: impl Fn(Arc<Master>, String) -> F,
    ) -> Vec<Result<T>> {
        join_all(self.masters.iter().map(|master| ask(Arc::clone(master), self.prefix.clone()))).await
    }
}

fn no_tombstones() -> Error {
    Error::new(ErrorKind::Unsupported, BACKEND)
        .with_message(format!("Redlock keeps no tombstones of locks that have moved: {NO_TOMBSTONES}"))
        .with_hint("hold the locks on both stores (dual) until all of them move at once")
}
