//! Text of others, in one line.

use std::borrow::Cow;

/// The text with every character escaped that a terminal or a log would not print as itself: line feeds, escape sequences, marks
/// that reorder the text. What others have written cannot forge a line then. Quotes and backslashes stay, so that it changes nothing
/// in a text that has been through it.
///
/// # Examples
///
/// ```
/// # use lock_core::one_line;
/// assert_eq!(one_line("bob's \"nightly\" job"), "bob's \"nightly\" job");
/// assert_eq!(one_line("job\nfree\u{1b}[2K\u{202e}"), r"job\nfree\u{1b}[2K\u{202e}");
/// ```
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for part in text.split_inclusive(STAY) {
        let before = part.trim_end_matches(STAY);
        line.extend(before.escape_debug());
        line.push_str(&part[before.len()..]);
    }
    Cow::Owned(line)
}

/// The printable characters that `escape_debug` would escape.
const STAY: [char; 3] = ['\'', '"', '\\'];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_one_printable_line_and_stays_so(text in any::<String>()) {
            let line = one_line(&text).into_owned();
            let forges = |c: char| c.is_control() || ['\u{202e}', '\u{2028}', '\u{2066}'].contains(&c);
            prop_assert!(!line.contains(forges));
            prop_assert_eq!(one_line(&line), &*line);
        }
    }

    #[test]
    fn letters_of_all_languages_stay() {
        for text in ["orders/é", "注文/42", "e\u{301}", "हिन्दी", "it's \"a\\b\"", ""] {
            assert_eq!(one_line(text), text);
        }
        assert_eq!(one_line("a\t\r\0\u{7f}\u{9b}\u{2028}"), r"a\t\r\0\u{7f}\u{9b}\u{2028}");
    }
}
