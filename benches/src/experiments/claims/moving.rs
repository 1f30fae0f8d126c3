//! Claim 12: a running fleet can move from Redis to ZooKeeper.

use crate::data::names::rung::{DUAL, DUAL_BESIDE_MOVE, MIGRATE, MOVE, NEW, OLD, REDIS, SHADOW, ZK};
use crate::data::results::numbers::quantity;
use crate::experiments::prelude::*;
use crate::experiments::scenarios::migration;

pub(crate) static THIS: Experiment = Experiment {
    name: "moving",
    figures: Some(|run| Box::pin(async move { figures(run) })),
    claim: Some(Claim {
        id: 12,
        says: "A running fleet can move from Redis locks to ZooKeeper without a moment of double locking.",
        how: "The scenario `migration`: one client acquires and releases a free lock on each rung, in turn with plain redis and \
              plain zk: dual in a fleet of which no name has moved, and once more in one whose other names have; move for a \
              name that has moved before. Clients on other rungs challenge each while it holds the lock. Clients on old, shadow, dual and move contend for names that move meanwhile. A fleet moves many names one after \
              the other, and goes all the way back; then clients of Redis alone acquire some of them. The histories of all \
              are checked for overlapping holds, and for fencing tokens that were smaller than an earlier one.",
        rule: "Does not hold when two holds overlap anywhere, or a fencing token is smaller than an earlier one. Holds when also \
               the median of every rung is at most what its stores take, with a margin: old 1.05 times redis, \
               shadow 1.05 times old, dual 1.15 times redis and zk together, move of a moved name and new 1.03 times zk. \
               Otherwise it depends on the rung. Dual beside moved names does not decide: tokens of ZooKeeper are ahead of \
               those of Redis then, and each acquisition raises those, which takes one more request.",
        needs: &["migration"],
        pictures: || {
            let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let (title, metric) = ("Acquire + release on each rung, median".to_owned(), P50.to_owned());
            let (steps, lines) = (all(&[OLD, SHADOW, DUAL, MOVE, NEW]), all(&[REDIS, ZK, BOTH]));
            vec![Picture::Steps { title, metric, steps, lines }]
        },
        judge,
        broken_promise,
        ..CLAIM
    }),
    ..EXPERIMENT
};

fn figures(run: &mut Measuring<'_>) {
    for subject in [REDIS, ZK, DUAL_BESIDE_MOVE].into_iter().chain(RUNGS.map(|rung| rung.name)) {
        for metric in [P50, "p99"] {
            add(run, subject, metric);
        }
    }
    for subject in SUBJECTS {
        add(run, subject, OVERLAPS);
        add(run, subject, TOKEN_ERRORS);
    }
    for metric in MOVES {
        add(run, MIGRATE, metric);
    }
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (mut dear, mut texts) = (Vec::new(), Vec::new());
    for Limit { name, most, of } in RUNGS {
        let (median, ratio) = (figures.get(name, P50)?, figures.get(name, RATIO)?);
        let short = name.strip_prefix("migrate ").unwrap_or(name);
        texts.push(format!("{short} takes {}, {ratio:.2} times {of}", quantity(median, "us")));
        if ratio > most {
            dear.push(short);
        }
    }
    let [move_all, clean_all] = [figures.get(MIGRATE, MOVE_ALL)?, figures.get(MIGRATE, CLEAN_ALL)?];
    texts.push(format!("all names moved in {move_all:.1} s, and back in {clean_all:.1} s"));
    let faults = faults(figures)?;
    let sound = || "no overlap and no smaller token".to_owned();
    let (verdict, first) = match (&faults[..], &dear[..]) {
        ([], []) => (Verdict::Holds, sound()),
        ([], dear) => (Verdict::DependsOn(format!("the rung: {}", dear.join(", "))), sound()),
        (faults, _) => (Verdict::DoesNotHold, faults.join(", ")),
    };
    texts.insert(0, first);
    Ok(Judgement::new(verdict, texts.join("; ")))
}

fn broken_promise(figures: &Figures) -> Option<String> {
    faults(figures).ok().filter(|faults| !faults.is_empty()).map(|faults| faults.join(", "))
}

