//! The keys of a lock.

use lock_core::LockName;

/// What one lock is called on the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    /// The key that clients of every language contend for: prefix and name.
    pub lock: String,
    /// The key that keeps the last token and who got it, longer than the lock itself.
    pub fence: String,
    /// The list of those who wait for the lock, in order.
    pub queue: String,
    /// The sorted set of those who share the lock, by the time at which the share of each ends.
    pub holders: String,
    /// The channel on which a lock that has become free is told to those who wait in no queue.
    pub channel: String,
}

impl Keys {
    /// The keys of the lock of this name.
    #[must_use]
    pub fn new(prefix: &str, name: &LockName) -> Self {
        let lock = format!("{prefix}{name}");
        let (open, close) = if has_hash_tag(&lock) { ("", "") } else { ("{", "}") };
        let helper = |what| format!("polylock:{what}:{open}{lock}{close}");
        let (fence, queue, holders) = (helper("fence"), helper("queue"), helper("holders"));
        let channel = helper("free");
        Self { lock, fence, queue, holders, channel }
    }

    /// A channel in the slot of the lock, for one process.
    pub(crate) fn inbox(&self, process: &str) -> String {
        let tagged = self.queue.trim_start_matches("polylock:queue:");
        format!("polylock:inbox:{process}:{tagged}")
    }

    /// The keys of every script, in the order in which they are declared.
    pub(crate) fn all(&self) -> [&str; 4] {
        [&self.lock, &self.fence, &self.queue, &self.holders]
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
        assert_eq!(keys("orders/42").lock, "lock:orders/42");
        assert_eq!(keys("orders/42").fence, "polylock:fence:{lock:orders/42}");
        assert_eq!(keys("{orders}/42").fence, "polylock:fence:lock:{orders}/42");
        assert_eq!(keys("{}/42").fence, "polylock:fence:{lock:{}/42}");
    }
}
