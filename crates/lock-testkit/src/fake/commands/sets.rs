//! Sets.

use std::collections::BTreeSet;

use super::super::reply::Reply;
use super::{Command, other, read};

pub(super) const COMMANDS: &[Command] = &[
    other("sadd", -3, |call, words| {
        call.keys().edit_set(&words[1], |set| {
            let new = words[2..].iter().filter(|member| set.insert((*member).clone())).count();
            Ok((new > 0, Reply::count(new)))
        })
    }),
    other("srem", -3, |call, words| {
        call.keys().edit_set(&words[1], |set| {
            let gone = words[2..].iter().filter(|member| set.remove(*member)).count();
            Ok((gone > 0, Reply::count(gone)))
        })
    }),
    read("scard", 2, |call, words| Ok(Reply::count(call.keys().set(&words[1])?.map_or(0, BTreeSet::len)))),
    read("sismember", 3, |call, words| {
        Ok(Reply::flag(call.keys().set(&words[1])?.is_some_and(|set| set.contains(&words[2]))))
    }),
    read("smembers", 2, |call, words| {
        let members = call.keys().set(&words[1])?.cloned().unwrap_or_default();
        Ok(Reply::Set(members.into_iter().map(Reply::Bulk).collect()))
    }),
];
