//! The record of an injected fault.

use serde::{Serialize, Serializer};

use crate::data::Fault;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Injected {
    #[serde(rename = "kind", serialize_with = "by_its_name")]
    pub(super) fault: Fault,
    /// The servers or workers, in words.
    pub(super) whom: String,
    /// Whether it is the end of a pause: the limit counts from there again.
    pub(super) resumes: bool,
    /// Whether no worker may lose a lock by it, but for the thread that computes.
    pub(super) keeps_locks: bool,
    /// When it began, on the clock of the histories.
    pub(super) from_ns: u64,
    /// When it ended. For a worker that was killed or stopped: when that happened, as its lease runs out from then on.
    pub(super) until_ns: u64,
    /// The process and its runtime whose thread computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) computes: Option<(u32, usize)>,
}

fn by_its_name<S: Serializer>(fault: &Fault, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&fault.soak_name())
}
