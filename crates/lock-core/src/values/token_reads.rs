//! Whether the user of a guard knows its token.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Whether the token of a guard was read, by the guard or by one of its views.
#[derive(Debug, Default)]
pub(crate) struct TokenReads {
    by_guard: AtomicBool,
    /// Made for the first view.
    by_views: OnceLock<ViewReads>,
}

/// Whether one of the views of a guard was asked for the token. Each view has a clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ViewReads(Arc<AtomicBool>);

impl TokenReads {
    pub(crate) fn note(&self) {
        self.by_guard.store(true, Ordering::Relaxed);
    }

    pub(crate) fn of_view(&self) -> ViewReads {
        self.by_views.get_or_init(ViewReads::default).clone()
    }

    /// Whether the token was read, or still can be by a view that outlives its guard.
    pub(crate) fn may_be_known(&mut self) -> bool {
        *self.by_guard.get_mut() || self.by_views.get_mut().is_some_and(ViewReads::may_be_known)
    }
}

impl ViewReads {
    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn may_be_known(&mut self) -> bool {
        // While there is no other clone, none can be made.
        Arc::get_mut(&mut self.0).is_none_or(|is_read| *is_read.get_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_once_it_was_read_and_while_a_view_can_read_it() {
        let mut reads = TokenReads::default();
        assert!(!reads.may_be_known());
        let views = [reads.of_view(), reads.of_view()];
        assert!(reads.may_be_known(), "there are views");
        drop(views);
        assert!(!reads.may_be_known(), "they have read nothing");
        reads.of_view().note();
        assert!(reads.may_be_known(), "one has read it");

        let mut reads = TokenReads::default();
        reads.note();
        assert!(reads.may_be_known());
    }
}
