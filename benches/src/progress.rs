//! What the run is doing, told while it works.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on a terminal, plain lines otherwise; on standard error either way.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of a run of so many steps.
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

    /// The next thing begins.
    pub(crate) fn begin(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => eprintln!("{what}"),
        }
    }

    /// A step is done.
    pub(crate) fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Something that must not be missed.
    pub(crate) fn tell(&self, text: &str) {
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
