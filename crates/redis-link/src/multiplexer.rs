//! Sends the requests of many tasks over one stream.
//!
//! Each request is appended to one buffer. A task writes it, once in a turn of the scheduler, and gives the answers to those
//! who wait for them, in order. The driver greets the server, and parses the answers.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::dial::Stream;
use crate::reply::next_reply;

/// How much is read at a time.
const READ: usize = 16 * 1024;

/// How much may wait to be written. The server has taken nothing for long by then.
const MOST_UNWRITTEN: usize = 64 * 1024 * 1024;

/// A stream that all clones share. Requests that are not sent when the last clone is dropped may be lost.
#[derive(Clone)]
pub(crate) struct Multiplexer {
    owner: Arc<Owner>,
    /// How long answers may take.
    pub(crate) response_timeout: Duration,
    pub(crate) database: i64,
}

/// Ends the task when it is dropped: it does not wait for the answers that are missing.
struct Owner(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The task that writes and reads.
    task: AtomicWaker,
}

/// The requests that are to be written.
#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    requests: Vec<Request>,
    /// Whether nothing is written or read any more.
    is_closed: bool,
}

/// A request with missing answers.
struct Request {
    missing: usize,
    answers: Vec<Value>,
    to: oneshot::Sender<RedisResult<Vec<Value>>>,
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
        drop(tokio::spawn(task.run()));
        Ok(Self { owner: Arc::new(Owner(shared)), response_timeout, database: settings.db() })
    }

    /// Sends a command. The answer may be an error of the server, as a value.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut answers = self.request(1, |bytes| command.write_packed_command(bytes)).await?;
        Ok(answers.pop().unwrap_or(Value::Nil))
    }

    /// Sends commands in one write.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let pack =
            |bytes: &mut Vec<u8>| commands.cmd_iter().for_each(|command| command.write_packed_command(bytes));
        self.request(commands.len(), pack).await
    }

    /// Sends what `pack` appends, and waits for this many answers.
    pub(crate) async fn request(
        &self,
        count: usize,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<Vec<Value>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let answers = self.owner.0.append(count, pack)?;
        match timeout(self.response_timeout, answers).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(_ended)) => Err(closed()),
            Err(elapsed) => Err(io::Error::from(elapsed).into()),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.queue().is_closed = true;
        self.0.task.wake();
    }
}

impl Shared {
    fn append(
        &self,
        count: usize,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<oneshot::Receiver<RedisResult<Vec<Value>>>> {
        let (to, answers) = oneshot::channel();
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(closed());
        }
        if queue.bytes.len() > MOST_UNWRITTEN {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        let is_first = queue.bytes.is_empty();
        pack(&mut queue.bytes);
        queue.requests.push(Request { missing: count, answers: Vec::with_capacity(count), to });
        drop(queue);
        if is_first {
            self.task.wake();
        }
        Ok(answers)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// What has arrived, up to `filled`.
    received: Vec<u8>,
    filled: usize,
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
            received: Vec::new(),
            filled: 0,
        }
    }

    async fn run(mut self) {
        let Err(error) = std::future::poll_fn(|context| self.poll(context)).await else { return };
        self.shared.queue().is_closed = true;
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
        while let Poll::Ready(read) = self.poll_read(context) {
            read?;
        }
        if let Poll::Ready(Err(error)) = self.poll_write(context) {
            return Poll::Ready(Err(error));
        }
        // Without a handle there is nobody to answer. What is left was written as far as the server takes it.
        let is_closed = self.shared.queue().is_closed;
        if is_closed { Poll::Ready(Ok(())) } else { Poll::Pending }
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
        while let Some((reply, length)) = next_reply(&self.received[at..self.filled])? {
            at += length;
            // Nobody has subscribed to anything on this connection.
            if !matches!(reply, Value::Push { .. }) {
                self.answer(reply);
            }
        }
        self.received.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    fn answer(&mut self, reply: Value) {
        let Some(request) = self.requests.front_mut() else { return };
        request.answers.push(reply);
        request.missing -= 1;
        if request.missing == 0
            && let Some(request) = self.requests.pop_front()
        {
            // Nobody may wait for it any more.
            let _ = request.to.send(Ok(request.answers));
        }
    }

    /// Writes what there is. The other tasks that are ready run before each write, so that their requests go out with it:
    /// under load a write costs more than all else. A lone request waits for one turn, in which nothing else is ready.
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

    /// Takes the requests that are to be written; pending if there are none.
    fn poll_take(&mut self, context: &Context<'_>) -> Poll<()> {
        let mut queue = self.shared.queue();
        if queue.bytes.is_empty() {
            return Poll::Pending;
        }
        if !queue.is_closed && !mem::replace(&mut self.has_yielded, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.bytes.clear();
        mem::swap(&mut self.bytes, &mut queue.bytes);
        self.requests.extend(queue.requests.drain(..));
        (self.written, self.has_yielded, self.is_flushed) = (0, false, false);
        Poll::Ready(())
    }
}

impl<S> Drop for Task<S> {
    /// Its runtime may have ended. Those who wait learn that their request was dropped.
    fn drop(&mut self) {
        let requests = {
            let mut queue = self.shared.queue();
            queue.is_closed = true;
            mem::take(&mut queue.requests)
        };
        drop(requests);
    }
}

fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use redis::aio::ConnectionLike as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::runtime::{Builder, Handle};
    use tokio::time::sleep;

    use super::*;
    use crate::connection::Connection;

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
            while let Ok(Some((Value::Array(words), length))) = next_reply(&received) {
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
        Multiplexer { owner: Arc::new(Owner(shared)), response_timeout: timeout, database: 0 }
    }

    fn saying(what: &str) -> Cmd {
        let mut echo = redis::cmd("ECHO");
        echo.arg(what);
        echo
    }

    async fn said(connection: &Multiplexer, what: &str) -> RedisResult<String> {
        Ok(redis::from_redis_value(connection.send(&saying(what)).await?)?)
    }

    async fn ends(handle: &Handle, others: usize) {
        let ended = async {
            while handle.metrics().num_alive_tasks() > others {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, ended).await.expect("the task ends");
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
                        let answers = connection.send_all(&several).await.unwrap();
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
        let error = said(&connection, "late").await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        let dropped = timeout(Duration::from_millis(10), said(&connection, "dropped")).await;
        assert!(dropped.is_err());
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
        for _ in 0..2 {
            // More than the server takes.
            assert!(said(&connection, "nobody answers this").await.unwrap_err().is_timeout());
        }
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
                while let Ok(Some((Value::Array(words), length))) = next_reply(&received) {
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
}
