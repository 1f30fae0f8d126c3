//! Cuts what a server sends into replies, which the driver parses.

use redis::{RedisError, RedisResult, Value};

/// The largest reply, in bytes.
const LARGEST: usize = 64 * 1024 * 1024;
/// How many parts a reply has at most.
const MOST_PARTS: usize = 1024 * 1024;

/// How far the first reply was read. Of one that arrives in many parts, each is read once.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The end of what is complete.
    at: usize,
    /// Up to where the end of the next line was looked for.
    looked: usize,
    /// How many lines or parts are missing, and how many there were in all.
    missing: usize,
    parts: usize,
}

impl Default for Scan {
    fn default() -> Self {
        Self { at: 0, looked: 0, missing: 1, parts: 0 }
    }
}

impl Scan {
    /// The first reply and its length; `None` if it has not arrived as a whole. The next call begins after this one, or, after
    /// `None`, with more of the same bytes.
    ///
    /// # Errors
    ///
    /// For what is no reply, or too large.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> RedisResult<Option<(Value, usize)>> {
        let Some(length) = self.length(bytes)? else { return Ok(None) };
        let reply = match bytes[..length] {
            // Most replies are one of these two.
            [b'+', b'O', b'K', ..] if length == 5 => Value::Okay,
            [b':', digit @ b'0'..=b'9', ..] if length == 4 => Value::Int(i64::from(digit - b'0')),
            ref reply => redis::parse_redis_value(reply)?,
        };
        *self = Self::default();
        Ok(Some((reply, length)))
    }

    /// The length of the first reply, with its parts.
    fn length(&mut self, bytes: &[u8]) -> RedisResult<Option<usize>> {
        while self.missing > 0 {
            let line = bytes.get(self.at..).and_then(|rest| line(rest, self.looked.saturating_sub(self.at)));
            let Some(line) = line else {
                // The first byte of the end of a line may be there.
                self.looked = bytes.len().saturating_sub(1);
                return if self.at.max(bytes.len()) > LARGEST { Err(too_large()) } else { Ok(None) };
            };
            let (parts, contents) = match line.first() {
                Some(b'*' | b'~' | b'>') => (count(line)?.unwrap_or(0), 0),
                Some(b'%') => (double(count(line)?.unwrap_or(0))?, 0),
                // Attributes, and the reply that they are of.
                Some(b'|') => (double(count(line)?.unwrap_or(0))?.checked_add(1).ok_or_else(malformed)?, 0),
                Some(b'$' | b'!' | b'=') => (0, count(line)?.map_or(0, |length| length.saturating_add(2))),
                _ => (0, 0),
            };
            self.parts = self.parts.checked_add(parts).ok_or_else(malformed)?;
            self.at = (self.at + line.len() + 2).checked_add(contents).ok_or_else(malformed)?;
            self.missing = self.missing - 1 + parts;
            if self.parts > MOST_PARTS || self.at > LARGEST {
                return Err(too_large());
            }
        }
        Ok((self.at <= bytes.len()).then_some(self.at))
    }
}

/// The first line, without its end, which is not before `from`.
fn line(bytes: &[u8], from: usize) -> Option<&[u8]> {
    let end = bytes.get(from..)?.windows(2).position(|end| end == b"\r\n")?;
    Some(&bytes[..from + end])
}

/// The number in a line; `None` if it is -1, which stands for nothing.
fn count(line: &[u8]) -> RedisResult<Option<usize>> {
    let number = std::str::from_utf8(&line[1..]).ok().and_then(|number| number.trim().parse::<i64>().ok());
    number.map(|number| usize::try_from(number).ok()).ok_or_else(malformed)
}

fn double(count: usize) -> RedisResult<usize> {
    count.checked_mul(2).ok_or_else(malformed)
}

fn malformed() -> RedisError {
    (redis::ErrorKind::Parse, "what the server sent is no reply").into()
}

fn too_large() -> RedisError {
    (redis::ErrorKind::Parse, "what the server sent is too large for a reply").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&str; 17] = [
        "+OK\r\n",
        "+PONG\r\n",
        ":1\r\n",
        ":-1\r\n",
        ":17000000\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "$0\r\n\r\n",
        "$6\r\na\r\nb\r\n\r\n",
        "-NOSCRIPT No matching script\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n*2\r\n$1\r\na\r\n+OK\r\n_\r\n",
        "%2\r\n+a\r\n:1\r\n+b\r\n~1\r\n#t\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nt\r\n",
        "!9\r\nERR wrong\r\n",
        "=5\r\ntxt:a\r\n",
        ",1.5\r\n",
    ];

    fn next_reply(bytes: &[u8]) -> RedisResult<Option<(Value, usize)>> {
        Scan::default().next(bytes)
    }

    #[test]
    fn a_reply_is_what_the_driver_makes_of_it() {
        for text in REPLIES {
            let parsed = redis::parse_redis_value(text.as_bytes()).unwrap();
            let (reply, length) = next_reply(text.as_bytes()).unwrap().unwrap();
            assert_eq!((format!("{reply:?}"), length), (format!("{parsed:?}"), text.len()), "{text:?}");
        }
    }

    #[test]
    fn a_reply_that_arrives_in_two_parts_is_waited_for() {
        for text in REPLIES {
            for end in 0..text.len() {
                assert!(next_reply(&text.as_bytes()[..end]).unwrap().is_none(), "{:?}", &text[..end]);
            }
            let two = format!("{text}:1\r\n");
            assert_eq!(next_reply(two.as_bytes()).unwrap().unwrap().1, text.len(), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        for text in ["$x\r\n", "*1.5\r\n", "HTTP/1.1 400 Bad Request\r\n", "%x\r\n"] {
            assert!(next_reply(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_reply_that_arrives_byte_by_byte_is_read_once() {
        for text in REPLIES {
            let two = format!("{text}{text}");
            let (mut scan, mut begin, mut replies) = (Scan::default(), 0, Vec::new());
            for end in 1..=two.len() {
                if let Some((reply, length)) = scan.next(&two.as_bytes()[begin..end]).unwrap() {
                    begin += length;
                    replies.push(format!("{reply:?}"));
                }
            }
            let parsed = format!("{:?}", redis::parse_redis_value(text.as_bytes()).unwrap());
            assert_eq!(replies, [parsed.clone(), parsed], "{text:?}");
        }
    }

    /// Each part is looked at once, so that the time grows with the length and not with its square.
    #[test]
    fn a_long_reply_is_scanned_from_where_the_last_scan_stopped() {
        let (mut scan, mut bytes) = (Scan::default(), b"*1000\r\n".to_vec());
        for _ in 0..999 {
            bytes.extend(b"$1\r\na\r\n");
            assert!(scan.next(&bytes).unwrap().is_none());
            assert_eq!(scan.at, bytes.len());
        }
        let (mut scan, mut bytes) = (Scan::default(), b"+".to_vec());
        for _ in 0..999 {
            bytes.push(b'a');
            assert!(scan.next(&bytes).unwrap().is_none());
            assert_eq!(scan.looked + 1, bytes.len());
        }
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_has_arrived() {
        for text in ["$67108864\r\n", "*1048577\r\n", "%1000000\r\n"] {
            assert!(next_reply(text.as_bytes()).is_err(), "{text:?}");
        }
        let mut long = vec![b'a'; LARGEST + 2];
        long[0] = b'+';
        assert!(next_reply(&long).is_err());
        // An array of arrays without an end.
        let endless = "*1000\r\n".repeat(2000);
        assert!(next_reply(endless.as_bytes()).is_err());
    }
}
