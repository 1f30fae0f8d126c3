//! Ctrl-C, and the polite signals of a supervisor.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

/// From its making on, the signals no longer end the process: who holds it decides.
#[derive(Debug)]
pub(crate) struct Interrupt {
    signals: [Signal; 3],
}

impl Interrupt {
    /// Listens from now on.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(crate) fn listen() -> io::Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [int, term, hangup] = kinds.map(signal);
        Ok(Self { signals: [int?, term?, hangup?] })
    }

    /// Waits for a signal; one that came before counts.
    pub(crate) async fn came(&mut self) {
        let [int, term, hangup] = &mut self.signals;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hangup.recv() => {}
        }
    }

    /// Whether a signal came before. What it has done to other processes may be seen a moment before it is.
    pub(crate) async fn has_come(&mut self) -> bool {
        timeout(MOMENT, self.came()).await.is_ok()
    }
}

const MOMENT: Duration = Duration::from_millis(100);
