//! What goes to servers and comes back: the driver, requests, logins, TLS, and why a server cannot be reached.

pub(crate) mod driver;
pub(crate) mod driver_process;
pub(crate) mod driver_task;
pub(crate) mod four_letter;
pub(crate) mod login;
pub(crate) mod reachability;
pub(crate) mod requests;
pub(crate) mod tls;
