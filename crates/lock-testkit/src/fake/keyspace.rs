//! The keys, their values and their expiry.

use std::collections::{BTreeMap, VecDeque};

use super::reply::Bytes;

/// The data of the server.
#[derive(Clone, Debug, Default)]
pub(super) struct Keyspace {
    entries: BTreeMap<Bytes, Entry>,
    /// The keys that changed since `take_changed`, in order; their trackers are notified.
    changed: Vec<Bytes>,
    now_ms: i64,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    Text(Bytes),
    List(VecDeque<Bytes>),
    Sorted(BTreeMap<Bytes, f64>),
}

#[derive(Clone, Debug)]
struct Entry {
    data: Data,
    ends_ms: Option<i64>,
}

/// The error of a command on another type of value.
pub(super) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Accessors of one type of value: a read, and an edit that creates a missing value.
macro_rules! typed {
    ($look:ident, $edit:ident, $variant:ident, $type:ty) => {
        pub(super) fn $look(&mut self, key: &[u8]) -> Result<Option<&$type>, String> {
            match self.look(key) {
                None => Ok(None),
                Some(Data::$variant(value)) => Ok(Some(value)),
                Some(_) => Err(WRONG_TYPE.to_owned()),
            }
        }

        /// Edits the value: creates a missing one, and removes an empty one afterwards. `edit` returns whether the key
        /// has changed.
        pub(super) fn $edit<T>(
            &mut self,
            key: &[u8],
            edit: impl FnOnce(&mut $type) -> Result<(bool, T), String>,
        ) -> Result<T, String> {
            self.look(key);
            let entry = self
                .entries
                .entry(key.to_vec())
                .or_insert_with(|| Entry { data: Data::$variant(<$type>::default()), ends_ms: None });
            let Data::$variant(value) = &mut entry.data else { return Err(WRONG_TYPE.to_owned()) };
            let edited = edit(value);
            if value.is_empty() {
                self.entries.remove(key);
            }
            let (changed, result) = edited?;
            if changed {
                self.changed.push(key.to_vec());
            }
            Ok(result)
        }
    };
}

impl Keyspace {
    typed!(list, edit_list, List, VecDeque<Bytes>);
    typed!(sorted, edit_sorted, Sorted, BTreeMap<Bytes, f64>);

    pub(super) fn text(&mut self, key: &[u8]) -> Result<Option<&Bytes>, String> {
        match self.look(key) {
            None => Ok(None),
            Some(Data::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Sets the current time, which may go backwards.
    pub(super) fn set_now(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
    }

    pub(super) fn now(&self) -> i64 {
        self.now_ms
    }

    /// The value of a key that has not expired.
    pub(super) fn look(&mut self, key: &[u8]) -> Option<&Data> {
        // As in Redis, the key still exists in the millisecond of its expiry.
        if self.entries.get(key).is_some_and(|entry| entry.ends_ms.is_some_and(|end| self.now_ms > end)) {
            self.remove(key);
        }
        self.entries.get(key).map(|entry| &entry.data)
    }

    pub(super) fn exists(&mut self, key: &[u8]) -> bool {
        self.look(key).is_some()
    }

    /// The expiry of a key: `None` without a key, `Some(None)` without an expiry.
    pub(super) fn ends(&mut self, key: &[u8]) -> Option<Option<i64>> {
        self.look(key)?;
        self.entries.get(key).map(|entry| entry.ends_ms)
    }

    pub(super) fn put(&mut self, key: &[u8], data: Data, ends_ms: Option<i64>) {
        self.entries.insert(key.to_vec(), Entry { data, ends_ms });
        self.changed.push(key.to_vec());
    }

    /// Sets the expiry of a key, and removes the key if that has passed. Returns whether it existed.
    pub(super) fn set_end(&mut self, key: &[u8], ends_ms: Option<i64>) -> bool {
        if !self.exists(key) {
            return false;
        }
        if ends_ms.is_some_and(|end| end <= self.now_ms) {
            return self.remove(key);
        }
        if let Some(entry) = self.entries.get_mut(key) {
            entry.ends_ms = ends_ms;
        }
        self.changed.push(key.to_vec());
        true
    }

    /// Removes a key, expired or not.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let was = self.entries.remove(key).is_some();
        if was {
            self.changed.push(key.to_vec());
        }
        was
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The keys that have not expired.
    pub(super) fn keys(&mut self) -> Vec<Bytes> {
        let keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.into_iter().filter(|key| self.exists(key)).collect()
    }

    /// The first expiry of these keys.
    pub(super) fn first_end<'a>(&self, keys: impl IntoIterator<Item = &'a Bytes>) -> Option<i64> {
        keys.into_iter().filter_map(|key| self.entries.get(key)?.ends_ms).min()
    }

    pub(super) fn take_changed(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.changed)
    }
}

impl Data {
    /// As `TYPE` names it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::List(_) => "list",
            Self::Sorted(_) => "zset",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_expires_after_its_last_millisecond() {
        let mut keys = Keyspace::default();
        keys.put(b"k", Data::Text(b"v".to_vec()), Some(100));
        keys.set_now(100);
        assert!(keys.exists(b"k"));
        keys.set_now(101);
        assert!(!keys.exists(b"k"));
        assert_eq!(keys.take_changed(), [b"k".to_vec(), b"k".to_vec()], "its end is a change too");
    }

    #[test]
    fn an_empty_list_is_no_key() {
        let mut keys = Keyspace::default();
        keys.edit_list(b"l", |list| Ok((true, list.push_back(b"x".to_vec())))).unwrap();
        assert!(keys.exists(b"l"));
        keys.edit_list(b"l", |list| Ok((true, list.pop_front()))).unwrap();
        assert!(!keys.exists(b"l"));
        keys.put(b"l", Data::Text(Bytes::new()), None);
        assert_eq!(keys.edit_list(b"l", |_| Ok((false, ()))), Err(WRONG_TYPE.to_owned()));
    }
}
