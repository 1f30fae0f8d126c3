//! A connection for requests, while it is out of its pool.

use std::ops::Deref;
use std::sync::Arc;

use deadpool::managed::Object;
use tokio::sync::OwnedSemaphorePermit;

use crate::connect::link::{Dialer, Link};

/// A connection that is out of the pool until its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Used>);

/// In this order: the next turn finds the connection in the pool.
#[derive(Debug)]
struct Used {
    link: Object<Dialer>,
    /// None for the reserve.
    _turn: Option<OwnedSemaphorePermit>,
}

impl Connection {
    pub(crate) fn new(link: Object<Dialer>, turn: Option<OwnedSemaphorePermit>) -> Self {
        Self(Arc::new(Used { link, _turn: turn }))
    }
}

impl Deref for Connection {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.0.link
    }
}
