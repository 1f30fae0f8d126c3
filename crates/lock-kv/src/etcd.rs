//! Registers in etcd: locks that outlive any minority of the members.

mod dial;
mod error;
mod members;
mod messages;

use std::time::Duration;

use lock_core::{ErrorKind, Outcome, Result};
use tokio::time::{sleep, timeout};
use tonic::Status;

pub(crate) use self::members::Members;
use self::messages::{Executed, Found, RANGE, Range, TRANSACTION, Transaction, Value, WATCH, Watch, Watched};
use crate::error::overtaken;
use crate::registers::{About, Registers, Version, Versioned};

pub(crate) const NAME: &str = "etcd";
/// A read takes a round trip to the leader and one to a majority. Where a watch is lost, waiters read twenty times a second.
const POLL: Duration = Duration::from_millis(50);
/// A watch may be lost and nobody know: after so long somebody looks.
const WATCHED: Duration = Duration::from_secs(5);
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

    /// The version of a key, without its value.
    async fn version(&self, key: &str) -> Result<Option<Version>> {
        let found = self.members.call::<_, Found>(RANGE, &Range::version(&self.key(key))).await?;
        Ok(found.answer.values.first().map(|found| version(found.revision)))
    }

    /// Returns after a change of the key, or a reason to look.
    ///
    /// From now on, and a read once that is: a watch from an earlier revision waits for up to 100 ms until etcd has caught up.
    async fn watch(&self, key: &str, seen: Option<&Version>) -> Result<(), Status> {
        let mut watched = self.members.open::<_, Watched>(WATCH, Watch::new(&self.key(key))).await?;
        while let Some(Watched { created, canceled, events }) = watched.next().await? {
            if canceled {
                return Err(Status::cancelled("the store has ended the watch"));
            }
            if !events.is_empty() {
                return Ok(());
            }
            if created {
                let found = self.version(key).await;
                if found.map_err(|error| Status::unavailable(error.message()))?.as_ref() != seen {
                    return Ok(());
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
        let versioned = |found: Value| Versioned::new(version(found.revision), found.value);
        Ok(found.answer.values.into_iter().next().map(versioned))
    }

    /// A request without an answer is sent again, until there is one: if the value is there then, it was executed, as no two swaps have the
    /// same value.
    async fn swap(&self, key: &str, expected: Option<&Version>, value: &[u8]) -> Result<Option<Version>> {
        let Some(revision) = revision(expected) else { return Ok(None) };
        let request = Transaction::swap(&self.key(key), revision, value);
        let (found, was_sent) = match self.members.call::<_, Executed>(TRANSACTION, &request).await {
            Ok(executed) if executed.answer.succeeded => {
                return Ok(Some(version(executed.answer.revision())));
            }
            Ok(executed) => (executed.answer.found(), executed.is_repeated),
            // The transaction that filled the store has this error too, though it is executed. None is, once a member has said so.
            Err(full) if full.kind() == ErrorKind::Exhausted => {
                let found = self.read(key).await.map_err(|_| full.clone().with_outcome(Outcome::Unknown))?;
                let is_ours = found.as_ref().is_some_and(|found| found.value == value);
                let outcome = match &found {
                    Some(found) if is_ours => return Ok(Some(found.version.clone())),
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
    async fn changed(&self, key: &str, seen: Option<&Version>) {
        if let Ok(Err(lost)) = timeout(WATCHED, self.watch(key, seen)).await {
            tracing::debug!(%lost, key, "a watch of etcd is lost");
            sleep(POLL).await;
        }
    }

    async fn close(&self) {
        self.members.close();
    }
}

pub(crate) fn about() -> About {
    About::new(NAME, POLL)
}

/// The revision of a version, zero for a key that does not exist; `None` if it is none of this store.
fn revision(version: Option<&Version>) -> Option<i64> {
    version.map_or(Some(0), |version| i64::try_from(version.number()?).ok())
}

fn version(revision: i64) -> Version {
    Version::from(revision.cast_unsigned())
}

/// What became of a swap that was refused, by what is there. A proxy on the way may have sent it twice: if the value is ours, it was executed,
/// whoever has repeated it.
fn settled(found: Option<Value>, value: &[u8], was_sent: bool) -> Result<Option<Version>> {
    match found {
        Some(found) if found.value == value => Ok(Some(version(found.revision))),
        _ if was_sent => Err(overtaken(NAME)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_ours_proves_its_swap_whoever_has_repeated_it() {
        let found = |value: &[u8]| Some(Value { value: value.to_vec(), revision: 7, ..Value::default() });
        for was_sent in [false, true] {
            assert_eq!(settled(found(b"ours"), b"ours", was_sent).unwrap(), Some(version(7)));
        }
        for other in [found(b"other"), None] {
            assert_eq!(settled(other.clone(), b"ours", false).unwrap(), None);
            assert_eq!(settled(other, b"ours", true).unwrap_err().outcome(), Outcome::Unknown);
        }
    }
}
