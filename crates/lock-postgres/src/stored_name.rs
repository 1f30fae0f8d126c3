//! Lock names as the database stores them.

use std::borrow::Cow;

use lock_core::LockName;

/// The first character of an escape sequence: names hardly have it.
const ESCAPE: char = '\u{1}';

/// The name, or a beginning of one, as the database stores it. Its text cannot have the character NUL: that is escaped, and so
/// is the character that begins the escape. All other names are stored as they are.
pub(crate) fn stored(name: &str) -> Cow<'_, str> {
    if !name.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(name);
    }
    let mut stored = String::with_capacity(2 * name.len());
    for character in name.chars() {
        match character {
            '\0' => stored.extend([ESCAPE, '0']),
            ESCAPE => stored.extend([ESCAPE, '1']),
            other => stored.push(other),
        }
    }
    Cow::Owned(stored)
}

/// The name that is stored so; `None` if this library stores none so.
pub(crate) fn decode(stored: &str) -> Option<LockName> {
    let mut name = String::with_capacity(stored.len());
    let mut characters = stored.chars();
    while let Some(character) = characters.next() {
        name.push(match character {
            ESCAPE => match characters.next()? {
                '0' => '\0',
                '1' => ESCAPE,
                _ => return None,
            },
            other => other,
        });
    }
    LockName::new(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_reversibly() {
        for (name, text) in [
            ("orders/42", "orders/42"),
            ("a\0b", "a\u{1}0b"),
            ("\u{1}0", "\u{1}10"),
            ("\0\u{1}", "\u{1}0\u{1}1"),
        ] {
            assert_eq!(stored(name), text);
            assert_eq!(decode(text), LockName::new(name).ok());
        }
        for text in ["", "\u{1}", "\u{1}2", "a\u{1}"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
        assert!(stored(&"\0".repeat(LockName::MAX_BYTES)).len() <= 2 * LockName::MAX_BYTES);
    }
}
