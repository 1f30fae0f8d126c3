//! Named steps with their times. The first failure ends the run.

use std::panic::resume_unwind;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Result, line_of, seconds, succeed};
use crate::interrupt;

/// The steps of one run.
#[derive(Debug)]
pub(crate) struct Steps {
    started: Instant,
    done: Vec<(String, Duration)>,
    notes: Vec<(&'static str, String)>,
}

impl Steps {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), done: Vec::new(), notes: Vec::new() }
    }

    /// Runs a command as a step.
    pub(crate) fn command(&mut self, name: &str, mut command: Command) -> Result {
        let line = line_of(&command);
        self.run(name, || {
            eprintln!("    {line}");
            succeed(&mut command)
        })
    }

    /// Runs a function as a step.
    pub(crate) fn run<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        interrupt::check()?;
        eprintln!("\n==> {name}");
        let started = Instant::now();
        let outcome = step();
        self.end(name, started.elapsed(), outcome)
    }

    /// Runs a function as a step in another thread, beside other steps.
    pub(crate) fn beside<T>(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result + Send,
        others: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        eprintln!("\n==> {name}, beside what follows");
        thread::scope(|scope| {
            let started = Instant::now();
            let running = scope.spawn(move || (step(), started.elapsed()));
            let others = others(self).inspect_err(|_| interrupt::end_others());
            let (outcome, took) = running.join().unwrap_or_else(|panic| resume_unwind(panic));
            let others = others?;
            eprintln!("\n==> {name}, beside what precedes");
            self.end(name, took, outcome)?;
            Ok(others)
        })
    }

    fn end<T>(&mut self, name: &str, took: Duration, outcome: Result<T>) -> Result<T> {
        match &outcome {
            Ok(_) => {
                eprintln!("    ok, {}", seconds(took));
                self.done.push((name.to_owned(), took));
            }
            Err(_) => {
                let done = self.done.len();
                eprintln!("    FAILED after {} ({done} steps before it passed)\n", seconds(took));
            }
        }
        outcome
    }

    /// Records what the summary shall say.
    pub(crate) fn note(&mut self, kind: &'static str, what: String) {
        eprintln!("\n==> {kind}: {what}");
        self.notes.push((kind, what));
    }

    /// Prints every step with its duration, and the notes.
    pub(crate) fn summary(&self) {
        eprintln!("\nAll {} steps passed in {}:", self.done.len(), seconds(self.started.elapsed()));
        for (name, took) in &self.done {
            eprintln!("{:>10}  {name}", seconds(*took));
        }
        for (kind, what) in &self.notes {
            eprintln!("{kind:>10}  {what}");
        }
    }
}
