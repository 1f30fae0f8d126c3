//! How far a gate is, on standard error.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use polylock::migrate::Progress;

use crate::output::Output;

/// A spinner on a terminal, and lines elsewhere.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    spinner: Option<ProgressBar>,
    output: Output,
    /// The line that was printed last, and when.
    last: Mutex<Option<(Instant, String)>>,
}

impl ProgressLine {
    pub(crate) fn new(output: Output) -> Self {
        let spinner = io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(TICK);
            spinner
        });
        Self { spinner, output, last: Mutex::new(None) }
    }

    pub(crate) fn show(&self, text: String) {
        if let Some(spinner) = &self.spinner {
            spinner.set_message(text);
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = last.as_ref().is_none_or(|(at, before)| at.elapsed() >= AT_MOST && *before != text);
        if is_new {
            self.output.say(&text);
            *last = Some((Instant::now(), text));
        }
    }

    pub(crate) fn gate(&self, progress: Progress) {
        self.show(match progress {
            Progress::Sessions(count) => {
                format!("waiting until all sessions have seen the record: {count} have not")
            }
            Progress::Leases(left) => {
                let left = Duration::from_secs(left.as_secs_f64().ceil() as u64);
                format!(
                    "waiting for leases on the old store to end, {} at most",
                    humantime::format_duration(left)
                )
            }
            Progress::Tombstones { removed, left } => {
                format!("removing tombstones: {removed} removed, {left} left in this pass")
            }
            _ => "working".to_owned(),
        });
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

const TICK: Duration = Duration::from_millis(100);
const AT_MOST: Duration = Duration::from_secs(1);
