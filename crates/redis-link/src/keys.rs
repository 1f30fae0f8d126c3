//! The keys of a lock.

use lock_core::{Error, ErrorKind, LockName, Result};

/// What the helper keys and channels of all locks begin with.
pub const RESERVED: &str = "polylock:";

/// What one lock is called on the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// All of them, one behind the other: an allocation for each would cost every acquisition more than they are worth.
    text: Box<str>,
    /// Where each of them ends.
    ends: [usize; 1 + HELPERS.len()],
}

/// What stands beside a lock, in the order in which it is kept.
const HELPERS: [&str; 7] = [
    "polylock:fence",
    "polylock:queue",
    "polylock:holders",
    "polylock:tokens",
    "polylock:line",
    "polylock:turn",
    "polylock:free",
];

impl Keys {
    /// The keys of the lock of this name.
    #[must_use]
    pub fn new(prefix: &str, name: &LockName) -> Self {
        Self::join(prefix, name.as_str())
    }

    /// The keys of the lock that contends for this key.
    pub fn of(lock: &str) -> Self {
        Self::join("", lock)
    }

    fn join(prefix: &str, name: &str) -> Self {
        let lock = prefix.len() + name.len();
        let beside: usize = HELPERS.iter().map(|what| what.len() + ":{}".len() + lock).sum();
        let mut text = String::with_capacity(lock + beside);
        text.extend([prefix, name]);
        // Two names never meet: what follows the kind tells which of the two forms it is.
        let (before, after) = if has_hash_tag(&text) { ("/", "") } else { (":{", "}") };
        let of_the_lock = [before, &text, after].concat();
        let mut ends = [lock; 1 + HELPERS.len()];
        for (what, end) in HELPERS.iter().zip(&mut ends[1..]) {
            text.extend([*what, &of_the_lock]);
            *end = text.len();
        }
        Self { text: text.into(), ends }
    }

    /// The key that clients of every language contend for: prefix and name.
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.text[..self.ends[0]]
    }

    /// The key that keeps the last token and who got it, longer than the lock itself.
    #[must_use]
    pub fn fence(&self) -> &str {
        self.helper(1)
    }

    /// The list of those who wait for the lock, in order.
    #[must_use]
    pub fn queue(&self) -> &str {
        self.helper(2)
    }

    /// The sorted set of those who share the lock, by the time at which the share of each ends.
    #[must_use]
    pub fn holders(&self) -> &str {
        self.helper(3)
    }

    /// The sorted set of which one score is the last token that one of several masters knows of.
    #[must_use]
    pub fn tokens(&self) -> &str {
        self.helper(4)
    }

    /// The sorted set of those who wait for the lock on several masters, by the time since when they do.
    #[must_use]
    pub fn line(&self) -> &str {
        self.helper(5)
    }

    /// Who of that line has been called, for a moment.
    #[must_use]
    pub fn turn(&self) -> &str {
        self.helper(6)
    }

    /// The channel on which a lock that has become free is told to those who wait in no queue.
    #[must_use]
    pub fn channel(&self) -> &str {
        self.helper(7)
    }

    fn helper(&self, number: usize) -> &str {
        &self.text[self.ends[number - 1]..self.ends[number]]
    }

    /// A channel in the slot of the lock, for one process.
    pub fn inbox(&self, process: &str) -> String {
        let tagged = &self.queue()[HELPERS[1].len()..];
        format!("{RESERVED}inbox:{process}{tagged}")
    }

    /// The names of the locks that have these keys; what can be no name is left out.
    #[must_use]
    pub fn names(prefix: &str, keys: Vec<String>) -> Vec<LockName> {
        keys.iter().filter_map(|key| LockName::new(key.strip_prefix(prefix)?).ok()).collect()
    }

    /// Refuses a lock that would be a helper of another one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`].
    pub fn check(&self, backend: &'static str) -> Result<()> {
        if self.lock().starts_with(RESERVED) {
            return Err(Error::new(ErrorKind::InvalidName, backend)
                .with_message(format!(
                    "keys that begin with {RESERVED:?} are kept for what stands beside the locks"
                ))
                .with_hint("choose another name, or a prefix in the URL (?prefix=lock:)"));
        }
        Ok(())
    }

    /// The keys of every script, in the order in which they are declared.
    pub fn all(&self) -> [&str; 4] {
        [self.lock(), self.fence(), self.queue(), self.holders()]
    }
}

/// Whether a cluster places the key by the part between the first braces; then the helper keys that
/// hold the key as it is follow it.
fn has_hash_tag(key: &str) -> bool {
    let after = key.split_once('{').map(|(_, after)| after);
    after.and_then(|after| after.split_once('}')).is_some_and(|(tag, _)| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(keys("{}/42").fence(), "polylock:fence:{lock:{}/42}");
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
