//! Where the other members of a cluster connect to a member: through a proxy for each of them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::proxy::{Direction, FaultProxy, Protocol};
use crate::servers::port::Port;

/// It knows the others by the header `X-Server-From` of the first request of a connection, as all have one address. It runs on its
/// own thread.
pub(super) struct Door {
    port: Port,
    links: Arc<Links>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The proxies, by the ids of the members that connect; 0 has what is not of Raft.
struct Links {
    member: SocketAddr,
    by_source: Mutex<BTreeMap<u64, FaultProxy>>,
}

impl Door {
    /// A door to a member that listens here for the others.
    pub(super) fn start(member: SocketAddr) -> Result<Self> {
        let (port, listener) = Port::listen("a door")?;
        let start = || {
            listener.set_nonblocking(true)?;
            tokio::runtime::Builder::new_current_thread().enable_io().build()
        };
        let runtime = start().map_err(|error| Error::io("start a door", error))?;
        let links = Arc::new(Links { member, by_source: Mutex::default() });
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("testkit-door".to_owned()).spawn({
            let links = Arc::clone(&links);
            move || runtime.block_on(accept(links, listener, stopped))
        });
        let thread = thread.map_err(|error| Error::io("start a thread", error))?;
        Ok(Self { port, links, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Loses what the connections of these members carry, in both directions, or ends that.
    pub(super) fn cut_off(&self, is_cut_off: impl Fn(u64) -> bool, on: bool) {
        for (_, link) in self.links.by_source().iter().filter(|(source, _)| is_cut_off(**source)) {
            for direction in [Direction::ToServer, Direction::ToClient] {
                link.black_hole(direction, on);
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("addr", &self.addr()).finish_non_exhaustive()
    }
}

impl Links {
    fn by_source(&self) -> MutexGuard<'_, BTreeMap<u64, FaultProxy>> {
        self.by_source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The proxy for a member, which is started with its first connection.
    fn of(&self, source: u64) -> Result<SocketAddr> {
        Ok(match self.by_source().entry(source) {
            Entry::Occupied(link) => link.get().addr(),
            Entry::Vacant(new) => new.insert(FaultProxy::start(self.member, Protocol::Opaque)?).addr(),
        })
    }

    async fn serve(&self, mut from: TcpStream) -> io::Result<()> {
        let mut head = Vec::new();
        while !head.windows(4).any(|part| part == b"\r\n\r\n") {
            if from.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let link = self.of(source_of(&head)).map_err(io::Error::other)?;
        let mut to = TcpStream::connect(link).await?;
        to.write_all(&head).await?;
        copy_bidirectional(&mut from, &mut to).await.map(drop)
    }
}

async fn accept(links: Arc<Links>, listener: StdListener, mut stopped: oneshot::Receiver<()>) {
    let listener = TcpListener::from_std(listener).expect("the listener is non-blocking");
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return,
        };
        if let Ok((from, _)) = accepted {
            let links = Arc::clone(&links);
            tokio::spawn(async move { links.serve(from).await });
        }
    }
}

/// The id of the member that sends this request; 0 if it does not say so.
fn source_of(head: &[u8]) -> u64 {
    let head = String::from_utf8_lossy(head);
    let of = |line: &str| {
        let (name, value) = line.split_once(':')?;
        if name.eq_ignore_ascii_case("X-Server-From") {
            u64::from_str_radix(value.trim(), 16).ok()
        } else {
            None
        }
    };
    head.lines().find_map(of).unwrap_or(0)
}
