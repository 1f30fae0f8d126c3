//! The stream of leaders.

use std::fmt;
use std::future::pending;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{BoxStream, Stream, StreamExt, unfold};
use tokio::sync::watch;
use tokio::time::sleep;

use super::Leader;
use crate::process::connection::Connection;
use crate::process::persistence::{LAST_PAUSE, Outage};
use crate::{Error, ErrorKind, LockName, LockState, Persistence, Result, Token};

/// Observes an election: a stream of leaders, `None` while there is none.
///
/// Made by [`Election::observe`](crate::Election::observe). The first item is the present leader, then every change that
/// the observer could see:
///
/// * **Pushed.** Redis, Redlock, PostgreSQL, ZooKeeper and the memory notify it of a change. It polls on Redis servers without client
///   tracking (RESP3), on Redlock where they are a majority, and on the other backends, which do not implement
///   [`Backend::await_change`](crate::Backend::await_change).
/// * **In order.** Tokens only grow from leader to leader, unless the store lost data. A leader with a smaller token than one
///   that was reported is reported only when it still leads two seconds later: whoever checks tokens refuses its writes.
/// * **What may be skipped.** Leaders that follow each other faster than the observer can look: of several changes between
///   two looks it reports the last. A leader that resigned and was elected again is reported again, as its token is
///   larger. While nobody leads for a moment only, `None` may be skipped.
/// * **For ever.** An error that [can pass](Error::can_pass) is an item when an outage begins, and the observer goes on
///   ([`Persistence`]). When it is over, the next item is the leader, be it another one or not. Any other error is the last
///   item, such as [`Closed`](ErrorKind::Closed) after [`close`](crate::Locks::close).
/// * **With the campaigns.** What a candidate of these [`Locks`](crate::Locks) is refused is such an item too: a server that is
///   out of memory answers observers, and elects nobody.
///
/// What it reports may be over by then: it is for those who follow a leader. A leader relies on its
/// [`Leadership`](crate::Leadership) alone.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// # let closing = locks.clone();
/// # tokio::spawn(async move { closing.close().await });
/// let mut leaders = locks.election("scheduler").observe();
/// while let Some(leader) = leaders.next().await {
///     match leader {
///         Ok(Some(leader)) => println!("{} leads with token {:?}", leader.holder, leader.token),
///         Ok(None) => println!("nobody leads"),
///         Err(error) => eprintln!("{error}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping it ends the observation. Nothing stays on the server but a watch or a subscription for a while.
pub struct Observer(BoxStream<'static, Result<Option<Leader>>>);

/// Looks at one election, again and again.
struct Observation {
    connection: Arc<Connection>,
    name: Result<LockName>,
    persistence: Persistence,
    seen: Option<LockState>,
    reported: Reported,
    outage: Outage,
    /// The pause before the next look.
    pause: Duration,
    /// Notified when a campaign is refused, or is refused no more.
    refusals: watch::Receiver<()>,
    /// The refusal of a campaign that was reported.
    refused: Option<ErrorKind>,
    has_ended: bool,
}

/// What an observer has reported.
#[derive(Debug, Default)]
struct Reported {
    /// `None` before the first report.
    last: Option<Option<Leader>>,
    highest: Option<Token>,
    /// A smaller token that was seen. Its leader is reported if it is still there at the next look.
    doubted: Option<Token>,
}

impl Observer {
    pub(super) fn new(connection: Arc<Connection>, name: &str, persistence: Persistence) -> Self {
        let observation = Observation {
            refusals: connection.queues.refusals(),
            connection,
            name: LockName::new(name),
            persistence,
            seen: None,
            reported: Reported::default(),
            outage: Outage::default(),
            pause: Duration::ZERO,
            refused: None,
            has_ended: false,
        };
        let next = |mut observation: Observation| async {
            let item = observation.next().await?;
            Some((item, observation))
        };
        Self(unfold(observation, next).boxed())
    }

    /// The next change; `None` after an error that cannot [pass](Error::can_pass). As a stream it does the same.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no change is lost.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        self.0.next().await
    }
}

impl Stream for Observer {
    type Item = Result<Option<Leader>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

impl Observation {
    async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        while !self.has_ended {
            if let Some(refusal) = self.new_refusal() {
                return Some(Err(refusal));
            }
            let Self { connection, name, seen, pause, refusals, refused, .. } = self;
            let looked = tokio::select! {
                biased;
                () = connection.origin.closed.cancelled() => Err(connection.closed()),
                () = refusal_changes(connection, name, refusals, *refused) => continue,
                looked = look_later(connection, name, seen.as_ref(), *pause) => looked,
            };
            match looked {
                Ok(state) => {
                    if let Some(leader) = self.note(state) {
                        return Some(Ok(leader));
                    }
                }
                Err(error) => {
                    if let Some(error) = self.failed(error) {
                        return Some(Err(error));
                    }
                }
            }
        }
        None
    }

    /// Notes what was seen, and returns what to report.
    fn note(&mut self, state: LockState) -> Option<Option<Leader>> {
        if self.outage.end() {
            self.reported.last = None;
        }
        let report = self.reported.next(Leader::of(&state));
        let looks_again = self.reported.doubted.is_some();
        self.pause = if looks_again { LAST_PAUSE } else { Duration::ZERO };
        self.seen = Some(state).filter(|_| !looks_again);
        report
    }

    /// Notes an error, and returns it if it is to be reported.
    fn failed(&mut self, error: Error) -> Option<Error> {
        let error = self.explain(error);
        self.has_ended = !self.persistence.goes_on(&error, true);
        let is_new = self.has_ended || self.outage.note(&error);
        (self.seen, self.pause) = (None, self.outage.pause());
        is_new.then_some(error)
    }

