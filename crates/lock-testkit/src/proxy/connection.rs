//! One proxied connection: two readers, two queues, two writers.

use std::net::TcpListener as StdListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::frames::{Replies, Requests};
use super::ledger::{Ledger, ReplyFate, Swallow};
use super::{Action, Control, Direction, Fate, Shared, Then};

/// Accepts connections until the proxy is dropped.
pub(super) async fn accept(shared: Arc<Shared>, listener: StdListener, mut stopped: oneshot::Receiver<()>) {
    let listener = TcpListener::from_std(listener).expect("the listener is non-blocking");
    for id in 0.. {
        let client = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return,
        };
        // The system may be short of file handles for a moment.
        let Ok((client, _)) = client else { continue };
        if shared.faults.borrow().refuse {
            reset(client);
            continue;
        }
        let control = Arc::new(Control::new());
        shared.table().insert(id, Arc::clone(&control));
        tokio::spawn(serve(Arc::clone(&shared), control, id, client));
    }
}

async fn serve(shared: Arc<Shared>, control: Arc<Control>, id: u64, mut client: TcpStream) {
    let gone = Gone { shared: &shared, id };
    let mut fate = control.fate.subscribe();
    let server = tokio::select! {
        connected = TcpStream::connect(shared.upstream) => connected,
        _ = fate.wait_for(Option::is_some) => Err(std::io::ErrorKind::ConnectionAborted.into()),
    };
    let Ok(mut server) = server else { return reset(client) };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);

    let link =
        Link { shared: &shared, control: &control, ledger: Mutex::default(), gone: Default::default() };
    let end = tokio::select! {
        biased;
        fate = fate.wait_for(Option::is_some) => fate.ok().and_then(|fate| *fate),
        () = link.run(&mut client, &mut server) => None,
    };
    match end {
        None => {}
        Some(Fate::Rst) => {
            reset(client);
            reset(server);
        }
        Some(Fate::Fin) => {
            let _ = tokio::join!(client.shutdown(), server.shutdown());
            drop(gone);
            tokio::join!(drain(client), drain(server));
        }
        Some(Fate::Cut) => {
            reset(client);
            let _ = server.shutdown().await;
            drop(gone);
            drain(server).await;
        }
    }
}

/// Takes the connection off the table when it has ended.
struct Gone<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.shared.table().remove(&self.id);
        self.shared.ended.notify_all();
    }
}

struct Link<'a> {
    shared: &'a Shared,
    control: &'a Control,
    ledger: Mutex<Ledger>,
    /// Notified when the receiver of a direction has closed its own sending side.
    gone: [Notify; 2],
}

/// An element of a queue.
struct Parcel {
    sent: Instant,
    load: Load,
}

enum Load {
    Bytes(Vec<u8>),
    /// The bytes of a request after which the connection is cut.
    LastBytes(Vec<u8>),
    /// The bytes of a request after which requests are held.
    BytesBeforeHold(Vec<u8>),
    Fin,
    Rst,
}

