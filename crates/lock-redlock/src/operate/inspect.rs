//! Inspects, breaks, lists and watches locks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use lock_core::backend::MAX_LISTED;
use lock_core::waiting::{ROUNDING, pause_between};
use lock_core::{Capabilities, LockName, LockState, OwnerId, Result, ServerLockState, ServerView, Token};
use redis_link::break_lock::Breaking;
use redis_link::error::not_a_lock;
use redis_link::inspection::Inspection;
use redis_link::key_watch::KeyWatch;
use redis_link::keys::Keys;
use tokio::time::sleep;

use crate::context::Context;
use crate::error::BACKEND;
use crate::servers::master::{Master, Readiness};
use crate::servers::masters::{ask_all, of_a_quorum};
use crate::voting::ballot::Request;
use crate::voting::quorum::quorum;

/// A last token that is further ahead of the clock than this, in microseconds, was raised.
const AHEAD: u64 = 60_000_000;
/// How long the first reports of a change wait for others.
const GATHER: Duration = Duration::from_millis(50);

impl Context {
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let looks = self.look_by_voters(&self.keys(name)?).await?;
        let masters = looks.iter().zip(&*self.masters);
        let servers = masters.map(|(seen, master)| view(master.client.address(), seen)).collect();
        let all_seen = looks.into_iter().flatten().collect();
        let seen = agreed(all_seen, self.masters.len());
        let mut state = seen.state();
        if let Some(holder) = state.holders.first_mut().filter(|holder| holder.owner().is_some()) {
            holder.token = token_of(&seen, self.micros());
        }
        state.servers = servers;
        Ok(state)
    }

    /// Waits until the lock has other holders. Each round arms the report of each master that its key has changed, then inspects the
    /// lock, so that no change falls between. A quorum of reports ends the wait. Fewer may be a change as well, where the holder
    /// had no more than a quorum: they end it after a pause, in which the others arrive. After a renewal the round ends in the same
    /// holders, and the next begins.
    pub(crate) async fn await_change(&self, name: &LockName, seen: &LockState) -> Result<LockState> {
        let keys = self.keys(name)?;
        loop {
            let watches = self.watch(&keys).await;
            let state = self.inspect(name).await?;
            if !state.has_holders_of(seen) {
                return Ok(state);
            }
            let armed = watches.iter().filter(|watch| watch.is_armed()).count();
            let expires = state.holders.iter().filter_map(|holder| holder.remaining).min();
            let again = match armed >= quorum(self.masters.len()) {
                // Reports that are lost, and the end of a lease, which the servers may report late.
                true => expires.map_or(self.ttl, |left| self.ttl.min(left + ROUNDING)),
                false => pause_between(400, 600),
            };
            tokio::select! {
                () = reported(watches, quorum(self.masters.len())) => {}
                () = sleep(again) => {}
            }
        }
    }

    /// Arms the reports of the masters that answer.
    async fn watch(&self, keys: &Keys) -> Vec<KeyWatch> {
        let healthy = self.masters.iter().filter(|master| matches!(master.readiness(), Readiness::Healthy));
        join_all(healthy.map(|master| KeyWatch::arm(&master.pushes, keys))).await
    }

    pub(crate) async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let keys = self.keys(name)?;
        // Before anything is removed anywhere; and only what is seen now, whenever a master carries the rest out.
        let looked = self.ask_all(|master| {
            let keys = Arc::clone(&keys);
            async move { master.voter.break_if(&keys, "").await }
        });
        let looked = looked.await?;
        let is_lock = |kind: &str| matches!(kind, "string" | "none");
        let foreign = looked.iter().flatten().find_map(|seen| match seen {
            Breaking::Left { kind, .. } if !is_lock(kind) => Some(kind),
            _ => None,
        });
        if let Some(kind) = foreign {
            return Err(not_a_lock(BACKEND, kind));
        }
        let proposal = self.proposal();
        let breaking = self.ask_all(|master| {
            let number = self.masters.iter().position(|other| Arc::ptr_eq(other, &master));
            let seen = number.map(|number| looked[number].clone());
            let keys = Arc::clone(&keys);
            async move {
                let Some(Ok(Breaking::Left { kind, hash })) = seen else { return Ok(None) };
                if kind != "string" {
                    return Ok(Some(kind));
                }
                let broken = master.voter.break_if(&keys, &hash).await?;
                // Hands the lock over to the next waiter; if that fails, the waiters poll.
                let hand_over = Request::vacate(&keys, OwnerId::random(), proposal, None);
                drop(master.voter.vacate(&hand_over, &master.client.dispatch()).await);
                Ok(Some(if broken == Breaking::Broken { kind } else { "none".to_owned() }))
            }
        });
        let kinds = breaking.await?.into_iter().map(|kind| kind.ok().flatten()).zip(&*self.masters);
        // A restarted master may have lost the lock.
        let seen =
            kinds.filter(|(kind, master)| kind.as_deref() != Some("none") || master.may_vote().is_ok());
        let kinds: Vec<_> = seen.filter_map(|(kind, _)| kind).collect();
        let unseen = self.masters.len() - kinds.len();
        let broken = kinds.iter().filter(|kind| *kind == "string").count();
        // Masters that did not answer may have had the lock.
        Ok(broken > 0 && broken + unseen >= quorum(self.masters.len()))
    }

    pub(crate) async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let keys = self.keys(name)?;
        let looks = self.look_by_voters(&keys).await?;
        if let Some(seen) = looks.iter().flatten().find(|seen| !matches!(&*seen.kind, "string" | "none")) {
            return Err(not_a_lock(BACKEND, &seen.kind));
        }
        let seen = agreed(looks.into_iter().flatten().collect(), self.masters.len());
        // A later holder has a larger token, and so has a quorum then. Two holders have the same proposal only if the clock
        // of the second shows, to the microsecond, the token of the first.
        let is_its = seen.token == Some(token) || seen.since == Some(token.get());
        let Some(owner) = OwnerId::decode(&seen.owner).filter(|_| is_its) else { return Ok(false) };
        // Each master compares the owner id, which is unique.
        let proposal = self.proposal();
        let removed = self.ask_all(|master| {
            let keys = Arc::clone(&keys);
            async move {
                let vacated = master
                    .voter
                    .vacate(&Request::vacate(&keys, owner, proposal, None), &master.client.dispatch())
                    .await?;
                // A restarted master may have lost the lock.
                Ok(vacated.was_ours.filter(|ours| *ours || master.may_vote().is_ok()))
            }
        });
        let removed: Vec<_> = removed.await?.into_iter().map(|removed| removed.ok().flatten()).collect();
        let count = |what: Option<bool>| removed.iter().filter(|removed| **removed == what).count();
        let (broken, unseen) = (count(Some(true)), count(None));
        // Masters that did not answer may have had the lock.
        Ok(broken > 0 && broken + unseen >= quorum(self.masters.len()))
    }

    pub(crate) async fn list(&self, prefix: &str, capabilities: &Capabilities) -> Result<Vec<LockName>> {
        let beginning = format!("{}{prefix}", self.prefix);
        let scan = |master: &Arc<Master>| {
            let (master, beginning) = (Arc::clone(master), beginning.clone());
            async move {
                let keys = master.client.keys_that_begin(&beginning, MAX_LISTED).await?;
                // One that has restarted may have forgotten locks.
                master.may_vote().map(|()| keys)
            }
        };
        let answers = of_a_quorum(join_all(self.masters.iter().map(scan)).await)?;
        // What a master shows of too many is another part of them than what the next one shows.
        let longest = answers.iter().flatten().map(Vec::len).max().unwrap_or(0);
        capabilities.check_listed(longest)?;
        let unseen = answers.iter().filter(|answer| answer.is_err()).count();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for key in answers.into_iter().flatten().flatten() {
            *seen.entry(key).or_default() += 1;
        }
        seen.retain(|_, masters| *masters + unseen >= quorum(self.masters.len()));
        Ok(Keys::names(&self.prefix, seen.into_keys().collect()))
    }

    async fn look(&self, keys: &Arc<Keys>) -> Result<Vec<Result<Inspection>>> {
        self.ask_all(|master| {
            let keys = Arc::clone(keys);
            async move { master.voter.inspect(&keys).await }
        })
        .await
    }

    /// As [`look`](Self::look), without the masters that may not vote: a restarted one may have lost the lock.
    async fn look_by_voters(&self, keys: &Arc<Keys>) -> Result<Vec<Result<Inspection>>> {
        let votes = self.look(keys).await?.into_iter().zip(&*self.masters);
        let votes = votes.map(|(seen, master)| seen.and_then(|seen| master.may_vote().map(|()| seen)));
        of_a_quorum(votes.collect())
    }

    /// The answer of each master, if a quorum answers.
    async fn ask_all<T, F>(&self, ask: impl Fn(Arc<Master>) -> F) -> Result<Vec<Result<T>>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        of_a_quorum(ask_all(&self.masters, ask).await)
    }
}

