//! The keys of a lock.

use lock_core::{Error, ErrorKind, LockName, Result};

/// The prefix of the helper keys and channels of all locks.
pub const RESERVED: &str = "polylock:";

/// The keys and channels of one lock on the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// Those that most requests name, concatenated: one allocation per acquisition, and little to keep for each lock that is
    /// held. The others are made when they are needed.
    text: Box<str>,
    /// The end of each.
    ends: [u32; 1 + HELPERS.len()],
}

/// The helper keys in the text, in the order of `ends`.
const HELPERS: [&str; 3] = [TOKENS, "polylock:queue", "polylock:holders"];
pub(crate) const TOKENS: &str = "polylock:tokens";

/// What is between the kind of a helper key and the key of the lock: with a hash tag of its own, and without. So the two forms
/// never collide.
const BEFORE: [&str; 2] = ["/", ":{"];

impl Keys {
    /// The keys of the lock of this name.
    #[must_use]
    pub fn new(prefix: &str, name: &LockName) -> Self {
        Self::join(prefix, name.as_str())
    }

    /// The keys of the lock whose key is this one.
    pub fn of(lock: &str) -> Self {
        Self::join("", lock)
    }

    fn join(prefix: &str, name: &str) -> Self {
        let lock = prefix.len() + name.len();
        let beside: usize = HELPERS.iter().map(|what| what.len() + ":{}".len() + lock).sum();
        let mut text = String::with_capacity(lock + beside);
        text.extend([prefix, name]);
        let (before, after) = if has_hash_tag(&text) { (BEFORE[0], "") } else { (BEFORE[1], "}") };
        let mut ends = [end_of(&text); 1 + HELPERS.len()];
        for (what, end) in HELPERS.iter().zip(&mut ends[1..]) {
            text.extend([*what, before, prefix, name, after]);
            *end = end_of(&text);
        }
        Self { text: text.into(), ends }
    }

    /// The key of the lock itself, which clients in all languages contend for: prefix and name.
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.text[..self.ends[0] as usize]
    }

    /// The recipe setnx-timestamp: the last token and its owner. It outlives the lock.
    #[must_use]
    pub fn fence(&self) -> String {
        self.beside("polylock:fence")
    }

    /// The wait queue of a single server: a list.
    #[must_use]
    pub fn queue(&self) -> &str {
        self.helper(2)
    }

    /// The holders of a shared lock: a sorted set, scored by the end of each share.
    #[must_use]
    pub fn holders(&self) -> &str {
        self.helper(3)
    }

    /// The sorted set whose one score is the last token that the server knows. It outlives the lock.
    #[must_use]
    pub fn tokens(&self) -> &str {
        self.helper(1)
    }

    /// Redlock: the wait queue, a sorted set scored by the start of each wait.
    #[must_use]
    pub fn line(&self) -> String {
        self.beside("polylock:line")
    }

    /// The channel on which releases are published with `wait=notify`.
    #[must_use]
    pub fn channel(&self) -> String {
        self.beside("polylock:free")
    }

    fn helper(&self, number: usize) -> &str {
        &self.text[self.ends[number - 1] as usize..self.ends[number] as usize]
    }

    /// The inbox of one process in the slot of the lock.
    pub fn inbox(&self, process: &str) -> String {
        format!("{RESERVED}inbox:{process}{}", self.tagged())
    }

    /// What the keys of the last tokens of all locks with this prefix begin with.
    pub(crate) fn all_tokens(prefix: &str) -> [String; 2] {
        BEFORE.map(|before| [TOKENS, before, prefix].concat())
    }

    /// The text of the tombstone of a lock that has moved, where the key of the lock cannot have it.
    #[must_use]
    pub fn moved(&self) -> String {
        self.beside("polylock:moved")
    }

    /// A helper key that few requests name.
    fn beside(&self, what: &str) -> String {
        [what, self.tagged()].concat()
    }

    /// The part of a helper key that names the lock, and has its slot.
    fn tagged(&self) -> &str {
        &self.tokens()[TOKENS.len()..]
    }

    /// The names of the locks with these keys, without keys that are not valid names.
    #[must_use]
    pub fn names(prefix: &str, keys: Vec<String>) -> Vec<LockName> {
        keys.iter().filter_map(|key| LockName::new(key.strip_prefix(prefix)?).ok()).collect()
    }

    /// Whether a cluster keeps all of them on one node.
    ///
    /// Else only scripts may ask for the lock: a server in cluster mode refuses them, whatever the URL says of it. Plain commands
    /// about one key each would acquire a lock that nothing can release.
    #[must_use]
    pub fn share_a_slot(&self) -> bool {
        has_hash_tag(self.lock()) || !self.lock().contains('}')
    }

    /// Rejects a lock whose key could be a helper key of another lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`].
    pub fn check(&self, backend: &'static str) -> Result<()> {
        if self.lock().starts_with(RESERVED) {
            return Err(Error::new(ErrorKind::InvalidName, backend)
                .with_message(format!(
                    "keys that begin with {RESERVED:?} are reserved for helper keys of locks"
                ))
                .with_hint("choose another name, or a prefix in the URL (?prefix=lock:)"));
        }
        Ok(())
    }

    /// The keys of most scripts, in the order of their declaration.
    pub fn all(&self) -> [&str; 4] {
        [self.lock(), self.tokens(), self.queue(), self.holders()]
    }
}