impl Link<'_> {
    /// Forwards until both sides have closed and have received the other's close.
    async fn run(&self, client: &mut TcpStream, server: &mut TcpStream) {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let (requests, request_queue) = unbounded_channel();
        let (replies, reply_queue) = unbounded_channel();
        tokio::join!(
            self.read_requests(from_client, requests),
            self.write(Direction::ToServer, request_queue, to_server),
            self.read_replies(from_server, replies),
            self.write(Direction::ToClient, reply_queue, to_client),
        );
    }

    async fn read_requests(&self, mut from: ReadHalf<'_>, queue: UnboundedSender<Parcel>) {
        const DIRECTION: Direction = Direction::ToServer;
        let mut requests = Requests::new(self.shared.protocol);
        let mut buffer = Vec::with_capacity(BUFFER);
        while let Ok(length @ 1..) = from.read_buf(&mut buffer).await {
            self.shared.bytes.fetch_add(length as u64, Ordering::SeqCst);
            let mut start = 0;
            // Frames without a fault are forwarded together: `pending..start`.
            let mut pending = 0;
            while let Some((length, request)) = requests.next(&buffer[start..]) {
                let end = start + length;
                let counted = request != super::frames::Request::Other;
                if counted {
                    self.shared.requests.fetch_add(1, Ordering::SeqCst);
                }
                let lost = self.loses(DIRECTION);
                let action =
                    if counted && !lost { self.shared.apply_rules(&buffer[start..end]) } else { None };
                if lost {
                    self.push(DIRECTION, &queue, Load::Bytes(buffer[pending..start].to_vec()));
                    pending = end;
                } else {
                    let swallow = match action {
                        Some(Action::SwallowReply(then)) => Some(Swallow::Then(then)),
                        Some(Action::Repeat) => Some(Swallow::Alone),
                        Some(Action::Cut | Action::Hold | Action::HoldReplies) | None => None,
                    };
                    self.ledger().sent(request, swallow);
                }
                if matches!(action, Some(Action::Repeat)) {
                    self.ledger().sent(request, None);
                    self.push(DIRECTION, &queue, Load::Bytes(buffer[pending..end].to_vec()));
                    pending = start;
                }
                let last = match action {
                    Some(Action::Cut) => Some(Load::LastBytes(buffer[pending..end].to_vec())),
                    Some(Action::Hold) => Some(Load::BytesBeforeHold(buffer[pending..end].to_vec())),
                    Some(Action::SwallowReply(_) | Action::Repeat | Action::HoldReplies) | None => None,
                };
                if matches!(action, Some(Action::HoldReplies)) {
                    self.shared.faults.send_modify(|faults| faults.hold[Direction::ToClient as usize] = true);
                    self.shared.fired.fetch_add(1, Ordering::SeqCst);
                }
                if let Some(last) = last {
                    self.push(DIRECTION, &queue, last);
                    pending = end;
                }
                start = end;
            }
            self.push(DIRECTION, &queue, Load::Bytes(buffer[pending..start].to_vec()));
            buffer.drain(..start);
        }
        // A killed client may reset the connection. The server gets the end of the stream instead, as a reset could overtake
        // a request in flight.
        self.finish(DIRECTION, &queue, buffer, Load::Fin);
    }

    async fn read_replies(&self, mut from: ReadHalf<'_>, queue: UnboundedSender<Parcel>) {
        const DIRECTION: Direction = Direction::ToClient;
        let mut replies = Replies::new(self.shared.protocol);
        let mut buffer = Vec::with_capacity(BUFFER);
        let end = loop {
            match from.read_buf(&mut buffer).await {
                Ok(0) => break Load::Fin,
                Err(_) => break Load::Rst,
                Ok(length) => {
                    self.shared.bytes.fetch_add(length as u64, Ordering::SeqCst);
                }
            }
            let mut start = 0;
            let mut pending = 0;
            while let Some((length, reply)) = replies.next(&buffer[start..]) {
                let end = start + length;
                let verdict = self.ledger().received(reply);
                let mut lost = self.loses(DIRECTION);
                match verdict {
                    ReplyFate::Forward { push } => {
                        self.shared.pushes.fetch_add(u64::from(push), Ordering::SeqCst);
                        lost |= push && self.shared.faults.borrow().lose_pushes;
                    }
                    ReplyFate::Swallow(swallow) => {
                        self.push(DIRECTION, &queue, Load::Bytes(buffer[pending..start].to_vec()));
                        pending = end;
                        match swallow {
                            Swallow::Alone => {}
                            Swallow::Then(Then::Reset) => self.push(DIRECTION, &queue, Load::Rst),
                            Swallow::Then(Then::Fin) => self.push(DIRECTION, &queue, Load::Fin),
                            Swallow::Then(Then::Hang) => {
                                self.control.lost[DIRECTION as usize].store(true, Ordering::SeqCst);
                            }
                        }
                        self.shared.fired.fetch_add(1, Ordering::SeqCst);
                        lost = false;
                    }
                }
                if lost {
                    self.push(DIRECTION, &queue, Load::Bytes(buffer[pending..start].to_vec()));
                    pending = end;
                }
                start = end;
            }
            self.push(DIRECTION, &queue, Load::Bytes(buffer[pending..start].to_vec()));
            buffer.drain(..start);
        };
        self.finish(DIRECTION, &queue, buffer, end);
    }

    /// Forwards the sender's close, after an incomplete last message.
    fn finish(&self, direction: Direction, queue: &UnboundedSender<Parcel>, rest: Vec<u8>, end: Load) {
        if !self.loses(direction) {
            self.push(direction, queue, Load::Bytes(rest));
            self.push(direction, queue, end);
        }
        self.gone[direction.reverse() as usize].notify_one();
    }

    /// Whether bytes in this direction are lost now.
    fn loses(&self, direction: Direction) -> bool {
        let lost = &self.control.lost[direction as usize];
        if self.shared.faults.borrow().black_hole[direction as usize] {
            lost.store(true, Ordering::SeqCst);
        }
        lost.load(Ordering::SeqCst)
    }

    fn push(&self, direction: Direction, queue: &UnboundedSender<Parcel>, load: Load) {
        let size = match &load {
            Load::Bytes(bytes) if bytes.is_empty() => return,
            Load::Bytes(bytes) | Load::LastBytes(bytes) | Load::BytesBeforeHold(bytes) => bytes.len(),
            Load::Fin | Load::Rst => 0,
        };
        self.control.queued[direction as usize].fetch_add(size, Ordering::SeqCst);
        // The writer keeps the queue open until its end has come through it.
        let _ = queue.send(Parcel { sent: Instant::now(), load });
    }

    async fn write(&self, direction: Direction, mut queue: UnboundedReceiver<Parcel>, mut to: WriteHalf<'_>) {
        let mut faults = self.shared.faults.subscribe();
        while let Some(Parcel { sent, load }) = queue.recv().await {
            due(&mut faults, direction, sent).await;
            match load {
                // Fails when the receiver has closed, which the other reader reports.
                Load::Bytes(bytes) => {
                    let _ = to.write_all(&bytes).await;
                    self.control.queued[direction as usize].fetch_sub(bytes.len(), Ordering::SeqCst);
                }
                Load::LastBytes(bytes) => {
                    // The reply may be faster than the reset.
                    self.control.lost[direction.reverse() as usize].store(true, Ordering::SeqCst);
                    let _ = to.write_all(&bytes).await;
                    self.shared.fired.fetch_add(1, Ordering::SeqCst);
                    self.control.fate.send_replace(Some(Fate::Cut));
                    return std::future::pending().await;
                }
                Load::BytesBeforeHold(bytes) => {
                    let _ = to.write_all(&bytes).await;
                    self.control.queued[direction as usize].fetch_sub(bytes.len(), Ordering::SeqCst);
                    self.shared.faults.send_modify(|faults| faults.hold[direction as usize] = true);
                    self.shared.fired.fetch_add(1, Ordering::SeqCst);
                }
                Load::Fin => {
                    let _ = to.shutdown().await;
                    return;
                }
                Load::Rst => {
                    self.control.fate.send_replace(Some(Fate::Rst));
                    return std::future::pending().await;
                }
            }
        }
        // The close was lost: the receiver must not learn of it, so that its side stays open until it closes.
        self.gone[direction as usize].notified().await;
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Direction {
    fn reverse(self) -> Self {
        match self {
            Self::ToServer => Self::ToClient,
            Self::ToClient => Self::ToServer,
        }
    }
}

impl Control {
    fn new() -> Self {
        Self {
            fate: watch::Sender::new(None),
            lost: [const { AtomicBool::new(false) }; 2],
            queued: [const { AtomicUsize::new(0) }; 2],
        }
    }
}

/// Waits until a parcel may be delivered, by the faults at that time.
async fn due(faults: &mut watch::Receiver<super::Faults>, direction: Direction, sent: Instant) {
    loop {
        let now = *faults.borrow_and_update();
        let at = sent + now.delay[direction as usize];
        if now.hold[direction as usize] {
            let _ = faults.changed().await;
        } else if at <= Instant::now() || timeout_at_or_change(faults, at).await {
            return;
        }
    }
}

/// Whether `at` came before the faults changed.
async fn timeout_at_or_change(faults: &mut watch::Receiver<super::Faults>, at: Instant) -> bool {
    tokio::select! {
        () = sleep_until(at) => true,
        _ = faults.changed() => false,
    }
}

fn reset(stream: TcpStream) {
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
}

/// Reads the rest: closing a socket with unread bytes would reset the connection.
async fn drain(mut stream: TcpStream) {
    let mut sink = [0; 4096];
    let _ = timeout(DRAIN_DEADLINE, async { while let Ok(1..) = stream.read(&mut sink).await {} }).await;
}

const BUFFER: usize = 16 << 10;
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);