/// The view of one master.
fn view(address: &str, seen: &Result<Inspection>) -> ServerView {
    let view = match seen {
        Ok(seen) => seen
            .state()
            .holders
            .pop()
            .map_or(ServerLockState::Free, |first| ServerLockState::Held(first.holder)),
        Err(error) => ServerLockState::Unknown(error.to_string()),
    };
    ServerView::new(address, view)
}

/// The state on which a quorum agrees, or may agree together with the masters that did not answer, and the largest token. A
/// lock is free only if no client can hold it.
fn agreed(all_seen: Vec<Inspection>, masters: usize) -> Inspection {
    let unseen = masters - all_seen.len();
    let token = all_seen.iter().filter_map(|seen| seen.token).max();
    let mut votes: BTreeMap<(String, String), Vec<Inspection>> = BTreeMap::new();
    for seen in all_seen.into_iter().filter(|seen| seen.kind != "none") {
        votes.entry((seen.kind.clone(), seen.value.clone())).or_default().push(seen);
    }
    let most = votes.into_values().max_by_key(Vec::len);
    let winner = most.filter(|all_seen| all_seen.len() + unseen >= quorum(masters));
    let free = Inspection { kind: "none".into(), ..Inspection::default() };
    let ends_in = winner.as_ref().and_then(|all_seen| ends_in(all_seen, masters));
    Inspection { token, ends_in, ..winner.and_then(|mut all_seen| all_seen.pop()).unwrap_or(free) }
}

