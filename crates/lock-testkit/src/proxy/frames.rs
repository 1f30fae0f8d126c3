//! Finds the messages in a stream of bytes, and classifies them.
//!
//! RESP is parsed by hand: frames are only measured, in buffers that may end in the middle of one, and the parser of the
//! driver under test must not judge itself.

use super::Protocol;

/// Cuts the bytes that come from a client into requests.
#[derive(Debug)]
pub(super) struct Requests {
    protocol: Protocol,
    connected: bool,
}

/// One message of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Request {
    /// A request that gets the next reply.
    InTurn,
    /// A subscription, which gets confirmations instead of a reply.
    Subscription,
    /// A request whose reply has its number.
    Numbered(i32),
    /// No request: a ZooKeeper connect or ping, or unknown bytes.
    Other,
}

/// Cuts the bytes that come from a server into replies.
#[derive(Debug)]
pub(super) struct Replies {
    protocol: Protocol,
    connected: bool,
}

/// One message of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reply {
    /// The reply to the oldest open request.
    InTurn,
    /// A RESP2 array that looks like a pub/sub message, and is one on a connection with a subscription.
    Pubsub { confirmation: bool },
    /// A push.
    Push { confirmation: bool },
    /// The reply to the request with this number.
    Numbered(i32),
    /// No reply: a ZooKeeper connect or ping answer, or unknown bytes.
    Other,
}

impl Requests {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self { protocol, connected: false }
    }

    /// The length and kind of the first message in `bytes`, when it is there as a whole.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Option<(usize, Request)> {
        let found = match self.protocol {
            Protocol::Opaque => Frame::Broken,
            Protocol::Redis => resp_request(bytes),
            Protocol::ZooKeeper => zk_frame(bytes),
            Protocol::Postgres if !self.connected => pg_frame(bytes, 0),
            Protocol::Postgres => pg_frame(bytes, 1),
            Protocol::Http2 if !self.connected => whole_if(bytes, H2_PREFACE),
            Protocol::Http2 => h2_frame(bytes),
            Protocol::Mysql => mysql_packet(bytes),
        };
        let length = match settle(found, &mut self.protocol, bytes)? {
            Settled::Raw(length) => return Some((length, Request::Other)),
            Settled::Whole(length) => length,
        };
        let frame = &bytes[..length];
        let request = match self.protocol {
            Protocol::Opaque => Request::Other,
            Protocol::Redis => match command_name(frame) {
                None => Request::Other,
                Some(name) if is_subscription(name) => Request::Subscription,
                Some(_) => Request::InTurn,
            },
            Protocol::ZooKeeper => match (std::mem::replace(&mut self.connected, true), int(frame, 4)) {
                (false, _) | (true, None | Some(ZK_PING)) => Request::Other,
                (true, Some(xid)) => Request::Numbered(xid),
            },
            Protocol::Postgres => match std::mem::replace(&mut self.connected, true) {
                true if matches!(frame[0], PG_SYNC | PG_QUERY) => Request::InTurn,
                _ => Request::Other,
            },
            Protocol::Http2 => match std::mem::replace(&mut self.connected, true) {
                true if frame[3] == H2_DATA && frame.len() > H2_HEAD => {
                    int(frame, 5).map_or(Request::Other, Request::Numbered)
                }
                _ => Request::Other,
            },
            // What belongs to the login has other numbers.
            Protocol::Mysql => match (frame[3], frame.get(4)) {
                (0, Some(&command)) if !MYSQL_UNANSWERED.contains(&command) => Request::InTurn,
                _ => Request::Other,
            },
        };
        Some((length, request))
    }
}

