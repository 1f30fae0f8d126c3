//! A connection: requests and replies are delayed, and delivered in order.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::link::{Fate, Link};
use super::reply::Bytes;
use super::server::Accepted;

/// The server closes a silent connection after this.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// A request in flight, or the end of the stream.
struct Request {
    at: Instant,
    fate: Fate,
    words: Option<Vec<Bytes>>,
}

impl Link {
    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::ConnectionRefused`] while the server is down, or by a fault.
    pub fn connect(&self) -> io::Result<DuplexStream> {
        let accepted = self.accept().ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        drop(tokio::spawn(serve(self.clone(), accepted, theirs)));
        Ok(ours)
    }
}

/// Serves a connection until it ends.
async fn serve(link: Link, accepted: Accepted, stream: DuplexStream) {
    let Accepted { id, outbox, mut alive } = accepted;
    let (reader, writer) = tokio::io::split(stream);
    let (requests, queue) = mpsc::unbounded_channel();
    // Once the link has lost a reply, all later ones are discarded.
    let silent = AtomicBool::new(false);
    tokio::select! {
        biased;
        () = ended(&mut alive) => {}
        () = execute(&link, id, queue, &silent) => {}
        () = receive(&link, reader, requests) => {}
        () = answer(&link, outbox, writer, &silent) => {}
    }
    link.redis().server().hang_up(id);
}

/// Reads requests and queues them, those of closed clients included.
async fn receive(
    link: &Link,
    reader: impl tokio::io::AsyncRead + Unpin,
    requests: mpsc::UnboundedSender<Request>,
) {
    let (mut reader, mut last) = (BufReader::new(reader), Instant::now());
    loop {
        let words = read_command(&mut reader).await.ok();
        let (fate, delay) = link.request();
        last = last.max(Instant::now() + delay);
        let over = words.is_none();
        if requests.send(Request { at: last, fate, words }).is_err() || over {
            return std::future::pending().await;
        }
    }
}

/// Executes requests in order, until the last one or a reset.
async fn execute(link: &Link, id: u64, mut queue: mpsc::UnboundedReceiver<Request>, silent: &AtomicBool) {
    while let Some(Request { at, fate, words }) = queue.recv().await {
        link.passes(at).await;
        let Some(words) = words else { return };
        match fate {
            Fate::Arrives => link.redis().serve(id, &words),
            Fate::IsLost => {
                link.note(&format!("loses a request of connection {id}"));
                return vanish(silent).await;
            }
            Fate::LosesReply => {
                link.note(&format!("loses a reply of connection {id}"));
                silent.store(true, Ordering::Relaxed);
                link.redis().serve(id, &words);
                return vanish(silent).await;
            }
            Fate::ResetBefore => return link.note(&format!("is reset before a request of connection {id}")),
            Fate::ResetAfter => {
                link.redis().serve(id, &words);
                return link.note(&format!("is reset after a request of connection {id}"));
            }
        }
    }
}

/// The connection is silent in both directions until a timeout.
async fn vanish(silent: &AtomicBool) {
    silent.store(true, Ordering::Relaxed);
    sleep(KEEPALIVE).await;
}

async fn answer(
    link: &Link,
    mut outbox: mpsc::UnboundedReceiver<(Instant, Bytes)>,
    mut writer: impl AsyncWrite + Unpin,
    silent: &AtomicBool,
) {
    let mut last = Instant::now();
    while let Some((sent, bytes)) = outbox.recv().await {
        last = last.max(sent + link.reply());
        link.passes(last).await;
        if !silent.load(Ordering::Relaxed) && writer.write_all(&bytes).await.is_err() {
            // The client has closed, but its requests are executed all the same.
            silent.store(true, Ordering::Relaxed);
        }
    }
}

async fn ended(alive: &mut watch::Receiver<()>) {
    while alive.changed().await.is_ok() {}
}

/// Reads one command, an array of strings. Parsed here and not by a driver: see [`crate::servers::redis::reply`].
async fn read_command(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<Bytes>> {
    let count = read_number(reader, b'*').await?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let mut word = vec![0; read_number(reader, b'$').await? + 2];
        reader.read_exact(&mut word).await?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Ok(words)
}

async fn read_number(reader: &mut (impl AsyncBufRead + Unpin), kind: u8) -> io::Result<usize> {
    let mut line = Bytes::new();
    reader.read_until(b'\n', &mut line).await?;
    let digits = line.strip_prefix(&[kind]).map(|rest| String::from_utf8_lossy(rest));
    let number = digits.and_then(|digits| digits.trim_end().parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

const BUFFER: usize = 1 << 20;
