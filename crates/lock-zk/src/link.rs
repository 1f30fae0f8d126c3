//! The link of a session to the ensemble: its connection, or the requests that wait for one.

use std::fmt;
use std::future::ready;
use std::mem;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Error, SessionState};

use crate::connection::Connection;
use crate::ensemble::States;
use crate::poison::lock;

/// The link of one session.
pub(crate) struct Link {
    state: Mutex<LinkState>,
    states: watch::Sender<SessionState>,
    /// Fires when nobody uses the session any more, so that it may be closed.
    pub(crate) unused: CancellationToken,
}

enum LinkState {
    Up(Connection),
    /// The requests to be sent over the next connection, in this order.
    Down(Vec<Queued>),
    /// Nothing is sent any more.
    Over,
}

type Queued = Box<dyn FnOnce(&Connection) + Send>;

impl Link {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            state: Mutex::new(LinkState::Up(connection)),
            states: watch::Sender::new(SessionState::SyncConnected),
            unused: CancellationToken::new(),
        }
    }

    /// Sends a request now, or over the next connection; it is not sent if its future is dropped before there is one.
    pub(crate) fn send<T, E, F>(
        &self,
        request: impl FnOnce(Connection) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, E>>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        match &mut *self.state() {
            LinkState::Up(connection) => sent(request(connection.clone())),
            LinkState::Down(waiting) => {
                let (pass_on, answer) = oneshot::channel();
                waiting.push(Box::new(move |connection| {
                    if !pass_on.is_closed() {
                        drop(pass_on.send(sent(request(connection.clone()))));
                    }
                }));
                async move { answer.await.map_err(|_| Error::SessionExpired)?.await }.boxed()
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
        if matches!(*state, LinkState::Up(_)) {
            *state = LinkState::Down(Vec::new());
        }
        self.states.send_replace(SessionState::Disconnected);
    }

    /// Sends what waits over this connection, and all that follows. Drops it if the session is over, which closes the session.
    pub(crate) fn up(&self, connection: Connection) {
        let mut state = self.state();
        if let LinkState::Down(waiting) = &mut *state {
            mem::take(waiting).into_iter().for_each(|request| request(&connection));
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
