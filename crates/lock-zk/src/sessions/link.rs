//! The link of a session to the ensemble: its connection, or the requests that wait for one.

use std::fmt;
use std::future::ready;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Error, SessionState};

use crate::poison::lock;
use crate::sessions::connection::Connection;
use crate::sessions::ensemble::States;

/// The link of one session.
pub(crate) struct Link {
    state: Mutex<LinkState>,
    states: watch::Sender<SessionState>,
    /// Fires when nobody uses the session any more, so that it may be closed.
    pub(crate) unused: CancellationToken,
}

enum LinkState {
    /// Each request has a share of it.
    Up(Arc<Connection>),
    Down(Queue),
    /// Nothing is sent any more.
    Over,
}

/// The requests to be sent over the next connection, in this order.
#[derive(Default)]
struct Queue(Vec<Queued>);

struct Queued {
    /// Gone once the caller has given up.
    caller: Weak<()>,
    send: SendOver,
}

type SendOver = Box<dyn FnOnce(&Arc<Connection>) + Send>;

impl Queue {
    fn push(&mut self, request: Queued) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(Queued::is_wanted);
            // Half of it is free, so that a push costs little on average.
            self.0.reserve(self.0.len().max(8));
        }
        self.0.push(request);
    }

    fn send(self, connection: &Arc<Connection>) {
        self.0.into_iter().filter(Queued::is_wanted).for_each(|request| (request.send)(connection));
    }
}

impl Queued {
    fn is_wanted(&self) -> bool {
        self.caller.strong_count() > 0
    }
}

impl Link {
    /// Sends a request now, or over the next connection; it is not sent if its future is dropped before there is one.
    pub(crate) fn send<T, E, F>(
        &self,
        request: impl FnOnce(Arc<Connection>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, E>>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let mut state = self.state();
        state.note_break();
        match &mut *state {
            LinkState::Up(connection) => sent(request(Arc::clone(connection))),
            LinkState::Down(queue) => {
                let (caller, (pass_on, answer)) = (Arc::new(()), oneshot::channel());
                queue.push(Queued {
                    caller: Arc::downgrade(&caller),
                    send: Box::new(|connection| drop(pass_on.send(sent(request(Arc::clone(connection)))))),
                });
                async move {
                    let answer = answer.await.map_err(|_| Error::SessionExpired)?;
                    drop(caller);
                    answer.await
                }
                .boxed()
            }
            LinkState::Over => ready(Err(Error::SessionExpired.into())).boxed(),
        }
    }

    /// The states from now on.
    pub(crate) fn states(&self) -> LinkStates {
        LinkStates(self.states.subscribe())
    }

    /// The connection is broken.
    pub(crate) fn down(&self) {
        let mut state = self.state();
        state.note_break();
        self.states.send_replace(SessionState::Disconnected);
    }

    /// Sends what waits over this connection, and all that follows. Drops it if the session is over, which closes the session.
    pub(crate) fn up(&self, connection: Connection) {
        let mut state = self.state();
        if let LinkState::Down(queue) = &mut *state {
            let connection = Arc::new(connection);
            mem::take(queue).send(&connection);
            *state = LinkState::Up(connection);
            self.states.send_replace(SessionState::SyncConnected);
        }
    }

    /// The session has ended.
    pub(crate) fn end(&self, last: SessionState) {
        *self.state() = LinkState::Over;
        self.states.send_if_modified(|state| {
            let ends = !state.is_terminated();
            if ends {
                *state = last;
            }
            ends
        });
    }

    /// Nobody uses the session any more: it is closed once all requests under way are dropped.
    pub(crate) fn leave(&self) {
        *self.state() = LinkState::Over;
        self.unused.cancel();
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        lock(&self.state)
    }
}

/// A link without a connection yet.
impl Default for Link {
    fn default() -> Self {
        Self {
            state: Mutex::new(LinkState::Down(Queue::default())),
            states: watch::Sender::new(SessionState::Disconnected),
            unused: CancellationToken::new(),
        }
    }
}

impl LinkState {
    /// The connection may be broken before [`Link::down`] is called. Nothing is sent over it then: the answer would be unknown.
    fn note_break(&mut self) {
        if matches!(self, Self::Up(connection) if connection.gate.is_closed()) {
            *self = Self::Down(Queue::default());
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("state", &*self.states.borrow()).finish_non_exhaustive()
    }
}

/// Polls a request once, in which the driver sends it.
fn sent<T: Send + 'static>(request: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, T> {
    let mut request = request.boxed();
    match request.poll_unpin(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => ready(answer).boxed(),
        Poll::Pending => request,
    }
}

/// The states of a session from some time on.
pub(crate) struct LinkStates(watch::Receiver<SessionState>);

impl States for LinkStates {
    fn changed(&mut self) -> BoxFuture<'_, SessionState> {
        // A change that is there is seen at the first poll, however much the task has done in its turn.
        unconstrained(async {
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            *self.0.borrow_and_update()
        })
        .boxed()
    }

    fn now(&self) -> SessionState {
        *self.0.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::connection::tests::{TIMEOUT, dialer, server};

    #[tokio::test]
    async fn nothing_is_sent_over_a_broken_connection() {
        let connection = dialer(&server(TIMEOUT, TIMEOUT).await).open().await.unwrap();
        let (link, broken) = (Link::default(), connection.clone());
        link.up(connection);
        broken.gate.abandon();
        let answer = link.send(|_| async { Err::<(), _>(Error::ConnectionLoss) });
        assert!(answer.now_or_never().is_none());
    }

    #[test]
    fn requests_that_were_given_up_do_not_pile_up() {
        let link = Link::default();
        let send = || link.send(|_| async { Ok::<_, Error>(()) });
        let wanted: Vec<_> = (0..20).map(|_| send()).collect();
        (0..1_000).for_each(|_| drop(send()));
        let LinkState::Down(queue) = &*link.state() else { panic!("there is no connection") };
        assert!(queue.0.len() < 50);
        assert_eq!(queue.0.iter().filter(|request| request.is_wanted()).count(), wanted.len());
    }
}
