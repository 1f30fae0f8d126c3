//! The identity of an acquisition, and what a holder publishes about itself.

use std::fmt;
use std::process;

use serde::{Deserialize, Serialize};

use crate::values::one_line::one_line;

/// The identity of one acquisition: 128 random bits, written as 32 hexadecimal digits.
///
/// Every acquisition has one of its own, not one per process or lock object, so a late release never releases the lock of
/// the next holder.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, OwnerId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = MemoryConfig::new().connect()?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// let text = guard.owner().to_string();
/// assert_eq!(OwnerId::decode(&text), Some(guard.owner()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct OwnerId([u8; 16]);

impl From<OwnerId> for String {
    fn from(owner: OwnerId) -> Self {
        owner.to_string()
    }
}

impl TryFrom<String> for OwnerId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::decode(&text).ok_or("not the identity of an owner")
    }
}

impl OwnerId {
    /// A new identity from the operating system's random numbers: children of a fork never share one.
    ///
    /// # Panics
    ///
    /// If the operating system has no random numbers: no lock would be safe.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        crate::process::random::fill_identity(&mut bytes);
        Self(bytes)
    }

    /// The identity as text, in this buffer.
    #[must_use]
    pub fn encode(self, buffer: &mut [u8; 32]) -> &str {
        for (digits, byte) in buffer.chunks_exact_mut(2).zip(self.0) {
            digits.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        str::from_utf8(buffer).unwrap_or_default()
    }

    /// Parses the text of an identity; `None` if it is not one.
    #[must_use]
    pub fn decode(text: &str) -> Option<Self> {
        let id = Self(u128::from_str_radix(text, 16).ok()?.to_be_bytes());
        // Exactly as encoded: no sign, no missing digit.
        (id.encode(&mut [0; 32]) == text).then_some(id)
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.encode(&mut [0; 32]))
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a holder publishes about itself, for [`Locks::inspect`](crate::Locks::inspect).
///
/// The fields are as the store holds them, where any client may have written them. [`Display`](fmt::Display) prints them in
/// [one line](one_line).
///
/// # Examples
///
/// ```
/// # use lock_core::OwnerInfo;
/// let owner = OwnerInfo::this_process().with_label("nightly report");
/// assert_eq!(owner.pid, std::process::id());
/// println!("{owner}"); // pid 4242 on web-1 (nightly report)
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OwnerInfo {
    /// The name of the host.
    pub host: String,
    /// The process id on that host.
    pub pid: u32,
    /// A text of the user's choice, such as the name of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl OwnerInfo {
    /// The longest label, in bytes. Stores keep a label with each lock, and waiters read those of holders: a larger one could
    /// be refused by a store in no way that says so. ZooKeeper, for instance, ends a connection at 1 MiB.
    pub const MAX_LABEL_BYTES: usize = 64 * 1024;

    /// This process.
    #[must_use]
    pub fn this_process() -> Self {
        Self { host: host(), pid: process::id(), label: None }
    }

    /// The same owner with a label.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }
}

#[cfg(unix)]
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The name of the host on Windows.
#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "an unknown host".into())
}

impl fmt::Display for OwnerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} on {}", self.pid, one_line(&self.host))?;
        self.label.as_ref().map_or(Ok(()), |label| write!(f, " ({})", one_line(label)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_have_32_digits() {
        let (one, two) = (OwnerId::random(), OwnerId::random());
        assert_ne!(one, two);
        assert_eq!(one.to_string().len(), 32);
        assert_eq!(OwnerId([0; 16]).to_string(), "0".repeat(32));
        let bytes = std::array::from_fn(|at| 15 * u8::try_from(at).unwrap() + 3);
        assert_eq!(OwnerId(bytes).to_string(), format!("{:032x}", u128::from_be_bytes(bytes)));
        for id in [one, two, OwnerId([0; 16]), OwnerId(bytes), OwnerId([255; 16])] {
            assert_eq!(OwnerId::decode(&id.to_string()), Some(id));
        }
        let [short, long, upper] = ["0".repeat(31), "0".repeat(33), "F".repeat(32)];
        for text in ["", "x", &short, &long, &upper, &format!("+{short}"), &format!("{short}g")] {
            assert_eq!(OwnerId::decode(text), None, "{text:?}");
        }
    }
}
