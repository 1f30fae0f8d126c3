//! Lists.

use std::collections::VecDeque;

use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::Call;
use super::{Command, integer, is, ok, other, read, span, syntax};

pub(super) const COMMANDS: &[Command] = &[
    other("lpush", -3, |call, words| push(call, words, VecDeque::push_front)),
    other("rpush", -3, |call, words| push(call, words, VecDeque::push_back)),
    other("lpushx", -3, |call, words| push_if(call, words, VecDeque::push_front)),
    other("rpushx", -3, |call, words| push_if(call, words, VecDeque::push_back)),
    other("lpop", -2, |call, words| pop(call, words, VecDeque::pop_front)),
    other("rpop", -2, |call, words| pop(call, words, VecDeque::pop_back)),
    read("llen", 2, |call, words| Ok(Reply::count(call.keys().list(&words[1])?.map_or(0, VecDeque::len)))),
    read("lindex", 3, index),
    read("lrange", 4, range),
    read("lpos", -3, position),
    other("lrem", 4, remove),
    other("lset", 4, set),
    other("linsert", 5, insert),
    other("ltrim", 4, trim),
];

fn push(call: &mut Call<'_>, words: &[Bytes], push: fn(&mut VecDeque<Bytes>, Bytes)) -> Answer {
    call.keys().edit_list(&words[1], |list| {
        for word in &words[2..] {
            push(list, word.clone());
        }
        Ok((true, Reply::count(list.len())))
    })
}

fn push_if(call: &mut Call<'_>, words: &[Bytes], place: fn(&mut VecDeque<Bytes>, Bytes)) -> Answer {
    match call.keys().list(&words[1])? {
        Some(_) => push(call, words, place),
        None => Ok(Reply::Int(0)),
    }
}

fn pop(call: &mut Call<'_>, words: &[Bytes], pop: fn(&mut VecDeque<Bytes>) -> Option<Bytes>) -> Answer {
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let count = match &words[2..] {
        [] => None,
        [count] => match integer(count) {
            Ok(count) if count >= 0 => Some(count as usize),
            _ => return Err("ERR value is out of range, must be positive".to_owned()),
        },
        _ => return Err(format!("ERR wrong number of arguments for '{name}' command")),
    };
    if call.keys().list(&words[1])?.is_none() {
        return Ok(if count.is_some() { Reply::NilArray } else { Reply::Nil });
    }
    call.keys().edit_list(&words[1], |list| match count {
        None => Ok((true, Reply::bulk_or_nil(pop(list)))),
        Some(count) => {
            let popped: Vec<_> = (0..count).map_while(|_| pop(list)).collect();
            Ok((!popped.is_empty(), Reply::bulks(popped)))
        }
    })
}

fn index(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let list = call.keys().list(&words[1])?;
    let place = integer(&words[2])?;
    Ok(Reply::bulk_or_nil(list.and_then(|list| list.get(place_in(list, place)?))))
}

fn place_in(list: &VecDeque<Bytes>, index: i64) -> Option<usize> {
    let index = if index < 0 { index + list.len() as i64 } else { index };
    usize::try_from(index).ok().filter(|index| *index < list.len())
}

fn range(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let (start, stop) = (integer(&words[2])?, integer(&words[3])?);
    let Some(list) = call.keys().list(&words[1])? else { return Ok(Reply::Array(Vec::new())) };
    Ok(Reply::bulks(list.range(span(start, stop, list.len()))))
}

/// `LPOS key element [RANK rank] [COUNT count] [MAXLEN length]`.
fn position(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let (mut rank, mut count, mut longest) = (1, None, 0);
    for option in words[3..].chunks(2) {
        let [name, number] = option else { return syntax() };
        match () {
            () if is(name, "RANK") => rank = integer(number)?,
            () if is(name, "COUNT") => count = Some(integer(number)?),
            () if is(name, "MAXLEN") => longest = integer(number)?,
            () => return syntax(),
        }
    }
    if rank == 0 {
        return Err(
            "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                    negative to start from the end of the list"
                .to_owned(),
        );
    }
    if count.is_some_and(|count| count < 0) {
        return Err("ERR COUNT can't be negative".to_owned());
    }
    if longest < 0 {
        return Err("ERR MAXLEN can't be negative".to_owned());
    }
    let list = call.keys().list(&words[1])?.cloned().unwrap_or_default();
    let mut places: Vec<usize> = (0..list.len()).collect();
    if rank < 0 {
        places.reverse();
    }
    if longest > 0 {
        places.truncate(longest as usize);
    }
    let found = places.into_iter().filter(|place| list[*place] == words[2]);
    let found = found.skip(rank.unsigned_abs() as usize - 1).map(Reply::count);
    Ok(match count {
        None => found.take(1).next().unwrap_or(Reply::Nil),
        Some(0) => Reply::Array(found.collect()),
        Some(count) => Reply::Array(found.take(count as usize).collect()),
    })
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

fn set(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    if call.keys().list(&words[1])?.is_none() {
        return Err("ERR no such key".to_owned());
    }
    let index = integer(&words[2])?;
    call.keys().edit_list(&words[1], |list| {
        let place = place_in(list, index).ok_or_else(|| "ERR index out of range".to_owned())?;
        list[place] = words[3].clone();
        Ok((true, ()))
    })?;
    ok()
}

fn insert(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let after = match () {
        () if is(&words[2], "BEFORE") => 0,
        () if is(&words[2], "AFTER") => 1,
        () => return syntax(),
    };
    if call.keys().list(&words[1])?.is_none() {
        return Ok(Reply::Int(0));
    }
    call.keys().edit_list(&words[1], |list| {
        let Some(pivot) = list.iter().position(|element| *element == words[3]) else {
            return Ok((false, Reply::Int(-1)));
        };
        list.insert(pivot + after, words[4].clone());
        Ok((true, Reply::count(list.len())))
    })
}

fn trim(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let (start, stop) = (integer(&words[2])?, integer(&words[3])?);
    if call.keys().list(&words[1])?.is_some() {
        call.keys().edit_list(&words[1], |list| {
            let kept = list.range(span(start, stop, list.len())).cloned().collect();
            *list = kept;
            Ok((true, ()))
        })?;
    }
    ok()
}