impl Replies {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self { protocol, connected: false }
    }

    /// The length and kind of the first message in `bytes`, when it is there as a whole.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Option<(usize, Reply)> {
        let found = match self.protocol {
            Protocol::Opaque => Frame::Broken,
            Protocol::Redis => resp_value(bytes, 0),
            Protocol::ZooKeeper => zk_frame(bytes),
            Protocol::Postgres => pg_reply(bytes, self.connected),
            Protocol::Http2 => h2_frame(bytes),
            Protocol::Mysql => mysql_packet(bytes),
        };
        let length = match settle(found, &mut self.protocol, bytes)? {
            Settled::Raw(length) => return Some((length, Reply::Other)),
            Settled::Whole(length) => length,
        };
        let frame = &bytes[..length];
        let reply = match self.protocol {
            Protocol::Opaque => Reply::Other,
            Protocol::Redis => {
                let topic = first_string(frame).unwrap_or_default();
                let confirmation = is_subscription(topic);
                match frame[0] {
                    b'>' => Reply::Push { confirmation },
                    b'*' if confirmation || is_message(topic) => Reply::Pubsub { confirmation },
                    _ => Reply::InTurn,
                }
            }
            Protocol::ZooKeeper => match (std::mem::replace(&mut self.connected, true), int(frame, 4)) {
                (false, _) | (true, None | Some(ZK_PING)) => Reply::Other,
                (true, Some(ZK_EVENT)) => Reply::Push { confirmation: false },
                (true, Some(xid)) => Reply::Numbered(xid),
            },
            Protocol::Postgres => {
                let was_connected = self.connected;
                self.connected |= ends_with_ready(frame);
                match (frame[0], was_connected) {
                    (PG_NOTIFICATION, _) => Reply::Push { confirmation: false },
                    (_, true) if ends_with_ready(frame) => Reply::InTurn,
                    _ => Reply::Other,
                }
            }
            Protocol::Http2 => h2_end(frame).map_or(Reply::Other, Reply::Numbered),
            // The first packet of an answer; those of the login have other numbers.
            Protocol::Mysql => {
                if frame[3] == 1 {
                    Reply::InTurn
                } else {
                    Reply::Other
                }
            }
        };
        Some((length, reply))
    }
}

/// The first word of a Redis request; `None` for an empty line.
pub(super) fn command_name(request: &[u8]) -> Option<&[u8]> {
    if request.first() == Some(&b'*') {
        return first_string(request);
    }
    request.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())
}

/// The big-endian number at `offset`.
pub(super) fn int(frame: &[u8], offset: usize) -> Option<i32> {
    let bytes = frame.get(offset..offset + 4)?;
    Some(i32::from_be_bytes(bytes.try_into().ok()?))
}

/// The beginning of a buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Frame {
    /// A message of this length.
    Whole(usize),
    /// More bytes are needed.
    Partial,
    /// Not the protocol.
    Broken,
}

enum Settled {
    Whole(usize),
    Raw(usize),
}

/// Stops framing for the rest of the connection when the bytes are not the protocol.
fn settle(found: Frame, protocol: &mut Protocol, bytes: &[u8]) -> Option<Settled> {
    match found {
        _ if bytes.is_empty() => None,
        Frame::Partial => None,
        Frame::Whole(length) => Some(Settled::Whole(length)),
        Frame::Broken => {
            *protocol = Protocol::Opaque;
            Some(Settled::Raw(bytes.len()))
        }
    }
}

fn zk_frame(bytes: &[u8]) -> Frame {
    let Some(length) = int(bytes, 0) else { return Frame::Partial };
    match usize::try_from(length) {
        // Four-letter words and their answers look like absurd lengths.
        Ok(length) if length <= ZK_LONGEST => whole_if(bytes, 4 + length),
        _ => Frame::Broken,
    }
}

/// A message of PostgreSQL with a type of this length, which the first one of a client has not.
fn pg_frame(bytes: &[u8], kind: usize) -> Frame {
    match int(bytes, kind).map(usize::try_from) {
        None => Frame::Partial,
        Some(Ok(length)) if (4..PG_LONGEST).contains(&length) => whole_if(bytes, kind + length),
        Some(_) => Frame::Broken,
    }
}

/// Whether a message of PostgreSQL is, or ends with, ReadyForQuery.
fn ends_with_ready(frame: &[u8]) -> bool {
    frame.len().checked_sub(6).is_some_and(|at| frame[at..at + 5] == [PG_READY, 0, 0, 0, 5])
}

/// What answers one request, or was not asked for. Until a session has begun, all up to that.
fn pg_reply(bytes: &[u8], is_connected: bool) -> Frame {
    let mut end = 0;
    loop {
        let Some(&kind) = bytes.get(end) else { return Frame::Partial };
        let length = match pg_frame(&bytes[end..], 1) {
            Frame::Whole(length) => length,
            other => return other,
        };
        let is_alone =
            end == 0 && matches!(kind, PG_NOTIFICATION | PG_NOTICE | PG_PARAMETER | PG_AUTHENTICATION);
        end += length;
        if kind == PG_READY || is_alone && (is_connected || kind == PG_AUTHENTICATION) {
            return Frame::Whole(end);
        }
    }
}

/// A frame of HTTP/2: three bytes of length, its type, its flags and its stream.
fn h2_frame(bytes: &[u8]) -> Frame {
    let Some(length) = int(bytes, 0) else { return Frame::Partial };
    whole_if(bytes, H2_HEAD + (length.cast_unsigned() >> 8) as usize)
}

