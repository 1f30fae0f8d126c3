//! A command, and what the commands have in common.

use std::fmt;

use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::Call;

/// One command.
pub(in crate::fake) struct Command {
    pub(in crate::fake) name: &'static str,
    /// The number of words, the name included; the minimum when negative.
    pub(in crate::fake) arity: i64,
    pub(in crate::fake) kind: Kind,
    pub(in crate::fake) run: fn(&mut Call<'_>, &[Bytes]) -> Answer,
}

/// The kind of a command.
#[derive(Clone, Copy)]
pub(in crate::fake) enum Kind {
    /// Reads keys, which a tracking connection then watches.
    Read(Keys),
    /// Anything else that a script may do.
    Other,
    /// Concerns the connection: not for scripts.
    Connection,
}

/// Which words of a command are keys.
#[derive(Clone, Copy)]
pub(in crate::fake) enum Keys {
    First,
    All,
}

impl Keys {
    pub(in crate::fake) fn of(self, words: &[Bytes]) -> &[Bytes] {
        match self {
            Self::First => &words[1..2],
            Self::All => &words[1..],
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_A_FLOAT: &str = "ERR value is not a valid float";

pub(super) const fn read(
    name: &'static str,
    arity: i64,
    run: fn(&mut Call<'_>, &[Bytes]) -> Answer,
) -> Command {
    Command { name, arity, kind: Kind::Read(Keys::First), run }
}

pub(super) const fn other(
    name: &'static str,
    arity: i64,
    run: fn(&mut Call<'_>, &[Bytes]) -> Answer,
) -> Command {
    Command { name, arity, kind: Kind::Other, run }
}

pub(super) const fn connection(
    name: &'static str,
    arity: i64,
    run: fn(&mut Call<'_>, &[Bytes]) -> Answer,
) -> Command {
    Command { name, arity, kind: Kind::Connection, run }
}

pub(super) fn syntax<T>() -> Result<T, String> {
    Err(SYNTAX.to_owned())
}

/// Parses an integer as strictly as Redis: no plus sign, blanks or leading zeros.
pub(super) fn integer(word: &[u8]) -> Result<i64, String> {
    integer_in(word).ok_or_else(|| NOT_AN_INTEGER.to_owned())
}

fn integer_in(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?;
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

pub(super) fn float(word: &[u8]) -> Result<f64, String> {
    float_in(word).ok_or_else(|| NOT_A_FLOAT.to_owned())
}

pub(super) fn float_in(word: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(word).ok()?.to_lowercase();
    let number = match text.trim_start_matches(['+', '-']) {
        "inf" | "infinity" if text.starts_with('-') => f64::NEG_INFINITY,
        "inf" | "infinity" => f64::INFINITY,
        _ => text.parse::<f64>().ok()?,
    };
    Some(number).filter(|number| !number.is_nan())
}

pub(super) fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// The indices from `start` to `stop`, both inclusive, and counted from the end when negative.
pub(super) fn span(start: i64, stop: i64, length: usize) -> std::ops::Range<usize> {
    let length = length as i64;
    let place = |index: i64| if index < 0 { index + length } else { index };
    let (start, stop) = (place(start).max(0), place(stop).min(length - 1));
    if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
}

pub(super) fn ok() -> Answer {
    Ok(Reply::OK())
}

/// Whether a name matches a pattern of `*`, `?` and `\`.
pub(super) fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => fits(rest, name) || !name.is_empty() && fits(pattern, &name[1..]),
        ([b'?', rest @ ..], [_, name @ ..]) => fits(rest, name),
        ([b'\\', byte, rest @ ..], [first, name @ ..]) => byte == first && fits(rest, name),
        ([byte, rest @ ..], [first, name @ ..]) => byte == first && fits(rest, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_strictly() {
        assert_eq!(integer(b"-7"), Ok(-7));
        for bad in ["", "+1", "01", " 1", "1 ", "1.0", "9223372036854775808"] {
            assert!(integer(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn spans_are_cut_to_what_is_there() {
        assert_eq!(span(0, -1, 3), 0..3);
        assert_eq!(span(-2, 9, 3), 1..3);
        assert_eq!(span(2, 1, 3), 0..0);
        assert_eq!(span(0, -1, 0), 0..0);
    }

    #[test]
    fn patterns() {
        assert!(fits(b"a*c?", b"abbcd") && fits(b"*", b"") && fits(b"\\*", b"*"));
        assert!(!fits(b"a*c", b"abd") && !fits(b"\\*", b"a"));
    }
}
