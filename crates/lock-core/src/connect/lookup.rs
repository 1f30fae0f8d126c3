//! Looks up the addresses of host names, on threads of its own.
//!
//! The system's lookup cannot be interrupted, and takes many seconds if a name server does not answer. On the blocking threads of a
//! tokio runtime it would keep the runtime from ending for as long. The threads here are waited for by nothing.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;

use tokio::sync::{Semaphore, oneshot};

/// The most lookups at a time in this process. Those that a name server does not answer pile up until the system gives up.
const MOST_LOOKUPS: usize = 64;

static LOOKUPS: Semaphore = Semaphore::const_new(MOST_LOOKUPS);

/// The addresses of a host, in the order in which the system prefers them. An IP address is not looked up.
///
/// The caller limits the time that this takes.
///
/// # Errors
///
/// When the name is unknown or has no address, or when no thread can be started.
///
/// # Cancel safety
///
/// This function is cancel safe. The lookup goes on without its caller, and ends by itself.
pub async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let permit = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let (to, found) = oneshot::channel();
    let name = host.to_owned();
    thread::Builder::new().name(String::from("lookup")).spawn(move || {
        let found = resolve(&name, port);
        drop(permit);
        // The caller may have given up.
        let _ = to.send(found);
    })?;
    let mut found = found.await.map_err(io::Error::other)??;
    let mut known = Vec::with_capacity(found.len());
    found.retain(|address| {
        let is_new = !known.contains(address);
        known.push(*address);
        is_new
    });
    if found.is_empty() {
        return Err(io::Error::other(format!("{host} has no address")));
    }
    Ok(found)
}

fn resolve(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(any(test, feature = "test-util"))]
    if let Some(ips) = test_name::resolve(name) {
        return Ok(ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect());
    }
    Ok((name, port).to_socket_addrs()?.collect())
}

#[cfg(any(test, feature = "test-util"))]
pub use test_name::TestName;

#[cfg(any(test, feature = "test-util"))]
mod test_name {
    use std::collections::HashMap;
    use std::net::IpAddr;
    use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

    /// The names of this process that only its tests know.
    static NAMES: LazyLock<Mutex<HashMap<String, Answer>>> = LazyLock::new(Mutex::default);
    static CHANGED: Condvar = Condvar::new();

    #[derive(Clone)]
    enum Answer {
        Addresses(Vec<IpAddr>),
        Never,
    }

    /// A host name that all lookups of this process find until it is dropped: for tests.
    ///
    /// ```
    /// # use lock_core::lookup::{TestName, addresses};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let _name = TestName::new("two.test", [[127, 0, 0, 2], [127, 0, 0, 1]]);
    /// assert_eq!(addresses("two.test", 7).await?.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct TestName(String);

    impl TestName {
        /// A name with these addresses.
        pub fn new<A: Into<IpAddr>>(name: &str, addresses: impl IntoIterator<Item = A>) -> Self {
            Self::answered(name, Answer::Addresses(addresses.into_iter().map(Into::into).collect()))
        }

        /// A name whose name server does not answer.
        #[must_use]
        pub fn unanswered(name: &str) -> Self {
            Self::answered(name, Answer::Never)
        }

        fn answered(name: &str, answer: Answer) -> Self {
            names().insert(name.to_owned(), answer);
            Self(name.to_owned())
        }
    }

    impl Drop for TestName {
        fn drop(&mut self) {
            names().remove(&self.0);
            CHANGED.notify_all();
        }
    }

    /// Blocks, as the system does, while the name is not answered.
    pub(super) fn resolve(name: &str) -> Option<Vec<IpAddr>> {
        let mut names = names();
        loop {
            match names.get(name)? {
                Answer::Addresses(addresses) => return Some(addresses.clone()),
                Answer::Never => names = CHANGED.wait(names).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn names() -> MutexGuard<'static, HashMap<String, Answer>> {
        NAMES.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::future::join_all;
    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn addresses_keep_their_order_and_come_once() {
        let ips = [[127, 0, 0, 3], [127, 0, 0, 1], [127, 0, 0, 3], [127, 0, 0, 2]];
        let _name = TestName::new("ordered.test", ips);
        let found = addresses("ordered.test", 7).await.unwrap();
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["127.0.0.3:7", "127.0.0.1:7", "127.0.0.2:7"]);
        assert_eq!(addresses("::1", 7).await.unwrap()[0].to_string(), "[::1]:7");
        let _empty = TestName::new::<IpAddr>("empty.test", []);
        let error = addresses("empty.test", 7).await.unwrap_err().to_string();
        assert_eq!(error, "empty.test has no address");
        assert!(addresses("localhost", 7).await.unwrap().iter().all(|address| address.ip().is_loopback()));
    }

    #[test]
    fn lookups_that_nobody_answers_keep_no_runtime_from_ending_and_have_a_limited_number_of_threads() {
        let unanswered = TestName::unanswered("unanswered.test");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let lookups = (0..2 * MOST_LOOKUPS).map(|_| addresses("unanswered.test", 7));
            assert!(timeout(Duration::from_millis(100), join_all(lookups)).await.is_err());
            assert_eq!(LOOKUPS.available_permits(), 0);
        });
        let (ended, has_ended) = mpsc::channel();
        thread::spawn(move || {
            drop(runtime);
            ended.send(()).unwrap();
        });
        has_ended.recv_timeout(LONG).expect("the runtime ends");
        drop(unanswered);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(async { timeout(LONG, addresses("localhost", 7)).await });
        assert!(!found.expect("the threads have ended").unwrap().is_empty());
    }
}
