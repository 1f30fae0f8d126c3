//! The fault table on the console.

use comfy_table::{Cell, Color};

use crate::data::results::{FaultResult, FaultVerdict};
use crate::report::table::{Look, empty};

/// The results of faults as a table.
pub(crate) fn render(results: &[FaultResult], look: Look) -> String {
    let mut table = empty(look);
    table.set_header(["fault", "backend", "L1", "L2", "L3", "no tokens", "outage", "verdict"]);
    for result in results {
        let ran = !matches!(result.verdict, FaultVerdict::NoMeaning | FaultVerdict::NotRun);
        let count = |count: u64| if ran { count.to_string() } else { "-".into() };
        let outage = if ran { format!("{:.1} s", result.outage_ms / 1e3) } else { "-".into() };
        let verdict = match result.verdict {
            FaultVerdict::NoMeaning => format!("- ({})", result.what),
            verdict => verdict.to_string(),
        };
        let verdict = Cell::new(verdict).fg(match result.verdict {
            FaultVerdict::Holds => Color::Green,
            FaultVerdict::BreaksAsDocumented => Color::Yellow,
            FaultVerdict::Differs | FaultVerdict::NotRun => Color::Red,
            FaultVerdict::NoMeaning => Color::Reset,
        });
        table.add_row([
            Cell::new(&result.fault),
            Cell::new(result.subject()),
            Cell::new(count(result.l1)),
            Cell::new(count(result.l2)),
            Cell::new(count(result.l3)),
            Cell::new(count(result.unfenced)),
            Cell::new(outage),
            verdict,
        ]);
    }
    format!(
        "{table}\n\
         L1: holds that overlap by wall time. L2: guards that were valid at once.\n\
         L3: writes of earlier holders that a store accepted although it compares tokens.\n\
         no tokens: such writes that a store without tokens would have accepted.\n\
         outage: the longest time in which nobody could get the lock."
    )
}
