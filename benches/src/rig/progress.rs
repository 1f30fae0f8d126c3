//! The progress of a run on standard error.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::data::results::numbers::quantity;

/// A bar on a terminal, plain lines otherwise.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    steps: Mutex<Steps>,
}

impl Progress {
    /// The progress of a run whose steps take about this long.
    pub(crate) fn new(expected: Vec<Duration>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(expected.len() as u64), ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template("{spinner} {elapsed_precise} [{bar:24}] {pos}/{len} {msg}");
            bar.set_style(style.expect("a template that suits").progress_chars("=> "));
            bar.enable_steady_tick(TICK);
            bar
        });
        Self { bar, steps: Mutex::new(Steps { expected, done: 0, began: None, current: String::new() }) }
    }

    /// Shows a preparation that is no step.
    pub(crate) fn prepare(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("{what}"),
        }
    }

    /// Shows which step begins, and the time left.
    pub(crate) fn begin(&self, what: &str) {
        let mut steps = self.steps();
        let left = steps.begin(what, Instant::now());
        let left = format!("about {} left", quantity(left.as_secs_f64().ceil(), "s"));
        match &self.bar {
            Some(bar) => bar.set_message(format!("{what} ({left})")),
            None => {
                let (part, parts) = (steps.done + 1, steps.expected.len());
                let taken = steps.taken(Instant::now()).as_secs();
                let (minutes, seconds) = (taken / 60, taken % 60);
                eprintln!("{what} ({part} of {parts}, {left}) after {minutes:02}:{seconds:02}");
            }
        }
    }

    pub(crate) fn step(&self) {
        self.steps().done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    pub(crate) fn so_far(&self) -> String {
        let steps = self.steps();
        format!("after {} of {} parts, during {}", steps.done, steps.expected.len(), steps.current)
    }

    pub(crate) fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    fn steps(&self) -> std::sync::MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[derive(Debug)]
struct Steps {
    expected: Vec<Duration>,
    done: usize,
    began: Option<Instant>,
    current: String,
}

impl Steps {
    /// Begins the next step, and returns the time left: the expected one, corrected by how long the steps took so far.
    fn begin(&mut self, what: &str, now: Instant) -> Duration {
        what.clone_into(&mut self.current);
        self.began.get_or_insert(now);
        let taken = self.taken(now);
        let (done, rest) = self.expected.split_at(self.done.min(self.expected.len()));
        let (done, rest): (Duration, Duration) = (done.iter().sum(), rest.iter().sum());
        if done.is_zero() { rest } else { rest.mul_f64(taken.as_secs_f64() / done.as_secs_f64()) }
    }

    /// How long the steps took so far.
    fn taken(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now - began)
    }
}

const TICK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_pace() {
        let seconds = Duration::from_secs;
        let expected = vec![seconds(10), seconds(10), seconds(20)];
        let mut steps = Steps { expected, done: 0, began: None, current: String::new() };
        let start = Instant::now();
        assert_eq!(steps.begin("contended on zk", start), seconds(40));
        steps.done = 1;
        assert_eq!(steps.begin("crash on zk", start + seconds(20)), seconds(60));
        steps.done = 3;
        assert_eq!(steps.begin("nothing", start + seconds(90)), Duration::ZERO);
    }
}
