//! Waiters: many at once, and the hand-over.

mod crowd;
mod hand_over;
