//! What a server publishes to the inbox of a process. A grant is believed by its [proof](super::proof) alone; all else is a hint to ask.

use std::time::Duration;

use lock_core::{OwnerId, Token};

use super::proof::Secrets;

/// A message to an inbox; see `notify` in the scripts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// The owner is the first in the queue: ask after this time.
    Next { owner: OwnerId, after: Duration },
    /// The lock was granted to the owner.
    Granted { owner: OwnerId, token: Option<Token>, lock: &'a str },
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
}
