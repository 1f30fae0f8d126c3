//! A stream that writes what many tasks send in few writes.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that lets the other tasks that are ready run before each write, so that their requests go out with it.
///
/// The driver writes whenever nothing more is queued: after each request, if the task that reads the queue runs as soon as
/// there is one. Under load a write costs the client more than everything else, as TCP_NODELAY makes each a packet. A lone
/// request waits for one turn of the scheduler, in which nothing else is ready.
#[derive(Debug)]
pub(crate) struct BatchedWrites<S> {
    stream: S,
    /// Whether the others had their turn since the last write.
    has_yielded: bool,
}

impl<S> BatchedWrites<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self { stream, has_yielded: false }
    }

    fn poll_yield(&mut self, context: &Context<'_>) -> Poll<()> {
        if mem::replace(&mut self.has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BatchedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_yield(context));
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.has_yielded = false;
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_yield(context));
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices));
        self.has_yielded = false;
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BatchedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use redis::aio::MultiplexedConnection;
    use redis::{AsyncConnectionConfig, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

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

    /// Answers each request as if it were PING.
    async fn serve(mut stream: DuplexStream) {
        let (mut buffer, mut text) = ([0; 4096], String::new());
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
            let requests = text.matches("PING\r\n").count();
            text.drain(..text.rfind("PING\r\n").map_or(0, |at| at + 6));
            stream.write_all("+PONG\r\n".repeat(requests).as_bytes()).await.unwrap();
        }
    }

    /// The number of writes of a hundred tasks that send one request each, ten times.
    async fn writes<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        stream: impl FnOnce(Counted) -> S,
    ) -> usize {
        let (ours, theirs) = duplex(1 << 16);
        let count = Arc::new(AtomicUsize::new(0));
        tokio::spawn(serve(theirs));
        let config = AsyncConnectionConfig::new();
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let stream = stream(Counted(ours, Arc::clone(&count)));
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&info, stream, config).await.unwrap();
        tokio::spawn(driver);
        let tasks = (0..100).map(|_| {
            let mut connection = connection.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    let answer: String = redis::cmd("PING").query_async(&mut connection).await.unwrap();
                    assert_eq!(answer, "PONG");
                }
            })
        });
        join_all(tasks).await.into_iter().for_each(Result::unwrap);
        count.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn requests_of_many_tasks_go_out_in_few_writes() {
        let (bare, batched) = (writes(|stream| stream).await, writes(BatchedWrites::new).await);
        println!("1000 requests: {bare} writes, batched {batched}");
        assert!(batched <= 100, "{batched} writes for 1000 requests, {bare} without");
    }
}
