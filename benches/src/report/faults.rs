//! The fault table: a row per fault, a column per backend.

use std::fmt::Write as _;

use super::html::{capitalised, escape};
use crate::data::results::labels::quantity;
use crate::data::results::{FaultResult, FaultVerdict, Results};

/// The section; nothing when no fault was injected.
pub(super) fn section(page: &mut String, results: &Results) {
    let faults = &results.faults;
    if faults.is_empty() {
        return;
    }
    let judged: Vec<&FaultResult> =
        faults.iter().filter(|fault| fault.verdict != FaultVerdict::NoMeaning).collect();
    let differ = judged.iter().filter(|fault| fault.verdict.is_failure()).count();
    let class = if differ == 0 { "held" } else { "broken" };
    let _ = write!(
        page,
        "<section id=\"faults\">\n<h2>What each fault does</h2>\n<p class=\"verdict {class}\">{} of {} differ from \
         what docs/SAFETY.md promises, or could not be run.</p>\n{LEVELS}<div class=\"wide\">\n<table class=\"words\">\n<thead>\n<tr><th>fault</th>",
        if differ == 0 { "None".to_owned() } else { differ.to_string() },
        judged.len(),
    );
    let backends = distinct(faults.iter().map(|fault| &*fault.backend));
    for backend in &backends {
        let _ = write!(page, "<th>{}</th>", escape(backend));
    }
    page.push_str("</tr>\n</thead>\n<tbody>\n");
    for name in distinct(faults.iter().map(|fault| &*fault.fault)) {
        let _ = write!(page, "<tr><td>{}</td>", escape(name));
        for backend in &backends {
            let cell = faults.iter().find(|fault| fault.fault == name && fault.backend == *backend);
            let _ = write!(page, "<td>{}</td>", cell.map_or_else(|| "–".into(), self::cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str(
        "</tbody>\n</table>\n</div>\n<details>\n<summary>What happened, and how to repeat it</summary>\n",
    );
    page.push_str("<dl class=\"read\">\n");
    for fault in faults {
        details(page, fault);
    }
    page.push_str("</dl>\n</details>\n</section>\n");
}

fn cell(fault: &FaultResult) -> String {
    if matches!(fault.verdict, FaultVerdict::NoMeaning | FaultVerdict::NotRun) {
        let (class, verdict) = (class(fault.verdict), fault.verdict);
        return format!(
            "<span class=\"pill {class}\">{verdict}</span><small>{}</small>",
            escape(&fault.what)
        );
    }
    format!(
        "<span class=\"pill {}\">{}</span><small>L1 {}, L2 {}, L3 {}</small><small>unavailable {}</small>{}",
        class(fault.verdict),
        fault.verdict,
        fault.l1,
        fault.l2,
        fault.l3,
        escape(&quantity(fault.outage_ms, "ms")),
        fault.servers.iter().map(|servers| format!("<small>{}</small>", escape(servers))).collect::<String>(),
    )
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

const fn class(verdict: FaultVerdict) -> &'static str {
    match verdict {
        FaultVerdict::Holds => "held",
        FaultVerdict::BreaksAsDocumented => "unchecked",
        FaultVerdict::Differs | FaultVerdict::NotRun => "broken",
        FaultVerdict::NoMeaning => "none",
    }
}

fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

const LEVELS: &str = "\
<p class=\"soft\">L1: holds that overlapped by wall time. L2: of these, both guards said that they were valid. L3: writes of
an earlier holder that a store accepted although it compares tokens.</p>
";
