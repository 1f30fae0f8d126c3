//! The members of a cluster: a request goes to one of them, and to the next one if that does not answer.

use std::error::Error as _;
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, Stream, pending};
use lock_core::poison::lock;
use lock_core::runtime::Home;
use lock_core::secret::Unreadable;
use lock_core::single_flight::SingleFlight;
use lock_core::tls::TlsFiles;
use lock_core::{Error, ErrorKind, Outcome, Password, Result, random};
use prost::Message;
use rand::Rng;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{CancellationHandle, Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::NAME;
use super::error::{Fate, failed, fate_of, is_open, is_wrong_login};
use super::messages::{AUTHENTICATE, LoggedIn, Login as Credentials};
use crate::adapters::host::Host;

/// Records are longer than the usual limit of gRPC where `--max-request-bytes` is raised.
const LONGEST_ANSWER: usize = 64 << 20;
/// Before all members are asked once more.
const PAUSE: Duration = Duration::from_millis(50);

type LoginToken = MetadataValue<Ascii>;

/// The members, and the login that is good for all of them.
#[derive(Debug)]
pub(crate) struct Members {
    /// As errors name them.
    names: String,
    members: Vec<Host>,
    tls: Option<TlsFiles>,
    /// One of each member; none after they were closed.
    connections: Mutex<Vec<Connection>>,
    /// By which they are driven.
    home: Home,
    /// The one that answered last.
    preferred: AtomicUsize,
    /// How long a request takes at most, and how long one member is waited for.
    limit: Duration,
    attempt: Duration,
    login: Option<Login>,
}

/// The login of a user. No request has it while it waits: one that nobody polls keeps none from the others.
#[derive(Debug)]
struct Login {
    user: Arc<(String, Password)>,
    /// `None` inside: the store wants no login.
    token: Arc<Mutex<Option<Option<LoginToken>>>>,
    flight: SingleFlight<Result<Option<LoginToken>, Failed>>,
    /// How long a login takes at most, and how long a request waits for it.
    limit: Duration,
}

/// The connection to a member.
#[derive(Clone, Debug)]
struct Connection {
    /// The place of the member.
    at: usize,
    /// How many there were before it.
    number: u64,
    channel: Channel,
}

/// An answer.
pub(crate) struct Answer<A> {
    pub(crate) answer: A,
    /// Whether the request was sent before, and may have been executed then.
    pub(crate) is_repeated: bool,
}

/// The answers to a request that stays open. Dropping it ends the request: the member forgets it, and the connection may close.
pub(crate) struct Answers<A> {
    answers: Streaming<A>,
    _request: OpenRequest,
}

/// Resets the request when it is dropped. The connection would keep it open without anybody who reads the answers.
struct OpenRequest(Option<CancellationHandle>);

/// A message that whoever comes first takes: the connection, to send it, or the caller, who has waited for long enough.
struct Unsent<Q>(Arc<Mutex<Option<Q>>>);

/// Why an attempt failed.
#[derive(Clone, Debug)]
enum Failed {
    Request(Status),
    Password(Unreadable),
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self::Request(status)
    }
}

impl<A> Answers<A> {
    /// The next one; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<A>, Status> {
        self.answers.message().await
    }
}

impl OpenRequest {
    fn new<Q>(request: &mut Request<Q>) -> Self {
        Self(Some(request.cancellation_handle()))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if let Some(request) = self.0.take() {
            request.cancel();
        }
    }
}

impl<Q: Send + 'static> Unsent<Q> {
    fn new(message: Q) -> Self {
        Self(Arc::new(Mutex::new(Some(message))))
    }

    fn take(&self) -> Option<Q> {
        lock(&self.0).take()
    }

    /// What the connection reads when it is open, and its turn has come.
    fn sending(&self) -> impl Stream<Item = Q> + Send + 'static {
        let unsent = Self(Arc::clone(&self.0));
        stream::iter(iter::from_fn(move || unsent.take()))
    }
}

