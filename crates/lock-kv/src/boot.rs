//! The boot of this host: processes of one boot share its clock, also in containers.

use std::sync::Arc;

use lock_core::BootInstant;
use serde::{Deserialize, Serialize};

/// The time namespace that has no offsets: `TIME_NS_INIT_INO` of Linux, `linux/nsfs.h`.
#[cfg(target_os = "linux")]
const WITHOUT_OFFSETS: &str = "time:[4026531834]";

/// Which boot it is, as text.
pub(crate) type BootId = Arc<str>;

/// A time on the clock of one boot.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct BootTime {
    boot: String,
    time: BootInstant,
}

impl BootTime {
    pub(crate) fn new(boot: &BootId, time: BootInstant) -> Self {
        Self { boot: boot.to_string(), time }
    }

    /// The time, for processes of the same boot.
    pub(crate) fn on(&self, boot: Option<&BootId>) -> Option<BootInstant> {
        (**boot? == *self.boot).then_some(self.time)
    }
}

/// The boot of this process, if its clock is that of all others with the same text. It is not in a time namespace with offsets, and is taken
/// for one where Linux does not say.
#[cfg(target_os = "linux")]
pub(crate) fn this_boot() -> Option<BootId> {
    let namespace = std::fs::read_link("/proc/self/ns/time").ok()?;
    if namespace.to_str() != Some(WITHOUT_OFFSETS) {
        return None;
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim()).filter(|id| !id.is_empty()).map(Arc::from)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn this_boot() -> Option<BootId> {
    None
}
