//! Registers in an object store: locks that need nothing but a bucket.

pub(crate) mod config;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use lock_core::{Error, ErrorKind, Outcome, Result};
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use percent_encoding::percent_decode_str;

use crate::adapters::own_thread::OwnThread;
use crate::registers::{About, Registers, Version, Versioned};

pub(crate) const NAME: &str = "s3";
/// Each read costs money.
pub(crate) const POLL: Duration = Duration::from_secs(1);
/// How many keys are listed at a time, as S3 does.
const PAGE: usize = 1_000;
/// The longest key of an object, in bytes.
const LONGEST_KEY: usize = 1_024;
/// With it there is room for names of some length.
const LONGEST_PREFIX: usize = LONGEST_KEY / 2;

/// Values in the objects of a bucket. A version is the entity tag, which is a hash of the value.
///
/// # Examples
///
/// Any client of the crate `object_store` that knows [`PutMode::Update`] will do, those of Google and Azure as well:
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use lock_kv::{Bucket, KvConfig};
/// # use lock_kv::object_store::memory::InMemory;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// let bucket = Bucket::over(Arc::new(InMemory::new()), "app", Duration::from_millis(100))?;
/// let locks = KvConfig::new().connect(bucket).await?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Bucket {
    thread: OwnThread,
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    poll: Duration,
}

impl Bucket {
    /// The objects below this prefix, which waiters read so often. **The client is not to repeat requests**
    /// ([`RetryConfig::max_retries`](object_store::RetryConfig) zero): a repeated swap takes longer than its caller waits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a prefix that is no path of objects, or too long.
    pub fn over(store: Arc<dyn ObjectStore>, prefix: &str, poll: Duration) -> Result<Self> {
        let prefix = parse_prefix(prefix)?;
        Ok(Self { thread: OwnThread::start(NAME)?, store, prefix, poll })
    }

    fn object(&self, key: &str) -> Result<Path> {
        let path = format!("{}/{}", self.prefix, encode(key));
        if path.len() > LONGEST_KEY {
            return Err(Error::new(ErrorKind::InvalidName, NAME)
                .with_message(format!("the object of the key {key:?} has a name of {} bytes", path.len()))
                .with_hint(format!("a bucket takes {LONGEST_KEY}, where %, control characters and dots alone take three each, and empty parts one")));
        }
        Path::parse(&path).map_err(|error| failed(error, Outcome::NotApplied))
    }
}

impl Registers for Bucket {
    fn about(&self) -> About {
        about(&self.prefix, self.poll)
    }

    async fn read(&self, key: &str) -> Result<Option<Versioned>> {
        let (store, object) = (Arc::clone(&self.store), self.object(key)?);
        self.thread.run(Outcome::NotApplied, async move { read(&*store, &object).await }).await
    }

    /// A swap that was refused may have been sent twice, by something on the way. It was executed if the value is there, as no two swaps have
    /// the same one.
    async fn swap(&self, key: &str, expected: Option<&Version>, value: &[u8]) -> Result<Option<Version>> {
        let (store, object) = (Arc::clone(&self.store), self.object(key)?);
        let is_new = expected.is_none();
        let mode = expected.map_or(PutMode::Create, |version| PutMode::Update(tags(version)));
        let value = value.to_vec();
        let request = async move {
            let options = PutOptions { mode, ..PutOptions::default() };
            match store.put_opts(&object, PutPayload::from(value.clone()), options).await {
                Ok(put) => version(put.e_tag, put.version).map(Some),
                Err(error) if is_refused(&error, is_new) => {
                    let found =
                        read(&*store, &object).await.map_err(|error| error.with_outcome(Outcome::Unknown))?;
                    Ok(found.filter(|found| found.value == value).map(|found| found.version))
                }
                Err(error) => Err(failed_by(error, Outcome::Unknown)),
            }
        };
        self.thread.run(Outcome::Unknown, request).await
    }

    /// In the order of the objects, which is that of the keys but for characters that have another form there.
    async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
        let (folder, _) = prefix.rsplit_once('/').unwrap_or_default();
        let (folder, after) =
            (self.object(folder)?, if after.is_empty() { None } else { Some(self.object(after)?) });
        let (store, below, prefix) =
            (Arc::clone(&self.store), format!("{}/", self.prefix), prefix.to_owned());
        let request = async move {
            let objects = match &after {
                Some(after) => store.list_with_offset(Some(&folder), after),
                None => store.list(Some(&folder)),
            };
            let key = |object: object_store::ObjectMeta| {
                let key = object.location.as_ref().strip_prefix(&below).and_then(decode);
                std::future::ready(Ok(key.filter(|key| key.starts_with(&prefix))))
            };
            let keys = objects.try_filter_map(key).take(PAGE).try_collect().await;
            keys.map_err(|error| failed_by(error, Outcome::NotApplied))
        };
        self.thread.run(Outcome::NotApplied, request).await
    }
}

