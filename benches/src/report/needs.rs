//! What a user may need of a lock, and what a run measured of it for each backend.

use super::sheet::Cell;
use crate::data::results::numbers::quantity;
use crate::data::{Fault, FaultResult, FaultVerdict, Flag, Results};

/// A need: a row of the table at the top of the page.
#[derive(Debug)]
pub(super) struct Need {
    pub(super) text: &'static str,
    /// What Redis, Redlock, ZooKeeper and PostgreSQL offer by design.
    words: [&'static str; 4],
    sources: &'static [Source],
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    /// What holds by design.
    pub(super) words: &'static str,
    /// What this run measured, with the section that has it.
    pub(super) figure: Option<(String, String)>,
    /// Whether a measurement could say something about it.
    pub(super) measurable: bool,
}

impl Offer {
    pub(super) fn measured(&self) -> &str {
        self.figure.as_ref().map_or(NO_FIGURE, |(text, _)| text)
    }

    /// In a table: the words, and the figure with a link to its section.
    pub(super) fn cell(&self) -> Cell {
        let cell = Cell::from(self.words);
        match &self.figure {
            _ if !self.measurable => cell,
            Some((text, place)) => cell.and_small(text).to(place),
            None => cell.and_small(NO_FIGURE),
        }
    }
}

impl Need {
    /// What this backend offers, with this run's figures.
    pub(super) fn offer(&self, results: &Results, backend: &str) -> Offer {
        let found: Vec<_> = self.sources.iter().filter_map(|source| source.find(results, backend)).collect();
        let texts: Vec<_> = found.iter().map(|(text, _)| text.as_str()).collect();
        let figure = found.first().map(|(_, place)| (texts.join("; "), place.clone()));
        let at = BACKENDS.iter().position(|name| *name == backend).unwrap_or_default();
        let measurable = self.sources.iter().any(|source| source.is_about(backend));
        Offer { words: self.words[at], figure, measurable }
    }
}

/// The backends of processes that share locks. Locks of one process have no choice to make.
pub(super) const BACKENDS: &[&str] = &["redis", "redlock", "zk", "postgres"];

/// All needs, from top to bottom.
pub(super) const NEEDS: [&Need; 10] = [
    &SPEED,
    &SAFETY,
    &DURABILITY,
    &NO_SINGLE_SERVER,
    &WAITERS,
    &HAND_OVER,
    &FAIRNESS,
    &CRASH,
    &RUNNING,
    &LANGUAGES,
];
pub(super) static SPEED: Need = Need {
    text: "Work done twice is only waste: acquiring must be fast",
    words: [MEMORY, MEMORY, MEMORY, "each grant waits for the disk, unless sync=off"],
    sources: &[Source::Row("uncontended", "p50", "to acquire and release")],
};
const MEMORY: &str = "with servers that do not wait for their disks";
pub(super) static SAFETY: Need = Need {
    text: "Work done twice corrupts data",
    words: [
        "needs fencing tokens; two holders after lost data",
        "needs fencing tokens; two holders after a lost master or a clock step",
        "needs fencing tokens against pauses; nothing is lost while a majority lives",
        "data in the same database is safe behind the fence, whatever happens; two holders after a failover that lost the grant, or a \
         clock step",
    ],
    sources: &[Source::Breaks],
};
pub(super) static DURABILITY: Need = Need {
    text: "Each grant must be on disk before it is acknowledged",
    words: [
        "with appendfsync=always, on one server",
        "no: a master that restarts without data votes after a ttl instead",
        "with forceSync, the default, on each server of a majority",
        "with sync=on, the default; on standbys where they are synchronous",
    ],
    sources: &[
        Source::Claim(
            1,
            "p50",
            "to acquire and release",
            &["redis appendfsync=always", "zk three servers, forced sync"],
        ),
        Source::Claim(13, "p50", "to acquire and release", &["postgres sync=on"]),
    ],
};
pub(super) static NO_SINGLE_SERVER: Need = Need {
    text: "No single server may stop the work",
    words: [
        "locks stop as long as the server is down; a failover may lose the lock",
        "any minority of the masters may fail",
        "any minority of the ensemble may fail",
        "locks stop until a standby is promoted; one that is not synchronous may lack the lock",
    ],
    sources: &[
        Source::LongestOutage,
        Source::Row("degraded", "p50", "to acquire and release with one server hung"),
    ],
};
pub(super) static WAITERS: Need = Need {
    text: "Hundreds or thousands wait for one lock",
    words: [
        "a queue on the server, one waiter is notified",
        "a queue on each master, the next waiter is notified",
        "a queue of nodes, one waiter is notified",
        "a queue in the database, one waiter is notified; each process has a connection that listens",
    ],
    sources: &[
        Source::Claim(2, "grant_requests", "requests per grant", WAIT_IN_A_QUEUE),
        Source::Claim(2, "idle_requests", "requests per waiter meanwhile", WAIT_IN_A_QUEUE),
    ],
};
const WAIT_IN_A_QUEUE: &[&str] = &["redis wait=queue", "redlock", "zk"];
pub(super) static HAND_OVER: Need = Need {
    text: "The next waiter must have the lock soon",
    words: [""; 4],
    sources: &[Source::Row("contended", "handoff_p50", "to hand over")],
};
static FAIRNESS: Need = Need {
    text: "Each client must have its turn",
    words: [""; 4],
    sources: &[Source::Row("contended", "jain", "of 1 (Jain's index)")],
};
static CRASH: Need = Need {
    text: "A holder may die with the lock",
    words: [
        "free after the ttl",
        "free after the ttl",
        "free after the session timeout",
        "free after the ttl",
    ],
    sources: &[Source::Claim(5, "killed", "until a waiter has it", BACKENDS)],
};
static RUNNING: Need = Need {
    text: "What has to run",
    words: [
        "one Redis server",
        "five independent Redis servers",
        "a ZooKeeper ensemble of three",
        "the database that has the data",
    ],
    sources: &[],
};
static LANGUAGES: Need = Need {
    text: "Clients in other languages share the locks",
    words: [
        "tested with redis-py and python-redis-lock (Python)",
        "tested with pottery (Python) and node-redlock (Node)",
        "tested with Curator (Java) and kazoo (Python)",
        "the fence alone: from every driver",
    ],
    sources: &[],
};

#[derive(Clone, Copy, Debug)]
enum Source {
    /// A row of a scenario, and what it is.
    Row(&'static str, &'static str, &'static str),
    /// The figure of a claim with the largest x, what it is, and the subjects that stand for the backends.
    Claim(u8, &'static str, &'static str, &'static [&'static str]),
    /// The faults in which two valid guards overlapped, or a store without tokens accepted a stale write.
    Breaks,
    /// The longest outage while a minority of the servers failed.
    LongestOutage,
}

impl Source {
    fn is_about(self, backend: &str) -> bool {
        match self {
            Self::Claim(.., subjects) => subjects.iter().any(|subject| is_of(subject, backend)),
            Self::Row(..) | Self::Breaks | Self::LongestOutage => true,
        }
    }

