//! Sends the requests of many tasks over one stream.
//!
//! Each request joins a queue. A task writes what is in it, once in a turn of the scheduler, and gives the answers to those who wait
//! for them, in order. The driver greets the server, and parses the answers.
//!
//! The server has a limited number of requests at a time. The others wait in the queue, whoever polls their callers, and leave it
//! with them. So a caller that gives up costs the server nothing, and knows that nothing was sent.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::connect::stream::Stream;
use crate::route::commands::Commands;
use crate::route::dispatch::Dispatch;
use crate::route::reply::Scan;
use crate::route::unwritten::Unwritten;

/// How much is read at a time.
const READ: usize = 16 * 1024;

/// How many requests the server has at most, and when it gets more: busy servers answer so many in a small part of the usual
/// timeout, and over long distances they keep it busy. Urgent ones are not limited.
const MOST_WRITTEN: usize = 128;
const FEW_WRITTEN: usize = MOST_WRITTEN / 2;

/// In how many steps a busy runtime gets its turns to read an answer that is late.
const STEPS: u32 = 20;

/// A stream that all clones share. Requests that are not sent when the last clone is dropped may be lost.
#[derive(Clone)]
pub(crate) struct Multiplexer {
    owner: Arc<Owner>,
    /// How long answers may take.
    pub(crate) response_timeout: Duration,
    pub(crate) database: i64,
}

/// Ends the task when it is dropped: it does not wait for the answers that are missing.
struct Owner {
    shared: Arc<Shared>,
    /// Closed when the task ends.
    end: watch::Receiver<()>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The task that writes and reads.
    task: AtomicWaker,
    /// How often the task has read all that had arrived.
    looked: AtomicU64,
}

/// The requests that are to be written.
#[derive(Default)]
struct Queue {
    urgent: VecDeque<Request>,
    others: VecDeque<Request>,
    /// Since when the server owes answers and gave none, as of the last turn of the task.
    silent_since: Option<Instant>,
    /// Whether nothing more is written.
    is_closed: bool,
    /// Whether nobody waits for answers.
    is_abandoned: bool,
}

/// A request with missing answers.
struct Request {
    bytes: Vec<u8>,
    missing: usize,
    answers: Vec<Value>,
    to: oneshot::Sender<RedisResult<Vec<Value>>>,
    dispatch: Arc<Dispatch>,
    /// Its number in the dispatch.
    number: u64,
}

/// A request as its caller sees it. When it is dropped, the request leaves the queue.
struct Pending<'a> {
    shared: &'a Shared,
    answers: oneshot::Receiver<RedisResult<Vec<Value>>>,
    dispatch: &'a Arc<Dispatch>,
    number: u64,
}

impl Multiplexer {
    pub(crate) async fn over<S: Stream>(
        stream: S,
        settings: &RedisConnectionInfo,
        response_timeout: Duration,
    ) -> RedisResult<Self> {
        let stream = greeted(stream, settings).await?;
        let shared = Arc::<Shared>::default();
        let task = Task::new(stream, Arc::clone(&shared));
        let (ends, end) = watch::channel(());
        drop(tokio::spawn(async move {
            task.run().await;
            drop(ends);
        }));
        Ok(Self { owner: Arc::new(Owner { shared, end }), response_timeout, database: settings.db() })
    }

