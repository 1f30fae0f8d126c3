//! The command line of `cargo xtask soak`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{chosen, minutes, name_of, named, target_folder};
use crate::data::{Defect, Fault, Flag, Site};
use crate::experiments::soak::Soak;

/// The options of a soak.
#[derive(Args, Clone, Debug)]
pub(crate) struct SoakOptions {
    /// Minutes for each backend
    #[arg(long, value_name = "N", default_value = "10", value_parser = minutes)]
    pub(super) minutes: Duration,

    /// Only this backend; can be given several times
    #[arg(long = "backend", value_name = "NAME")]
    backends: Vec<Site>,

    /// Chooses the faults and what the processes do [default: another one each time]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,

    /// Only faults of this kind; can be given several times
    #[arg(long = "fault", value_name = "KIND", value_parser = named(Fault::of_soak(), Fault::in_soak))]
    faults: Vec<Fault>,

    /// The folder for the histories [default: target/soak]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Uses a lock with this defect, to prove that the checks find it
    #[arg(long, value_name = "DEFECT", hide = true, value_parser = named(Defect::OF_SOAK, name_of))]
    broken: Option<Defect>,
}

impl SoakOptions {
    /// The selected backends, in the order of declaration.
    pub(crate) fn backends(&self) -> Vec<Site> {
        chosen(&self.backends, Site::value_variants())
    }

    /// Whether it was asked for by its name.
    pub(crate) fn names(&self, backend: Site) -> bool {
        self.backends.contains(&backend)
    }

    /// The faults to inject into this backend.
    pub(super) fn faults(&self, backend: Site) -> Vec<Fault> {
        let by_default: Vec<_> = Fault::of_soak().filter(|fault| !fault.row().is(Flag::IsExtreme)).collect();
        let wanted = chosen(&self.faults, &by_default);
        wanted.into_iter().filter(|fault| fault.row().befalls(backend)).collect()
    }

    /// The soak of this backend.
    pub(crate) fn soak(&self, backend: Site, seed: u64) -> Soak {
        let folder = self.out.clone().unwrap_or_else(|| target_folder("soak"));
        Soak {
            site: backend,
            span: self.minutes,
            faults: self.faults(backend),
            seed,
            folder: folder.join(format!("{backend}-{seed}")),
            broken: self.broken,
        }
    }

    /// The options that repeat the run on one backend, without its seed.
    pub(crate) fn repeated(&self, backend: Site) -> String {
        let mut line = format!("--minutes {} --backend {backend}", self.minutes.as_secs_f64() / 60.0);
        for fault in &self.faults {
            line.push_str(&format!(" --fault {}", fault.soak_name()));
        }
        line
    }
}
