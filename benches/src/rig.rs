//! What experiments are made with: servers, proxies, worker processes, other libraries and bare commands.

pub(crate) mod backends;
mod fault_servers;
pub(crate) mod floor;
pub(crate) mod idle;
mod interrupt;
pub(crate) mod keep_awake;
pub(crate) mod measured_lock;
pub(crate) mod peers;
mod process;
mod progress;
mod proxies;
pub(crate) mod stuck;
pub(crate) mod url;
pub(crate) mod worker;

pub(crate) use self::backends::{Target, Wanted};
pub(crate) use self::fault_servers::{FaultServers, Outage};
pub(crate) use self::floor::{Bare, Floor};
pub(crate) use self::interrupt::Interrupt;
pub(crate) use self::measured_lock::MeasuredLock;
pub(crate) use self::peers::{Rslock, Sqlx, Subprocess};
pub(crate) use self::process::{cpu_time, memory};
pub(crate) use self::progress::Progress;
pub(crate) use self::proxies::{Counts, Proxies};
pub(crate) use self::worker::clients::ordered::ClientRole;
pub(crate) use self::worker::clients::{ClientOrder, ClientProgram, ClientsTask};
pub(crate) use self::worker::handle::WorkerHandle;
pub(crate) use self::worker::held_locks::HeldLocksCost;
pub(crate) use self::worker::throughput::{Slice, Subject};
pub(crate) use self::worker::{Job, Order, Task, WorkerReport};
