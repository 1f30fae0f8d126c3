//! The harness: measures the backends on real servers, and uses them under faults.
//!
//! Five layers, each of which imports only those before it: `data` (what was measured), `rig` (servers, proxies, workers, other
//! libraries), `experiments` (scenarios, claims, faults, the soak), `report` (which reads `data` alone) and `cli`.

mod cli;
mod data;
mod experiments;
mod report;
mod rig;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::Builder;

use crate::cli::options::{Options, Role};
use crate::cli::{compare, faults, soak};
use crate::data::Outcome;
use crate::rig::worker;

fn main() -> ExitCode {
    let options = Options::parse();
    let (name, ended) = match (&options.role, &options.faults.replay) {
        (Some(Role::Worker), _) => return worker::process::main(),
        (Some(Role::Soak(options)), _) => ("soak", in_runtime(soak::run(options))),
        (None, Some(record)) => ("replay", faults::replay(record)),
        (None, None) if options.faults.wanted => ("faults", in_runtime(faults::run(&options))),
        (None, None) => ("compare", in_runtime(compare::run(&options))),
    };
    ended.unwrap_or_else(|failure| {
        eprintln!("{name}: {failure}");
        ExitCode::FAILURE
    })
}

fn in_runtime(command: impl Future<Output = Outcome<ExitCode>>) -> Outcome<ExitCode> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(command);
    // Connections may have left tasks in the background.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The layers that a layer may import beside itself.
    const LAYERS: [(&str, &[&str]); 5] = [
        ("data", &[]),
        ("rig", &["data"]),
        ("experiments", &["data", "rig"]),
        ("report", &["data"]),
        ("cli", &["data", "rig", "experiments", "report"]),
    ];

    #[test]
    fn a_layer_imports_only_those_before_it() {
        let (source, mut read) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), 0);
        for (layer, below) in LAYERS {
            let files =
                sources(&source.join(layer)).into_iter().chain([source.join(layer).with_extension("rs")]);
            for file in files {
                let text = fs::read_to_string(&file).unwrap();
                for path in text.split("crate::").skip(1) {
                    let of =
                        path.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap();
                    let is_layer = LAYERS.iter().any(|(name, _)| *name == of);
                    assert!(is_layer, "{} imports crate::{of} without its layer", file.display());
                    assert!(of == layer || below.contains(&of), "{} imports the layer {of}", file.display());
                }
                read += 1;
            }
        }
        assert!(read > 100, "{read} files");
    }

    /// All files with code below this folder.
    fn sources(folder: &Path) -> Vec<PathBuf> {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let all = paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
        all.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
    }
}