    /// Why a campaign is refused, if that was not reported yet. The leader is reported once the refusals end.
    fn new_refusal(&mut self) -> Option<Error> {
        let refusal = self.connection.queues.refusal(self.name.as_ref().ok()?);
        let kind = refusal.as_ref().map(Error::kind);
        if mem::replace(&mut self.refused, kind) == kind {
            return None;
        }
        if refusal.is_none() {
            (self.seen, self.reported.last) = (None, None);
        }
        refusal
    }

    fn explain(&self, error: Error) -> Error {
        let error = error.during("observe");
        self.name.as_ref().map_or_else(|_| error.clone(), |name| error.clone().on(name))
    }
}

/// Waits until the campaigns of this election are refused for another reason than this one, or are refused no more.
async fn refusal_changes(
    connection: &Connection,
    name: &Result<LockName>,
    refusals: &mut watch::Receiver<()>,
    known: Option<ErrorKind>,
) {
    let Ok(name) = name else { return pending().await };
    while refusals.changed().await.is_ok() {
        if connection.queues.refusal(name).as_ref().map(Error::kind) != known {
            return;
        }
    }
    pending::<()>().await;
}

/// The state after a pause, or the next one after that which was seen.
async fn look_later(
    connection: &Connection,
    name: &Result<LockName>,
    seen: Option<&LockState>,
    pause: Duration,
) -> Result<LockState> {
    let name = name.as_ref().map_err(Clone::clone)?;
    if !pause.is_zero() {
        sleep(pause).await;
    }
    look(connection, name, seen).await
}

/// The state, or the next one after that which was seen.
pub(super) async fn look(
    connection: &Connection,
    name: &LockName,
    seen: Option<&LockState>,
) -> Result<LockState> {
    let state = match seen {
        None => connection.request("inspect", Some(name), |backend| backend.inspect(name)).await?,
        Some(seen) => {
            connection.request("await change", Some(name), |backend| backend.await_change(name, seen)).await?
        }
    };
    match &state.moved {
        None => Ok(state),
        Some(tombstone) => Err(Error::new(ErrorKind::Moved, connection.backend_name())
            .with_message(format!("the election has moved to {}", tombstone.to))
            .with_hint("observe it there, by the URL of the migration or of the new store")),
    }
}

impl Reported {
    /// What to report now, if it differs from the last report.
    fn next(&mut self, leader: Option<Leader>) -> Option<Option<Leader>> {
        let token = leader.as_ref().and_then(|leader| leader.token);
        let is_old = token.is_some() && token < self.highest;
        let before = mem::replace(&mut self.doubted, token.filter(|_| is_old));
        if is_old && before == token {
            tracing::warn!(
                "the leader of an election has a smaller token than an earlier one: the store lost data"
            );
            (self.highest, self.doubted) = (token, None);
        }
        let leader = leader.filter(|_| self.doubted.is_none());
        if self.last.as_ref() == Some(&leader) {
            return None;
        }
        self.highest = self.highest.max(leader.as_ref().and_then(|leader| leader.token));
        self.last = Some(leader.clone());
        Some(leader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Holder;

    fn leader(token: u64) -> Leader {
        Leader { holder: Holder::Unknown("a".into()), token: Some(Token::new(token)), since: None }
    }

    #[test]
    fn only_changes_are_reported() {
        let mut reported = Reported::default();
        assert_eq!(reported.next(None), Some(None), "the first look is a report");
        assert_eq!(reported.next(None), None);
        assert_eq!(reported.next(Some(leader(1))), Some(Some(leader(1))));
        assert_eq!(reported.next(Some(leader(1))), None);
        assert_eq!(reported.next(Some(leader(2))), Some(Some(leader(2))), "elected again");
        assert_eq!(reported.next(None), Some(None));
    }

    #[test]
    fn a_leader_with_a_smaller_token_is_none_unless_it_stays() {
        let mut reported = Reported::default();
        assert!(reported.next(Some(leader(7))).is_some());
        assert_eq!(reported.next(Some(leader(6))), Some(None));
        assert_eq!(reported.next(Some(leader(5))), None);
        assert_eq!(reported.next(Some(leader(8))), Some(Some(leader(8))));
        assert_eq!(reported.next(Some(leader(2))), Some(None));
        assert_eq!(reported.next(Some(leader(2))), Some(Some(leader(2))), "the store lost data");
        assert_eq!(reported.next(Some(leader(2))), None);
        assert_eq!(reported.next(Some(leader(3))), Some(Some(leader(3))));
        assert_eq!(reported.next(Some(leader(2))), Some(None));
        assert_eq!(reported.next(None), None);
        assert_eq!(reported.next(Some(leader(2))), None, "it was gone in between");
    }

    proptest! {
        /// Whatever is seen: no two reports in a row are the same, and tokens shrink only if two looks in a row saw that.
        #[test]
        fn reports_differ_and_tokens_grow(looks in prop::collection::vec(prop::option::of(0..5_u64), 0..50)) {
            let (mut reported, mut before, mut tokens) = (Reported::default(), None, Vec::new());
            let mut reports = Vec::new();
            for look in looks {
                if let Some(report) = reported.next(look.map(leader)) {
                    let token = report.as_ref().and_then(|leader| leader.token);
                    let shrinks = token.is_some() && token < tokens.last().copied();
                    prop_assert!(!shrinks || look == before, "{tokens:?}, then {look:?}");
                    tokens.extend(token);
                    reports.push(report);
                }
                before = look;
            }
            prop_assert!(reports.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }
}
