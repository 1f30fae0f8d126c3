//! The scripts of a single server.

use lock_core::engine::{Changed, Extension, Hold};
use lock_core::{Mode, Token};
use lock_redis::request::{Ask, Entry};
use lock_redis::server::Server;
use redis_link::inspection::Inspection;
use redis_link::proof::Secret;
use redis_link::redis::ConnectionInfo;
use redis_link::wire::TokenTtl;

use super::bench::{
    ASKED, Case, EXTENDED, GRACE, PERMITS, SHARED, Scripts, THEIRS, inbox, refused, seconds, verdict, words,
};
use super::laws::Step;
use super::op::Op;
use super::record;
use super::state::{Family, NAMES, Who};
use crate::common::extended;

pub struct Single(Server);

impl Scripts for Single {
    const FAMILY: Family = Family::Single;

    fn new(server: ConnectionInfo, tells_free: bool) -> Self {
        Self(Server::single(server, tells_free).unwrap())
    }

    fn entry(case: &Case, who: Who, mode: Mode) -> String {
        let (grace, ttl, inbox) = (seconds(GRACE), seconds(ASKED), &*inbox(who));
        let (owner, token_ttl, info) = (case.owner(who), TokenTtl::USUAL, NAMES[who.0]);
        let secret = &Secret::new(owner);
        Entry { owner, secret, mode, grace, ttl, token_ttl, inbox, info }.to_string()
    }

    fn compare(step: &Step) {
        record::check(step);
    }

    async fn run(&self, case: &Case, op: Op) -> Option<(String, Option<Token>)> {
        let (server, keys) = (&self.0, &case.keys);
        let ask = |who: Who, mode, entry| Ask {
            keys,
            owner: case.owner(who),
            mode,
            ttl: seconds(ASKED),
            info: NAMES[who.0],
            entry,
            is_confirmation: matches!(op, Op::Confirm(..)),
        };
        let ours = |is_ours, what: &str| if is_ours { what } else { "not ours" }.to_owned();
        let answer = match op {
            Op::Ask(who, mode) => {
                return Some(verdict(
                    server.ask(server.moment(), &ask(who, mode, None), &server.client.dispatch()).await,
                ));
            }
            Op::Queue(who, mode) | Op::Confirm(who, mode) => {
                let entry = Self::entry(case, who, mode);
                return Some(verdict(
                    server
                        .ask(server.moment(), &ask(who, mode, Some(&entry)), &server.client.dispatch())
                        .await,
                ));
            }
            Op::Rotate(from, to) => {
                match server
                    .rotate(case.owner(from), &ask(to, Mode::Exclusive, None), &server.client.dispatch())
                    .await
                {
                    Ok(Changed::Done(token)) => return Some(("passed".into(), Some(token))),
                    Ok(_) => ours(false, ""),
                    Err(error) => refused(&error),
                }
            }
            Op::Release(who) => {
                ours(server.release(keys, case.owner(who), None).await.unwrap() == Some(true), "released")
            }
            Op::Leave(who, mode) => {
                let entry = Self::entry(case, who, mode);
                let released = server.release(keys, case.owner(who), Some(&*entry)).await.unwrap();
                ours(released == Some(true), "released")
            }
            Op::Extend(who) => ours(self.extend(case, who, Hold::Shared).await, "extended"),
            Op::Keep(who) => ours(self.extend(case, who, Hold::Granted).await, "kept"),
            Op::Downgrade(who) => ours(self.extend(case, who, Hold::Downgrading).await, "downgraded"),
            Op::Raise(who, by) => {
                let raised = server.raise(keys, case.owner(who), case.proposed(by), seconds(ASKED)).await;
                raised.map_or_else(|error| refused(&error), |raised| ours(raised, "raised"))
            }
            Op::Look(who) => sight(case, &server.inspect(keys, Some(case.owner(who))).await.unwrap()),
            Op::Break => server.break_lock(keys).await.unwrap(),
            _ => return None,
        };
        Some((answer, None))
    }
}

impl Single {
    async fn extend(&self, case: &Case, who: Who, hold: Hold) -> bool {
        let mut lease = Extension::new(&case.keys, case.owner(who), seconds(EXTENDED));
        (lease.hold, lease.shortens) = (hold, true);
        extended(&self.0, &[lease]).await.remove(0).unwrap()
    }
}

fn sight(case: &Case, sight: &Inspection) -> String {
    let value = match sight.value.as_str() {
        "" => String::new(),
        THEIRS => "foreign".into(),
        shared if shared.starts_with(SHARED) || shared.starts_with(PERMITS) => "shared".into(),
        owner => case.who(owner).unwrap().to_string(),
    };
    let ours = if sight.is_ours { "ours" } else { "" };
    words(&[&sight.kind, &value, &format!("waiters={}", sight.waiters), ours])
}
