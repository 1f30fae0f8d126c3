//! The names of what is measured: on the command line, in the results, and between processes.

mod backend_name;
mod fault_kind;
mod fault_name;
mod peer;
pub(crate) mod rung;
mod soak_backend;

use std::fmt;

use clap::ValueEnum;

pub(crate) use self::backend_name::BackendName;
pub(crate) use self::fault_kind::{FaultKind, Hits, Losses};
pub(crate) use self::fault_name::{FaultDefect, FaultName};
pub(crate) use self::peer::Peer;
pub(crate) use self::soak_backend::{SoakBackend, SoakDefect};

/// Writes the name of a value on the command line.
fn write_name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.pad(value.to_possible_value().expect("no variant is skipped").get_name())
}
