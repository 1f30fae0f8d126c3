//! Pub/sub.

use std::collections::BTreeSet;

use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::{Call, Session};
use super::command::{Command, connection, is, other};

pub(super) const COMMANDS: &[Command] = &[
    other("publish", 3, |call, words| Ok(publish(call, words, &PLAIN))),
    other("spublish", 3, |call, words| Ok(publish(call, words, &SHARD))),
    connection("subscribe", -2, |call, words| subscribe(call, words, &PLAIN)),
    connection("ssubscribe", -2, |call, words| subscribe(call, words, &SHARD)),
    connection("unsubscribe", -1, |call, words| unsubscribe(call, words, &PLAIN)),
    connection("sunsubscribe", -1, |call, words| unsubscribe(call, words, &SHARD)),
    other("pubsub", -2, pubsub),
];

/// Plain or sharded channels.
struct Sort {
    prefix: &'static str,
    of: fn(&Session) -> &BTreeSet<Bytes>,
    of_mut: fn(&mut Session) -> &mut BTreeSet<Bytes>,
}

const PLAIN: Sort = Sort { prefix: "", of: |client| &client.channels, of_mut: |client| &mut client.channels };
const SHARD: Sort =
    Sort { prefix: "s", of: |client| &client.shard_channels, of_mut: |client| &mut client.shard_channels };

fn publish(call: &Call<'_>, words: &[Bytes], sort: &Sort) -> Reply {
    let listeners = listeners(call, &words[1], sort);
    for id in &listeners {
        let message = Reply::bulk(format!("{}message", sort.prefix));
        call.server.push(*id, vec![message, Reply::bulk(&words[1]), Reply::bulk(&words[2])]);
    }
    Reply::count(listeners.len())
}

fn listeners(call: &Call<'_>, channel: &Bytes, sort: &Sort) -> Vec<u64> {
    let listening = call.server.sessions.iter().filter(|(_, session)| (sort.of)(session).contains(channel));
    listening.map(|(id, _)| *id).collect()
}

/// Confirms each channel separately; the last confirmation is the reply.
fn subscribe(call: &mut Call<'_>, words: &[Bytes], sort: &Sort) -> Answer {
    confirm(call, &words[1..], sort, "subscribe", |channels, channel| {
        channels.insert(channel.clone());
    })
}

fn unsubscribe(call: &mut Call<'_>, words: &[Bytes], sort: &Sort) -> Answer {
    let all: Vec<Bytes> = (sort.of)(call.client()?).iter().cloned().collect();
    let named = if words.len() > 1 { &words[1..] } else { &all };
    if named.is_empty() {
        let left = count(call.client()?, sort);
        return Ok(Reply::Push(vec![kind(sort, "unsubscribe"), Reply::Nil, left]));
    }
    confirm(call, named, sort, "unsubscribe", |channels, channel| {
        channels.remove(channel);
    })
}

fn confirm(
    call: &mut Call<'_>,
    named: &[Bytes],
    sort: &Sort,
    what: &str,
    change: impl Fn(&mut BTreeSet<Bytes>, &Bytes),
) -> Answer {
    let mut last = None;
    for channel in named {
        if let Some(confirmation) = last.take() {
            call.server.push(call.session, confirmation);
        }
        let client = call.client()?;
        change((sort.of_mut)(client), channel);
        last = Some(vec![kind(sort, what), Reply::bulk(channel), count(client, sort)]);
    }
    Ok(Reply::Push(last.unwrap_or_default()))
}

fn kind(sort: &Sort, what: &str) -> Reply {
    Reply::bulk(format!("{}{what}", sort.prefix))
}

fn count(client: &Session, sort: &Sort) -> Reply {
    Reply::count((sort.of)(client).len())
}

fn pubsub(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let sort = match () {
        () if is(&words[1], "NUMSUB") => PLAIN,
        () if is(&words[1], "SHARDNUMSUB") => SHARD,
        () => return Err("ERR the fake knows PUBSUB NUMSUB and SHARDNUMSUB only".to_owned()),
    };
    let counts = words[2..]
        .iter()
        .flat_map(|channel| [Reply::bulk(channel), Reply::count(listeners(call, channel, &sort).len())]);
    Ok(Reply::Array(counts.collect()))
}
