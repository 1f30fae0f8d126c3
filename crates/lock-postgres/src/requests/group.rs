//! Requests that wait for a connection, and are sent together: one statement, and one commit.
//!
//! The server executes them one after another, as if each had been sent by itself. While connections are free, each is. Who sends them
//! is a task of its own, which ends when they are answered: a request whose caller is dropped is answered all the same.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{BootInstant, Error, Outcome, Result};
use tokio::sync::oneshot;
use tokio_postgres::types::{ToSql, Type};

use crate::requests::order::Place;
use crate::requests::value::{Record, Value};

/// As many as one statement takes. It has the rows of all until its commit.
const AT_MOST: usize = 64;

/// A request that can be sent with others of its kind.
pub(crate) trait Request: Debug + Send + Sync + Sized + 'static {
    /// The statement for one.
    const ONE: &'static str;
    /// The statement for many. Its first column is an array of their answers.
    const MANY: &'static str;

    /// The name of the lock.
    fn name(&self) -> &str;
    /// What the statement for one takes.
    fn params(&self) -> Vec<(Value<'_>, Type)>;
    /// What the statement for many takes.
    fn columns(many: &[Self]) -> Vec<(Box<dyn ToSql + Sync + Send + '_>, Type)>;
}

/// The requests of one kind that wait for a connection.
#[derive(Debug)]
pub(crate) struct Group<R>(Mutex<VecDeque<Waiting<R>>>);

#[derive(Debug)]
struct Waiting<R> {
    request: R,
    sender: Sender<R>,
}

/// Who waits for the answer.
#[derive(Debug)]
struct Sender<R> {
    place: Arc<Place>,
    reply: oneshot::Sender<Result<Reply<R>>>,
}

#[derive(Debug)]
pub(crate) enum Reply<R> {
    Answered(Record),
    /// None of the group was executed, as the server refused one, or all for a reason that passes: it is to be sent by itself.
    Alone(R),
}

/// The receiver of a reply. Dropped, it keeps the request from being sent, if it was not.
#[derive(Debug)]
pub(crate) struct Receiver<R> {
    place: Arc<Place>,
    reply: oneshot::Receiver<Result<Reply<R>>>,
}

/// Requests that are sent now.
#[derive(Debug)]
pub(crate) struct Sent<R> {
    requests: Vec<R>,
    senders: Vec<Sender<R>>,
}

impl<R: Request> Group<R> {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Waits for the next connection.
    pub(crate) fn join(&self, place: &Arc<Place>, request: R) -> Receiver<R> {
        let (reply, receiver) = oneshot::channel();
        let mut waiting = self.waiting();
        // Else they were more and more while no connection is free.
        while waiting.front().is_some_and(|first| !first.sender.place.is_waiting()) {
            waiting.pop_front();
        }
        waiting.push_back(Waiting { request, sender: Sender { place: Arc::clone(place), reply } });
        Receiver { place: Arc::clone(place), reply: receiver }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    /// The first of those that wait, to be sent now.
    pub(crate) fn next(&self, now: BootInstant) -> Sent<R> {
        let (mut requests, mut senders) = (Vec::new(), Vec::new());
        let mut waiting = self.waiting();
        while requests.len() < AT_MOST
            && let Some(next) = waiting.pop_front()
        {
            if next.sender.place.send(now) {
                requests.push(next.request);
                senders.push(next.sender);
            }
        }
        Sent { requests, senders }
    }

    /// Fails the request of this place, if it waits here: nothing can be sent in its turn.
    pub(crate) fn refuse(&self, place: &Arc<Place>, error: &Error) {
        let mut waiting = self.waiting();
        let is_its = |waiting: &Waiting<R>| Arc::ptr_eq(&waiting.sender.place, place);
        if let Some(refused) = waiting.iter().position(is_its).and_then(|at| waiting.remove(at))
            && place.withdraw()
        {
            let _ = refused.sender.reply.send(Err(error.clone()));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting<R>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> Receiver<R> {
    /// The reply; `None` if the runtime of the task that sent the request has ended.
    ///
    /// # Cancel safety
    ///
    /// It is cancel safe.
    pub(crate) async fn reply(&mut self) -> Option<Result<Reply<R>>> {
        (&mut self.reply).await.ok()
    }
}

impl<R> Drop for Receiver<R> {
    fn drop(&mut self) {
        self.place.withdraw();
    }
}

impl<R: Request> Sent<R> {
    pub(crate) fn requests(&self) -> &[R] {
        &self.requests
    }

    /// Passes the answers on, in the order of the requests: those with `true` now, and returns the others.
    pub(crate) fn answer(self, answers: Vec<Record>, at_once: impl Fn(&Record) -> bool) -> Vec<Answer<R>> {
        let mut later = Vec::new();
        for (sender, record) in self.senders.into_iter().zip(answers) {
            let is_at_once = at_once(&record);
            let answer = Answer { sender, record };
            if is_at_once { answer.send() } else { later.push(answer) }
        }
        later
    }

    /// Passes on that they failed.
    pub(crate) fn fail(self, error: &Error) {
        let is_over = error.outcome() == Outcome::NotApplied;
        let is_of_one = is_over && self.requests.len() > 1;
        for (sender, request) in self.senders.into_iter().zip(self.requests) {
            sender.place.end(is_over);
            let reply = if is_of_one { Ok(Reply::Alone(request)) } else { Err(error.clone()) };
            let _ = sender.reply.send(reply);
        }
    }
}

/// An answer that is still to be passed on.
#[derive(Debug)]
pub(crate) struct Answer<R> {
    sender: Sender<R>,
    record: Record,
}

impl<R> Answer<R> {
    pub(crate) fn send(self) {
        self.sender.place.end(true);
        let _ = self.sender.reply.send(Ok(Reply::Answered(self.record)));
    }
}
