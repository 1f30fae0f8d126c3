//! What happened, line by line.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// What happened in a run, in the order in which it did, on tokio's clock. Clones are the same diary.
#[derive(Clone, Debug)]
pub struct Diary {
    begun: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Diary {
    /// An empty one, whose time begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { begun: Instant::now(), lines: Arc::default() }
    }

    /// Adds a line.
    pub fn note(&self, what: &str) {
        let line = format!("+{:>12.6}s {what}", self.begun.elapsed().as_secs_f64());
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// What was written down so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Default for Diary {
    fn default() -> Self {
        Self::new()
    }
}
