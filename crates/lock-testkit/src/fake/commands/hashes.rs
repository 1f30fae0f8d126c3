//! Hashes.

use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::Call;
use super::{Command, integer, integer_in, other, read};

type Fields = Vec<(Bytes, Bytes)>;

pub(super) const COMMANDS: &[Command] = &[
    other("hset", -4, |call, words| Ok(Reply::count(set(call, words, "hset")?))),
    other("hmset", -4, |call, words| set(call, words, "hmset").map(|_| Reply::OK())),
    other("hsetnx", 4, |call, words| {
        call.keys().edit_hash(&words[1], |fields| {
            let new = get(fields, &words[2]).is_none();
            if new {
                put(fields, &words[2], &words[3]);
            }
            Ok((new, Reply::flag(new)))
        })
    }),
    read("hget", 3, |call, words| {
        Ok(Reply::bulk_or_nil(call.keys().hash(&words[1])?.and_then(|fields| get(fields, &words[2]))))
    }),
    read("hmget", -3, |call, words| {
        let fields = call.keys().hash(&words[1])?.cloned().unwrap_or_default();
        Ok(Reply::Array(words[2..].iter().map(|field| Reply::bulk_or_nil(get(&fields, field))).collect()))
    }),
    read("hlen", 2, |call, words| Ok(Reply::count(call.keys().hash(&words[1])?.map_or(0, Vec::len)))),
    read("hexists", 3, |call, words| {
        Ok(Reply::flag(call.keys().hash(&words[1])?.is_some_and(|fields| get(fields, &words[2]).is_some())))
    }),
    read("hgetall", 2, |call, words| {
        let fields = call.keys().hash(&words[1])?.cloned().unwrap_or_default();
        Ok(Reply::Map(
            fields.into_iter().map(|(field, value)| (Reply::Bulk(field), Reply::Bulk(value))).collect(),
        ))
    }),
    read("hkeys", 2, |call, words| {
        let fields = call.keys().hash(&words[1])?.cloned().unwrap_or_default();
        Ok(Reply::bulks(fields.into_iter().map(|(field, _)| field)))
    }),
    other("hdel", -3, |call, words| {
        call.keys().edit_hash(&words[1], |fields| {
            let before = fields.len();
            fields.retain(|(field, _)| !words[2..].contains(field));
            let gone = before - fields.len();
            Ok((gone > 0, Reply::count(gone)))
        })
    }),
    other("hincrby", 4, add),
];

fn get<'a>(fields: &'a Fields, field: &[u8]) -> Option<&'a Bytes> {
    fields.iter().find(|(name, _)| name == field).map(|(_, value)| value)
}

/// Sets a field and says whether it is new.
fn put(fields: &mut Fields, field: &[u8], value: &[u8]) -> bool {
    if let Some((_, old)) = fields.iter_mut().find(|(name, _)| name == field) {
        value.clone_into(old);
        return false;
    }
    fields.push((field.to_vec(), value.to_vec()));
    true
}

fn set(call: &mut Call<'_>, words: &[Bytes], name: &str) -> Result<usize, String> {
    if words.len() % 2 == 1 {
        return Err(format!("ERR wrong number of arguments for '{name}' command"));
    }
    call.keys().edit_hash(&words[1], |fields| {
        Ok((true, words[2..].chunks(2).filter(|pair| put(fields, &pair[0], &pair[1])).count()))
    })
}

fn add(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let number = integer(&words[3])?;
    call.keys().edit_hash(&words[1], |fields| {
        let before = match get(fields, &words[2]) {
            Some(value) => integer_in(value).ok_or_else(|| "ERR hash value is not an integer".to_owned())?,
            None => 0,
        };
        let after = before.checked_add(number);
        let after = after.ok_or_else(|| "ERR increment or decrement would overflow".to_owned())?;
        put(fields, &words[2], after.to_string().as_bytes());
        Ok((true, Reply::Int(after)))
    })
}
