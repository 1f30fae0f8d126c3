//! What a backend implements, and what it is asked.

pub mod backend;
pub(crate) mod capabilities;
pub mod doctor;
pub mod inspect;
pub mod lazy;
pub mod lease;
pub mod migration;
pub mod observe;
pub(crate) mod request;
pub mod revocation;
