//! Waiters and observers: many at once, and the connection that listens.

mod crowd;
mod observers;
