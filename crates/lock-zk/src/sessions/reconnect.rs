//! Moves a session to another server when its connection breaks, and gives it up when no server grants its whole timeout.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::time::{Instant, sleep};
use zookeeper_client::{SessionInfo, SessionState};

use crate::sessions::connection::{Attempt, Closing, Connection, Dialer, Host};
use crate::sessions::link::Link;
use crate::wire::driver_task::TaskGate;

/// Keeps a session connected until it ends.
pub(crate) struct Reconnection {
    dialer: Dialer,
    session: SessionInfo,
    link: Arc<Link>,
}

impl Reconnection {
    /// Starts the task that keeps the session of this connection, and returns its link.
    pub(crate) fn start(dialer: Dialer, connection: Connection) -> Arc<Link> {
        let (session, link) = (connection.client.session().clone(), Arc::<Link>::default());
        let (host, gate) = (Host::clone(&connection.host), Arc::clone(&connection.gate));
        link.up(connection);
        let task = Self { dialer, session, link: Arc::clone(&link) };
        drop(tokio::spawn(task.run(host, gate)));
        link
    }

    async fn run(self, mut host: Host, mut gate: Arc<TaskGate>) {
        loop {
            let state = gate.closed().await;
            if state.is_terminated() {
                return self.link.end(state);
            }
            self.link.down();
            match self.reconnect(&host).await {
                Ok(connection) => {
                    (host, gate) = (Host::clone(&connection.host), Arc::clone(&connection.gate));
                    self.link.up(connection);
                }
                Err(state) => return self.link.end(state),
            }
        }
    }

    /// The next connection, or how the session ended. The servers have ended it after seven fifths of its timeout, unless they heard
    /// more of it.
    async fn reconnect(&self, broken: &Host) -> Result<Connection, SessionState> {
        let broke = Instant::now();
        let (cautious, until) =
            (broke + self.dialer.session_timeout / 3, broke + self.dialer.session_timeout * 7 / 5);
        let (unused, mut backoff) = (&self.link.unused, Backoff::new(&self.dialer));
        while Instant::now() < until {
            let began = Instant::now();
            let moving = self.dialer.try_move(&self.session, broken);
            let Some(attempt) = unused.run_until_cancelled(moving).await else { break };
            match attempt {
                Attempt::Moved(connection) => return Ok(connection),
                Attempt::MovedShorter(connection, granted) => {
                    self.give_up(granted).await;
                    if connection.close().await.is_terminated() {
                        return Err(SessionState::Expired);
                    }
                }
                Attempt::Ended => return Err(SessionState::Expired),
                Attempt::Shorter(granted) => self.give_up(granted).await,
                Attempt::Unreachable => {
                    // Servers that do not keep up get ever more time; those that refuse at once may be back at any moment.
                    let slow = began.elapsed() > self.dialer.silence() / 2;
                    let pause = if slow { backoff.next() } else { backoff.pause() };
                    unused.run_until_cancelled(sleep(pause)).await;
                }
            }
        }
        self.try_close(broken, cautious, until, backoff).await;
        Err(if unused.is_cancelled() { SessionState::Closed } else { SessionState::Expired })
    }

    /// Tries to close the session. Servers that refuse are asked `until` then, and silent ones until it is time to be `cautious`: the
    /// driver gives a connection up two fifths of a timeout after its last answer at the latest, so these hear of the session for one
    /// timeout at most, and end it after two.
    async fn try_close(&self, broken: &Host, cautious: Instant, until: Instant, mut backoff: Backoff) {
        let mut last = until;
        while Instant::now() < last {
            match self.dialer.try_close(&self.session, broken, cautious).await {
                Closing::Closed => return,
                Closing::Refused => last = until,
                Closing::Silent => last = cautious,
            }
            let pause = backoff.next().min(last.saturating_duration_since(Instant::now()));
            sleep(pause).await;
        }
    }

    /// Reports the end of the session, and waits until nobody relies on it any more, so that it may be closed.
    async fn give_up(&self, granted: Duration) {
        tracing::warn!(
            session = %self.session.id(),
            timeout = ?self.dialer.session_timeout,
            ?granted,
            "the ZooKeeper servers grant a shorter session timeout than before, so the session ends and its locks are lost; \
             compare maxSessionTimeout and tickTime of the servers"
        );
        self.link.end(SessionState::Expired);
        self.link.unused.cancelled().await;
    }
}

