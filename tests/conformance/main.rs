//! The conformance suite on every backend: by its own configuration, by URL, and with write locks, semaphores of one permit,
//! re-entrant owners and several locks in the place of mutexes. A migration is a backend on each of its rungs, and on several at once;
//! sentinels, clusters and clients that poll are backends with a part of the suite. PostgreSQL behind PgBouncer is one with nearly all of it.
//! Layers are put over the memory backend, one by one and all of them, and all over a real Redis and a real ZooKeeper.
//!
//! Run a part of it by a part of its names: `cargo xtask test zk::dyn`. The first tier has every backend once, by URL; of
//! migrations, one rung that locks both stores; and all layers over the memory backend. The full tier adds a recipe, rungs, and all
//! flavours on memory and Redis; the deep tier the same on the other stores.
//!
//! Beside the suite: elections whose leaders are killed, and processes on every rung of a migration that are killed or stopped.
//!
//! All trials share one process, and the trials of a backend its servers. The same program is the worker of the
//! cross-process cases when it is called with `--worker FLAVOUR URL`, and a candidate with `--candidate URL LABEL`.

#[allow(unreachable_pub, reason = "a test program is no library")]
mod broken_locks;
mod election;
mod processes;
#[allow(unreachable_pub, reason = "a test program is no library")]
mod sites;

use std::collections::BTreeSet;
use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use lock_testkit::conformance::{self, CASES, Case};

use sites::{
    ALL_THEMES, BACKENDS, Flavour, IN_THE_FULL_TIER, MIXTURES, PASSWORD, THEMES_OF_MIXTURES, TOPOLOGIES,
    WORKER, connect, harnesses, is_in_the_deep_tier, partial,
};

/// Before the names of trials that only the deep tier runs.
const DEEP: &str = "deep::";
/// A trial sleeps for most of its time.
const THREADS: usize = 12;

fn main() -> ExitCode {
    let words: Vec<_> = env::args().skip(1).collect();
    if let [worker, flavour, url] = &words[..]
        && worker == WORKER
    {
        return serve(flavour, url.clone());
    }
    if let Some(ended) = election::serve(&words) {
        return ended;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    broken_locks::hide_wanted_panics();
    conformance::watch_logs();
    conformance::keep_secret(PASSWORD);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let (mut trials, mut left_out, redis) = (Vec::new(), Vec::new(), Arc::default());
    let all = harnesses(&redis).into_iter().map(|harness| (harness, ALL_THEMES));
    for (harness, themes) in all.chain(partial(&redis)) {
        let (backend, flavour) = harness.name().split_once("::").expect("backend and flavour");
        let is_quick = matches!((flavour, backend), ("dyn", _) | ("layers-all", "memory"))
            && !IN_THE_FULL_TIER.contains(&backend);
        for trial in conformance::trials(&harness).into_iter().filter(|trial| is_of(trial.case(), themes)) {
            let is_deep =
                is_in_the_deep_tier(backend, flavour) || has_servers_of_its_own(backend, trial.case());
            trials.push(test(trial, is_deep).with_ignored_flag(is_deep || !is_quick));
        }
        for (case, why) in
            conformance::left_out(&*harness).into_iter().filter(|(case, _)| is_of(case, themes))
        {
            left_out.push((format!("{}::{}", harness.name(), case.name), why.to_owned()));
        }
    }
    let registered: Vec<_> =
        trials.iter().map(|trial| trial.name().trim_start_matches(DEEP).to_owned()).collect();
    trials
        .push(Trial::test("the_matrix_is_complete", move || the_matrix_is_complete(&registered, &left_out)));
    trials.extend(election::trials());
    trials.extend(processes::trials());
    trials.extend(broken_locks::trials(&redis).into_iter().map(|trial| trial.with_ignored_flag(true)));
    trials
}

fn test(trial: conformance::Trial, is_deep: bool) -> Trial {
    let name = format!("{}{}", if is_deep { DEEP } else { "" }, trial.name());
    let run = move || {
        trial.run();
        Ok(())
    };
    Trial::test(name, run)
}

/// Whether a case has one of these themes; all cases are of [`ALL_THEMES`].
fn is_of(case: &Case, themes: &[&str]) -> bool {
    themes.is_empty() || themes.contains(&case.theme)
}

/// Whether a case is left to the deep tier, as it starts servers of its own, which takes seconds of a processor: but for Redis, which takes
/// none.
fn has_servers_of_its_own(backend: &str, case: &Case) -> bool {
    backend != "redis" && matches!(case.theme, "credentials" | "refuses_writes")
}

/// Every case runs on every backend in each of its flavours, or there is a reason.
fn the_matrix_is_complete(registered: &[String], left_out: &[(String, String)]) -> Result<(), Failed> {
    for (name, why) in left_out {
        println!("left out: {name}: {why}");
    }
    let runs: BTreeSet<_> = registered.iter().collect();
    if runs.len() != registered.len() {
        return Err("two trials have the same name".into());
    }
    let flavours = BACKENDS.iter().flat_map(|backend| {
        Flavour::of(backend)
            .iter()
            .chain(Flavour::layers(backend))
            .map(|flavour| (*backend, *flavour, ALL_THEMES))
    });
    let mixtures = MIXTURES.iter().map(|(mixture, _)| (*mixture, Flavour::Dyn, THEMES_OF_MIXTURES));
    let topologies = TOPOLOGIES.iter().map(|(topology, _, themes)| (*topology, Flavour::Dyn, *themes));
    let mut cells = 0;
    for (backend, flavour, themes) in flavours.chain(mixtures).chain(topologies) {
        for case in CASES.iter().filter(|case| is_of(case, themes)) {
            cells += 1;
            let name = format!("{backend}::{flavour}::{}", case.name);
            let excuse = left_out.iter().find(|(left_out, _)| *left_out == name);
            match (runs.contains(&name), excuse) {
                (true, None) => {}
                (false, Some((_, why))) if !why.is_empty() => {}
                (true, Some(_)) => return Err(format!("{name} runs and is left out").into()),
                (false, _) => return Err(format!("{name} does not run, for no reason").into()),
            }
        }
    }
    println!("{} of {cells} cells run, {} are left out", registered.len(), left_out.len());
    if registered.len() + left_out.len() == cells {
        Ok(())
    } else {
        Err("there are trials of unknown backends or cases".into())
    }
}

fn serve(flavour: &str, url: String) -> ExitCode {
    let flavour = Flavour::parse(flavour).expect("a worker is started by this program only");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let served =
        runtime.expect("the system has threads to spare").block_on(conformance::serve(connect(flavour, url)));
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
