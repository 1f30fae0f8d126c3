//! The trace of a run, for the story of a failing seed.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// The events of a run as lines of text, with times of tokio's clock. Clones are the same trace.
#[derive(Clone, Debug)]
pub struct Trace {
    begun: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Trace {
    /// An empty trace, whose time begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { begun: Instant::now(), lines: Arc::default() }
    }

    /// Adds a line.
    pub fn note(&self, what: &str) {
        let line = format!("+{:>12.6}s {what}", self.begun.elapsed().as_secs_f64());
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// The lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}
