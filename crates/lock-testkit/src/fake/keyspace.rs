//! The keys, their values and when they end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::reply::Bytes;

/// The data of the server.
#[derive(Debug, Default)]
pub(super) struct Keyspace {
    entries: BTreeMap<Bytes, Entry>,
    /// The keys that changed since they were last taken, in order; who watches them is told.
    changed: Vec<Bytes>,
    now_ms: i64,
}

/// What is behind a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    Text(Bytes),
    List(VecDeque<Bytes>),
    /// In the order of insertion, as a small hash of Redis has it.
    Hash(Vec<(Bytes, Bytes)>),
    Sorted(BTreeMap<Bytes, f64>),
    Set(BTreeSet<Bytes>),
}

#[derive(Clone, Debug)]
struct Entry {
    data: Data,
    ends_ms: Option<i64>,
}

/// The answer to a command for another type of value.
pub(super) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// For one type of value: a look at it, and a change of it that makes it when there is none.
macro_rules! typed {
    ($look:ident, $edit:ident, $variant:ident, $type:ty) => {
        pub(super) fn $look(&mut self, key: &[u8]) -> Result<Option<&$type>, String> {
            match self.look(key) {
                None => Ok(None),
                Some(Data::$variant(value)) => Ok(Some(value)),
                Some(_) => Err(WRONG_TYPE.to_owned()),
            }
        }

        /// Changes the value. It is made if there was none and removed when it is empty afterwards; the key has
        /// changed if `edit` says so.
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
    typed!(hash, edit_hash, Hash, Vec<(Bytes, Bytes)>);
    typed!(sorted, edit_sorted, Sorted, BTreeMap<Bytes, f64>);
    typed!(set, edit_set, Set, BTreeSet<Bytes>);

    pub(super) fn text(&mut self, key: &[u8]) -> Result<Option<&Bytes>, String> {
        match self.look(key) {
            None => Ok(None),
            Some(Data::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Sets the time of all that follows; it may go back.
    pub(super) fn set_now(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
    }

    pub(super) fn now(&self) -> i64 {
        self.now_ms
    }

    /// The value of a key that has not ended.
    pub(super) fn look(&mut self, key: &[u8]) -> Option<&Data> {
        // As in Redis, the millisecond of the end still belongs to the key.
        if self.entries.get(key).is_some_and(|entry| entry.ends_ms.is_some_and(|end| self.now_ms > end)) {
            self.remove(key);
        }
        self.entries.get(key).map(|entry| &entry.data)
    }

    pub(super) fn exists(&mut self, key: &[u8]) -> bool {
        self.look(key).is_some()
    }

    /// When a key ends: `None` without a key, `Some(None)` when it does not end.
    pub(super) fn ends(&mut self, key: &[u8]) -> Option<Option<i64>> {
        self.look(key)?;
        self.entries.get(key).map(|entry| entry.ends_ms)
    }

    pub(super) fn put(&mut self, key: &[u8], data: Data, ends_ms: Option<i64>) {
        self.entries.insert(key.to_vec(), Entry { data, ends_ms });
        self.changed.push(key.to_vec());
    }

    /// Lets a key end then; at once if that has passed. Says whether there is such a key.
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

    /// Removes a key, whether it has ended or not.
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

    /// The keys that have not ended.
    pub(super) fn keys(&mut self) -> Vec<Bytes> {
        let keys: Vec<_> = self.entries.keys().cloned().collect();
        keys.into_iter().filter(|key| self.exists(key)).collect()
    }

    /// When the first of these keys ends.
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
            Self::Hash(_) => "hash",
            Self::Sorted(_) => "zset",
            Self::Set(_) => "set",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_after_its_last_millisecond() {
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
