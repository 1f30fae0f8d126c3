//! The faults: a list of what each did, and on the page a table with a column per backend.

use std::fmt::Write as _;

use super::html::{capitalised, escape};
use super::sheet::{Cell, Sheet};
use crate::data::results::distinct;
use crate::data::results::numbers::quantity;
use crate::data::{FaultResult, FaultVerdict, Results};

/// What each fault did, one below the other.
pub(crate) fn list(faults: &[FaultResult]) -> Sheet {
    let mut sheet = Sheet::of(["fault", "backend", "L1", "L2", "L3", "no tokens", "unavailable", "verdict"]);
    for fault in faults {
        let counts = [fault.l1, fault.l2, fault.l3, fault.unfenced].map(|count| count.to_string());
        let numbers = counts.into_iter().chain([quantity(fault.outage_ms, "ms")]);
        let numbers =
            numbers.map(|number| if fault.verdict.was_run() { number.into() } else { Cell::none() });
        let names = [Cell::from(&*fault.fault), fault.subject().into()];
        sheet.row(names.into_iter().chain(numbers).chain([verdict(fault)]));
    }
    sheet
}

/// What the columns of [`list`] count.
pub(crate) const LEVELS: &str = "\
L1: holds that overlapped by wall time. L2: of these, both guards said that they were valid. L3: writes of an earlier holder
that a store accepted although it compares tokens; no tokens: such writes that a store without tokens would have accepted.
Unavailable: the longest time in which nobody could get the lock.
";

pub(super) fn section(page: &mut String, results: &Results) {
    let faults = &results.faults;
    if faults.is_empty() {
        return;
    }
    let judged = faults.iter().filter(|fault| fault.verdict != FaultVerdict::NoMeaning).count();
    let differ = faults.iter().filter(|fault| fault.verdict.is_failure()).count();
    let _ = write!(
        page,
        "<section id=\"faults\">\n<h2>What each fault does</h2>\n<p class=\"verdict {}\">{} of {judged} differ from what \
         docs/SAFETY.md promises, or could not be run.</p>\n<p class=\"soft\">{LEVELS}</p>\n{}\
         <details>\n<summary>What happened, and how to repeat it</summary>\n<dl class=\"read\">\n",
        if differ == 0 { "held" } else { "broken" },
        if differ == 0 { "None".to_owned() } else { differ.to_string() },
        by_backend(faults).html(" class=\"words\""),
    );
    for fault in faults {
        details(page, fault);
    }
    page.push_str("</dl>\n</details>\n</section>\n");
}

/// A row per fault, a column per backend.
fn by_backend(faults: &[FaultResult]) -> Sheet {
    let backends = distinct(faults.iter().map(|fault| &*fault.backend));
    let mut sheet = backends.iter().fold(Sheet::of(["fault"]), |sheet, backend| sheet.words(backend));
    for name in distinct(faults.iter().map(|fault| &*fault.fault)) {
        let of = |backend: &&str| {
            let found = faults.iter().find(|fault| fault.fault == name && fault.backend == *backend);
            found.map_or_else(Cell::none, cell)
        };
        sheet.row([Cell::from(name)].into_iter().chain(backends.iter().map(of)));
    }
    sheet
}

fn cell(fault: &FaultResult) -> Cell {
    if !fault.verdict.was_run() {
        return verdict(fault);
    }
    let FaultResult { l1, l2, l3, outage_ms, .. } = fault;
    let cell = verdict(fault)
        .and_small(format!("L1 {l1}, L2 {l2}, L3 {l3}"))
        .and_small(format!("unavailable {}", quantity(*outage_ms, "ms")));
    fault.servers.iter().fold(cell, Cell::and_small)
}

fn verdict(fault: &FaultResult) -> Cell {
    let verdict = Cell::verdict(fault.verdict, fault.verdict);
    if fault.verdict.was_run() { verdict } else { verdict.and_small(&fault.what) }
}

fn details(page: &mut String, fault: &FaultResult) {
    let _ = writeln!(
        page,
        "<dt>{} on {}: {}</dt>\n<dd>{} Promised: {} <code>{}</code>{}</dd>",
        capitalised(&fault.fault),
        escape(&fault.subject()),
        fault.verdict,
        escape(&sentence(&fault.what)),
        escape(&sentence(&fault.promised)),
        escape(&fault.command),
        match &*fault.history {
            "" => String::new(),
            history => format!(" History: <code>{}</code>", escape(history)),
        }
    );
}

fn sentence(text: &str) -> String {
    format!("{}.", text.trim_end_matches('.'))
}
