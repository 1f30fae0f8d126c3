//! The options of the fault table.

use std::path::PathBuf;

use clap::Args;

use super::{chosen, name_of, named};
use crate::data::{Defect, Fault, Flag};

/// The options of the fault table.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FaultOptions {
    /// Run the fault table instead: each fault on each backend, and whether it does what docs/SAFETY.md says; with --quick
    /// a part of it within a minute
    #[arg(long = "faults")]
    pub(crate) wanted: bool,

    /// Only this fault of the table; can be given several times
    #[arg(long = "fault", value_name = "FAULT", requires = "wanted", value_parser = named(Fault::of_table(), name_of))]
    faults: Vec<Fault>,

    /// Chooses the moments of the faults and their servers [default: another one each time]
    #[arg(long, value_name = "S", requires = "wanted")]
    pub(crate) seed: Option<u64>,

    /// Write the table into docs/SAFETY.md; only for the whole table
    #[arg(long, requires = "wanted", conflicts_with_all = ["quick", "faults", "backends", "broken"])]
    pub(crate) update_docs: bool,

    /// Judge the history of a fault again
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,

    /// Use a lock or a store with this defect, to prove that the table and the claims show it
    #[arg(long = "break", value_name = "DEFECT", value_parser = named(Defect::OF_TABLE, name_of))]
    pub(crate) broken: Option<Defect>,
}

impl FaultOptions {
    /// The selected faults, in the order of the table.
    pub(crate) fn faults(&self, quick: bool) -> Vec<Fault> {
        let by_default: Vec<_> =
            Fault::of_table().filter(|fault| !quick || fault.row().is(Flag::InQuick)).collect();
        chosen(&self.faults, &by_default)
    }
}
