//! The scripts of one of several masters.

use std::sync::Arc;

use lock_core::{Mode, Token};
use lock_redlock::ballot::{Claim, Entry, Extension, Proposal, Request, Voter, Wanted};
use redis_link::break_lock::Breaking;
use redis_link::client::RedisClient;
use redis_link::inspection::Inspection;
use redis_link::proof::Secret;
use redis_link::redis::ConnectionInfo;

use super::bench::{
    ASKED, Case, EXTENDED, GRACE, PERMITS, SHARED, SINCE, Scripts, THEIRS, inbox, refused, seconds, since,
    verdict, words,
};
use super::op::Op;
use super::state::{Family, NAMES, Who};

pub struct Master(Voter);

impl Scripts for Master {
    const FAMILY: Family = Family::Master;

    fn new(server: ConnectionInfo, _: bool) -> Self {
        Self(Voter::new(Arc::new(RedisClient::new(Voter::options(server)).unwrap())))
    }

    fn entry(case: &Case, who: Who, _: Mode) -> String {
        entry(case, who).to_string()
    }

    async fn run(&self, case: &Case, op: Op) -> Option<(String, Option<Token>)> {
        let (voter, keys) = (&self.0, &case.keys);
        let ours = |is_ours, what: &str| if is_ours { what } else { "not ours" }.to_owned();
        let answer = match op {
            Op::Claim(who, by) => {
                return Some(verdict(
                    voter.claim(&claim(case, who, by).request(None), &voter.client.dispatch()).await,
                ));
            }
            Op::Outright(who, by) => {
                let claim = claim(case, who, Some(by)).fast().unwrap();
                match voter.claim_fast(&claim, &voter.client.dispatch()).await.transpose() {
                    Some(answer) => return Some(verdict(answer)),
                    None => "unclear".into(),
                }
            }
            Op::LineUp(who) => {
                let request = claim(case, who, None).request(Some(&entry(case, who)));
                return Some(verdict(voter.claim(&request, &voter.client.dispatch()).await));
            }
            Op::Vacate(who, leaves) => {
                let entry = leaves.then(|| entry(case, who));
                let request = Request::vacate(keys, case.owner(who), case.proposed(1), entry.as_ref());
                let vacated = voter.vacate(&request, &voter.client.dispatch()).await.unwrap();
                let was_ours = ours(vacated.was_ours == Some(true), "vacated");
                if vacated.is_wanted { format!("{was_ours}, wanted") } else { was_ours }
            }
            Op::Extend(who) => {
                let lease =
                    Extension { keys, owner: case.owner(who), ttl: seconds(EXTENDED), shortens: true };
                ours(voter.extend(&[lease]).await.unwrap().remove(0).unwrap(), "extended")
            }
            Op::Raise(who, by) => {
                let raised = voter.raise(keys, case.owner(who), case.proposed(by), seconds(ASKED)).await;
                raised.map_or_else(|error| refused(&error), |raised| ours(raised, "raised"))
            }
            Op::Look(_) => vote(case, &voter.inspect(keys).await.unwrap()),
            Op::Break => match voter.break_if(keys, "").await.unwrap() {
                Breaking::Left { kind, hash } if kind == "string" => {
                    assert_eq!(voter.break_if(keys, &hash).await.unwrap(), Breaking::Broken);
                    kind
                }
                Breaking::Left { kind, .. } => kind,
                Breaking::Broken => panic!("it was to be looked at"),
            },
            _ => return None,
        };
        Some((answer, None))
    }
}

fn claim(case: &Case, who: Who, by: Option<i64>) -> Claim<'_> {
    let proposal = by.map(|by| Proposal { token: case.proposed(by), since: SINCE });
    Claim { keys: &case.keys, owner: case.owner(who), ttl: seconds(ASKED), info: NAMES[who.0], proposal }
}

fn entry(case: &Case, who: Who) -> Entry {
    let (grace, ttl, inbox) = (seconds(GRACE), seconds(ASKED), &*inbox(who));
    let (owner, since, info) = (case.owner(who), since(who), NAMES[who.0]);
    Entry::new(&Wanted { owner, secret: &Secret::new(owner), inbox, since, grace, ttl, info })
}

fn vote(case: &Case, sight: &Inspection) -> String {
    let holder = (0..NAMES.len()).map(Who).find(|who| sight.value.starts_with(&case.owner(*who).to_string()));
    let is_held = sight.owner == sight.value;
    let value = match (sight.value.as_str(), holder) {
        ("", _) => String::new(),
        (THEIRS, _) => "foreign".into(),
        (SHARED | PERMITS, _) => "shared".into(),
        (value, Some(who)) if value != case.owner(who).to_string() => format!("longer-{who}"),
        (_, Some(who)) if !is_held => format!("bare-{who}"),
        (_, who) => who.unwrap().to_string(),
    };
    if is_held && let Some(who) = holder {
        assert!(sight.since.is_some(), "of the holder");
        assert_eq!(sight.info, NAMES[who.0], "of the holder");
    } else {
        assert_eq!((sight.owner.as_str(), sight.since, sight.info.as_str()), ("", None, ""), "of nobody");
    }
    assert!(!sight.is_ours, "nobody was asked about");
    assert!(sight.token.is_none_or(|token| token.get() == case.last), "{:?}", sight.token);
    let token = if sight.token.is_some() { "token" } else { "" };
    words(&[&sight.kind, &value, token, &format!("waiters={}", sight.waiters)])
}
