//! What operators see and do, and what a migration asks.

mod breaking;
mod inspect;
mod migration;
