//! What is asked of a store.

use std::fmt::{self, Debug};
use std::future::{Future, pending, ready};
use std::time::Duration;

use lock_core::{Finding, OwnerId, Result};

/// Before the names of locks, so that no lock has the key that is used for trials.
pub(crate) const LOCKS: &str = "lock/";

/// A store of versioned values: the only thing that locks ask of it.
///
/// # Contract
///
/// * **A swap is one step**: it compares and writes, and no other swap of this key comes between. That is all that exclusion depends on, and
///   [connecting](crate::Kv::connect) tries it.
/// * **Versions never come back.** A number that grows will do, and so will a hash of the value: no value is written twice.
/// * **A read may be stale.** It delays, as the swap on its version is refused then.
/// * **Outcomes.** An error of [`swap`](Self::swap) says by its [outcome](lock_core::Error::outcome) whether the value may have been written, now or
///   later: [`Unknown`](lock_core::Outcome::Unknown) unless the store has refused it. A swap that is executed at any later time is
///   harmless: its version has moved.
/// * **A swap is sent once.** Turn off the retries of a client that repeats requests by itself (those of S3 do), or report
///   [`Unknown`](lock_core::Outcome::Unknown) after one: the second copy is refused because the first was executed, and `Ok(None)` would deny
///   what has happened. An adapter may read the key and compare: no two swaps have the same value.
/// * **Cancel safety.** A swap whose future is dropped may be executed all the same. Nothing else may happen.
///
/// # Examples
///
/// A map behind a mutex, for a test:
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Mutex;
/// use std::time::Duration;
///
/// use lock_core::{Finding, Result};
/// use lock_kv::{About, Kv, KvConfig, Registers, Version, Versioned};
///
/// #[derive(Debug, Default)]
/// struct Map(Mutex<BTreeMap<String, (u64, Vec<u8>)>>);
///
/// impl Registers for Map {
///     fn about(&self) -> About {
///         About::new("map", Duration::from_millis(5))
///     }
///
///     async fn read(&self, key: &str) -> Result<Option<Versioned>> {
///         let map = self.0.lock().unwrap();
///         Ok(map.get(key).map(|(version, value)| Versioned::new(Version::from(*version), value.clone())))
///     }
///
///     async fn swap(&self, key: &str, expected: Option<&Version>, value: &[u8]) -> Result<Option<Version>> {
///         let mut map = self.0.lock().unwrap();
///         let present = map.get(key).map(|(version, _)| *version);
///         if present.map(Version::from).as_ref() != expected {
///             return Ok(None);
///         }
///         let next = present.unwrap_or_default() + 1;
///         map.insert(key.to_owned(), (next, value.to_vec()));
///         Ok(Some(next.into()))
///     }
///
///     async fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>> {
///         let map = self.0.lock().unwrap();
///         let keys = map.keys().filter(|key| key.starts_with(prefix) && key.as_str() > after);
///         Ok(keys.take(1_000).cloned().collect())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = KvConfig::new().connect(Map::default()).await?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// The error of a swap that got no answer, in a store behind a network. One of a read leaves the outcome as it is:
///
/// ```
/// use lock_core::{Error, ErrorKind, Outcome};
///
/// fn no_answer_to_swap(cause: std::io::Error) -> Error {
///     Error::new(ErrorKind::Unavailable, "bucket")
///         .with_message("the bucket did not answer")
///         .with_hint("check that it is reachable")
///         .with_outcome(Outcome::Unknown)
///         .caused_by(cause)
/// }
/// # assert_eq!(no_answer_to_swap(std::io::Error::other("reset")).outcome(), Outcome::Unknown);
/// ```
pub trait Registers: Debug + Send + Sync + 'static {
    /// What the store is called, how often to look, and its limits.
    fn about(&self) -> About;

    /// The value of a key and its version; `None` if there is none. It may be an earlier one.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or refuses.
    fn read(&self, key: &str) -> impl Future<Output = Result<Option<Versioned>>> + Send;

    /// Writes a value if the key has this version still, or does not exist, for `None`; and returns the new version. `Ok(None)`: it has
    /// another one, and nothing was written.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or refuses; see the contract for the outcome.
    fn swap(
        &self,
        key: &str,
        expected: Option<&Version>,
        value: &[u8],
    ) -> impl Future<Output = Result<Option<Version>>> + Send;

    /// The first of the keys that begin so and come after another one, in the order of the store: as many as it gives at a time; none if there
    /// are no more. `after` is empty at first, and then the last one of the page before.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or refuses.
    fn list(&self, prefix: &str, after: &str) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// As [`swap`](Self::swap), and publishes notices in the same step, if the value is written: with the value, or without. What is there
    /// instead is returned if that costs nothing. Called instead of `swap` if the store [notifies](About::notifies). The default publishes none.
    ///
    /// # Errors
    ///
    /// As those of `swap`.
    fn exchange(
        &self,
        key: &str,
        expected: Option<&Version>,
        value: &[u8],
        notices: &[Notice],
    ) -> impl Future<Output = Result<Exchanged>> + Send {
        let _ = notices;
        async move {
            let swapped = self.swap(key, expected, value).await?;
            Ok(swapped.map_or(Exchanged::Refused, Exchanged::Written))
        }
    }

    /// Why a waiter is to ask: it is [granted](Notice::Granted) its lock, also if that was before, or for another reason. The
    /// waiter confirms the grant, so a notice that is late, old or somebody else's costs requests alone. The default never returns.
    ///
    /// # Cancel safety
    ///
    /// It has to be cancel safe.
    fn notified(&self, waiter: OwnerId) -> impl Future<Output = Notified> + Send {
        let _ = waiter;
        pending()
    }

    /// What there is to know of the servers, for `doctor`. The default is nothing.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or refuses.
    fn doctor(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send {
        ready(Ok(Vec::new()))
    }

    /// Closes the connections. The default does nothing.
    fn close(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

/// What there is to know of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct About {
    /// What errors and logs call it.
    pub name: &'static str,
    /// How long the first waiter pauses before it reads again, at most; those behind it by half as much longer for each that comes before. By
    /// what a read costs: some milliseconds for a file, a second for a bucket. The shortest ttl is ten of them.
    pub poll: Duration,
    /// Whether waiters are [notified](Registers::notified), and need not poll. The usual is `false`.
    pub notifies: bool,
    /// The longest key in bytes. The usual is 1 040, for names of [`LockName::MAX_BYTES`](lock_core::LockName::MAX_BYTES).
    pub longest_key: usize,
    /// Whether other processes use the same values. The usual is `true`.
    pub cross_process: bool,
    /// Whether all processes that use the values run on one host, as those of a file do. Then an entry counts from when it was written, on
    /// the clock of that host, if [the kernel is the same](crate::KvConfig::connect). The usual is `false`. It has to be `false` if
    /// copies of a running virtual machine may use the values: their clocks differ, and nothing shows it.
    pub one_host: bool,
    /// How long it takes at most until a request that one server does not answer is asked of another one. A grant that a waiter has not seen is
    /// kept for so much longer. The usual is zero.
    pub passes_over: Duration,
}

/// What a waiter is told by the swap of another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It has the lock.
    Granted(OwnerId),
    /// It knows, or is no longer there: the notice can be removed.
    Over(OwnerId),
}

