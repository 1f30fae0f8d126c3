//! RESP2, as far as the test's own commands need it. Written by hand, so that a bug in the parser of the driver under test
//! cannot hide itself.

use std::io::{self, BufRead, Write};

/// A RESP2 reply.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// A null.
    Nil,
    /// A number.
    Int(i64),
    /// A status line such as `OK`.
    Simple(String),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// An array.
    Array(Vec<Self>),
    /// An error, such as `WRONGTYPE ...`.
    Error(String),
}

impl Reply {
    /// The text of a status line, an error, or a string that is UTF-8.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Simple(text) | Self::Error(text) => Some(text),
            Self::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Nil | Self::Int(_) | Self::Array(_) => None,
        }
    }

    /// The number, or a string of digits as a number.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            other => other.text()?.parse().ok(),
        }
    }

    /// The elements of an array.
    pub fn array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// Whether it is a null.
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }
}

/// Writes one command.
pub(crate) fn write_command(to: &mut impl Write, words: &[&str]) -> io::Result<()> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    to.write_all(&bytes)
}

/// Reads one RESP2 reply.
pub(crate) fn read_reply(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end_matches(['\r', '\n']);
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 reply: {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(bad)?;
    let number = || rest.parse::<i64>().map_err(|_| bad());
    Ok(match kind {
        "+" => Reply::Simple(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Int(number()?),
        "$" => match usize::try_from(number()?) {
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Reply::Bulk(bytes)
            }
            Err(_) => Reply::Nil,
        },
        "*" => match usize::try_from(number()?) {
            Ok(length) => Reply::Array((0..length).map(|_| read_reply(from)).collect::<io::Result<_>>()?),
            Err(_) => Reply::Nil,
        },
        _ => return Err(bad()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &str) -> io::Result<Reply> {
        read_reply(&mut bytes.as_bytes())
    }

    #[test]
    fn replies_are_read() {
        assert_eq!(parse("+OK\r\n").unwrap(), Reply::Simple("OK".into()));
        assert_eq!(parse("-ERR no\r\n").unwrap(), Reply::Error("ERR no".into()));
        assert_eq!(parse(":-7\r\n").unwrap(), Reply::Int(-7));
        assert_eq!(parse("$-1\r\n").unwrap(), Reply::Nil);
        assert_eq!(parse("*-1\r\n").unwrap(), Reply::Nil);
        assert_eq!(parse("$4\r\na\r\nb\r\n").unwrap(), Reply::Bulk(b"a\r\nb".to_vec()));
        let nested = Reply::Array(vec![Reply::Int(1), Reply::Array(vec![Reply::Bulk(b"x".to_vec())])]);
        assert_eq!(parse("*2\r\n:1\r\n*1\r\n$1\r\nx\r\n").unwrap(), nested);
    }

    #[test]
    fn broken_replies_are_errors() {
        for bytes in ["", "\r\n", "hello\r\n", ":x\r\n", "$5\r\nab", "*2\r\n:1\r\n"] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn commands_are_written_as_arrays() {
        let mut bytes = Vec::new();
        write_command(&mut bytes, &["SET", "k", ""]).unwrap();
        assert_eq!(bytes, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
    }

    #[test]
    fn accessors_give_what_is_there() {
        assert_eq!(Reply::Bulk(b"12".to_vec()).int(), Some(12));
        assert_eq!(Reply::Int(3).text(), None);
        assert_eq!(Reply::Array(vec![Reply::Nil]).array(), Some(&[Reply::Nil][..]));
        assert!(Reply::Nil.is_nil() && Reply::Error(String::new()).is_error());
    }
}
