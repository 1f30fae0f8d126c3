//! Reserves a TCP port for a server, also while the server is down.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use crate::error::{Error, Result};

/// A loopback TCP port that stays reserved for one server while that server is down.
///
/// The port lies below the range of the kernel's local ports for outgoing connections. A port that `bind(0)` picks does
/// not: while its server is down, any client on the machine may get it as its local port, and the server cannot be
/// restarted. A client that retries a dead server on loopback can even connect to itself.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// A name in the abstract socket namespace: a machine-wide mutex that ends with its process.
    _claim: UnixListener,
}

impl Port {
    /// Reserves a port without a listener.
    pub(crate) fn pick(server: &str) -> Result<Self> {
        let range = FIRST..first_ephemeral();
        let span = u64::from(range.end - range.start);
        // A random start, so that test processes that run side by side try different ports.
        let start = RandomState::new().build_hasher().finish() % span;
        (0..span)
            .map(|step| range.start + ((start + step) % span) as u16)
            .find_map(Self::claim)
            .ok_or_else(|| Error::NoPort { server: server.to_owned() })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }

    fn claim(number: u16) -> Option<Self> {
        let name = UnixAddr::from_abstract_name(format!("lock-testkit/port/{number}")).ok()?;
        let claim = UnixListener::bind_addr(&name).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _claim: claim })
    }
}

fn first_ephemeral() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|&low| low > FIRST + 1_000)
        .unwrap_or(DEFAULT_FIRST_EPHEMERAL)
}

const FIRST: u16 = 20_000;
const DEFAULT_FIRST_EPHEMERAL: u16 = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_not_given_twice() {
        let port = Port::pick("test").unwrap();
        assert!(Port::claim(port.number()).is_none());
        let number = port.number();
        drop(port);
        assert!(Port::claim(number).is_some());
    }

    #[test]
    fn a_port_with_a_listener_is_not_given() {
        let port = Port::pick("test").unwrap();
        let number = port.number();
        let listener = TcpListener::bind(port.addr()).unwrap();
        drop(port);
        assert!(Port::claim(number).is_none());
        drop(listener);
    }

    #[test]
    fn ports_lie_below_the_ephemeral_range() {
        assert!(Port::pick("test").unwrap().number() < first_ephemeral());
    }
}
