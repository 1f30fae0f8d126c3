//! What experiments are made with: servers, proxies, worker processes, other libraries and bare commands.

pub(crate) mod backends;
pub(crate) mod counters;
pub(crate) mod cpu_time;
pub(crate) mod fault_servers;
pub(crate) mod floor;
pub(crate) mod interrupt;
pub(crate) mod keep_awake;
pub(crate) mod measured_lock;
pub(crate) mod memory;
pub(crate) mod peers;
pub(crate) mod progress;
pub(crate) mod stuck;
pub(crate) mod url;
pub(crate) mod worker;
