//! The names of what is measured: on the command line, in the results, and between processes.

mod backend_name;
mod defect;
mod peer;
pub(crate) mod rung;
mod site;

use std::fmt;

use clap::ValueEnum;

pub(crate) use self::backend_name::BackendName;
pub(crate) use self::defect::Defect;
pub(crate) use self::peer::Peer;
pub(crate) use self::site::Site;

/// Writes the name of a value on the command line.
pub(super) fn write_name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.pad(value.to_possible_value().expect("no variant is skipped").get_name())
}
