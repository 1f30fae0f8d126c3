//! What is left in the place of a lock that has moved.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::{Error, ErrorKind, LockName, stored_time};

/// What is left in the place of a lock that has moved to another store.
///
/// It has no owner: clients of every library take it for a lock that is held. Its text says where the lock went, for people
/// and for this library: `polylock:moved to=zk://a:2181/app namespace=shop lock=orders/42 written=1766000000000 ...`
///
/// # Examples
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # use lock_core::LockName;
/// # use lock_core::migration::Tombstone;
/// let tombstone = Tombstone {
///     to: "zk://a:2181/app".into(),
///     namespace: "shop".into(),
///     lock: LockName::new("orders/42").unwrap(),
///     written: SystemTime::UNIX_EPOCH + Duration::from_millis(1_766_000_000_000),
///     life: Duration::from_secs(30 * 86_400),
///     newest: 17,
/// };
/// assert_eq!(Tombstone::parse(&tombstone.to_string()), Some(tombstone));
/// assert_eq!(Tombstone::parse("0123456789abcdef"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "it is written and read by the same version of the format")]
pub struct Tombstone {
    /// The store that the lock moved to, as a URL without a password.
    pub to: String,
    /// The namespace of the migration.
    pub namespace: String,
    /// The lock.
    pub lock: LockName,
    /// When it was written, by the clock of the process that did so, to the millisecond.
    pub written: SystemTime,
    /// How long it lives from when it was written or refreshed.
    pub life: Duration,
    /// The [newest](super::LockAge::newest) transaction that its writer knew: a sharer whose lock is older acquires it
    /// again.
    pub newest: u64,
}

/// The first word of a tombstone. No owner id and no other value of this library begins with it.
const MARK: &str = "polylock:moved";
/// Else a value would end at the space, or be taken for an encoded one.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

impl Tombstone {
    /// Whether this value of a key is a tombstone, of this or of a later format.
    #[must_use]
    pub fn is_one(value: &str) -> bool {
        value.starts_with(MARK)
    }

    /// Parses the value of a key; `None` if it is no tombstone, or one of a later format.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let mut words = value.strip_prefix(MARK)?.strip_prefix(' ')?.split(' ');
        let mut next = |key: &str| -> Option<String> {
            let text = words.next()?.strip_prefix(key)?.strip_prefix('=')?;
            percent_decode_str(text).decode_utf8().ok().map(Into::into)
        };
        let millis = |text: String| text.parse().ok().map(Duration::from_millis);
        let (to, namespace) = (next("to")?, next("namespace")?);
        let lock = LockName::new(next("lock")?).ok()?;
        let written = stored_time(millis(next("written")?)?)?;
        let (life, newest) = (millis(next("life")?)?, next("newest")?.parse().ok()?);
        Some(Self { to, namespace, lock, written, life, newest })
    }

    /// The error of a client of the store that the lock has moved from.
    #[must_use]
    pub fn moved(&self, backend: &'static str) -> Error {
        let Self { to, namespace, lock, written, .. } = self;
        let since = humantime::format_rfc3339_seconds(*written);
        Error::new(ErrorKind::Moved, backend)
            .with_message(format!("the lock moved to {to} at {since}, in the migration {namespace:?}"))
            .with_hint("connect with the migrate:// URL of that migration; its way back to this store removes this mark")
            .on(lock)
    }

    /// Whether it stands for the same lock of the same migration, whoever wrote it.
    #[must_use]
    pub fn is_of(&self, to: &str, namespace: &str, lock: &LockName) -> bool {
        self.to == to && self.namespace == namespace && self.lock == *lock
    }
}

impl fmt::Display for Tombstone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, namespace, lock, newest, .. } = self;
        let encoded = |text| utf8_percent_encode(text, ENCODED);
        let written = self.written.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let life = self.life.as_millis();
        write!(f, "{MARK} to={} namespace={}", encoded(to), encoded(namespace))?;
        write!(f, " lock={} written={written} life={life} newest={newest}", encoded(lock.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_tombstone_is_read_as_it_was_written(
            to in ".*", namespace in ".*", lock in ".{1,20}", written in 0..1_u64 << 42, life: u32, newest: u64,
        ) {
            let Ok(lock) = LockName::new(lock) else { return Ok(()) };
            let written = UNIX_EPOCH + Duration::from_millis(written);
            let life = Duration::from_millis(life.into());
            let tombstone = Tombstone { to, namespace, lock, written, life, newest };
            let text = tombstone.to_string();
            prop_assert!(Tombstone::is_one(&text));
            prop_assert_eq!(Tombstone::parse(&text), Some(tombstone));
        }
    }

    #[test]
    fn other_values_are_no_tombstones() {
        for other in
            ["", "polylock:shared", "polylock:permits", "0123456789abcdef0123456789abcdef", "1766000000000"]
        {
            assert!(!Tombstone::is_one(other), "{other}");
        }
        let later = "polylock:moved2 to=zk://a namespace=shop";
        assert!(Tombstone::is_one(later));
        assert_eq!(Tombstone::parse(later), None);
        assert_eq!(
            Tombstone::parse("polylock:moved to=zk://a namespace=shop lock=x written=x life=1 newest=1"),
            None
        );
    }
}
