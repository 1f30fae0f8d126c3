//! TCP ports for servers, each of them once.

use std::collections::VecDeque;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// A loopback TCP port that is never another server's, neither while this server is down nor after its end: clients that still
/// look for a server must not find that of another test.
///
/// A process takes ports a block at a time, which nobody else on the machine has until it ends, and hands out each port once.
/// The ports lie below the range of the kernel's local ports for outgoing connections. A port that `bind(0)` picks does not:
/// while its server is down, any client on the machine may get it as its local port, and the server cannot be restarted. A
/// client that retries a dead server on loopback can even connect to itself.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
}

impl Port {
    /// Reserves a port without a listener.
    pub(crate) fn pick(server: &str) -> Result<Self> {
        let number = ours().next().ok_or_else(|| Error::NoPort { server: server.to_owned() })?;
        Ok(Self { number })
    }

    /// Two ports of which the second is 10 000 above the first, as cluster nodes of Redis 6.2 have them. The first is below those of
    /// all others.
    pub(crate) fn pick_with_bus(server: &str) -> Result<(Self, Self)> {
        for _ in 0..BUS_TRIES {
            let bus = Self::pick(server)?;
            if bus.number < FIRST + BUS {
                return Ok((Self { number: bus.number - BUS }, bus));
            }
        }
        Err(Error::NoPort { server: server.to_owned() })
    }

    /// A listener on a port of its own.
    pub(crate) fn listen(server: &str) -> Result<(Self, TcpListener)> {
        loop {
            let port = Self::pick(server)?;
            // Somebody else may have taken it.
            if let Ok(listener) = TcpListener::bind(port.addr()) {
                return Ok((port, listener));
            }
        }
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        ours().used.push_back(self.number);
    }
}

/// The ports of this process.
#[derive(Debug)]
struct Ours {
    blocks: Vec<Block>,
    fresh: Range<u16>,
    /// Of servers that have ended, for when there is no fresh one on the whole machine.
    used: VecDeque<u16>,
}

/// Ports that belong to one process.
#[derive(Debug)]
struct Block {
    first: u16,
    /// A name in the abstract socket namespace: a machine-wide mutex that ends with its process.
    _claim: UnixListener,
}

impl Ours {
    fn next(&mut self) -> Option<u16> {
        loop {
            // Another program may listen there.
            if let Some(free) = self.fresh.find(|number| is_free(*number)) {
                return Some(free);
            }
            let Some(block) = Block::claim() else { return self.used.pop_front() };
            self.fresh = block.first..block.first + BLOCK;
            self.blocks.push(block);
        }
    }
}

impl Block {
    /// Takes one that nobody has.
    fn claim() -> Option<Self> {
        let blocks = (first_ephemeral() - FIRST) / BLOCK;
        // A random start, so that processes that run side by side try different blocks, and not those of who has just ended.
        let start = RandomState::new().build_hasher().finish() % u64::from(blocks);
        (0..blocks).find_map(|step| {
            let first = FIRST + (start as u16 + step) % blocks * BLOCK;
            let name = UnixAddr::from_abstract_name(format!("lock-testkit/ports/{first}")).ok()?;
            Some(Self { first, _claim: UnixListener::bind_addr(&name).ok()? })
        })
    }
}

fn ours() -> MutexGuard<'static, Ours> {
    OURS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_free(number: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
}

fn first_ephemeral() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|&low| low > FIRST + 1_000)
        .unwrap_or(DEFAULT_FIRST_EPHEMERAL)
}

static OURS: Mutex<Ours> = Mutex::new(Ours { blocks: Vec::new(), fresh: 0..0, used: VecDeque::new() });

const FIRST: u16 = 20_000;
/// Enough for most programs.
const BLOCK: u16 = 50;
/// How far the port of the bus is above that of the clients.
const BUS: u16 = 10_000;
/// Some blocks are above.
const BUS_TRIES: u16 = 100 * BLOCK;
const DEFAULT_FIRST_EPHEMERAL: u16 = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        // Each is given back at once.
        let mut given: Vec<_> = (0..3 * BLOCK).map(|_| Port::pick("test").unwrap().number()).collect();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), usize::from(3 * BLOCK));
        assert!(given.iter().all(|number| (FIRST..first_ephemeral()).contains(number)));
    }

    #[test]
    fn a_block_belongs_to_one_process() {
        let block = Block::claim().unwrap();
        let name = UnixAddr::from_abstract_name(format!("lock-testkit/ports/{}", block.first)).unwrap();
        assert!(UnixListener::bind_addr(&name).is_err());
        drop(block);
        assert!(UnixListener::bind_addr(&name).is_ok());
    }

    #[test]
    fn a_port_with_a_listener_is_not_given() {
        let block = Block::claim().unwrap();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, block.first)).unwrap();
        let fresh = block.first..block.first + 2;
        let mut ours = Ours { blocks: vec![block], fresh: fresh.clone(), used: VecDeque::new() };
        assert_eq!(ours.next(), Some(fresh.start + 1));
        drop(taken);
    }
}
