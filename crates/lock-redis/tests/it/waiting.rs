//! Waiters and observers: the queue, the notifications, the hand-over.

mod confirmation;
mod crowd;
mod ghosts;
mod hand_over;
mod observe;
pub(crate) mod pushes;
mod queue;