/// The token of the holder, which the masters do not store: the token that it proposed, or the last one if that is far
/// ahead of the clock. A slightly larger last token comes from proposals of other clients.
fn token_of(seen: &Inspection, now: u64) -> Option<Token> {
    let proposed = seen.since.filter(|since| *since > 0).and_then(Token::stored);
    proposed.filter(|_| seen.token.is_none_or(|last| last.get() <= now + AHEAD)).or(seen.token)
}

/// The time until the holder's keys expire on so many masters that the rest is no quorum; `None` if they do not expire.
fn ends_in(all_seen: &[Inspection], masters: usize) -> Option<Duration> {
    let mut ends: Vec<_> = all_seen.iter().map(|seen| seen.ends_in.unwrap_or(Duration::MAX)).collect();
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.truncate(quorum(masters));
    ends.pop().filter(|end| *end < Duration::MAX)
}

/// Waits for so many reports, or for fewer and a pause.
async fn reported(watches: Vec<KeyWatch>, enough: usize) {
    let mut reports: FuturesUnordered<_> = watches.into_iter().map(KeyWatch::reported).collect();
    if reports.next().await.is_none() {
        // No master can report.
        return std::future::pending().await;
    }
    let others = async {
        for _ in 1..enough {
            reports.next().await;
        }
    };
    tokio::select! {
        () = others => {}
        () = sleep(GATHER) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_the_token_that_it_proposed_unless_tokens_were_raised() {
        let token = |since, last: Option<u64>| {
            let seen = Inspection { since, token: last.map(Token::new), ..Inspection::default() };
            token_of(&seen, 5_000).map(Token::get)
        };
        assert_eq!(token(Some(4_000), Some(4_000)), Some(4_000));
        assert_eq!(token(Some(4_000), Some(4_700)), Some(4_000), "another has proposed it meanwhile");
        assert_eq!(token(Some(4_000), Some(1 << 40)), Some(1 << 40));
        assert_eq!(
            (token(None, Some(7)), token(Some(0), Some(7)), token(None, None)),
            (Some(7), Some(7), None)
        );
        assert_eq!(token(Some(u64::MAX), None), None);
    }

    #[test]
    fn a_lock_ends_when_the_quorum_does() {
        let all_seen = |ends: &[Option<u64>]| {
            let seen = |end: &Option<u64>| Inspection {
                ends_in: end.map(Duration::from_secs),
                ..Inspection::default()
            };
            ends.iter().map(seen).collect::<Vec<_>>()
        };
        let ends_in = |ends: &[Option<u64>]| ends_in(&all_seen(ends), 5).map(|end| end.as_secs());
        assert_eq!(ends_in(&[Some(9), Some(1), Some(8), Some(7), Some(2)]), Some(7));
        assert_eq!(ends_in(&[Some(9), Some(8)]), Some(8), "others are not seen");
        assert_eq!(ends_in(&[None, Some(8), None, Some(1)]), Some(8));
        assert_eq!(ends_in(&[None, Some(8), None, None]), None);
        assert_eq!(ends_in(&[]), None);
    }
}