/// Adds a number of a row of the scenario, and what its rung costs against its stores.
fn add(run: &mut Measuring<'_>, subject: &str, metric: &str) {
    let Some(row) = run.row(migration::THIS.name, subject, metric) else {
        // It is measured with ZooKeeper.
        if run.target_of(ZK).is_some() {
            run.leave_out(&format!("{metric} of {subject}"), "`migration` did not measure it");
        }
        return;
    };
    run.add(Figure::new(subject, metric, &row.unit, row.value));
    if let (P50, Some(ratio)) = (metric, row.ratio) {
        run.add(Figure::new(subject, RATIO, "", ratio));
    }
    if let (P50, DUAL, Some(both)) = (metric, subject, row.floor) {
        run.add(Figure::new(BOTH, P50, &row.unit, both));
    }
}

/// Overlaps and smaller tokens, in words.
fn faults(figures: &Figures) -> Outcome<Vec<String>> {
    let mut faults = Vec::new();
    for subject in SUBJECTS {
        for (metric, what) in [(OVERLAPS, "overlapping holds"), (TOKEN_ERRORS, "smaller or equal tokens")] {
            let count = figures.get(subject, metric)?;
            if count > 0.0 {
                faults.push(format!("{count:.0} {what} of {subject}"));
            }
        }
    }
    Ok(faults)
}

/// What a rung may cost.
#[derive(Clone, Copy)]
struct Limit {
    name: &'static str,
    /// How many times the median of its stores.
    most: f64,
    of: &'static str,
}

const RUNGS: [Limit; 5] = [
    Limit { name: OLD, most: 1.05, of: "redis" },
    Limit { name: SHADOW, most: 1.05, of: "old" },
    Limit { name: DUAL, most: 1.15, of: "both stores" },
    Limit { name: MOVE, most: 1.03, of: "zk" },
    Limit { name: NEW, most: 1.03, of: "zk" },
];
/// The histories that count: those of the rungs, and that of the whole way.
const SUBJECTS: [&str; 7] = [OLD, SHADOW, DUAL, DUAL_BESIDE_MOVE, MOVE, NEW, MIGRATE];
const MOVES: [&str; 3] = [MOVE_ALL, CLEAN_ALL, LEFT];
const MOVE_ALL: &str = "move_all";
const CLEAN_ALL: &str = "clean_all";
const LEFT: &str = "left_after_clean";
const BOTH: &str = "redis + zk";
const P50: &str = "p50";
const RATIO: &str = "ratio";
const OVERLAPS: &str = "overlaps";
const TOKEN_ERRORS: &str = "token_errors";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    /// When a rung costs this much more or less than it may, with so many overlaps and smaller tokens.
    fn by(over: f64, [overlaps, tokens]: [f64; 2]) -> (Verdict, bool) {
        let mut figures: Vec<_> = MOVES.map(|metric| Figure::new(MIGRATE, metric, "s", 9.0)).to_vec();
        for subject in SUBJECTS {
            let of = |count| if subject == MIGRATE { count } else { 0.0 };
            figures.push(Figure::new(subject, OVERLAPS, "", of(overlaps)));
            figures.push(Figure::new(subject, TOKEN_ERRORS, "", of(tokens)));
        }
        for Limit { name, most, .. } in RUNGS {
            let ratio = if name == DUAL { most + over } else { 1.0 };
            figures.push(Figure::new(name, P50, "us", 400.0 * ratio));
            figures.push(Figure::new(name, RATIO, "", ratio));
        }
        judged(&THIS, figures)
    }

    #[test]
    fn a_rung_that_costs_more_than_its_stores_is_named() {
        assert_eq!(by(0.0, [0.0; 2]), (Verdict::Holds, true));
        assert_eq!(by(0.01, [0.0; 2]), (Verdict::DependsOn("the rung: dual".into()), true));
    }

    #[test]
    fn an_overlap_or_a_smaller_token_decides() {
        assert_eq!(by(0.0, [1.0, 0.0]), (Verdict::DoesNotHold, false));
        assert_eq!(by(0.01, [0.0, 2.0]), (Verdict::DoesNotHold, false));
    }
}
