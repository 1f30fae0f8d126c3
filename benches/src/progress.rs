//! The progress of a run on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on a terminal, plain lines otherwise.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// The progress of a run with this many steps.
    pub(crate) fn new(steps: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template("{spinner} {elapsed_precise} [{bar:24}] {pos}/{len} {msg}");
            bar.set_style(style.expect("a template that suits").progress_chars("=> "));
            bar.enable_steady_tick(TICK);
            bar
        });
        Self { bar }
    }

    /// Shows what begins.
    pub(crate) fn begin(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("{what}"),
        }
    }

    /// Counts a completed step.
    pub(crate) fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Prints a line that stays.
    pub(crate) fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

const TICK: Duration = Duration::from_millis(100);
