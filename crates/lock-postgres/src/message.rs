//! What one process tells another through the server: that a lock was handed over to its waiter, or has other holders.
//!
//! Every role of the database may listen to each channel, and send to it. So a notification names no lock and no owner, and nothing is
//! believed that the server alone cannot have said: a grant carries a proof, made of its token and a secret that only the queue entry
//! has. Whoever hears it can repeat it, and change nothing. All else is a hint to look.

use lock_core::{OwnerId, Token};
use sha2::{Digest, Sha256};

/// A channel without the id of the inbox.
const CHANNEL: &str = "polylock_";

/// The channel of an inbox; the name of the session that listens to it as well.
pub(crate) fn channel(inbox: &str) -> String {
    format!("{CHANNEL}{inbox}")
}

/// By which a process knows one of its queue entries, or a lock that it observes. Everybody may hear it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) fn random() -> Self {
        let id = OwnerId::random().to_string();
        Self(u64::from_str_radix(&id[..16], 16).unwrap_or_default())
    }

    fn decode(text: &str) -> Option<Self> {
        let is_key = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_key.then(|| u64::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What only a queue entry and its process know.
#[derive(Clone, Copy)]
pub(crate) struct Secret(OwnerId);

impl Secret {
    pub(crate) fn random() -> Self {
        Self(OwnerId::random())
    }

    /// As the server keeps it.
    pub(crate) fn reveal(&self) -> String {
        self.0.to_string()
    }

    /// Whether the server has made this proof for a grant with this token.
    pub(crate) fn proves(&self, token: Token, proof: &str) -> bool {
        let digest = Sha256::digest(format!("{token}:{}", self.0));
        proof == digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    }
}

/// A payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notification<'a> {
    Granted {
        to: Key,
        token: Token,
        proof: &'a str,
    },
    Changed(Key),
    /// What a process tells itself, to find out whether it is told.
    Opened(&'a str),
}

impl<'a> Notification<'a> {
    /// `None` for what no version of this library says.
    pub(crate) fn parse(payload: &'a str) -> Option<Self> {
        let mut words = payload.split(':');
        let (kind, first, more) = (words.next()?, words.next()?, (words.next(), words.next()));
        match (kind, more, words.next()) {
            ("granted", (Some(token), Some(proof)), None) => {
                let token = token.parse().ok().and_then(Token::stored)?;
                Some(Self::Granted { to: Key::decode(first)?, token, proof })
            }
            ("changed", (None, None), None) => Some(Self::Changed(Key::decode(first)?)),
            ("opened", (None, None), None) => Some(Self::Opened(first)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads() {
        let (key, token) = (Key(0xab), Token::new(1_616));
        for (payload, parsed) in [
            ("granted:00000000000000ab:1616:cd", Some(Notification::Granted { to: key, token, proof: "cd" })),
            ("changed:00000000000000ab", Some(Notification::Changed(key))),
            ("opened:xyz", Some(Notification::Opened("xyz"))),
            // Beyond a token, which has 63 bits.
            ("granted:00000000000000ab:9223372036854775808:cd", None),
            ("granted:00000000000000ab:-1:cd", None),
            ("granted:00000000000000ab:1616", None),
            ("granted:00000000000000ab:1616:cd:ef", None),
            ("granted:ab:1616:cd", None),
            ("granted:+0000000000000ab:1616:cd", None),
            ("changed:00000000000000ab:more", None),
            ("granted 1 2 3 name", None),
            ("", None),
        ] {
            assert_eq!(Notification::parse(payload), parsed, "{payload:?}");
        }
    }

    #[test]
    fn a_proof_is_of_one_token_and_one_secret() {
        let (secret, other) = (Secret(OwnerId::decode(&"0".repeat(32)).unwrap()), Secret::random());
        let made = Sha256::digest(format!("1616:{}", "0".repeat(32)));
        let made: String = made.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(secret.proves(Token::new(1_616), &made));
        for (secret, token, proof) in [
            (secret, 1_617, &*made),
            (other, 1_616, &*made),
            (secret, 1_616, &made[1..]),
            (secret, 1_616, ""),
        ] {
            assert!(!secret.proves(Token::new(token), proof));
        }
    }
}