impl Members {
    /// Connects by the runtime of the caller, and when it is needed. A request takes at most so long.
    pub(crate) fn new(
        names: &str,
        members: Vec<Host>,
        tls: Option<TlsFiles>,
        user: Option<(String, Password)>,
        limit: Duration,
    ) -> Result<Self> {
        // Shorter than the limit of the caller, who would not know why it passed.
        let limit = limit * 9 / 10;
        let attempt = limit / 3;
        let preferred = AtomicUsize::new(random::rng().random_range(0..members.len()));
        let home = Home::here();
        let login = user.map(|user| Login::new(user, &home, attempt));
        let all = Self {
            names: names.to_owned(),
            members,
            tls,
            connections: Mutex::default(),
            home,
            preferred,
            limit,
            attempt,
            login,
        };
        let connections: Result<Vec<_>> = (0..all.members.len()).map(|at| all.connection(at, 0)).collect();
        *all.connections() = connections?;
        Ok(all)
    }

    /// How long a member is waited for.
    pub(crate) const fn attempt(&self) -> Duration {
        self.attempt
    }

    /// Sends a request that may be sent twice, until a member answers.
    pub(crate) async fn call<Q, A>(&self, path: &'static str, request: &Q) -> Result<Answer<A>>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let end = Instant::now() + self.limit;
        let (mut is_repeated, mut not_sent, mut has_logged_in) = (false, 0, false);
        loop {
            let connection = self.preferred().map_err(|closed| closed.with_outcome(outcome(is_repeated)))?;
            let unsent = Unsent::new(request.clone());
            let attempt = self.unary(&connection.channel, path, &unsent);
            let attempt = timeout_at(end.min(Instant::now() + self.attempt), attempt).await;
            let was_sent = unsent.take().is_none();
            let status = match attempt
                .unwrap_or_else(|_| Err(Status::deadline_exceeded("it is silent").into()))
            {
                Ok(answer) => return Ok(Answer { answer, is_repeated }),
                Err(Failed::Password(why)) => {
                    return Err(why.error(ErrorKind::Unavailable, NAME).with_outcome(outcome(is_repeated)));
                }
                Err(Failed::Request(status)) => status,
            };
            let fate = match fate_of(&status) {
                Fate::Unknown if !was_sent => Fate::NotExecuted,
                fate => fate,
            };
            is_repeated |= fate == Fate::Unknown;
            not_sent = if fate == Fate::NotSent { not_sent + 1 } else { 0 };
            let is_final = match fate {
                Fate::Refused => true,
                // Once more, with a new login.
                Fate::LoggedOut => std::mem::replace(&mut has_logged_in, true) || self.login.is_none(),
                Fate::NotSent => not_sent >= self.members.len(),
                Fate::NotExecuted | Fate::Unknown => false,
            };
            if is_final || Instant::now() + PAUSE >= end {
                let refused = self.login.as_ref().filter(|_| is_wrong_login(&status));
                let error = failed(&self.names, status, outcome(is_repeated));
                return Err(match refused {
                    Some(login) => login.user.1.refused(error),
                    None => error,
                });
            }
            if fate != Fate::LoggedOut {
                tracing::debug!(%status, members = self.names, "a member of etcd does not answer; the next one is asked");
                self.pass_over(&connection, is_broken(&status));
                if fate != Fate::NotSent {
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Opens a request that has many answers, at one member.
    pub(crate) async fn open<Q, A>(&self, path: &'static str, request: Q) -> Result<Answers<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let closed = |_| Status::cancelled("the locks were closed");
        let connection = self.preferred().map_err(closed)?;
        let open = async {
            let stays_open = stream::iter([request]).chain(pending());
            let mut request = self.with_login(&connection.channel, stays_open).await?;
            let open = OpenRequest::new(&mut request);
            let mut grpc = ready(&connection.channel).await?;
            let codec = ProstCodec::<Q, A>::default();
            let answers = grpc.streaming(request, PathAndQuery::from_static(path), codec).await?.into_inner();
            Ok::<_, Failed>(Answers { answers, _request: open })
        };
        match timeout(self.attempt, open).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(Failed::Request(status))) if fate_of(&status) == Fate::Refused => Err(status),
            Ok(Err(failed)) => {
                let is_broken = matches!(&failed, Failed::Request(status) if is_broken(status));
                self.pass_over(&connection, is_broken);
                Err(Status::unavailable("the member does not answer"))
            }
            Err(_) => {
                self.pass_over(&connection, true);
                Err(Status::unavailable("the member is silent"))
            }
        }
    }

    pub(crate) fn close(&self) {
        self.connections().clear();
    }

    async fn unary<Q, A>(
        &self,
        channel: &Channel,
        path: &'static str,
        unsent: &Unsent<Q>,
    ) -> Result<A, Failed>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut request = self.with_login(channel, unsent.sending()).await?;
        let token = request.metadata().get("token").cloned();
        // For the server: nobody listens any more.
        request.set_timeout(self.limit);
        let sent = send(channel, path, request).await;
        if let Err(status) = &sent
            && fate_of(status) == Fate::LoggedOut
            && let Some(login) = &self.login
        {
            // Another request may have logged in meanwhile.
            login.token().take_if(|known| *known == token);
        }
        Ok(sent?)
    }

    /// A request that a member without a leader refuses, with the token of the login.
    async fn with_login<Q>(&self, channel: &Channel, request: Q) -> Result<Request<Q>, Failed> {
        let mut request = Request::new(request);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(login) = &self.login
            && let Some(token) = login.get(channel).await?
        {
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    /// The member that is asked next.
    fn preferred(&self) -> Result<Connection> {
        let connections = self.connections();
        connections.get(self.preferred.load(Ordering::Relaxed)).cloned().ok_or_else(|| Error::closed(NAME))
    }

    /// Prefers the next one, unless somebody else does already. The next request to the member of a broken connection opens another one.
    fn pass_over(&self, failed: &Connection, is_broken: bool) {
        let next = (failed.at + 1) % self.members.len();
        // Mostly others were waiting for the same one.
        let _ = self.preferred.compare_exchange(failed.at, next, Ordering::Relaxed, Ordering::Relaxed);
        if let Some(connection) = self.connections().get_mut(failed.at)
            && is_broken
            && connection.number == failed.number
            && let Ok(new) = self.connection(failed.at, failed.number + 1)
        {
            *connection = new;
        }
    }

    fn connection(&self, at: usize, number: u64) -> Result<Connection> {
        let _here = self.home.driver().enter();
        let channel = self.members[at].channel(self.tls.as_ref(), self.attempt * 3 / 4)?;
        Ok(Connection { at, number, channel })
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Connection>> {
        lock(&self.connections)
    }
}

impl Login {
    fn new(user: (String, Password), home: &Home, attempt: Duration) -> Self {
        let (user, flight) = (Arc::new(user), SingleFlight::at(home.clone()));
        // Shorter than an attempt, which gives up a login whose runtime is paused.
        Self { user, token: Arc::default(), flight, limit: attempt * 3 / 4 }
    }

    /// The token that is known, or that of a new login.
    async fn get(&self, channel: &Channel) -> Result<Option<LoginToken>, Failed> {
        let known = self.token().clone();
        if let Some(token) = known {
            return Ok(token);
        }
        let silent = || Err(Status::deadline_exceeded("the login is not answered").into());
        let work = || {
            let (channel, user, known) = (channel.clone(), Arc::clone(&self.user), Arc::clone(&self.token));
            let limit = self.limit;
            async move {
                let token =
                    timeout(limit, log_in(&channel, &user.0, &user.1)).await.unwrap_or_else(|_| silent())?;
                // One that was given up may end after a later one.
                lock(&known).get_or_insert_with(|| token.clone());
                Ok(token)
            }
        };
        self.flight.join(self.limit, work).await.unwrap_or_else(silent)
    }

    fn token(&self) -> MutexGuard<'_, Option<Option<LoginToken>>> {
        lock(&self.token)
    }
}

/// The token of a new login; none if the store wants no login, as clients of etcd do.
async fn log_in(channel: &Channel, user: &str, password: &Password) -> Result<Option<LoginToken>, Failed> {
    let password = password.read().await.map_err(Failed::Password)?;
    let login = Credentials { name: user.to_owned(), password };
    let login = Request::new(stream::iter([login]));
    match send::<_, _, LoggedIn>(channel, AUTHENTICATE, login).await {
        Ok(LoggedIn { token }) => {
            let token = token.parse::<LoginToken>();
            let mut token = token.map_err(|_| Status::internal("the token of the login is no text"))?;
            token.set_sensitive(true);
            Ok(Some(token))
        }
        Err(status) if is_open(&status) => Ok(None),
        Err(status) => Err(status.into()),
    }
}

/// Sends a request of one message, which is taken from the stream when it is sent.
async fn send<S, Q, A>(channel: &Channel, path: &'static str, request: Request<S>) -> Result<A, Status>
where
    S: Stream<Item = Q> + Send + 'static,
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = ready(channel).await?;
    let codec = ProstCodec::<Q, A>::default();
    Ok(grpc.client_streaming(request, PathAndQuery::from_static(path), codec).await?.into_inner())
}

async fn ready(channel: &Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(LONGEST_ANSWER);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    Ok(grpc)
}

/// Whether another connection may do better: the network has forgotten this one, its runtime has ended, or it has failed. What a member
/// answers has no source.
fn is_broken(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded || status.source().is_some()
}

const fn outcome(is_repeated: bool) -> Outcome {
    if is_repeated { Outcome::Unknown } else { Outcome::NotApplied }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::super::messages::{Executed, TRANSACTION, Transaction};
    use super::*;

    const VALUE: &[u8] = b"what is to be written";

    /// A member that answers nothing.
    async fn silent(user: Option<(String, Password)>) -> (TcpListener, Arc<Members>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = listener.local_addr().unwrap().to_string();
        // Time: the limits pass.
        let limit = Duration::from_secs(1);
        let members = Members::new(&name, Host::list(NAME, &name, 0, "").unwrap(), None, user, limit);
        (listener, Arc::new(members.unwrap()))
    }

    async fn swap(members: Arc<Members>) -> Error {
        let swap = Transaction::swap(b"a", 0, VALUE, iter::empty());
        members.call::<_, Executed>(TRANSACTION, &swap).await.err().unwrap()
    }

    #[tokio::test]
    async fn a_request_that_waits_for_a_login_was_not_sent() {
        let (_listener, members) = silent(Some(("me".to_owned(), "s3cret".into()))).await;
        let error = swap(members).await;
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    }

    #[tokio::test]
    async fn a_request_that_got_no_answer_was_perhaps_executed() {
        let (_listener, members) = silent(None).await;
        let error = swap(members).await;
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error}");
    }

    #[tokio::test]
    async fn closing_does_not_undo_what_was_sent() {
        let (listener, members) = silent(None).await;
        let swap = tokio::spawn(swap(Arc::clone(&members)));
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut sent = Vec::new();
        while !sent.windows(VALUE.len()).any(|part| part == VALUE) {
            connection.read_buf(&mut sent).await.unwrap();
        }
        members.close();
        let error = swap.await.unwrap();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Closed, Outcome::Unknown), "{error}");
    }

    #[test]
    fn a_message_is_sent_or_taken_back() {
        let message = Unsent::new("a");
        let mut sending = message.sending();
        assert_eq!(message.take(), Some("a"));
        assert_eq!(futures_util::FutureExt::now_or_never(sending.next()), Some(None));
        let message = Unsent::new("a");
        let mut sending = message.sending();
        assert_eq!(futures_util::FutureExt::now_or_never(sending.next()), Some(Some("a")));
        assert_eq!(message.take(), None);
    }
}
