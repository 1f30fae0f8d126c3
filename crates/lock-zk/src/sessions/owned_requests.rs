//! The requests of a session that are under way. They belong to the session, not to their callers.
//!
//! The driver keeps a session alive while the future of one of its requests exists. A caller may keep such a future and never
//! poll it again, as `select!` loops do. So the caller has a handle only, and the end of the session drops the request.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::poison::lock;

/// The requests of one session.
#[derive(Default)]
pub(crate) struct OwnedRequests(Mutex<Table>);

#[derive(Default)]
struct Table {
    under_way: HashMap<u64, Arc<dyn Request>>,
    last: u64,
    has_ended: bool,
}

/// A request, until it is answered or dropped.
struct Slot<T>(Mutex<Option<BoxFuture<'static, T>>>);

trait Request: Send + Sync {
    fn drop_now(&self);
}

impl<T> Request for Slot<T> {
    fn drop_now(&self) {
        // Outside the mutex: the destructor is the driver's.
        let request = lock(&self.0).take();
        drop(request);
    }
}

/// The caller's handle of a request. Its output is the answer, or `None` once the session has ended; the end wakes nobody.
/// Dropping it drops the request.
pub(crate) struct OwnedRequest<T: 'static> {
    all: Arc<OwnedRequests>,
    number: u64,
    slot: Arc<Slot<T>>,
}

impl OwnedRequests {
    /// Takes a request over; drops it unpolled after the end of the session.
    pub(crate) fn add<T: 'static>(
        self: &Arc<Self>,
        request: impl Future<Output = T> + Send + 'static,
    ) -> OwnedRequest<T> {
        let slot = Arc::new(Slot(Mutex::new(Some(request.boxed()))));
        let mut table = lock(&self.0);
        table.last += 1;
        let number = table.last;
        let has_ended = table.has_ended;
        if !has_ended {
            table.under_way.insert(number, Arc::clone(&slot) as Arc<dyn Request>);
        }
        drop(table);
        if has_ended {
            slot.drop_now();
        }
        OwnedRequest { all: Arc::clone(self), number, slot }
    }

    /// Drops all requests, whoever waits for them, and those that come later.
    pub(crate) fn end(&self) {
        let under_way = {
            let mut table = lock(&self.0);
            table.has_ended = true;
            std::mem::take(&mut table.under_way)
        };
        under_way.values().for_each(|request| request.drop_now());
    }
}

impl<T> Future for OwnedRequest<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = lock(&self.slot.0);
        let Some(request) = &mut *slot else { return Poll::Ready(None) };
        let answer = std::task::ready!(request.poll_unpin(context));
        *slot = None;
        Poll::Ready(Some(answer))
    }
}

impl<T> Drop for OwnedRequest<T> {
    fn drop(&mut self) {
        // In this order: what is not in the table any more is dropped by now, or by the end of the session.
        self.slot.drop_now();
        lock(&self.all.0).under_way.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Weak;

    use super::*;

    /// A request that has no answer, and whether it exists.
    fn request() -> (impl Future<Output = ()> + Send + 'static, Weak<()>) {
        let exists = Arc::new(());
        let weak = Arc::downgrade(&exists);
        let request = async move {
            pending::<()>().await;
            drop(exists);
        };
        (request, weak)
    }

    #[test]
    fn the_end_drops_what_callers_keep_and_what_comes_later() {
        let requests = Arc::<OwnedRequests>::default();
        let (kept, exists) = request();
        let mut kept = requests.add(kept);
        assert!((&mut kept).now_or_never().is_none() && exists.strong_count() > 0);
        requests.end();
        assert_eq!(exists.strong_count(), 0);
        assert_eq!((&mut kept).now_or_never(), Some(None));
        let (late, exists) = request();
        let late = requests.add(late);
        assert_eq!(exists.strong_count(), 0);
        assert_eq!(late.now_or_never(), Some(None));
    }

    #[test]
    fn a_dropped_caller_drops_its_request() {
        let requests = Arc::<OwnedRequests>::default();
        let (given_up, exists) = request();
        drop(requests.add(given_up));
        assert_eq!(exists.strong_count(), 0);
        let answered = requests.add(async { 7 });
        assert_eq!(answered.now_or_never(), Some(Some(7)));
        assert!(lock(&requests.0).under_way.is_empty());
    }
}
