//! The automatic renewal of leases, in batches.
//!
//! A backend with leases implements [`Renew`] and keeps one [`Renewer`] per server. Each lease holds its [`Renewal`].

mod renew;
mod renewer;
mod schedule;
mod task;

pub use renew::{Answered, Due, Renew, Renewed, Terms};
pub use renewer::{Renewal, Renewer};
