//! What ends, breaks and restarts: connections, processes, runtimes; and what their logs say.

pub(super) mod closing;
pub(super) mod credentials;
pub(super) mod faults;
pub(super) mod logs;
pub(super) mod processes;
pub(super) mod refuses_writes;
pub(super) mod runtimes;
pub(super) mod worker;
