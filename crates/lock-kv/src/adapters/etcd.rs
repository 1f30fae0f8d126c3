//! Registers in etcd: locks that outlive any minority of the members.

pub(crate) mod config;
mod dial;
mod error;
mod members;
mod messages;

use std::time::Duration;

use lock_core::waiting::pause_between;
use lock_core::{ErrorKind, Finding, FindingLevel, Outcome, OwnerId, Result};
use tokio::time::{sleep, timeout};
use tonic::Status;

use self::members::Members;
use self::messages::{
    AskStatus, Executed, Found, MemberStatus, RANGE, Range, STATUS, Step, TRANSACTION, Transaction, Value,
    WATCH, Watch, Watched,
};
use crate::adapters::records::of_records;
use crate::error::overtaken;
use crate::registers::{About, Exchanged, LOCKS, Notice, Notified, Registers, Version, Versioned};

pub(crate) const NAME: &str = "etcd";
/// A read takes a round trip to the leader and one to a majority. Where a watch is lost, waiters ask twenty times a second.
const POLL: Duration = Duration::from_millis(50);
/// A watch may be lost and nobody know: after so long somebody looks.
const WATCHED: Duration = Duration::from_secs(5);
/// Before the owner ids of waiters that are notified.
const NOTICES: &str = "granted/";
/// How many notices are published in one transaction, of 128 steps at most. Waiters without one look at the record.
const MOST_NOTICES: usize = 120;
/// How many bytes all notices of one transaction carry: the log of etcd keeps them, as it does the value. Longer values are read.
const MOST_CARRIED: usize = 32_768;
const MB: i64 = 1_000_000;
/// Unless it was started with `--quota-backend-bytes`.
const DEFAULT_QUOTA: i64 = 2 << 30;
/// How many keys are listed at a time: with long names still less than gRPC takes for an answer.
const PAGE: i64 = 1_000;

/// Values under the keys of etcd that begin with a prefix. Reads are linearizable, and a version is the revision of the last change.
#[derive(Debug)]
pub struct Etcd {
    members: Members,
    prefix: String,
}

impl Etcd {
    pub(crate) const fn new(members: Members, prefix: String) -> Self {
        Self { members, prefix }
    }

    fn key(&self, key: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), key.as_bytes()].concat()
    }

    fn notice_key(&self, waiter: OwnerId) -> Vec<u8> {
        self.key(&format!("{NOTICES}{waiter}"))
    }

    fn step(&self, notice: &Notice, carried: &[u8]) -> Step {
        match notice {
            Notice::Granted(waiter) => Step::put(&self.notice_key(*waiter), carried),
            Notice::Over(waiter) => Step::delete(&self.notice_key(*waiter)),
        }
    }

    /// Returns when there is a notice, with the value that it carries: both are of one transaction, and so of one revision.
    ///
    /// From now on, and a read once that is: a watch from an earlier revision waits for up to 100 ms until etcd has caught up.
    async fn watch(&self, waiter: OwnerId) -> Result<Option<Versioned>, Status> {
        let key = self.notice_key(waiter);
        let mut watched = self.members.open::<_, Watched>(WATCH, Watch::new(&key)).await?;
        while let Some(Watched { created, canceled, events }) = watched.next().await? {
            if canceled {
                return Err(Status::cancelled("the store has ended the watch"));
            }
            if let Some(event) = events.into_iter().next() {
                return Ok(event.notice.and_then(carried));
            }
            if created {
                let found = self.members.call::<_, Found>(RANGE, &Range::one(&key)).await;
                let found = found.map_err(|error| Status::unavailable(error.message()))?.answer.values;
                if let Some(notice) = found.into_iter().next() {
                    return Ok(carried(notice));
                }
            }
        }
        Err(Status::unavailable("the watch has ended"))
    }
}

impl Registers for Etcd {
    fn about(&self) -> About {
        About { passes_over: self.members.attempt(), ..about() }
    }

    async fn read(&self, key: &str) -> Result<Option<Versioned>> {
        let found = self.members.call::<_, Found>(RANGE, &Range::one(&self.key(key))).await;
        let found = found.map_err(|error| error.with_outcome(Outcome::NotApplied))?;
        Ok(found.answer.values.into_iter().next().map(versioned))
    }

    async fn swap(&self, key: &str, expected: Option<&Version>, value: &[u8]) -> Result<Option<Version>> {
        Ok(match self.exchange(key, expected, value, &[]).await? {
            Exchanged::Written(version) => Some(version),
            Exchanged::Refused | Exchanged::Found(_) => None,
        })
    }

    /// A request without an answer is sent again, until there is one: if the value is there then, it was executed, as no two swaps have the
    /// same value.
    async fn exchange(
        &self,
        key: &str,
        expected: Option<&Version>,
        value: &[u8],
        notices: &[Notice],
    ) -> Result<Exchanged> {
        let Some(revision) = revision(expected) else { return Ok(Exchanged::Refused) };
        let is_short = value.len() * notices.len() <= MOST_CARRIED;
        let carried = if is_short { value } else { &[] };
        let notices = notices.iter().take(MOST_NOTICES).map(|notice| self.step(notice, carried));
        let request = Transaction::swap(&self.key(key), revision, value, notices);
        let (found, was_sent) = match self.members.call::<_, Executed>(TRANSACTION, &request).await {
            Ok(executed) if executed.answer.succeeded => {
                return Ok(Exchanged::Written(version(executed.answer.revision())));
            }
            Ok(executed) => (executed.answer.found(), executed.is_repeated),
            // The transaction that filled the store has this error too, though it is executed. None is, once a member has said so.
            Err(full) if full.kind() == ErrorKind::Exhausted => {
                let found = self.read(key).await.map_err(|_| full.clone().with_outcome(Outcome::Unknown))?;
                let is_ours = found.as_ref().is_some_and(|found| found.value == value);
                let outcome = match found {
                    Some(found) if is_ours => return Ok(Exchanged::Written(found.version)),
                    found if found.as_ref().map(|found| &found.version) == expected => full.outcome(),
                    _ => Outcome::Unknown,
                };
                return Err(full.with_outcome(outcome));
            }
            Err(error) => return Err(error),
        };
        settled(found, value, was_sent)
    }

