//! `cargo xtask compare --faults`: runs the fault table, prints it and writes the reports.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use super::options::Options;
use crate::data::{BackendName, Failure, FaultResult, FaultVerdict, Meta, Outcome, Results};
use crate::experiments::faults;
use crate::report;
use crate::report::faults::{LEVELS, list};
use crate::report::sheet::Look;
use crate::rig::{Interrupt, Progress, stuck};

/// Runs the faults that the options ask for, prints the table and writes it.
pub(crate) async fn run(options: &Options) -> Outcome<ExitCode> {
    let began = Instant::now();
    let mut interrupt = Interrupt::listen()?;
    let mut results = Results::new(Meta::of_this_run(options.mode()));
    let (folder, table_of) = (options.folder(), options.fault_table());
    if let Some(other) = table_of.backends.iter().find(|one| !BackendName::IN_TABLE.contains(one)) {
        return Err(Failure::new(format!(
            "the fault table has no column of {other}; `cargo xtask soak` may have it"
        )));
    }
    for backend in options.columns().into_iter().filter(|&backend| options.leaves_out(backend)) {
        println!("{backend} is left out: its server is not installed");
        results.meta.settings.insert(format!("missing.{backend}"), "its server is not installed".into());
    }
    stuck::log_below(&folder);
    let progress = Progress::new(table_of.expected_times());
    let interrupted = tokio::select! {
        biased;
        () = interrupt.received() => true,
        () = faults::add_all(&table_of, &progress, &mut results) => false,
    };
    drop(progress);
    faults::sort(&mut results);
    results.meta.duration_s = began.elapsed().as_secs_f64();
    println!("{}\n{LEVELS}", list(&results.faults).text(Look::of_stdout()));
    report::write_all(&results, &folder)?;
    let code = complain(&results.faults);
    if !results.faults.iter().any(|result| result.verdict.is_failure()) {
        stuck::remove_logs();
    }
    if interrupted {
        eprintln!("interrupted: the other faults were not run");
        return Ok(ExitCode::from(130));
    }
    if options.faults.update_docs {
        faults::update_docs(&results.faults)?;
    }
    Ok(code)
}

pub(crate) fn replay(record: &Path) -> Outcome<ExitCode> {
    let results = [faults::judge_again(record)?];
    println!("{}\n{LEVELS}", list(&results).text(Look::of_stdout()));
    Ok(complain(&results))
}

/// Prints what differs or could not be run.
fn complain(results: &[FaultResult]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for result in results.iter().filter(|result| result.verdict.is_failure()) {
        let verb = if result.verdict == FaultVerdict::Differs { "DIFFERS" } else { "FAILED" };
        eprintln!("{verb}: {} on {}: {}", result.fault, result.subject(), result.what);
        code = ExitCode::FAILURE;
    }
    code
}
