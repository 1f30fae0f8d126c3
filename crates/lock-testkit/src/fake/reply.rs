//! The fake's replies, in both protocols.

use crate::servers::redis::Reply as Resp2;

/// Bytes: a key, a value, a word of a command.
pub(super) type Bytes = Vec<u8>;

/// A reply, independent of the connection's protocol.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Nil,
    Int(i64),
    Simple(String),
    Bulk(Bytes),
    Array(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Double(f64),
    Push(Vec<Self>),
    Error(String),
}

/// A reply or the text of an error.
pub(super) type Answer = Result<Reply, String>;

impl Reply {
    pub(super) const OK: fn() -> Self = || Self::Simple("OK".to_owned());

    pub(super) fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec())
    }

    pub(super) fn bulk_or_nil(bytes: Option<impl AsRef<[u8]>>) -> Self {
        bytes.map_or(Self::Nil, Self::bulk)
    }

    pub(super) fn bulks(all: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        Self::Array(all.into_iter().map(Self::bulk).collect())
    }

    pub(super) fn count(number: usize) -> Self {
        Self::Int(number as i64)
    }

    pub(super) fn flag(flag: bool) -> Self {
        Self::Int(i64::from(flag))
    }

    /// Writes the reply in this protocol.
    pub(super) fn write(&self, resp3: bool, to: &mut Bytes) {
        match self {
            Self::Nil => to.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" }),
            Self::Int(number) => line(to, ':', number),
            Self::Simple(text) => line(to, '+', text),
            Self::Error(text) => line(to, '-', text),
            Self::Bulk(bytes) => {
                line(to, '$', bytes.len());
                to.extend_from_slice(bytes);
                to.extend_from_slice(b"\r\n");
            }
            Self::Array(elements) => write_all(elements, '*', resp3, to),
            Self::Push(elements) => write_all(elements, if resp3 { '>' } else { '*' }, resp3, to),
            Self::Map(pairs) if resp3 => {
                line(to, '%', pairs.len());
                for (key, value) in pairs {
                    key.write(resp3, to);
                    value.write(resp3, to);
                }
            }
            Self::Double(number) if resp3 => line(to, ',', format_number(*number)),
            Self::Map(_) | Self::Double(_) => self.clone().plain().write(false, to),
        }
    }

    /// The reply in the types of RESP2 and scripts.
    pub(super) fn plain(self) -> Self {
        match self {
            Self::Map(pairs) => {
                Self::Array(pairs.into_iter().flat_map(|(key, value)| [key.plain(), value.plain()]).collect())
            }
            Self::Push(elements) | Self::Array(elements) => {
                Self::Array(elements.into_iter().map(Self::plain).collect())
            }
            Self::Double(number) => Self::bulk(format_number(number)),
            other => other,
        }
    }
}

impl From<Reply> for Resp2 {
    fn from(reply: Reply) -> Self {
        match reply.plain() {
            Reply::Nil => Self::Nil,
            Reply::Int(number) => Self::Int(number),
            Reply::Simple(text) => Self::Simple(text),
            Reply::Bulk(bytes) => Self::Bulk(bytes),
            Reply::Error(text) => Self::Error(text),
            Reply::Array(elements) => Self::Array(elements.into_iter().map(Self::from).collect()),
            Reply::Map(_) | Reply::Push(_) | Reply::Double(_) => unreachable!("not plain"),
        }
    }
}

/// A number as C's `%.17g` prints it, which is how Redis turns numbers into text.
pub(super) fn format_number(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 || !number.is_finite() {
        return if number.is_nan() { "nan" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("an exponent is always written");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    if (-4..17).contains(&exponent) {
        let decimals = usize::try_from(16 - exponent).expect("at most 17 digits stand before the point");
        return without_zeros(&format!("{number:.decimals$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
}

fn without_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

fn line(to: &mut Bytes, kind: char, what: impl std::fmt::Display) {
    // An error text with a line break in it would break the protocol.
    to.extend_from_slice(format!("{kind}{what}").replace(['\r', '\n'], " ").as_bytes());
    to.extend_from_slice(b"\r\n");
}

fn write_all(elements: &[Reply], kind: char, resp3: bool, to: &mut Bytes) {
    line(to, kind, elements.len());
    for element in elements {
        element.write(resp3, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, resp3: bool) -> String {
        let mut bytes = Bytes::new();
        reply.write(resp3, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_two_protocols_differ_where_they_should() {
        let map = Reply::Map(vec![(Reply::bulk("a"), Reply::Double(1.5))]);
        assert_eq!(written(&map, false), "*2\r\n$1\r\na\r\n$3\r\n1.5\r\n");
        assert_eq!(written(&map, true), "%1\r\n$1\r\na\r\n,1.5\r\n");
        assert_eq!([false, true].map(|resp3| written(&Reply::Nil, resp3)), ["$-1\r\n", "_\r\n"]);
        assert_eq!(written(&Reply::Push(vec![Reply::Int(1)]), true), ">1\r\n:1\r\n");
        assert_eq!(written(&Reply::Error("ERR a\r\nb".into()), true), "-ERR a  b\r\n");
    }

    #[test]
    fn numbers_are_written_as_c_does() {
        for (number, text) in [
            (0.0, "0"),
            (-3.0, "-3"),
            (1.5, "1.5"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.25e-7, "1.2499999999999999e-07"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(format_number(number), text);
        }
    }
}