/// Why a waiter is to ask for its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notified {
    /// There is a notice that it has the lock. It carries the value that was written with it, with its version, if the notice has it: this spares
    /// the read of it.
    Granted(Option<Versioned>),
    /// There may be one: it is to look at the record.
    Look,
}

/// What became of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchanged {
    /// The value was written, with this version.
    Written(Version),
    /// The key has another version.
    Refused,
    /// The same, and this is what is there.
    Found(Option<Versioned>),
}

/// A value, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versioned {
    /// The version.
    pub version: Version,
    /// The value.
    pub value: Vec<u8>,
}

/// The version of a value, as its store writes it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version(String);

impl About {
    /// A store of this name, which waiters read so often.
    #[must_use]
    pub const fn new(name: &'static str, poll: Duration) -> Self {
        let passes_over = Duration::ZERO;
        Self {
            name,
            poll,
            notifies: false,
            longest_key: 1_040,
            cross_process: true,
            one_host: false,
            passes_over,
        }
    }
}

impl Versioned {
    /// A value of this version.
    #[must_use]
    pub const fn new(version: Version, value: Vec<u8>) -> Self {
        Self { version, value }
    }
}

impl Version {
    /// A version that is a text, such as an entity tag.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.0.parse().ok()
    }
}

impl From<u64> for Version {
    fn from(number: u64) -> Self {
        Self(number.to_string())
    }
}

impl Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
