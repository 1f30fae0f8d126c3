//! What operators see and do, and what a migration asks.

mod doctor;
mod inspection;
mod late_revocation;
mod migration;