/// What the names of objects begin with. It leaves room for keys.
pub(crate) fn parse_prefix(prefix: &str) -> Result<Path> {
    let unfit = |what: &str, hint: String| {
        let message = format!("the prefix {prefix:?} {what}");
        Error::new(ErrorKind::InvalidConfig, NAME).with_message(message).with_hint(hint)
    };
    let path = Path::parse(prefix).map_err(|error| {
        let hint = "write it as app/locks: no part of it is empty, . or ..";
        unfit("is no path of objects", hint.to_owned()).caused_by(error)
    })?;
    if path.as_ref().len() > LONGEST_PREFIX {
        return Err(unfit("is too long", format!("use {LONGEST_PREFIX} bytes at most")));
    }
    Ok(path)
}

/// Those of a prefix that was parsed.
pub(crate) fn about(prefix: &Path, poll: Duration) -> About {
    let longest_key = LONGEST_KEY - prefix.as_ref().len() - 1;
    About { longest_key, ..About::new(NAME, poll) }
}

async fn read(store: &dyn ObjectStore, object: &Path) -> Result<Option<Versioned>> {
    let found = match store.get(object).await {
        Err(StoreError::NotFound { .. }) => return Ok(None),
        found => found.map_err(|error| failed_by(error, Outcome::NotApplied))?,
    };
    let version = version(found.meta.e_tag.clone(), found.meta.version.clone())?;
    let value = found.bytes().await.map_err(|error| failed_by(error, Outcome::NotApplied))?;
    Ok(Some(Versioned::new(version, value.to_vec())))
}

/// Whether the store says that it has another version. A bucket that does not exist has none to compare with.
const fn is_refused(error: &StoreError, is_new: bool) -> bool {
    match error {
        StoreError::Precondition { .. } | StoreError::AlreadyExists { .. } => true,
        StoreError::NotFound { .. } => !is_new,
        _ => false,
    }
}

/// The tag, and the version where the store compares that.
fn version(e_tag: Option<String>, version: Option<String>) -> Result<Version> {
    match (e_tag, version) {
        (Some(tag), None) => Ok(Version::new(tag)),
        (tag, Some(version)) => Ok(Version::new(format!("{}\n{version}", tag.unwrap_or_default()))),
        (None, None) => Err(Error::new(ErrorKind::Unsupported, NAME)
            .with_message("the store gives no entity tags, by which it could compare")
            .with_hint("use one that honours conditional writes")
            .with_outcome(Outcome::Unknown)),
    }
}

fn tags(version: &Version) -> UpdateVersion {
    let (e_tag, version) = match version.as_str().split_once('\n') {
        Some((tag, version)) => (tag, Some(version.to_owned())),
        None => (version.as_str(), None),
    };
    UpdateVersion { e_tag: (!e_tag.is_empty()).then(|| e_tag.to_owned()), version }
}

/// A key as the path of an object, which has no empty part, none of dots alone, and no control characters.
fn encode(key: &str) -> String {
    let part = |part: &str| match part {
        "" => "%".to_owned(),
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        part => part
            .chars()
            .map(|character| match character {
                '%' | '\0'..='\x1f' | '\x7f' => format!("%{:02X}", u32::from(character)),
                _ => character.to_string(),
            })
            .collect(),
    };
    key.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The key of an object; `None` for one that is not ours.
fn decode(path: &str) -> Option<String> {
    let part = |part: &str| match part {
        "%" => Some(String::new()),
        part => percent_decode_str(part).decode_utf8().ok().map(Cow::into_owned),
    };
    let key = path.split('/').map(part).collect::<Option<Vec<_>>>()?.join("/");
    (encode(&key) == path).then_some(key)
}

/// What became of a request is known if the store itself has refused it.
fn failed_by(error: StoreError, otherwise: Outcome) -> Error {
    let (kind, message, hint) = match &error {
        StoreError::NotFound { .. } => (
            ErrorKind::InvalidConfig,
            "there is no such bucket",
            "create it, or check its name, region and endpoint",
        ),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => (
            ErrorKind::Denied,
            "the bucket refuses this user",
            "give it s3:GetObject, s3:PutObject and s3:ListBucket; keys come from the environment (AWS_ACCESS_KEY_ID, ..), a role, or options",
        ),
        StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
            (ErrorKind::Unsupported, "the store has no conditional writes", "use one that has")
        }
        _ => return failed(error, otherwise),
    };
    Error::new(kind, NAME)
        .with_message(message)
        .with_hint(hint)
        .with_outcome(Outcome::NotApplied)
        .caused_by(error)
}

fn failed(error: impl fmt::Display, outcome: Outcome) -> Error {
    Error::new(ErrorKind::Unavailable, NAME)
        .with_message(format!("the bucket did not answer: {error}"))
        .with_hint("check that it is reachable, and its region and endpoint")
        .with_outcome(outcome)
}
