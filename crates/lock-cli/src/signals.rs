//! The signals that the command gets in our place.

use std::future::poll_fn;
use std::task::Poll;
use std::{fs, io};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// The signals that are passed on, except those that were ignored when the process began (by `nohup`, say): the command
/// ignores them too.
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens from now on: none of them ends the process any more.
    pub(super) fn listen() -> io::Result<Self> {
        let ignored =
            fs::read_to_string("/proc/self/status").map(|status| ignored(&status)).unwrap_or_default();
        let listened = PASSED_ON.into_iter().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        let listen = |passed: Signal| Ok((passed, signal(SignalKind::from_raw(passed.as_raw()))?));
        listened.map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the next one. It is cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let ready = |(passed, stream): &mut (Signal, unix::Signal)| {
                matches!(stream.poll_recv(context), Poll::Ready(Some(()))).then_some(*passed)
            };
            self.0.iter_mut().find_map(ready).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The mask of ignored signals; the standard library has no safe way to ask for them.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

const PASSED_ON: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::TSTP];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let mask = ignored("Name:\tpolylock\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n");
        assert_eq!((mask, ignored("")), (0x1001, 0));
        assert_eq!(mask >> (Signal::HUP.as_raw() - 1) & 1, 1);
    }
}
