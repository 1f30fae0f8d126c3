//! The stream of leaders.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{BoxStream, Stream, StreamExt, unfold};
use tokio::time::sleep;

use super::{FIRST_PAUSE, LAST_PAUSE, Leader};
use crate::connection::Connection;
use crate::{Error, ErrorKind, LockName, LockState, Result, Token};

/// Observes an election: a stream of who leads, `None` while nobody does.
///
/// Made by [`Election::observe`](crate::Election::observe). The first item is the present leader, then every change that
/// the observer could see:
///
/// * **Pushed.** The stores notify it of a change. It polls on Redis servers without client tracking (RESP3), on Redlock
///   where they are a majority, and on backends that do not implement [`Backend::await_change`](crate::Backend::await_change).
/// * **In order.** Tokens only grow from leader to leader. A leader with a smaller token than one that was reported is not
///   reported: whoever checks tokens refuses its writes. That happens only after the store lost data.
/// * **What may be skipped.** Leaders that follow each other faster than the observer can look: of several changes between
///   two looks it reports the last. A leader that resigned and was elected again is reported again, as its token is
///   larger. While nobody leads for a moment only, `None` may be skipped.
/// * **For ever.** An error is an item. After a [retryable](Error::is_retryable) one the observer goes on after a pause of at
///   most 2 s. Any other error is the last item, such as [`Closed`](ErrorKind::Closed) after
///   [`close`](crate::Locks::close).
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
    seen: Option<LockState>,
    reported: Reported,
    /// The pause after the next error.
    pause: Duration,
    progress: Progress,
}

enum Progress {
    Looking,
    /// The last item was an error that passes.
    Failed,
    Ended,
}

/// What an observer has reported.
#[derive(Debug, Default)]
struct Reported {
    /// `None` before the first report.
    last: Option<Option<Leader>>,
    highest: Option<Token>,
}

impl Observer {
    pub(super) fn new(connection: Arc<Connection>, name: &str) -> Self {
        let observation = Observation {
            connection,
            name: LockName::new(name),
            seen: None,
            reported: Reported::default(),
            pause: FIRST_PAUSE,
            progress: Progress::Looking,
        };
        let next = |mut observation: Observation| async {
            let item = observation.next().await?;
            Some((item, observation))
        };
        Self(unfold(observation, next).boxed())
    }

    /// The next change; `None` after an error that is not [retryable](Error::is_retryable). As a stream it does the same.
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
        match self.progress {
            Progress::Looking => {}
            Progress::Failed => {
                sleep(self.pause).await;
                self.pause = (2 * self.pause).min(LAST_PAUSE);
            }
            Progress::Ended => return None,
        }
        loop {
            let looked = tokio::select! {
                biased;
                () = self.connection.origin.closed.cancelled() => Err(Error::closed(self.connection.backend_name())),
                looked = self.look() => looked,
            };
            let state = match looked {
                Ok(state) => state,
                Err(error) => {
                    self.progress = if error.is_retryable() { Progress::Failed } else { Progress::Ended };
                    return Some(Err(self.explain(error)));
                }
            };
            (self.progress, self.pause) = (Progress::Looking, FIRST_PAUSE);
            let report = self.reported.next(Leader::of(&state));
            self.seen = Some(state);
            if let Some(leader) = report {
                return Some(Ok(leader));
            }
        }
    }

    /// The present state, or the next one after that which was seen.
    async fn look(&self) -> Result<LockState> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        let state = match &self.seen {
            None => self.connection.request(|backend| backend.inspect(name)).await?,
            Some(seen) => self.connection.request(|backend| backend.await_change(name, seen)).await?,
        };
        match &state.moved {
            None => Ok(state),
            Some(tombstone) => Err(Error::new(ErrorKind::Moved, self.connection.backend_name())
                .with_message(format!("the election has moved to {}", tombstone.to))
                .with_hint("observe it there, by the URL of the migration or of the new store")),
        }
    }

    fn explain(&self, error: Error) -> Error {
        let error = error.during("observe");
        self.name.as_ref().map_or_else(|_| error.clone(), |name| error.clone().on(name))
    }
}

impl Reported {
    /// What to report now, if it differs from the last report.
    fn next(&mut self, leader: Option<Leader>) -> Option<Option<Leader>> {
        let is_old = |leader: &Leader| leader.token.is_some_and(|token| Some(token) < self.highest);
        let leader = leader.filter(|leader| !is_old(leader));
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
    fn a_leader_with_an_older_token_is_none() {
        let mut reported = Reported::default();
        assert!(reported.next(Some(leader(7))).is_some());
        assert_eq!(reported.next(Some(leader(6))), Some(None));
        assert_eq!(reported.next(Some(leader(5))), None);
        assert_eq!(reported.next(Some(leader(8))), Some(Some(leader(8))));
    }

    proptest! {
        /// Whatever is seen: no two reports in a row are the same, and tokens never shrink.
        #[test]
        fn reports_differ_and_tokens_grow(looks in prop::collection::vec(prop::option::of(0..5_u64), 0..50)) {
            let mut reported = Reported::default();
            let seen = looks.into_iter().filter_map(|look| reported.next(look.map(leader)));
            let reports: Vec<_> = seen.collect();
            prop_assert!(reports.windows(2).all(|pair| pair[0] != pair[1]));
            let tokens: Vec<_> = reports.iter().flatten().filter_map(|leader| leader.token).collect();
            prop_assert!(tokens.is_sorted());
        }
    }
}
