//! What a server publishes to the inbox of a process, and how the process knows that the server said it.
//!
//! Whoever may publish can send to an inbox, and whoever may subscribe hears what it gets. So a grant is believed by its proof alone: a
//! hash of its token, of the key of the lock, and of a secret that only the queue entry has, and the process that wrote it. Who hears a
//! proof can repeat it, and change nothing: an owner id is granted a lock once. All else is a hint to ask.

use std::fmt;
use std::time::Duration;

use lock_core::{OwnerId, Token};
use sha1_smol::Sha1;

/// The digits of a secret: 128 bits.
const SECRET: usize = 32;

/// The secrets of the queue entries of one process.
///
/// They are computed from the owner ids, so that a process knows its grants also long after it has forgotten the acquisition.
pub(crate) struct Secrets(OwnerId);

/// What only a queue entry and its process know.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// A message to an inbox; see `notify` in the scripts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// The owner is the first in the queue: ask after this time.
    Next { owner: OwnerId, after: Duration },
    /// The lock was granted to the owner.
    Granted { owner: OwnerId, token: Option<Token>, lock: &'a str },
}

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

impl<'a> Message<'a> {
    /// `None` for what no server says to the process with these secrets.
    pub(crate) fn read(text: &'a str, secrets: &Secrets) -> Option<Self> {
        let (what, text) = text.split_once(' ')?;
        let (owner, text) = text.split_once(' ')?;
        let owner = OwnerId::decode(owner)?;
        let (proved, token, text) = match what {
            // A lock that does not expire ends in -1.
            "next" => {
                let after = text.parse().map_or(Duration::MAX, Duration::from_millis);
                return Some(Self::Next { owner, after });
            }
            "granted" => (what, None, text),
            "passed" => {
                let (token, text) = text.split_once(' ')?;
                (token, Some(Token::stored(token.parse().ok()?)?), text)
            }
            _ => return None,
        };
        let (proof, lock) = text.split_once(' ')?;
        let is_proved = secrets.of(owner).proof(proved, lock) == proof;
        is_proved.then_some(Self::Granted { owner, token, lock })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_believed_by_its_proof_alone() {
        let (secrets, owner, other) = (Secrets::random(), OwnerId::random(), OwnerId::random());
        let read = |text: &str| match Message::read(text, &secrets) {
            Some(Message::Granted { owner, token, lock }) => Some((owner, token, lock.to_owned())),
            other => {
                assert_eq!(other, None, "{text}");
                None
            }
        };
        let lock = "lock:a b".to_owned();
        let proof = |of: &str| secrets.of(owner).proof(of, &lock);
        assert_eq!(
            read(&format!("granted {owner} {} {lock}", proof("granted"))),
            Some((owner, None, lock.clone()))
        );
        let passed = format!("passed {owner} 1616 {} {lock}", proof("1616"));
        assert_eq!(read(&passed), Some((owner, Some(Token::new(1_616)), lock.clone())));
        for forged in [
            format!("granted {owner} {lock}"),
            format!("granted {owner} {} {lock}", proof("1616")),
            format!("granted {other} {} {lock}", proof("granted")),
            format!("granted {owner} {} {lock}", Secrets::random().of(owner).proof("granted", &lock)),
            format!("passed {owner} 1632 {} {lock}", proof("1616")),
            format!("passed {owner} 1616 {} {lock}c", proof("1616")),
            format!("passed {owner} 1616 {lock}"),
            format!("passed {owner} 1616"),
            format!("passed {owner} -1 {} {lock}", proof("-1")),
            // Beyond a token, which has 63 bits.
            format!("passed {owner} 9223372036854775808 {} {lock}", proof("9223372036854775808")),
            format!("granted nobody {} {lock}", proof("granted")),
            "granted".to_owned(),
            String::new(),
        ] {
            assert_eq!(read(&forged), None, "{forged}");
        }
    }

    #[test]
    fn the_next_waiter_is_told_when_to_ask() {
        let (secrets, owner) = (Secrets::random(), OwnerId::random());
        for (left, after) in [("100", Duration::from_millis(100)), ("-1", Duration::MAX)] {
            let text = format!("next {owner} {left}");
            assert_eq!(Message::read(&text, &secrets), Some(Message::Next { owner, after }));
        }
    }

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
