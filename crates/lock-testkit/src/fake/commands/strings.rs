//! Strings.

use super::super::keyspace::Data;
use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::Call;
use super::command::{Command, integer, is, other, read, span, syntax};
use super::keys::{End, end_of};

pub(super) const COMMANDS: &[Command] = &[
    read("get", 2, |call, words| Ok(Reply::bulk_or_nil(call.keys().text(&words[1])?))),
    read("getrange", 4, |call, words| {
        let (text, [start, stop]) = (call.keys().text(&words[1])?.cloned(), [&words[2], &words[3]]);
        let text = text.unwrap_or_default();
        let part = span(integer(start)?, integer(stop)?, text.len());
        Ok(Reply::bulk(&text[part]))
    }),
    other("set", -3, set),
];

#[derive(Default)]
struct SetOptions {
    only_new: bool,
    keep: bool,
    ends: Option<i64>,
}

fn set(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let options = set_options(call, words)?;
    let (key, keys) = (&words[1], call.keys());
    if options.only_new && keys.exists(key) {
        return Ok(Reply::Nil);
    }
    let ends = if options.keep { keys.ends(key).flatten() } else { options.ends };
    keys.put(key, Data::Text(words[2].clone()), ends);
    Ok(Reply::OK())
}

fn set_options(call: &Call<'_>, words: &[Bytes]) -> Result<SetOptions, String> {
    let mut options = SetOptions::default();
    let mut rest = words[3..].iter();
    while let Some(word) = rest.next() {
        let timed = options.keep || options.ends.is_some();
        match () {
            () if is(word, "NX") => options.only_new = true,
            () if is(word, "KEEPTTL") && !timed => options.keep = true,
            () => {
                let units = [("PX", End::After), ("PXAT", End::At)];
                let end = units.into_iter().find(|(name, _)| is(word, name)).map(|(_, end)| end);
                let (Some(end), Some(number), false) = (end, rest.next(), timed) else { return syntax() };
                options.ends = Some(lasting(end_of(call, end, number, "set")?, number)?);
            }
        }
    }
    Ok(options)
}

/// A string may not be set to end in no time.
fn lasting(ends: i64, number: &[u8]) -> Result<i64, String> {
    match integer(number)? {
        1.. => Ok(ends),
        _ => Err("ERR invalid expire time in 'set' command".to_owned()),
    }
}
