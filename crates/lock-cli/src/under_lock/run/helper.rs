//! The processes that `run` starts from its own program.

use std::env::{self, ArgsOs};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The running program, also after another one was installed in its place.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";

/// A process beside `polylock run`, by its name in the list of processes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Helper {
    Launch,
    Watchdog,
}

impl Helper {
    const fn name(self) -> &'static str {
        match self {
            Self::Launch => "polylock-launch",
            Self::Watchdog => "polylock-watchdog",
        }
    }

    /// A command that starts it, in a process group of its own: no key of the terminal reaches it.
    pub(super) fn command(self) -> Command {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0(self.name()).process_group(0);
        command
    }

    /// The helper that this process was started as, if any, and its arguments.
    pub(super) fn started_as() -> Option<(Self, ArgsOs)> {
        let mut arguments = env::args_os();
        let name = arguments.next()?;
        let helper = [Self::Launch, Self::Watchdog].into_iter().find(|helper| name == helper.name())?;
        Some((helper, arguments))
    }
}
