//! SIGINT (Ctrl-C), SIGTERM and SIGHUP.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

/// Receives the signals. They no longer end the process once this exists.
#[derive(Debug)]
pub(crate) struct Interrupt {
    signals: [Signal; 3],
}

impl Interrupt {
    pub(crate) fn listen() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [int, term, hangup] = kinds.map(signal);
        Ok(Self { signals: [int?, term?, hangup?] })
    }

    /// Waits for a signal, unless one was received already.
    pub(crate) async fn received(&mut self) {
        let [int, term, hangup] = &mut self.signals;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hangup.recv() => {}
        }
    }

    /// Whether a signal was received, or is within a moment: its effect on child processes may be noticed first.
    pub(crate) async fn was_received(&mut self) -> bool {
        timeout(MOMENT, self.received()).await.is_ok()
    }
}

const MOMENT: Duration = Duration::from_millis(100);
