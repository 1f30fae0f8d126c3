//! What the store refuses while the command goes on.

use std::sync::{Mutex, PoisonError};

use crate::failure::Failure;
use crate::output::Output;

/// The refusals since the lock was last acquired. Each reason is said once.
pub(super) struct Refusals {
    output: Output,
    said: Mutex<Vec<&'static str>>,
}

impl Refusals {
    pub(super) const fn new(output: Output) -> Self {
        Self { output, said: Mutex::new(Vec::new()) }
    }

    pub(super) fn say(&self, failure: &Failure) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if !said.contains(&failure.kind) {
            said.push(failure.kind);
            self.output.fail(failure);
            self.output.say("polylock: going on until that passes");
        }
    }

    pub(super) fn are_some(&self) -> bool {
        !self.said.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn forget(&self) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