/// A packet of MySQL: three bytes of length, the lowest first, and its number in the exchange.
fn mysql_packet(bytes: &[u8]) -> Frame {
    let Some(&[a, b, c, _]) = bytes.first_chunk() else { return Frame::Partial };
    whole_if(bytes, MYSQL_HEAD + u32::from_le_bytes([a, b, c, 0]) as usize)
}

/// The stream that a frame ends.
fn h2_end(frame: &[u8]) -> Option<i32> {
    let ends = match frame[3] {
        H2_DATA | H2_HEADERS => frame[4] & H2_END_STREAM != 0,
        kind => kind == H2_RESET,
    };
    int(frame, 5).filter(|_| ends)
}

fn resp_request(bytes: &[u8]) -> Frame {
    match bytes.first() {
        Some(b'*') => resp_value(bytes, 0),
        // An inline command, as people type it.
        _ => match bytes.iter().position(|&byte| byte == b'\n') {
            Some(end) => Frame::Whole(end + 1),
            None => Frame::Partial,
        },
    }
}

/// The RESP value at `start`; the length of a whole one counts from the beginning of `bytes`.
fn resp_value(bytes: &[u8], start: usize) -> Frame {
    let mut at = start;
    // The number of values to come: one, and the elements of aggregates.
    let mut left = 1_usize;
    while left > 0 {
        let Some(line) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") else {
            return Frame::Partial;
        };
        let (kind, rest) = (bytes[at], &bytes[at + 1..at + line]);
        at += line + 2;
        let length = || std::str::from_utf8(rest).ok()?.parse::<i64>().ok();
        let elements = |each: usize| {
            let count = length()?;
            // A null array has the length -1.
            usize::try_from(count.max(0)).ok()?.checked_mul(each)
        };
        left -= 1;
        let more = match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Some(0),
            b'$' | b'!' | b'=' => length().map(|length| {
                if length >= 0 {
                    at = at.saturating_add(length as usize).saturating_add(2);
                }
                0
            }),
            b'*' | b'~' | b'>' => elements(1),
            b'%' => elements(2),
            // Attributes precede the value that they belong to.
            b'|' => elements(2).map(|n| n + 1),
            _ => None,
        };
        let Some(more) = more else { return Frame::Broken };
        left = left.saturating_add(more);
        if at > bytes.len() {
            return Frame::Partial;
        }
    }
    whole_if(bytes, at)
}

fn whole_if(bytes: &[u8], length: usize) -> Frame {
    if bytes.len() >= length { Frame::Whole(length) } else { Frame::Partial }
}

/// The first element of an array of strings.
fn first_string(frame: &[u8]) -> Option<&[u8]> {
    let mut lines = frame.splitn(4, |&byte| byte == b'\n');
    let (_array, head, string) = (lines.next()?, lines.next()?, lines.next()?);
    match head.first()? {
        b'$' => string.strip_suffix(b"\r"),
        b'+' => head.get(1..)?.strip_suffix(b"\r"),
        _ => None,
    }
}

