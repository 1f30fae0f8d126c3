//! Cuts what a server sends into replies, which the driver parses.

use redis::{RedisError, RedisResult, Value};

/// The first reply and its length; `None` if it has not arrived as a whole.
///
/// # Errors
///
/// For what is no reply.
pub(crate) fn next_reply(bytes: &[u8]) -> RedisResult<Option<(Value, usize)>> {
    let Some(length) = length(bytes)? else { return Ok(None) };
    let reply = match bytes[..length] {
        // Most replies are one of these two.
        [b'+', b'O', b'K', ..] if length == 5 => Value::Okay,
        [b':', digit @ b'0'..=b'9', ..] if length == 4 => Value::Int(i64::from(digit - b'0')),
        ref reply => redis::parse_redis_value(reply)?,
    };
    Ok(Some((reply, length)))
}

/// The length of the first reply, with its parts.
fn length(bytes: &[u8]) -> RedisResult<Option<usize>> {
    let (mut at, mut missing) = (0, 1_usize);
    while missing > 0 {
        let Some(line) = line(&bytes[at..]) else { return Ok(None) };
        missing -= 1;
        at += line.len() + 2;
        let (parts, contents) = match line.first() {
            Some(b'*' | b'~' | b'>') => (count(line)?.unwrap_or(0), 0),
            Some(b'%') => (double(count(line)?.unwrap_or(0))?, 0),
            // Attributes, and the reply that they are of.
            Some(b'|') => (double(count(line)?.unwrap_or(0))? + 1, 0),
            Some(b'$' | b'!' | b'=') => (0, count(line)?.map_or(0, |length| length.saturating_add(2))),
            _ => (0, 0),
        };
        missing = missing.checked_add(parts).ok_or_else(malformed)?;
        at = at.checked_add(contents).ok_or_else(malformed)?;
        if at > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// The first line, without its end.
fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|end| end == b"\r\n")?;
    Some(&bytes[..end])
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
}
