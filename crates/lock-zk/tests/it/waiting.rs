//! Waiters and observers: many at once, and their sessions.

mod crowd;
mod observe;
