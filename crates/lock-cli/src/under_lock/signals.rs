//! The signals that the command gets in our place, and those that end `polylock`.

use std::future::poll_fn;
use std::task::Poll;
use std::{fs, io};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::under_lock::job_control::JobControl;

/// The signals that are passed on, except those that were ignored when the process began (by `nohup`, say): the command
/// ignores them too.
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    had_hang_up: bool,
    /// A SIGHUP of which nobody knows yet whether it ends a campaign.
    hang_up: Option<Signal>,
}

impl Signals {
    /// Listens from now on: none of them ends the process any more.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored =
            fs::read_to_string("/proc/self/status").map(|status| ignored(&status)).unwrap_or_default();
        let listened = PASSED_ON.into_iter().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        let listen = |passed: Signal| Ok((passed, signal(SignalKind::from_raw(passed.as_raw()))?));
        Ok(Self {
            streams: listened.map(listen).collect::<io::Result<_>>()?,
            had_hang_up: false,
            hang_up: None,
        })
    }

    /// Waits for the next one. It is cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        let signal = poll_fn(|context| {
            let ready = |(passed, stream): &mut (Signal, unix::Signal)| {
                matches!(stream.poll_recv(context), Poll::Ready(Some(()))).then_some(*passed)
            };
            self.streams.iter_mut().find_map(ready).map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        self.had_hang_up |= signal == Signal::HUP;
        signal
    }

    /// Whether this signal was not ignored when the process began.
    pub(crate) fn listens_to(&self, signal: Signal) -> bool {
        self.streams.iter().any(|(listened, _)| *listened == signal)
    }

    /// Whether there was a SIGHUP.
    pub(crate) const fn had_hang_up(&self) -> bool {
        self.had_hang_up
    }

    /// Waits for a signal that ends a wait: any of them, or those that [end a campaign](ends_campaign) if it is one. One of job
    /// control stops the job as if it had no handler. It is cancel safe.
    pub(crate) async fn ending(&mut self, job: &JobControl, is_campaign: bool) -> Signal {
        loop {
            if let Some(signal) = self.hang_up(job).await {
                return signal;
            }
            match self.next().await {
                Signal::TSTP => job.stop(),
                signal @ Signal::HUP if is_campaign => self.hang_up = Some(signal),
                // It is meant for the command, which does not run now.
                signal if is_campaign && !ends_campaign(signal, job).await => {}
                signal => return signal,
            }
        }
    }

    /// The SIGHUP that came last during an [`ending`](Self::ending) that was dropped, if it ends a campaign. It is cancel safe.
    pub(crate) async fn hang_up(&mut self, job: &JobControl) -> Option<Signal> {
        let ends = ends_campaign(self.hang_up?, job).await;
        self.hang_up.take().filter(|_| ends)
    }
}

/// Whether a signal ends what would acquire the lock again and again: SIGINT, SIGTERM and SIGQUIT do, and SIGHUP when the
/// terminal is gone. Otherwise SIGHUP is the command's, as are SIGUSR1 and SIGUSR2: it reads its configuration again.
pub(crate) async fn ends_campaign(signal: Signal, job: &JobControl) -> bool {
    match signal {
        Signal::INT | Signal::TERM | Signal::QUIT => true,
        Signal::HUP => job.loses_terminal().await,
        _ => false,
    }
}

/// Such as `SIGTERM`.
pub(crate) fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::INT => "SIGINT",
        Signal::TERM => "SIGTERM",
        Signal::HUP => "SIGHUP",
        Signal::QUIT => "SIGQUIT",
        Signal::USR1 => "SIGUSR1",
        Signal::USR2 => "SIGUSR2",
        _ => "a signal",
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
