//! A proxy by which Redis clients share a connection.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener as StdListener};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::Protocol;
use super::frames::{Replies, Requests, command_name};
use crate::error::{Error, Result};
use crate::servers::port::Port;

/// A proxy that sends the requests of all its clients over one connection to a Redis server, in the order in which they come, as
/// those do that save connections.
///
/// It refuses the commands that it is told to, such as those about a connection of one's own. When it loses the server, it
/// answers in its place, and connects again for the next request.
///
/// It runs on the runtime that started it, and ends when it is dropped.
#[derive(Debug)]
pub struct Multiplexer {
    port: Port,
    task: JoinHandle<()>,
}

/// What a client gets for a command that is not forwarded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The error of Redis for an unknown command.
    Error,
    /// The end of its connection.
    Close,
}

/// A request, and where its answer goes.
struct Forwarded {
    request: Vec<u8>,
    answer: oneshot::Sender<Vec<u8>>,
}

type Refused = (&'static [&'static str], Refusal);

impl Multiplexer {
    /// Starts a proxy on a free loopback port that forwards to `upstream` all commands but those that it refuses.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the system has no port to spare.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn start(upstream: SocketAddr, refused: &'static [&'static str], refusal: Refusal) -> Result<Self> {
        let (port, listener) = Port::listen("a proxy")?;
        let listener = listen(listener).map_err(|error| Error::io("start a proxy", error))?;
        let (requests, queue) = unbounded_channel();
        let task = tokio::spawn(async move {
            tokio::join!(accept(listener, requests, (refused, refusal)), forward(upstream, queue));
        });
        Ok(Self { port, task })
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }
}

impl Drop for Multiplexer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn listen(listener: StdListener) -> std::io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn accept(listener: TcpListener, requests: UnboundedSender<Forwarded>, refused: Refused) {
    // Their tasks end with this one.
    let mut clients = JoinSet::new();
    loop {
        if let Ok((client, _)) = listener.accept().await {
            clients.spawn(serve(client, requests.clone(), refused));
        }
    }
}

/// Passes the requests of one client on, and returns the answers in their order.
async fn serve(client: TcpStream, requests: UnboundedSender<Forwarded>, (refused, refusal): Refused) {
    let _ = client.set_nodelay(true);
    let (mut from, mut to) = client.into_split();
    let (answers, mut in_order) = unbounded_channel::<oneshot::Receiver<Vec<u8>>>();
    let reads = async move {
        let (mut frames, mut buffer) = (Requests::new(Protocol::Redis), Vec::new());
        while let Ok(1..) = from.read_buf(&mut buffer).await {
            while let Some((length, _)) = frames.next(&buffer) {
                let request: Vec<u8> = buffer.drain(..length).collect();
                let (answer, answered) = oneshot::channel();
                let _ = answers.send(answered);
                match error_for(&request, refused) {
                    Some(_) if refusal == Refusal::Close => return,
                    Some(error) => drop(answer.send(error)),
                    None => drop(requests.send(Forwarded { request, answer })),
                }
            }
        }
    };
    let writes = async move {
        while let Some(answer) = in_order.recv().await {
            let Ok(answer) = answer.await else { break };
            if to.write_all(&answer).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(reads, writes);
}

/// The error for a command that is refused.
fn error_for(request: &[u8], refused: &[&str]) -> Option<Vec<u8>> {
    let name = String::from_utf8_lossy(command_name(request)?).into_owned();
    let is_refused = refused.iter().any(|refused| refused.eq_ignore_ascii_case(&name));
    is_refused.then(|| format!("-ERR unknown command '{name}'\r\n").into_bytes())
}

/// Sends the requests over one connection, and a new one after that has ended.
async fn forward(upstream: SocketAddr, mut queue: UnboundedReceiver<Forwarded>) {
    while let Some(first) = queue.recv().await {
        let mut unanswered = VecDeque::new();
        if let Ok(server) = TcpStream::connect(upstream).await {
            share(server, first, &mut queue, &mut unanswered).await;
        } else {
            unanswered.push_back(first.answer);
        }
        for answer in unanswered {
            let _ = answer.send(b"-upstream failure\r\n".to_vec());
        }
    }
}

/// Sends requests until the connection ends, and leaves those that have no answer.
async fn share(
    mut server: TcpStream,
    first: Forwarded,
    queue: &mut UnboundedReceiver<Forwarded>,
    unanswered: &mut VecDeque<oneshot::Sender<Vec<u8>>>,
) {
    let _ = server.set_nodelay(true);
    let (mut frames, mut buffer) = (Replies::new(Protocol::Redis), Vec::new());
    let mut next = Some(first);
    loop {
        if let Some(Forwarded { request, answer }) = next.take() {
            unanswered.push_back(answer);
            if server.write_all(&request).await.is_err() {
                return;
            }
        }
        tokio::select! {
            forwarded = queue.recv() => match forwarded {
                Some(forwarded) => next = Some(forwarded),
                None => return,
            },
            read = server.read_buf(&mut buffer) => {
                if !matches!(read, Ok(1..)) {
                    return;
                }
                while let Some((length, _)) = frames.next(&buffer) {
                    let reply = buffer.drain(..length).collect();
                    if let Some(answer) = unanswered.pop_front() {
                        let _ = answer.send(reply);
                    }
                }
            }
        }
    }
}