    /// Ends when the stream has ended, also while nothing is sent.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut end = self.owner.end.clone();
        async move { while end.changed().await.is_ok() {} }
    }

    /// Sends a command. The answer may be an error of the server, as a value.
    pub(crate) async fn send(&self, command: &Cmd, dispatch: &Arc<Dispatch>) -> RedisResult<Value> {
        let mut answers = self.request(1, dispatch, |bytes| command.write_packed_command(bytes)).await?;
        Ok(answers.pop().unwrap_or(Value::Nil))
    }

    /// Sends commands in one write.
    pub(crate) async fn send_all(
        &self,
        commands: &Pipeline,
        dispatch: &Arc<Dispatch>,
    ) -> RedisResult<Vec<Value>> {
        let pack =
            |bytes: &mut Vec<u8>| commands.cmd_iter().for_each(|command| command.write_packed_command(bytes));
        self.request(commands.len(), dispatch, pack).await
    }

    /// The same for packed commands.
    pub(crate) async fn send_packed(
        &self,
        commands: Commands,
        dispatch: &Arc<Dispatch>,
    ) -> RedisResult<Vec<Value>> {
        self.request(commands.count(), dispatch, |bytes| *bytes = commands.into_bytes()).await
    }

    /// Sends what `pack` appends, and waits for this many answers. They may take the response timeout once the request is
    /// written; until then, the server has to answer others.
    ///
    /// # Errors
    ///
    /// One with an [`Unwritten`] reason if nothing was sent.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the request is sent only if the dispatch says that it was written.
    pub(crate) async fn request(
        &self,
        count: usize,
        dispatch: &Arc<Dispatch>,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<Vec<Value>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        // Apart from its use, or the future keeps it twice.
        let pending = self.owner.shared.append(count, dispatch, pack)?;
        pending.within(self.response_timeout).await
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        {
            let mut queue = self.shared.queue();
            (queue.is_closed, queue.is_abandoned) = (true, true);
        }
        self.shared.task.wake();
    }
}

impl Shared {
    fn append<'a>(
        &'a self,
        count: usize,
        dispatch: &'a Arc<Dispatch>,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<Pending<'a>> {
        let ((to, answers), mut bytes) = (oneshot::channel(), Vec::new());
        pack(&mut bytes);
        if dispatch.is_withdrawn() {
            return Err(Unwritten::Withdrawn.into());
        }
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(Unwritten::Closed.into());
        }
        let number = dispatch.begin();
        // Behind others, the task is woken by their answers.
        let wakes = dispatch.is_urgent || queue.others.is_empty();
        let requests = if dispatch.is_urgent { &mut queue.urgent } else { &mut queue.others };
        let answered = Vec::with_capacity(count);
        let dispatched = Arc::clone(dispatch);
        requests.push_back(Request {
            bytes,
            missing: count,
            answers: answered,
            to,
            dispatch: dispatched,
            number,
        });
        drop(queue);
        if wakes {
            self.task.wake();
        }
        Ok(Pending { shared: self, answers, dispatch, number })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Whether a server that has this many requests is to get more.
    fn has_next(&self, written: usize) -> bool {
        !self.urgent.is_empty() || !self.others.is_empty() && written <= FEW_WRITTEN
    }

    fn is_lone(&self) -> bool {
        self.urgent.len() + self.others.len() == 1
    }

    /// The next request for a server that has this many.
    fn next(&mut self, written: usize) -> Option<Request> {
        let urgent = self.urgent.pop_front();
        urgent.or_else(|| if written < MOST_WRITTEN { self.others.pop_front() } else { None })
    }

    /// Closes it, and returns the requests, which are not written.
    fn close(&mut self) -> [VecDeque<Request>; 2] {
        self.is_closed = true;
        [mem::take(&mut self.urgent), mem::take(&mut self.others)]
    }
}

