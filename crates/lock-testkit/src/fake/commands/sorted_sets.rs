//! Sorted sets.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::super::reply::{Answer, Bytes, Reply};
use super::super::server::Call;
use super::command::{Command, float, float_in, integer, is, other, read, span, syntax};

type Ranked = Vec<(Bytes, f64)>;

pub(super) const COMMANDS: &[Command] = &[
    other("zadd", -4, add),
    other("zrem", -3, |call, words| {
        call.keys().edit_sorted(&words[1], |set| {
            let gone = words[2..].iter().filter(|member| set.remove(*member).is_some()).count();
            Ok((gone > 0, Reply::count(gone)))
        })
    }),
    read("zcard", 2, |call, words| Ok(Reply::count(call.keys().sorted(&words[1])?.map_or(0, BTreeMap::len)))),
    read("zscore", 3, |call, words| {
        let score = call.keys().sorted(&words[1])?.and_then(|set| set.get(&words[2]).copied());
        Ok(score.map_or(Reply::Nil, Reply::Double))
    }),
    read("zrange", -4, range),
    other("zremrangebyscore", 4, |call, words| {
        let bounds = Bounds::parse(&words[2], &words[3])?;
        call.keys().edit_sorted(&words[1], |set| {
            let before = set.len();
            set.retain(|_, score| !bounds.hold(*score));
            Ok((before > set.len(), Reply::count(before - set.len())))
        })
    }),
    other("zpopmin", 2, pop_min),
];

/// Two scores, each with or without itself.
struct Bounds {
    low: (f64, bool),
    high: (f64, bool),
}

impl Bounds {
    fn parse(low: &[u8], high: &[u8]) -> Result<Self, String> {
        let bound = |word: &[u8]| {
            let (word, open) = word.strip_prefix(b"(").map_or((word, false), |rest| (rest, true));
            float_in(word)
                .map(|score| (score, open))
                .ok_or_else(|| "ERR min or max is not a float".to_owned())
        };
        Ok(Self { low: bound(low)?, high: bound(high)? })
    }

    fn hold(&self, score: f64) -> bool {
        let above = if self.low.1 { score > self.low.0 } else { score >= self.low.0 };
        let below = if self.high.1 { score < self.high.0 } else { score <= self.high.0 };
        above && below
    }
}

/// The members by score, those of the same score by name.
fn rank(set: &BTreeMap<Bytes, f64>) -> Ranked {
    let mut all: Vec<_> = set.iter().map(|(member, score)| (member.clone(), *score)).collect();
    all.sort_by(|(_, one), (_, other)| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    all
}

#[derive(Default)]
struct AddOptions {
    only_new: bool,
    only_old: bool,
    greater: bool,
    less: bool,
    changed: bool,
}

fn add(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let mut options = AddOptions::default();
    let mut rest = &words[2..];
    while let Some((word, more)) = rest.split_first() {
        match () {
            () if is(word, "NX") => options.only_new = true,
            () if is(word, "XX") => options.only_old = true,
            () if is(word, "GT") => options.greater = true,
            () if is(word, "LT") => options.less = true,
            () if is(word, "CH") => options.changed = true,
            () => break,
        }
        rest = more;
    }
    if rest.is_empty() || rest.len() % 2 == 1 {
        return syntax();
    }
    if options.only_new && options.only_old {
        return Err("ERR XX and NX options at the same time are not compatible".to_owned());
    }
    if (options.greater || options.less) && options.only_new || options.greater && options.less {
        return Err("ERR GT, LT, and/or NX options at the same time are not compatible".to_owned());
    }
    let scores: Vec<f64> = rest.chunks(2).map(|pair| float(&pair[0])).collect::<Result<_, _>>()?;
    call.keys().edit_sorted(&words[1], |set| {
        let (mut new, mut moved) = (0, 0);
        for (pair, score) in rest.chunks(2).zip(scores) {
            let before = set.get(&pair[1]).copied();
            let wanted = match before {
                None => !options.only_old,
                Some(before) => {
                    let right = !options.greater || score > before;
                    !options.only_new && right && (!options.less || score < before)
                }
            };
            if wanted {
                set.insert(pair[1].clone(), score);
                new += usize::from(before.is_none());
                moved += usize::from(before.is_some_and(|before| before != score));
            }
        }
        Ok((new + moved > 0, Reply::count(if options.changed { new + moved } else { new })))
    })
}

/// `ZRANGE key start stop [WITHSCORES]`.
fn range(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    let scores = match &words[4..] {
        [] => false,
        [option] if is(option, "WITHSCORES") => true,
        _ => return syntax(),
    };
    let (start, stop) = (integer(&words[2])?, integer(&words[3])?);
    let all = call.keys().sorted(&words[1])?.map(rank).unwrap_or_default();
    Ok(listed(call, &all[span(start, stop, all.len())], scores))
}

/// Members, or members and scores: pairs in RESP3, one after the other in RESP2 and in scripts.
fn listed(call: &mut Call<'_>, found: &[(Bytes, f64)], scores: bool) -> Reply {
    if !scores {
        return Reply::bulks(found.iter().map(|(member, _)| member));
    }
    let pairs = found.iter().map(|(member, score)| [Reply::bulk(member), Reply::Double(*score)]);
    Reply::Array(match has_pairs(call) {
        true => pairs.map(|pair| Reply::Array(pair.into())).collect(),
        false => pairs.flatten().collect(),
    })
}

fn has_pairs(call: &mut Call<'_>) -> bool {
    !call.in_script && call.client().is_ok_and(|client| client.resp3)
}

fn pop_min(call: &mut Call<'_>, words: &[Bytes]) -> Answer {
    call.keys().edit_sorted(&words[1], |set| {
        let Some((member, score)) = rank(set).into_iter().next() else {
            return Ok((false, Reply::Array(Vec::new())));
        };
        set.remove(&member);
        Ok((true, Reply::Array(vec![Reply::Bulk(member), Reply::Double(score)])))
    })
}
