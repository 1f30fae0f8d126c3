//! Strings.

use super::super::keyspace::Data;
use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::Call;
use super::keys::{End, end_of};
use super::{Command, Keys, Kind, NOT_AN_INTEGER, integer, integer_in, is, ok, other, read, syntax};

pub(super) const COMMANDS: &[Command] = &[
    read("get", 2, get),
    read("strlen", 2, |call, words| Ok(Reply::count(call.keys().text(&words[1])?.map_or(0, Vec::len)))),
    Command { name: "mget", arity: -2, kind: Kind::Read(Keys::All), run: mget },
    other("set", -3, set),
    other("setnx", 3, setnx),
    other("psetex", 4, |call, words| set_for(call, words, 1)),
    other("setex", 4, |call, words| set_for(call, words, 1000)),
    other("getset", 3, |call, words| {
        let before = get(call, words)?;
        call.keys().put(&words[1], Data::Text(words[2].clone()), None);
        Ok(before)
    }),
    other("getdel", 2, |call, words| {
        let before = get(call, words)?;
        call.keys().remove(&words[1]);
        Ok(before)
    }),
    other("mset", -3, mset),
    other("append", 3, append),
    other("incr", 2, |call, words| add(call, &words[1], 1)),
    other("decr", 2, |call, words| add(call, &words[1], -1)),
    other("incrby", 3, |call, words| add(call, &words[1], integer(&words[2])?)),
];

#[derive(Default)]
struct SetOptions {
    only_new: bool,
    only_old: bool,
    get: bool,
    keep: bool,
    ends: Option<i64>,
}

fn get(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    Ok(Reply::bulk_or_nil(call.keys().text(&words[1])?))
}

fn mget(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let values = words[1..].iter().map(|key| Reply::bulk_or_nil(call.keys().text(key).unwrap_or(None)));
    Ok(Reply::Array(values.collect()))
}

fn set(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let options = set_options(call, words)?;
    let (key, keys) = (&words[1], call.keys());
    let before = if options.get { keys.text(key)?.cloned() } else { None };
    let exists = keys.exists(key);
    let refused = options.only_new && exists || options.only_old && !exists;
    if !refused {
        let ends = if options.keep { keys.ends(key).flatten() } else { options.ends };
        keys.put(key, Data::Text(words[2].clone()), ends);
    }
    Ok(match (options.get, refused) {
        (true, _) => Reply::bulk_or_nil(before),
        (false, true) => Reply::Nil,
        (false, false) => Reply::OK(),
    })
}

fn set_options(call: &Call<'_>, words: &[Bytes]) -> Result<SetOptions, String> {
    let mut options = SetOptions::default();
    let mut rest = words[3..].iter();
    while let Some(word) = rest.next() {
        let timed = options.keep || options.ends.is_some();
        match () {
            () if is(word, "NX") && !options.only_old => options.only_new = true,
            () if is(word, "XX") && !options.only_new => options.only_old = true,
            () if is(word, "GET") => options.get = true,
            () if is(word, "KEEPTTL") && !timed => options.keep = true,
            () => {
                let unit = [
                    ("EX", End::After(1000)),
                    ("PX", End::After(1)),
                    ("EXAT", End::At(1000)),
                    ("PXAT", End::At(1)),
                ];
                let end = unit.into_iter().find(|(name, _)| is(word, name)).map(|(_, end)| end);
                let (Some(end), Some(number), false) = (end, rest.next(), timed) else { return syntax() };
                options.ends = Some(lasting(end_of(call, end, number, "set")?, number, "set")?);
            }
        }
    }
    Ok(options)
}

fn set_for(call: &mut Call<'_>, words: &[Bytes], unit: i64) -> Answer {
    let name = if unit == 1 { "psetex" } else { "setex" };
    let ends = lasting(end_of(call, End::After(unit), &words[2], name)?, &words[2], name)?;
    call.keys().put(&words[1], Data::Text(words[3].clone()), Some(ends));
    ok()
}

/// A string may not be set to end in no time.
fn lasting(ends: i64, number: &[u8], command: &str) -> Result<i64, String> {
    match integer(number)? {
        1.. => Ok(ends),
        _ => Err(format!("ERR invalid expire time in '{command}' command")),
    }
}

fn setnx(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let new = !call.keys().exists(&words[1]);
    if new {
        call.keys().put(&words[1], Data::Text(words[2].clone()), None);
    }
    Ok(Reply::flag(new))
}

fn mset(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    if words.len().is_multiple_of(2) {
        return Err("ERR wrong number of arguments for 'mset' command".to_owned());
    }
    for pair in words[1..].chunks(2) {
        call.keys().put(&pair[0], Data::Text(pair[1].clone()), None);
    }
    ok()
}

fn append(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let keys = call.keys();
    let mut value = keys.text(&words[1])?.cloned().unwrap_or_default();
    value.extend_from_slice(&words[2]);
    let (length, ends) = (value.len(), keys.ends(&words[1]).flatten());
    keys.put(&words[1], Data::Text(value), ends);
    Ok(Reply::count(length))
}

fn add(call: &mut Call<'_>, key: &[u8], number: i64) -> Answer {
    let keys = call.keys();
    let before = match keys.text(key)? {
        Some(text) => integer_in(text).ok_or_else(|| NOT_AN_INTEGER.to_owned())?,
        None => 0,
    };
    let after = before.checked_add(number);
    let after = after.ok_or_else(|| "ERR increment or decrement would overflow".to_owned())?;
    let ends = keys.ends(key).flatten();
    keys.put(key, Data::Text(after.to_string().into_bytes()), ends);
    Ok(Reply::Int(after))
}