fn end_of(text: &str) -> u32 {
    u32::try_from(text.len()).expect("the length of a name is limited")
}

/// Whether the key has a hash tag. If so, helper keys that contain the key unchanged are in the same slot.
fn has_hash_tag(key: &str) -> bool {
    let after = key.split_once('{').map(|(_, after)| after);
    after.and_then(|after| after.split_once('}')).is_some_and(|(tag, _)| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::slot::slot_of;

    fn keys(name: &str) -> Keys {
        Keys::new("lock:", &LockName::new(name).unwrap())
    }

    #[test]
    fn helpers_share_the_slot_of_the_lock() {
        assert_eq!(keys("orders/42").lock(), "lock:orders/42");
        assert_eq!(keys("orders/42").fence(), "polylock:fence:{lock:orders/42}");
        assert_eq!(keys("{orders}/42").fence(), "polylock:fence/lock:{orders}/42");
        assert_eq!(keys("{orders}/42").inbox("p"), "polylock:inbox:p/lock:{orders}/42");
        assert_eq!(keys("orders/42").inbox("p"), "polylock:inbox:p:{lock:orders/42}");
        assert_eq!(keys("orders/42").moved(), "polylock:moved:{lock:orders/42}");
        assert_eq!(keys("{}/42").fence(), "polylock:fence:{lock:{}/42}");
    }

    #[test]
    fn the_slots_of_helpers_decide_whether_all_share_one() {
        for name in ["a", "a}b", "{}a", "a{}b", "{a}b", "a{b}c", "{{a}}", "a{b", "}a{b}", "a{}{b}"] {
            let keys = keys(name);
            let same =
                keys.all().iter().all(|key| slot_of(key.as_bytes()) == slot_of(keys.lock().as_bytes()));
            assert_eq!(keys.share_a_slot(), same, "{name}");
        }
    }

    #[test]
    fn two_names_never_share_a_helper() {
        let bare = |name| Keys::new("", &LockName::new(name).unwrap());
        let (plain, braced) = (bare("x"), bare("{x}"));
        assert!(
            plain.fence() != braced.fence()
                && plain.queue() != braced.queue()
                && plain.inbox("p") != braced.inbox("p")
        );
        assert!(bare("polylock:fence:{x}").check("redis").is_err());
        assert!(plain.check("redis").is_ok() && keys("polylock:fence:{x}").check("redis").is_ok());
    }
}
