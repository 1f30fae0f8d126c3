//! The top of the page: what was measured, and whether mutual exclusion held.

use std::fmt::Write as _;

use super::html::escape;
use crate::data::{ExclusionVerdict, Peer, Results};

pub(super) fn headline(results: &Results) -> String {
    let mut backends = results.backends();
    // Nor rungs of a migration, which is one of them as a whole.
    backends.retain(|backend| Peer::named(backend).is_none() && !backend.starts_with("migrate "));
    match backends[..] {
        [] => "Nothing was measured".into(),
        [only] => format!("Locks over {only}"),
        [ref all @ .., last] => format!("Locks over {} and {last}, side by side", all.join(", ")),
    }
}

pub(super) fn verdict_line(results: &Results, verdict: ExclusionVerdict) -> String {
    let scenarios = results.scenarios();
    let pairs = || {
        scenarios.iter().filter(|scenario| scenario.has_rivals()).flat_map(|scenario| {
            let of = |backend| (scenario.name, backend, scenario.verdict(backend));
            scenario.backends().into_iter().map(of)
        })
    };
    let places = |wanted: fn(ExclusionVerdict) -> bool| {
        let named = pairs().filter(|(.., verdict)| wanted(*verdict));
        named.map(|(scenario, backend, _)| format!("{scenario} on {backend}")).collect::<Vec<_>>().join(", ")
    };
    match verdict {
        ExclusionVerdict::Held => format!(
            "Mutual exclusion held: no two holds overlapped in any of the {} recorded histories.",
            pairs().count()
        ),
        ExclusionVerdict::Broken(overlaps) => format!(
            "Mutual exclusion was BROKEN: {} ({}).",
            if overlaps == 1 { "1 overlap".to_owned() } else { format!("{overlaps} overlaps") },
            places(|verdict| matches!(verdict, ExclusionVerdict::Broken(_)))
        ),
        ExclusionVerdict::Unchecked if pairs().next().is_none() => "Mutual exclusion was not checked.".into(),
        ExclusionVerdict::Unchecked => format!(
            "Mutual exclusion was not checked everywhere: no verdict for {}.",
            places(|verdict| verdict == ExclusionVerdict::Unchecked)
        ),
    }
}

/// What failed, and how far an interrupted run came.
pub(super) fn trouble(page: &mut String, results: &Results) {
    if let Some(how_far) = &results.meta.interrupted {
        let _ = writeln!(
            page,
            "<p class=\"verdict unchecked\">The run was interrupted {}. What follows was measured until then.</p>",
            escape(how_far)
        );
    }
    if results.failures.is_empty() {
        return;
    }
    page.push_str("<section id=\"failures\">\n<h2>What failed</h2>\n<ul class=\"broken box\">\n");
    for failure in &results.failures {
        let _ = writeln!(page, "<li>{}</li>", escape(&failure.to_string()));
    }
    page.push_str("</ul>\n</section>\n");
}
