//! Keys of any type, and their expiry.

use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::Call;
use super::command::{Command, Keys, Kind, fits, integer, is, ok, other, read};

pub(super) const COMMANDS: &[Command] = &[
    other("del", -2, del),
    Command { name: "exists", arity: -2, kind: Kind::Read(Keys::All), run: exists },
    read("type", 2, |call, words| {
        Ok(Reply::Simple(call.keys().look(&words[1]).map_or("none", |data| data.kind()).to_owned()))
    }),
    read("pttl", 2, |call, words| Ok(Reply::Int(left(call, &words[1])))),
    other("pexpire", -3, |call, words| expire(call, words, End::After)),
    other("pexpireat", -3, |call, words| expire(call, words, End::At)),
    other("keys", 2, |call, words| {
        Ok(Reply::bulks(call.keys().keys().into_iter().filter(|key| fits(&words[1], key))))
    }),
    other("dbsize", 1, |call, _| Ok(Reply::count(call.keys().keys().len()))),
    other("flushall", -1, flush),
];

/// An expiry in milliseconds: relative or absolute.
#[derive(Clone, Copy)]
pub(super) enum End {
    After,
    At,
}

/// The end in milliseconds since 1970.
pub(super) fn end_of(call: &Call<'_>, end: End, number: &[u8], command: &str) -> Result<i64, String> {
    let number = integer(number)?;
    let ends = match end {
        End::After => number.checked_add(call.server.keys.now()),
        End::At => Some(number),
    };
    ends.ok_or_else(|| format!("ERR invalid expire time in '{command}' command"))
}

fn del(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let gone = words[1..].iter().filter(|key| call.keys().exists(key) && call.keys().remove(key));
    Ok(Reply::count(gone.count()))
}

fn exists(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    Ok(Reply::count(words[1..].iter().filter(|key| call.keys().exists(key)).count()))
}

fn left(call: &mut Call<'_>, key: &[u8]) -> i64 {
    match call.keys().ends(key) {
        None => -2,
        Some(None) => -1,
        Some(Some(end)) => (end - call.keys().now()).max(0),
    }
}

/// `PEXPIRE key milliseconds [NX | GT]`.
fn expire(call: &mut Call<'_>, words: &[Bytes], end: End) -> Answer {
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let ends = end_of(call, end, &words[2], &name)?;
    let keys = call.keys();
    let wanted = match &words[3..] {
        [] => true,
        [option] if is(option, "NX") => keys.ends(&words[1]).flatten().is_none(),
        // What never expires lasts longest.
        [option] if is(option, "GT") => keys.ends(&words[1]).flatten().is_some_and(|before| ends > before),
        [option, ..] => return Err(format!("ERR Unsupported option {}", String::from_utf8_lossy(option))),
    };
    Ok(Reply::flag(wanted && keys.set_end(&words[1], Some(ends))))
}

fn flush(call: &mut Call<'_>, _: &[Bytes]) -> Answer {
    call.keys().clear();
    call.server.notify_flush();
    ok()
}