fn is_subscription(name: &[u8]) -> bool {
    SUBSCRIPTIONS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

fn is_message(name: &[u8]) -> bool {
    MESSAGES.iter().any(|known| name == known.as_bytes())
}

const SUBSCRIPTIONS: [&str; 6] =
    ["subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe"];
const MESSAGES: [&str; 3] = ["message", "pmessage", "smessage"];
const ZK_EVENT: i32 = -1;
const ZK_PING: i32 = -2;
const ZK_LONGEST: usize = 64 << 20;
const H2_PREFACE: usize = 24;
const H2_HEAD: usize = 9;
const H2_DATA: u8 = 0;
const H2_HEADERS: u8 = 1;
const H2_RESET: u8 = 3;
const H2_END_STREAM: u8 = 1;
const MYSQL_HEAD: usize = 4;
/// The end of a session, data of a statement, and its end.
const MYSQL_UNANSWERED: [u8; 3] = [0x01, 0x18, 0x19];
const PG_LONGEST: usize = 64 << 20;
const PG_SYNC: u8 = b'S';
const PG_QUERY: u8 = b'Q';
const PG_READY: u8 = b'Z';
const PG_NOTIFICATION: u8 = b'A';
const PG_NOTICE: u8 = b'N';
const PG_PARAMETER: u8 = b'S';
const PG_AUTHENTICATION: u8 = b'R';

#[cfg(test)]
mod tests {
    use super::*;

    /// Every prefix of a message is partial, the whole is found, and what follows is left alone.
    fn assert_whole(message: &[u8]) {
        for cut in 0..message.len() {
            assert_eq!(resp_value(&message[..cut], 0), Frame::Partial, "{:?}", message[..cut].escape_ascii());
        }
        let followed = [message, b"+NEXT\r\n"].concat();
        assert_eq!(resp_value(&followed, 0), Frame::Whole(message.len()), "{}", message.escape_ascii());
    }

    #[test]
    fn every_resp_type_is_measured() {
        let messages: [&[u8]; 18] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":12\r\n",
            b"_\r\n",
            b"#t\r\n",
            b",1.5\r\n",
            b"(123456789012345678901234567890\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"$0\r\n\r\n",
            b"$-1\r\n",
            b"!5\r\nERR x\r\n",
            b"=7\r\ntxt:abc\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n+y\r\n%1\r\n+k\r\n~1\r\n:9\r\n",
            b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
            b"|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n",
            b"%2\r\n+a\r\n:1\r\n+b\r\n_\r\n",
        ];
        for message in messages {
            assert_whole(message);
        }
    }

    #[test]
    fn what_is_not_resp_passes_as_it_is() {
        let mut replies = Replies::new(Protocol::Redis);
        assert_eq!(replies.next(b"HTTP/1.1 200\r\n"), Some((14, Reply::Other)));
        assert_eq!(replies.next(b"+OK\r\n"), Some((5, Reply::Other)));
        assert_eq!(replies.next(b""), None);
    }

    #[test]
    fn redis_requests_are_distinguished() {
        let mut requests = Requests::new(Protocol::Redis);
        assert_eq!(requests.next(b"*1\r\n$4\r\nPING\r\n*1\r\n"), Some((14, Request::InTurn)));
        assert_eq!(requests.next(b"*2\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n"), Some((26, Request::Subscription)));
        assert_eq!(requests.next(b"PING\r\nPI"), Some((6, Request::InTurn)));
        assert_eq!(requests.next(b"\r\n"), Some((2, Request::Other)));
        assert_eq!(requests.next(b"*1\r\n$4\r\nPIN"), None);
    }

    #[test]
    fn redis_replies_are_distinguished_from_pushes() {
        let kind = |bytes: &[u8]| Replies::new(Protocol::Redis).next(bytes).unwrap().1;
        assert_eq!(kind(b"+OK\r\n"), Reply::InTurn);
        assert_eq!(kind(b"*1\r\n$1\r\nx\r\n"), Reply::InTurn);
        assert_eq!(kind(b">2\r\n$10\r\ninvalidate\r\n_\r\n"), Reply::Push { confirmation: false });
        assert_eq!(kind(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"), Reply::Push { confirmation: true });
        assert_eq!(
            kind(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"),
            Reply::Pubsub { confirmation: false }
        );
    }

    #[test]
    fn zookeeper_frames_are_distinguished() {
        fn frame(xid: i32, opcode: i32) -> Vec<u8> {
            [8_i32, xid, opcode].iter().flat_map(|n| n.to_be_bytes()).collect()
        }
        let mut requests = Requests::new(Protocol::ZooKeeper);
        assert_eq!(requests.next(&frame(0, 0)[..11]), None);
        assert_eq!(requests.next(&frame(0, 0)), Some((12, Request::Other)));
        assert_eq!(requests.next(&frame(-2, 11)), Some((12, Request::Other)));
        assert_eq!(requests.next(&frame(7, 1)), Some((12, Request::Numbered(7))));
        let mut replies = Replies::new(Protocol::ZooKeeper);
        assert_eq!(replies.next(&frame(0, 0)), Some((12, Reply::Other)));
        assert_eq!(replies.next(&frame(-2, 0)), Some((12, Reply::Other)));
        assert_eq!(replies.next(&frame(-1, 0)), Some((12, Reply::Push { confirmation: false })));
        assert_eq!(replies.next(&frame(7, 0)), Some((12, Reply::Numbered(7))));
        assert_eq!(Requests::new(Protocol::ZooKeeper).next(b"srvr"), Some((4, Request::Other)));
    }

    #[test]
    fn postgres_requests_end_with_sync_and_replies_with_ready() {
        fn message(kind: &[u8], rest: &[u8]) -> Vec<u8> {
            [kind, &(4 + rest.len() as u32).to_be_bytes(), rest].concat()
        }
        let mut requests = Requests::new(Protocol::Postgres);
        let start = message(b"", b"\0\x03\0\0user\0me\0\0");
        assert_eq!(requests.next(&start), Some((start.len(), Request::Other)));
        for (kind, request) in
            [(b"p", Request::Other), (b"P", Request::Other), (b"S", Request::InTurn), (b"Q", Request::InTurn)]
        {
            assert_eq!(requests.next(&message(kind, b"x")[..5]), None);
            assert_eq!(requests.next(&message(kind, b"x")), Some((6, request)));
        }
        let ready = message(b"Z", b"I");
        let mut replies = Replies::new(Protocol::Postgres);
        assert_eq!(replies.next(&message(b"R", b"\0\0\0\0")), Some((9, Reply::Other)));
        let begin = [message(b"S", b"a\0b\0"), message(b"K", b"12345678"), ready.clone()].concat();
        assert_eq!(replies.next(&begin[..begin.len() - 1]), None);
        assert_eq!(replies.next(&begin), Some((begin.len(), Reply::Other)));
        let answer =
            [message(b"1", b""), message(b"D", b"row"), message(b"C", b"SELECT 1\0"), ready].concat();
        assert_eq!(replies.next(&answer[..answer.len() - 1]), None);
        assert_eq!(replies.next(&answer), Some((answer.len(), Reply::InTurn)));
        let told = [message(b"A", b"told"), answer].concat();
        assert_eq!(replies.next(&told), Some((9, Reply::Push { confirmation: false })));
    }

    #[test]
    fn messages_of_http2_are_requests_and_ends_of_streams_are_replies() {
        fn frame(kind: u8, flags: u8, stream: u8) -> Vec<u8> {
            [&[0, 0, 2, kind, flags, 0, 0, 0, stream][..], b"xx"].concat()
        }
        let mut requests = Requests::new(Protocol::Http2);
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        assert_eq!(requests.next(&preface[..20]), None);
        assert_eq!(requests.next(preface), Some((24, Request::Other)));
        assert_eq!(requests.next(&frame(H2_HEADERS, 4, 1)[..10]), None);
        assert_eq!(requests.next(&frame(H2_HEADERS, 4, 1)), Some((11, Request::Other)));
        assert_eq!(requests.next(&frame(H2_DATA, 0, 1)), Some((11, Request::Numbered(1))));
        assert_eq!(requests.next(&[0, 0, 0, H2_DATA, 1, 0, 0, 0, 1]), Some((9, Request::Other)));
        assert_eq!(requests.next(&frame(H2_RESET, 0, 3)), Some((11, Request::Other)));
        let mut replies = Replies::new(Protocol::Http2);
        assert_eq!(replies.next(&frame(4, 1, 0)), Some((11, Reply::Other)));
        assert_eq!(replies.next(&frame(H2_DATA, 0, 1)), Some((11, Reply::Other)));
        assert_eq!(replies.next(&frame(H2_HEADERS, 5, 1)), Some((11, Reply::Numbered(1))));
        assert_eq!(replies.next(&frame(H2_RESET, 0, 3)), Some((11, Reply::Numbered(3))));
    }

    #[test]
    fn commands_of_mysql_are_requests_and_first_packets_are_replies() {
        let mut requests = Requests::new(Protocol::Mysql);
        let query = [&[9, 0, 0, 0, 3][..], b"SELECT 1"].concat();
        assert_eq!(requests.next(&query[..12]), None);
        assert_eq!(requests.next(&query), Some((13, Request::InTurn)));
        // The answer to the greeting, and the end.
        assert_eq!(requests.next(&[1, 0, 0, 1, 3]), Some((5, Request::Other)));
        assert_eq!(requests.next(&[1, 0, 0, 0, 1]), Some((5, Request::Other)));
        let mut replies = Replies::new(Protocol::Mysql);
        for (number, reply) in [(0, Reply::Other), (1, Reply::InTurn), (2, Reply::Other)] {
            assert_eq!(replies.next(&[1, 0, 0, number, 0, 1]), Some((5, reply)));
        }
    }

    #[test]
    fn filters_match_what_they_say() {
        let set = b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$3\r\nGET\r\n";
        assert!(super::super::redis_command("SET")(set));
        assert!(!super::super::redis_command("GET")(set));
        assert!(super::super::redis_command("ping")(b"PING\r\n"));
        let create: Vec<u8> = [8_i32, 5, 1].iter().flat_map(|n| n.to_be_bytes()).collect();
        assert!(super::super::zk_opcode(super::super::opcode::CREATE)(&create));
        assert!(!super::super::zk_opcode(super::super::opcode::DELETE)(&create));
    }
}
