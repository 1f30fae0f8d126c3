//! How a process knows that a server granted it a lock, and nobody else said so.
//!
//! Whoever may publish can send to an inbox, and whoever may subscribe hears what it gets. So a grant has a proof: a hash of its token,
//! of the key of the lock, and of a secret that only the queue entry has, and the process that wrote it. Who hears a proof can repeat
//! it, and change nothing: an owner id is granted a lock once.

use std::fmt;

use lock_core::OwnerId;
use sha1_smol::Sha1;

/// The secrets of the queue entries of one process.
///
/// They are computed from the owner ids, so that a process knows its grants also long after it has forgotten the acquisition.
pub(crate) struct Secrets(OwnerId);

/// What only a queue entry and its process know.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secrets {
    pub(crate) fn random() -> Self {
        Self(OwnerId::random())
    }

    /// The secret of the queue entry of this owner.
    pub(crate) fn of(&self, owner: OwnerId) -> Secret {
        let mut digits = Sha1::from(format!("{} {owner}", self.0)).digest().to_string();
        digits.truncate(SECRET);
        Secret(digits)
    }
}

impl Secret {
    /// The secret of these random bits.
    #[must_use]
    pub fn new(bits: OwnerId) -> Self {
        Self(bits.to_string())
    }

    /// As the server keeps it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the server makes of the secret when it grants the lock with this key: with a token, or else with the word `granted`.
    #[must_use]
    pub fn proof(&self, of: &str, lock: &str) -> String {
        Sha1::from(format!("{of}:{lock}:{}", self.0)).digest().to_string()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

/// The digits of a secret: 128 bits.
const SECRET: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_has_a_secret_of_its_own_which_does_not_show() {
        let (secrets, owner) = (Secrets::random(), OwnerId::random());
        let secret = secrets.of(owner);
        assert!(secret == secrets.of(owner) && secret != secrets.of(OwnerId::random()));
        assert_eq!(secret.reveal().len(), SECRET);
        for shown in [format!("{secret:?}"), format!("{secrets:?}")] {
            assert!(!shown.contains(secret.reveal()) && !shown.contains(&secrets.0.to_string()), "{shown}");
        }
    }
}