    async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
        let mut after = (!after.is_empty()).then(|| self.key(after));
        loop {
            let request = Range::keys(&self.key(prefix), after, PAGE);
            let found = self.members.call::<_, Found>(RANGE, &request).await;
            let found = found.map_err(|error| error.with_outcome(Outcome::NotApplied))?.answer.values;
            let Some(last) = found.last().map(|found| found.key.clone()) else { return Ok(Vec::new()) };
            let keys = found.into_iter().filter_map(|found| String::from_utf8(found.key).ok());
            let keys: Vec<_> =
                keys.filter_map(|key| Some(key.strip_prefix(&self.prefix)?.to_owned())).collect();
            // None of those is ours, and others may follow.
            if !keys.is_empty() {
                return Ok(keys);
            }
            after = Some(last);
        }
    }

    /// By a watch; by a pause where there is none.
    async fn notified(&self, waiter: OwnerId) -> Notified {
        match timeout(WATCHED, self.watch(waiter)).await {
            Ok(Ok(carried)) => Notified::Granted(carried),
            Ok(Err(lost)) => {
                tracing::debug!(%lost, "a watch of etcd is lost");
                // Not all at the same time, after the end of a member.
                sleep(pause_between(25, 100)).await;
                Notified::Look
            }
            Err(_) => Notified::Look,
        }
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let count = self.members.call::<_, Found>(RANGE, &Range::count(&self.key(LOCKS))).await;
        let count = count.map(|counted| counted.answer.count.cast_unsigned());
        let status = self.members.call::<_, MemberStatus>(STATUS, &AskStatus {}).await;
        Ok(vec![of_records(count), of_size(status.map(|status| status.answer))])
    }

    async fn close(&self) {
        self.members.close();
    }
}

pub(crate) fn about() -> About {
    About { notifies: true, ..About::new(NAME, POLL) }
}

/// How full the store is.
fn of_size(status: Result<MemberStatus>) -> Finding {
    let MemberStatus { version, size, quota } = match status {
        Ok(status) => status,
        Err(error) => {
            let what = format!("how full the store is is not known: {error}");
            return Finding::new(FindingLevel::Note, "", what, "");
        }
    };
    let (of, quota) = match quota {
        1.. => (format!("a quota of {} MB", quota / MB), quota),
        _ => ("a quota that it does not tell, of 2147 MB by default".to_owned(), DEFAULT_QUOTA),
    };
    let what = format!("the database of a member (etcd {version}) has {} MB, of {of}", size / MB);
    if size < quota / 4 * 3 {
        return Finding::new(FindingLevel::Note, "", what, "");
    }
    let advice = "a store that is full refuses renewals, and all locks are lost: turn compaction on, run `etcdctl defrag` member by \
                  member, or raise --quota-backend-bytes";
    Finding::new(FindingLevel::Warning, "", what, advice)
}

/// The revision of a version, zero for a key that does not exist; `None` if it is none of this store.
fn revision(version: Option<&Version>) -> Option<i64> {
    version.map_or(Some(0), |version| i64::try_from(version.number()?).ok())
}

fn version(revision: i64) -> Version {
    Version::from(revision.cast_unsigned())
}

fn versioned(found: Value) -> Versioned {
    Versioned::new(version(found.revision), found.value)
}

/// The value that a notice carries.
fn carried(notice: Value) -> Option<Versioned> {
    (!notice.value.is_empty()).then(|| versioned(notice))
}

/// What became of a swap that was refused, by what is there. A proxy on the way may have sent it twice: if the value is ours, it was executed,
/// whoever has repeated it.
fn settled(found: Option<Value>, value: &[u8], was_sent: bool) -> Result<Exchanged> {
    match found {
        Some(found) if found.value == value => Ok(Exchanged::Written(version(found.revision))),
        _ if was_sent => Err(overtaken(NAME)),
        found => Ok(Exchanged::Found(found.map(versioned))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_nearly_full_is_a_warning() {
        let of_size = |size, quota| of_size(Ok(MemberStatus { version: "3".to_owned(), size, quota }));
        for (size, quota, level) in [
            (2 * MB, 0, FindingLevel::Note),
            (1_600 * MB, 0, FindingLevel::Note),
            (1_700 * MB, 0, FindingLevel::Warning),
            (1_700 * MB, 8_000 * MB, FindingLevel::Note),
            (6_000 * MB, 8_000 * MB, FindingLevel::Warning),
        ] {
            let finding = of_size(size, quota);
            assert_eq!(finding.level, level, "{finding}");
            assert!(finding.what.contains(&format!("{} MB", size / MB)), "{finding}");
        }
    }

    #[test]
    fn a_value_of_ours_proves_its_swap_whoever_has_repeated_it() {
        let found = |value: &[u8]| Some(Value { value: value.to_vec(), revision: 7, ..Value::default() });
        for was_sent in [false, true] {
            assert_eq!(settled(found(b"ours"), b"ours", was_sent).unwrap(), Exchanged::Written(version(7)));
        }
        for other in [found(b"other"), None] {
            let is_there = Exchanged::Found(other.clone().map(versioned));
            assert_eq!(settled(other.clone(), b"ours", false).unwrap(), is_there);
            assert_eq!(settled(other, b"ours", true).unwrap_err().outcome(), Outcome::Unknown);
        }
    }
}