    /// The figure in words, and the section that has it.
    fn find(self, results: &Results, backend: &str) -> Option<(String, String)> {
        match self {
            Self::Row(scenario, metric, what) => {
                let found = results.scenarios().into_iter().find(|found| found.name == scenario)?;
                let row = found.row(backend, metric)?;
                Some((join(&quantity(row.value, &row.unit), what), format!("scenario-{scenario}")))
            }
            Self::Claim(id, metric, what, subjects) => {
                let subject = subjects.iter().find(|subject| is_of(subject, backend))?;
                let claim = results.claims.iter().find(|claim| claim.id == id)?;
                let figures = claim.figures.iter();
                let figures = figures.filter(|figure| figure.subject == *subject && figure.metric == metric);
                let last =
                    figures.max_by(|one, other| one.x.unwrap_or(0.0).total_cmp(&other.x.unwrap_or(0.0)))?;
                let place = last.x.map_or_else(String::new, |x| format!(" at {x} {}", claim.x_name()));
                Some((join(&quantity(last.value, &last.unit), what) + &place, format!("claim-{id}")))
            }
            Self::Breaks => {
                let of_backend = faults(results, backend);
                let count =
                    |is: fn(&FaultResult) -> bool| of_backend.iter().filter(|fault| is(fault)).count();
                let differ = count(|fault| fault.verdict == FaultVerdict::Differs);
                let differ = if differ > 0 { format!(", {differ} NOT as documented") } else { String::new() };
                let text = format!(
                    "of {} faults, {} gave two valid guards, {} a stale write with tokens, {} without{differ}",
                    of_backend.len(),
                    count(|fault| fault.l2 > 0),
                    count(|fault| fault.l3 > 0),
                    count(|fault| fault.unfenced > 0),
                );
                (!of_backend.is_empty()).then(|| (text, "faults".into()))
            }
            Self::LongestOutage => {
                let of_servers = faults(results, backend).into_iter();
                let of_servers = of_servers.filter(|fault| fails_servers(&fault.fault));
                let longest = of_servers.max_by(|one, other| one.outage_ms.total_cmp(&other.outage_ms))?;
                let text =
                    format!("longest outage {} ({})", quantity(longest.outage_ms, "ms"), longest.fault);
                Some((text, "faults".into()))
            }
        }
    }
}

/// Whether servers fail by this fault, but no majority of them.
fn fails_servers(title: &str) -> bool {
    Fault::of_table().any(|fault| fault.title() == title && fault.row().is(Flag::FailsServers))
}

fn faults<'a>(results: &'a Results, backend: &str) -> Vec<&'a FaultResult> {
    let ran = |verdict| !matches!(verdict, FaultVerdict::NoMeaning | FaultVerdict::NotRun);
    results.faults.iter().filter(|fault| is_of(&fault.backend, backend) && ran(fault.verdict)).collect()
}

/// Whether a subject, such as `redis wait=queue`, is this backend.
fn is_of(subject: &str, backend: &str) -> bool {
    subject.split_whitespace().next() == Some(backend)
}

fn join(value: &str, what: &str) -> String {
    format!("{value} {what}")
}

const NO_FIGURE: &str = "no figure in this run";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Results;
    use crate::data::results::sample;

    #[test]
    fn figures_come_from_this_run() {
        let results = sample();
        let redis = SPEED.offer(&results, "redis");
        assert_eq!(
            redis.figure,
            Some(("88.2 µs to acquire and release".into(), "scenario-uncontended".into()))
        );
        let zk = WAITERS.offer(&results, "zk");
        assert_eq!(
            zk.measured(),
            "4 requests per grant at 64 waiters; 0/s requests per waiter meanwhile at 64 waiters"
        );
        let safety = SAFETY.offer(&results, "redis");
        assert_eq!(
            safety.measured(),
            "of 2 faults, 1 gave two valid guards, 0 a stale write with tokens, 2 without"
        );
    }

    #[test]
    fn what_was_not_measured_says_so() {
        let results = Results::new(sample().meta);
        for need in NEEDS {
            for &backend in BACKENDS {
                let offer = need.offer(&results, backend);
                assert_eq!((offer.figure.is_none(), offer.measured()), (true, NO_FIGURE));
                assert!(offer.measurable || !offer.words.is_empty(), "{need:?} on {backend}");
            }
        }
    }
}