/// The runtime shut down, or the session has ended.
impl Drop for Reconnection {
    fn drop(&mut self) {
        self.link.end(SessionState::Closed);
    }
}

/// The pauses before all servers are tried again.
struct Backoff {
    longest: Duration,
    limit: Duration,
}

impl Backoff {
    fn new(dialer: &Dialer) -> Self {
        let longest = (dialer.session_timeout / 20).min(Duration::from_millis(500));
        Self { longest, limit: dialer.silence() }
    }

    fn pause(&self) -> Duration {
        self.longest.mul_f64(lock_core::random::rng().random_range(0.5..1.0))
    }

    /// This pause; the later ones are longer.
    fn next(&mut self) -> Duration {
        let pause = self.pause();
        self.longest = (self.longest * 2).min(self.limit);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::connection::tests::{TIMEOUT, dialer, server};
    use futures_util::FutureExt;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use tokio::time::pause;
    use zookeeper_client::Error;

    /// A session without a connection, whose further ones come of this. The time is virtual from then on.
    async fn disconnected<F>(connect: impl Fn(usize) -> F + Send + Sync + 'static) -> (Reconnection, Host)
    where
        F: Future<Output = Error> + Send + 'static,
    {
        let opened = dialer(&server(TIMEOUT, TIMEOUT).await).open().await.unwrap();
        let (session, host, attempts) =
            (opened.client.session().clone(), Host::clone(&opened.host), AtomicUsize::new(0));
        let connect = move |_, _| {
            let error = connect(attempts.fetch_add(1, SeqCst));
            Box::pin(async { Err(error.await) }) as futures_util::future::BoxFuture<'static, _>
        };
        let dialer = Dialer::new(&host, TIMEOUT, Arc::new(connect));
        pause();
        (Reconnection { dialer, session, link: Arc::default() }, host)
    }

    #[tokio::test]
    async fn a_session_that_cannot_be_closed_is_tried_now_and_then() {
        let refused = |attempt| async move {
            assert!(attempt < 30, "without a pause");
            Error::ConnectionLoss
        };
        let (reconnection, host) = disconnected(refused).await;
        reconnection.link.leave();
        let began = Instant::now();
        assert_eq!(reconnection.reconnect(&host).await.err(), Some(SessionState::Closed));
        assert!(began.elapsed() >= TIMEOUT * 7 / 5);
    }

    #[tokio::test]
    async fn a_session_that_is_closed_does_not_wait_for_a_silent_server() {
        let silent_at_first = |attempt| async move {
            if attempt == 0 {
                pending::<()>().await;
            }
            Error::SessionExpired
        };
        let (reconnection, host) = disconnected(silent_at_first).await;
        let (began, link) = (Instant::now(), Arc::clone(&reconnection.link));
        let close = async {
            sleep(Duration::from_millis(1)).await;
            link.leave();
        };
        let (ended, ()) = tokio::join!(reconnection.reconnect(&host), close);
        assert_eq!(ended.err(), Some(SessionState::Closed));
        assert!(began.elapsed() < TIMEOUT / 100);
    }

    /// When silent servers were asked for the last time, since the break, to close a session that is left this long after it. Each
    /// attempt that they hear keeps the session, and thus its locks, for a whole timeout more.
    async fn last_heard(left_after: Duration) -> Duration {
        let last = Arc::new(std::sync::Mutex::new(Instant::now()));
        let heard = Arc::clone(&last);
        let silent = move |_| {
            *heard.lock().unwrap() = Instant::now();
            sleep(TIMEOUT / 5).map(|()| Error::Timeout)
        };
        let (reconnection, host) = disconnected(silent).await;
        let (broke, link) = (Instant::now(), Arc::clone(&reconnection.link));
        let leave = sleep(left_after).map(|()| link.leave());
        let (ended, ()) = tokio::join!(reconnection.reconnect(&host), leave);
        assert_eq!(ended.err(), Some(SessionState::Closed));
        let last = *last.lock().unwrap();
        last - broke
    }

    #[tokio::test]
    async fn silent_servers_hear_of_a_session_for_a_third_of_its_timeout_after_the_break() {
        assert!(last_heard(Duration::ZERO).await < TIMEOUT / 3);
    }

    #[tokio::test]
    async fn silent_servers_are_asked_once_to_close_a_session_that_has_ended_in_time() {
        let left = TIMEOUT * 3 / 4;
        assert!(last_heard(left).await < left + TIMEOUT / 100);
    }
}
