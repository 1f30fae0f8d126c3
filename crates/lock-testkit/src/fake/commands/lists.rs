//! Lists.

use std::collections::VecDeque;

use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::Call;
use super::command::{Command, integer, is, other, read, span, syntax};

pub(super) const COMMANDS: &[Command] = &[
    other("lpush", -3, |call, words| push(call, words, VecDeque::push_front)),
    other("rpush", -3, |call, words| push(call, words, VecDeque::push_back)),
    other("lpop", 2, |call, words| {
        call.keys().edit_list(&words[1], |list| {
            let popped = list.pop_front();
            Ok((popped.is_some(), Reply::bulk_or_nil(popped)))
        })
    }),
    read("llen", 2, |call, words| Ok(Reply::count(call.keys().list(&words[1])?.map_or(0, VecDeque::len)))),
    read("lindex", 3, index),
    read("lrange", 4, range),
    read("lpos", -3, position),
    other("lrem", 4, remove),
];

fn push(call: &mut Call<'_>, words: &[Bytes], push: fn(&mut VecDeque<Bytes>, Bytes)) -> Answer {
    call.keys().edit_list(&words[1], |list| {
        for word in &words[2..] {
            push(list, word.clone());
        }
        Ok((true, Reply::count(list.len())))
    })
}

fn index(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let list = call.keys().list(&words[1])?;
    let index = integer(&words[2])?;
    Ok(Reply::bulk_or_nil(list.and_then(|list| {
        let index = if index < 0 { index + list.len() as i64 } else { index };
        list.get(usize::try_from(index).ok()?)
    })))
}

fn range(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let (start, stop) = (integer(&words[2])?, integer(&words[3])?);
    let Some(list) = call.keys().list(&words[1])? else { return Ok(Reply::Array(Vec::new())) };
    Ok(Reply::bulks(list.range(span(start, stop, list.len()))))
}

/// `LPOS key element [MAXLEN length]`.
fn position(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let longest = match &words[3..] {
        [] => 0,
        [name, number] if is(name, "MAXLEN") => integer(number)?,
        _ => return syntax(),
    };
    if longest < 0 {
        return Err("ERR MAXLEN can't be negative".to_owned());
    }
    let longest = if longest == 0 { usize::MAX } else { longest as usize };
    let list = call.keys().list(&words[1])?;
    let found = list.and_then(|list| list.iter().take(longest).position(|element| *element == words[2]));
    Ok(found.map_or(Reply::Nil, Reply::count))
}

fn remove(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let count = integer(&words[2])?;
    call.keys().edit_list(&words[1], |list| {
        let mut places: Vec<usize> = (0..list.len()).filter(|place| list[*place] == words[3]).collect();
        if count < 0 {
            places.reverse();
        }
        if count != 0 {
            places.truncate(count.unsigned_abs() as usize);
        }
        places.sort_unstable();
        for place in places.iter().rev() {
            list.remove(*place);
        }
        Ok((!places.is_empty(), Reply::count(places.len())))
    })
}