impl Pending<'_> {
    /// The answers. The time limit counts from when the request is written. Until then, the server must not be silent for as long
    /// while it has requests of others.
    ///
    /// The timer is one of the caller, as the runtime of the connection may be paused. One that waits longer looks less often.
    async fn within(mut self, limit: Duration) -> RedisResult<Vec<Value>> {
        let began = Instant::now();
        let mut until = began + limit;
        loop {
            match timeout_at(until, &mut self.answers).await {
                Ok(Ok(answers)) => return answers,
                Ok(Err(_ended)) => return Err(self.ended()),
                Err(_elapsed) => {}
            }
            let now = Instant::now();
            let is_written = self.dispatch.written_at(self.number).is_some();
            let silent_since = self.silent_since();
            if silent_since.is_none_or(|since| since + limit <= now) {
                let has_looked = match self.last_look(limit).await {
                    ControlFlow::Break(answers) => return answers,
                    ControlFlow::Continue(has_looked) => has_looked,
                };
                if !has_looked || silent_since.is_some() && self.silent_since() == silent_since {
                    return Err(self.silent());
                }
            }
            until = match silent_since {
                Some(since) if is_written => (since + limit).max(now),
                _ => now + (now - began),
            };
        }
    }

    /// Since when the answer to this request, or to one before it, is missing.
    fn silent_since(&self) -> Option<Instant> {
        self.dispatch.written_at(self.number).or_else(|| self.shared.queue().silent_since)
    }

    /// Waits until the task has looked for answers: among many tasks, it may not have had a turn for long. Returns the answers, or
    /// whether it has looked.
    async fn last_look(&mut self, limit: Duration) -> ControlFlow<RedisResult<Vec<Value>>, bool> {
        let looked = self.shared.looked.load(Ordering::Acquire);
        self.shared.task.wake();
        for _ in 0..STEPS {
            match timeout(limit / STEPS, &mut self.answers).await {
                Ok(answers) => return ControlFlow::Break(answers.unwrap_or_else(|_| Err(self.ended()))),
                Err(_) if self.shared.looked.load(Ordering::Acquire) != looked => {
                    return self.received().map_or(ControlFlow::Continue(true), ControlFlow::Break);
                }
                Err(_) => {}
            }
        }
        ControlFlow::Continue(false)
    }

    /// What has come by now. After an end the channel is not asked again: it would panic.
    fn received(&mut self) -> Option<RedisResult<Vec<Value>>> {
        match self.answers.try_recv() {
            Ok(answers) => Some(answers),
            Err(TryRecvError::Closed) => Some(Err(self.ended())),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// The error of a server that answers nothing. Nothing more is sent to it over this connection.
    fn silent(&self) -> RedisError {
        let is_unwritten = self.dispatch.give_up(self.number);
        let unwritten = self.shared.queue().close();
        drop(unwritten);
        self.shared.task.wake();
        if is_unwritten { Unwritten::Silent.into() } else { io::Error::from(io::ErrorKind::TimedOut).into() }
    }

    /// The error of a request without answers: the task has ended, or the request was withdrawn.
    fn ended(&self) -> RedisError {
        match self.dispatch.written_at(self.number) {
            Some(_) => closed(),
            None if self.dispatch.is_withdrawn() => Unwritten::Withdrawn.into(),
            None => Unwritten::Closed.into(),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.dispatch.give_up(self.number);
    }
}

/// Writes the requests, and reads the answers.
struct Task<S> {
    stream: S,
    shared: Arc<Shared>,
    /// What is written, and how far.
    bytes: Vec<u8>,
    written: usize,
    is_flushed: bool,
    /// Whether the other tasks had their turn since the last write.
    has_yielded: bool,
    /// The requests that were written, or are being written, oldest first.
    requests: VecDeque<Request>,
    /// How many were answered.
    answered: u64,
    /// What has arrived, up to `filled`.
    received: Vec<u8>,
    filled: usize,
    scan: Scan,
}

impl<S: Stream> Task<S> {
    fn new(stream: S, shared: Arc<Shared>) -> Self {
        Self {
            stream,
            shared,
            bytes: Vec::new(),
            written: 0,
            is_flushed: true,
            has_yielded: false,
            requests: VecDeque::new(),
            answered: 0,
            received: Vec::new(),
            filled: 0,
            scan: Scan::default(),
        }
    }

    async fn run(mut self) {
        let Err(error) = std::future::poll_fn(|context| self.poll(context)).await else { return };
        let unwritten = self.shared.queue().close();
        drop(unwritten);
        // The first is told why. For the others the connection broke, after which a request may be sent once more.
        let mut error = Some(error);
        for request in self.requests.drain(..) {
            // Nobody may wait for it any more.
            let _ = request.to.send(Err(error.take().unwrap_or_else(closed)));
        }
    }

    /// Both sides advance in each turn: a server that waits until its answers are read reads no requests.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<RedisResult<()>> {
        self.shared.task.register(context.waker());
        let answered = self.answered;
        while let Poll::Ready(read) = self.poll_read(context) {
            read?;
        }
        self.shared.looked.fetch_add(1, Ordering::Release);
        if let Poll::Ready(Err(error)) = self.poll_write(context) {
            return Poll::Ready(Err(error));
        }
        let mut queue = self.shared.queue();
        queue.silent_since = match queue.silent_since {
            _ if self.requests.is_empty() => None,
            Some(since) if self.answered == answered => Some(since),
            _ => Some(Instant::now()),
        };
        // Without a handle there is nobody to answer. What is left was written as far as the server takes it.
        let is_abandoned = queue.is_abandoned;
        if is_abandoned { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<RedisResult<()>> {
        if self.received.len() < self.filled + READ {
            self.received.resize(self.filled + 2 * READ, 0);
        }
        let mut buffer = ReadBuf::new(&mut self.received[self.filled..]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        let count = buffer.filled().len();
        self.filled += count;
        Poll::Ready(if count == 0 { Err(closed()) } else { self.deliver() })
    }

    /// Gives the answers that have arrived to those who wait for them.
    fn deliver(&mut self) -> RedisResult<()> {
        let mut at = 0;
        while let Some((reply, length)) = self.scan.next(&self.received[at..self.filled])? {
            at += length;
            // Nobody has subscribed to anything on this connection.
            if !matches!(reply, Value::Push { .. }) {
                self.answer(reply)?;
            }
        }
        self.received.copy_within(at..self.filled, 0);
        self.filled -= at;
        match self.received[..self.filled] {
            [b'>', ..] | [] => Ok(()),
            [..] if self.requests.is_empty() => Err(unasked()),
            [..] => Ok(()),
        }
    }

    fn answer(&mut self, reply: Value) -> RedisResult<()> {
        let request = self.requests.front_mut().ok_or_else(unasked)?;
        request.answers.push(reply);
        request.missing -= 1;
        if request.missing == 0
            && let Some(request) = self.requests.pop_front()
        {
            self.answered += 1;
            // Nobody may wait for it any more.
            let _ = request.to.send(Ok(request.answers));
        }
        Ok(())
    }

    /// Writes what there is. The other tasks that are ready run before each write, so that their requests go out with it:
    /// under load a write costs more than all else. A lone request of a server that owes nothing goes out at once: a turn may take it to
    /// another core.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<RedisResult<()>> {
        loop {
            if self.written == self.bytes.len() {
                ready!(self.poll_flush(context))?;
                ready!(self.poll_take(context));
            }
            let rest = &self.bytes[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(closed())),
                count => self.written += count,
            }
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<RedisResult<()>> {
        if !self.is_flushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the requests that are to be written; pending if there are none, or the server has enough.
    fn poll_take(&mut self, context: &Context<'_>) -> Poll<()> {
        // Dropped after the queue is unlocked: that wakes tasks.
        let mut unwanted = Vec::new();
        let mut queue = self.shared.queue();
        if !queue.has_next(self.requests.len()) {
            return Poll::Pending;
        }
        let is_lone = self.requests.is_empty() && queue.is_lone();
        if !is_lone && !queue.is_abandoned && !mem::replace(&mut self.has_yielded, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.bytes.clear();
        let now = Instant::now();
        while let Some(mut request) = queue.next(self.requests.len()) {
            if request.dispatch.write(request.number, now) {
                self.bytes.append(&mut request.bytes);
                self.requests.push_back(request);
            } else {
                unwanted.push(request);
            }
        }
        (self.written, self.has_yielded) = (0, false);
        if self.bytes.is_empty() {
            return Poll::Pending;
        }
        self.is_flushed = false;
        Poll::Ready(())
    }
}

impl<S> Drop for Task<S> {
    /// Its runtime may have ended. Those who wait learn that their request was dropped, or not written.
    fn drop(&mut self) {
        let unwritten = self.shared.queue().close();
        drop(unwritten);
    }
}

fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

fn unasked() -> RedisError {
    (redis::ErrorKind::Parse, "the server sent an answer that nobody asked for").into()
}

/// The stream, once the driver has logged in over it.
async fn greeted<S: Stream>(stream: S, settings: &RedisConnectionInfo) -> RedisResult<S> {
    let (back, mut returned) = oneshot::channel();
    let lent = Lent { stream: Some(stream), back: Some(back) };
    let greeted = MultiplexedConnection::new_with_config(settings, lent, AsyncConnectionConfig::new()).await;
    drop(greeted?);
    returned.try_recv().map_err(|_| closed())
}

/// A stream that is returned when it is dropped.
struct Lent<S> {
    stream: Option<S>,
    back: Option<oneshot::Sender<S>>,
}

impl<S: Unpin> Lent<S> {
    fn stream(&mut self) -> io::Result<Pin<&mut S>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<S> Drop for Lent<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            let _ = back.send(stream);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lent<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lent<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Waker;

    use futures_util::future::join_all;
    use lock_core::Clock;
    use redis::aio::ConnectionLike as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::runtime::{Builder, Handle};
    use tokio::time::sleep;

    use super::*;
    use crate::connect::connection::Connection;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A stream that counts its writes.
    struct Counted(DuplexStream, Arc<AtomicUsize>);

    impl AsyncWrite for Counted {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let written = ready!(Pin::new(&mut self.0).poll_write(context, bytes));
            self.1.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(written)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    impl AsyncRead for Counted {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(context, buffer)
        }
    }

    /// Answers each ECHO, with a push message before each answer.
    async fn echo(mut stream: DuplexStream) {
        let (mut buffer, mut received) = ([0; 7], Vec::new());
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            received.extend_from_slice(&buffer[..read]);
            while let Ok(Some((Value::Array(words), length))) = Scan::default().next(&received) {
                received.drain(..length);
                let Value::BulkString(said) = &words[1] else { continue };
                let said = String::from_utf8_lossy(said);
                let answer = format!(">2\r\n+invalidate\r\n_\r\n${}\r\n{said}\r\n", said.len());
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    /// A connection that did not greet, over a buffer of this size.
    fn over<S: Stream>(stream: S, timeout: Duration) -> Multiplexer {
        let shared = Arc::<Shared>::default();
        drop(tokio::spawn(Task::new(stream, Arc::clone(&shared)).run()));
        of(shared, timeout)
    }

    fn dispatch() -> Arc<Dispatch> {
        Dispatch::new(&Clock::tokio())
    }

    fn saying(what: &str) -> Cmd {
        let mut echo = redis::cmd("ECHO");
        echo.arg(what);
        echo
    }

    async fn said(connection: &Multiplexer, what: &str) -> RedisResult<String> {
        Ok(redis::from_redis_value(connection.send(&saying(what), &dispatch()).await?)?)
    }

    async fn ends(handle: &Handle, others: usize) {
        let ended = async {
            while handle.metrics().num_alive_tasks() > others {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, ended).await.expect("the task ends");
    }

    fn of(shared: Arc<Shared>, response_timeout: Duration) -> Multiplexer {
        let (_, end) = watch::channel(());
        Multiplexer { owner: Arc::new(Owner { shared, end }), response_timeout, database: 0 }
    }

    #[tokio::test]
    async fn each_of_many_tasks_gets_its_answers_and_their_requests_go_out_in_few_writes() {
        // Smaller than the requests of a turn: they are written, and read, in parts.
        for size in [64, 1 << 16] {
            let (ours, theirs) = duplex(size);
            tokio::spawn(echo(theirs));
            let writes = Arc::new(AtomicUsize::new(0));
            let connection = over(Counted(ours, Arc::clone(&writes)), LIMIT);
            let tasks = (0..100).map(|task| {
                let connection = connection.clone();
                tokio::spawn(async move {
                    for number in 0..10 {
                        let what = format!("{task} {number}");
                        assert_eq!(said(&connection, &what).await.unwrap(), what);
                        let mut several = redis::pipe();
                        several.add_command(saying("a")).add_command(saying(&what));
                        let answers = connection.send_all(&several, &dispatch()).await.unwrap();
                        let answers: Vec<String> = answers
                            .into_iter()
                            .map(|answer| redis::from_redis_value(answer).unwrap())
                            .collect();
                        assert_eq!(answers, ["a", &what]);
                    }
                })
            });
            join_all(tasks).await.into_iter().for_each(Result::unwrap);
            let writes = writes.load(Ordering::Relaxed);
            assert!(size < 1000 || writes <= 200, "{writes} writes for 2000 requests");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_answers_to_requests_that_were_given_up_are_nobody_elses() {
        let (ours, mut theirs) = duplex(1 << 16);
        let connection = over(ours, Duration::from_secs(1));
        for given_up in ["late", "dropped"] {
            assert!(timeout(Duration::from_millis(10), said(&connection, given_up)).await.is_err());
        }
        let (next, ()) = tokio::join!(said(&connection, "next"), async {
            let (mut buffer, mut received) = ([0; 64], String::new());
            while !received.contains("next") {
                let read = theirs.read(&mut buffer).await.unwrap();
                received.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
            }
            theirs.write_all(b"+late\r\n+dropped\r\n+next\r\n").await.unwrap();
        });
        assert_eq!(next.unwrap(), "next");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_not_asked_is_not_silent() {
        let (ours, theirs) = duplex(1 << 16);
        tokio::spawn(echo(theirs));
        let shared = Arc::<Shared>::default();
        let task = Task::new(ours, Arc::clone(&shared));
        // As among many tasks that compute.
        tokio::spawn(async move {
            let mut running = std::pin::pin!(task.run());
            sleep(Duration::from_millis(1500)).await;
            while futures_util::poll!(running.as_mut()).is_pending() {
                sleep(Duration::from_millis(900)).await;
            }
        });
        let response_timeout = Duration::from_secs(1);
        let connection = of(shared, response_timeout);
        let answers = join_all(["a", "b"].map(|what| said(&connection, what))).await;
        assert_eq!(answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[tokio::test]
    async fn whoever_waits_learns_that_the_server_closed_or_spoke_something_else() {
        for (answer, is_dropped) in [("", true), ("+half", true), ("*x\r\n", false)] {
            let (ours, mut theirs) = duplex(1 << 16);
            let connection = over(ours, LIMIT);
            let (one, other, ()) = tokio::join!(said(&connection, "a"), said(&connection, "b"), async {
                tokio::task::yield_now().await;
                theirs.write_all(answer.as_bytes()).await.unwrap();
                drop(theirs);
            });
            for answer in [one, other, said(&connection, "after").await] {
                let error = answer.unwrap_err();
                assert!(error.is_connection_dropped() || !is_dropped, "{error}");
            }
        }
    }

    #[tokio::test]
    async fn the_task_ends_with_the_last_handle_and_without_the_missing_answers() {
        let (ours, mut theirs) = duplex(16);
        let connection = over(ours, Duration::from_millis(10));
        let handle = Handle::current();
        // More than the server takes.
        let (one, other) =
            tokio::join!(said(&connection, "nobody answers this"), said(&connection, "nor this"));
        assert!(one.unwrap_err().is_timeout() && other.unwrap_err().is_timeout());
        let next = said(&connection, "it gets no more").await.unwrap_err();
        assert_eq!(Unwritten::of(&next), Some(Unwritten::Closed));
        let clone = connection.clone();
        drop(connection);
        assert_eq!(handle.metrics().num_alive_tasks(), 1);
        drop(clone);
        ends(&handle, 0).await;
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 16);
    }

    #[test]
    fn whoever_waits_on_another_runtime_learns_that_that_of_the_connection_ended() {
        let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (home, other) = (runtime(), runtime());
        let (ours, _theirs) = duplex(1 << 16);
        let connection = home.block_on(async { over(ours, LIMIT) });
        let waiter = other.spawn(async move { said(&connection, "a").await });
        std::thread::sleep(Duration::from_millis(50));
        home.shutdown_background();
        let error = other.block_on(waiter).unwrap().unwrap_err();
        assert!(error.is_connection_dropped(), "{error}");
    }

    #[tokio::test]
    async fn the_driver_greets_and_hands_the_stream_back() {
        let (ours, mut theirs) = duplex(1 << 16);
        let server = tokio::spawn(async move {
            let (mut buffer, mut received) = ([0; 64], Vec::new());
            let mut names = Vec::new();
            while let Ok(read @ 1..) = theirs.read(&mut buffer).await {
                received.extend_from_slice(&buffer[..read]);
                while let Ok(Some((Value::Array(words), length))) = Scan::default().next(&received) {
                    received.drain(..length);
                    names.push(redis::from_redis_value::<String>(words[0].clone()).unwrap());
                    theirs.write_all(b"+OK\r\n").await.unwrap();
                }
            }
            names
        });
        let settings =
            RedisConnectionInfo::default().set_db(3).set_password("secret").set_skip_set_lib_name();
        let mut connection = Connection::over(ours, &settings, LIMIT).await.unwrap();
        assert_eq!(connection.get_db(), 3);
        assert_eq!(redis::cmd("PING").query_async::<Value>(&mut connection).await.unwrap(), Value::Okay);
        drop(connection);
        assert_eq!(server.await.unwrap(), ["AUTH", "SELECT", "PING"]);
    }

    /// What a server has received, as a number of requests.
    async fn received(server: &mut DuplexStream) -> usize {
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(Ok(read @ 1..)) = timeout(Duration::from_millis(200), server.read(&mut buffer)).await {
            received.extend_from_slice(&buffer[..read]);
        }
        String::from_utf8(received).unwrap().matches("ECHO").count()
    }

    /// Requests of this many tasks, which have begun.
    async fn asking(
        connection: &Multiplexer,
        tasks: usize,
    ) -> Vec<tokio::task::JoinHandle<RedisResult<String>>> {
        let asking = (0..tasks).map(|task| {
            let connection = connection.clone();
            tokio::spawn(async move { said(&connection, &task.to_string()).await })
        });
        let asking = asking.collect();
        tokio::task::yield_now().await;
        asking
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_has_a_limited_number_of_requests_and_gets_others_when_it_answers() {
        let (ours, mut theirs) = duplex(1 << 20);
        let connection = over(ours, Duration::from_secs(60));
        let tasks = asking(&connection, 3 * MOST_WRITTEN).await;
        assert_eq!(received(&mut theirs).await, MOST_WRITTEN);
        // Those that keep locks do not wait.
        let urgent = {
            let connection = connection.clone();
            tokio::spawn(async move { connection.send(&saying("urgent"), &Dispatch::urgent()).await })
        };
        assert_eq!(received(&mut theirs).await, 1);
        // Those that have gone are not sent.
        for task in &tasks[MOST_WRITTEN..2 * MOST_WRITTEN] {
            task.abort();
        }
        for task in 0..MOST_WRITTEN {
            theirs.write_all(format!("+{task}\r\n").as_bytes()).await.unwrap();
        }
        theirs.write_all(b"+urgent\r\n").await.unwrap();
        assert_eq!(received(&mut theirs).await, MOST_WRITTEN);
        for task in 2 * MOST_WRITTEN..3 * MOST_WRITTEN {
            theirs.write_all(format!("+{task}\r\n").as_bytes()).await.unwrap();
        }
        assert!(urgent.await.unwrap().is_ok());
        for (task, said) in tasks.into_iter().enumerate() {
            match said.await {
                Ok(said) => assert_eq!(said.unwrap(), task.to_string()),
                Err(_aborted) => assert!((MOST_WRITTEN..2 * MOST_WRITTEN).contains(&task)),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_limit_counts_from_the_write_and_a_silent_server_is_noticed_however_many_wait() {
        let limit = Duration::from_secs(1);
        let (ours, mut theirs) = duplex(1 << 20);
        let connection = over(ours, limit);
        let began = Instant::now();
        let tasks = asking(&connection, 2 * MOST_WRITTEN).await;
        // It is slow, but never silent: the last answer comes long after the limit.
        for task in 0..2 * MOST_WRITTEN {
            sleep(limit / u32::try_from(MOST_WRITTEN).unwrap()).await;
            theirs.write_all(format!("+{task}\r\n").as_bytes()).await.unwrap();
        }
        for said in tasks {
            said.await.unwrap().unwrap();
        }
        assert!(began.elapsed() >= 2 * limit - limit / 4);

        let began = Instant::now();
        let tasks = asking(&connection, 3 * MOST_WRITTEN).await;
        for (task, said) in tasks.into_iter().enumerate() {
            let error = said.await.unwrap().unwrap_err();
            assert_eq!(Unwritten::of(&error).is_some(), task >= MOST_WRITTEN, "{error}");
            assert!(error.is_timeout() || task >= MOST_WRITTEN, "{error}");
        }
        assert!(began.elapsed() <= 3 * limit, "{:?}", began.elapsed());
    }

    /// Among many tasks, that of the connection may have its first turn after the limit, and another one in which it writes.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_had_no_turn_yet_does_not_condemn_the_server() {
        let limit = Duration::from_secs(1);
        let (ours, mut theirs) = duplex(1 << 20);
        let shared = Arc::<Shared>::default();
        let mut task = Task::new(ours, Arc::clone(&shared));
        let connection = of(shared, limit);
        let tasks = asking(&connection, 2 * MOST_WRITTEN).await;
        sleep(limit + limit / 40).await;
        for written in [0, MOST_WRITTEN] {
            assert!(task.poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(task.requests.len(), written);
            sleep(limit / STEPS * 2).await;
        }
        drop(tokio::spawn(task.run()));
        for first in [0, MOST_WRITTEN] {
            assert_eq!(received(&mut theirs).await, MOST_WRITTEN);
            for task in first..first + MOST_WRITTEN {
                theirs.write_all(format!("+{task}\r\n").as_bytes()).await.unwrap();
            }
        }
        for (task, said) in tasks.into_iter().enumerate() {
            assert_eq!(said.await.unwrap().unwrap(), task.to_string());
        }
    }

    /// Another thread may end it just before.
    #[tokio::test]
    async fn the_last_look_finds_the_end_of_a_connection() {
        let (shared, dispatch) = (Shared::default(), dispatch());
        let mut pending = shared.append(1, &dispatch, |_| ()).unwrap();
        assert_eq!(pending.received(), None);
        drop(shared.queue().close());
        let ended = pending.received().unwrap().unwrap_err();
        assert_eq!(Unwritten::of(&ended), Some(Unwritten::Closed));
    }

    #[tokio::test]
    async fn what_a_closed_connection_has_not_written_was_not_sent() {
        let (ours, theirs) = duplex(1 << 16);
        let connection = over(ours, LIMIT);
        drop(theirs);
        // Whether or not the task has noticed.
        for _ in 0..2 {
            let dispatch = dispatch();
            let error = connection.send(&saying("a"), &dispatch).await.unwrap_err();
            assert_eq!(Unwritten::of(&error), Some(Unwritten::Closed), "{error}");
            assert!(dispatch.written().is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_withdrawn_is_not_sent() {
        let (ours, mut theirs) = duplex(1 << 20);
        let connection = over(ours, LIMIT);
        let _tasks = asking(&connection, MOST_WRITTEN).await;
        let dispatch = dispatch();
        let withdrawn = {
            let (connection, dispatch) = (connection.clone(), Arc::clone(&dispatch));
            tokio::spawn(async move { connection.send(&saying("a"), &dispatch).await })
        };
        assert_eq!(received(&mut theirs).await, MOST_WRITTEN);
        dispatch.withdraw();
        for _ in 0..MOST_WRITTEN {
            theirs.write_all(b"+a\r\n").await.unwrap();
        }
        let error = withdrawn.await.unwrap().unwrap_err();
        assert_eq!(Unwritten::of(&error), Some(Unwritten::Withdrawn));
        let again = connection.send(&saying("a"), &dispatch).await.unwrap_err();
        assert_eq!(Unwritten::of(&again), Some(Unwritten::Withdrawn));
        assert_eq!(received(&mut theirs).await, 0);
    }

    /// It is not to be believed any more: an answer could be taken for that to the next request.
    #[tokio::test]
    async fn answers_that_nobody_asked_for_end_the_connection() {
        for said in ["+OK\r\n", "$1000000\r\n", "x", ":1\r\n:2\r\n"] {
            let (ours, mut theirs) = duplex(1 << 16);
            let connection = over(ours, LIMIT);
            if said.starts_with(':') {
                let (first, ()) = tokio::join!(self::said(&connection, "a"), async {
                    tokio::task::yield_now().await;
                    theirs.write_all(said.as_bytes()).await.unwrap();
                });
                assert_eq!(first.unwrap(), "1");
            } else {
                theirs.write_all(said.as_bytes()).await.unwrap();
            }
            let mut rest = Vec::new();
            timeout(LIMIT, theirs.read_to_end(&mut rest)).await.expect("it is closed").unwrap();
            let error = connection.send(&saying("b"), &dispatch()).await.unwrap_err();
            assert_eq!(Unwritten::of(&error), Some(Unwritten::Closed), "{said:?}: {error}");
        }
    }

    #[tokio::test]
    async fn an_answer_without_an_end_ends_the_connection() {
        let (ours, mut theirs) = duplex(1 << 16);
        let connection = over(ours, LIMIT);
        let flooding = async {
            theirs.write_all(b"*1000000\r\n").await.unwrap();
            let mut part = b"$65536\r\n".to_vec();
            part.resize(part.len() + 65536, b'a');
            part.extend(b"\r\n");
            while theirs.write_all(&part).await.is_ok() {}
        };
        let (answer, ()) = tokio::join!(said(&connection, "a"), flooding);
        assert!(!answer.unwrap_err().is_timeout());
    }
}
