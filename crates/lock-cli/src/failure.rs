//! How the command ends, and why it failed.

use std::io;
use std::process::ExitCode;

use polylock::{Error, ErrorKind};

/// Shown by `--help`.
pub(crate) const EXITS: &str = "\
Exit codes: 0 done, 1 blocked, declined, or warnings found, 64 usage, 69 a store does not answer, 70 another error. `run --help` and `hold --help` have their own";

/// The advice when the system refuses a process or a thread.
pub(crate) const MORE_PROCESSES: &str =
    "let the user have more processes and threads (ulimit -u; TasksMax= of a service), or free memory";

/// The exit codes. Those from 64 on are of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The step was done.
    Done,
    /// The step is blocked or was declined, or there are warnings.
    Blocked,
    /// The command line or a URL is wrong.
    Usage,
    /// A store does not answer.
    Unavailable,
    /// A lock was lost, or any other error.
    Other,
    /// Ctrl-C.
    Interrupted,
    /// The code of a child, or one that the user chose.
    Code(u8),
}

impl Exit {
    /// As shells show that a process ended by this signal.
    pub(crate) fn signal(number: i32) -> Self {
        Self::Code(u8::try_from(128 + number).unwrap_or(u8::MAX))
    }

    const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Blocked => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Other => 70,
            Self::Interrupted => 130,
            Self::Code(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why the command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// A stable word.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    /// What to do next.
    pub(crate) hint: Option<String>,
    /// Whether nobody reads what would be printed.
    pub(crate) is_silent: bool,
    /// Whether the cause may pass by itself, or when an operator has repaired the store.
    pub(crate) can_pass: bool,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message.into(), Some(hint.into()))
    }

    /// Ctrl-C, perhaps during a step that can be repeated.
    pub(crate) fn interrupted(changes: bool) -> Self {
        let hint = "a part of it may be done: look at the status, and use the command again";
        let hint = changes.then(|| hint.to_owned());
        Self::new(Exit::Interrupted, "interrupted", "interrupted".into(), hint)
    }

    pub(crate) const fn new(exit: Exit, kind: &'static str, message: String, hint: Option<String>) -> Self {
        Self { exit, kind, message, hint, is_silent: false, can_pass: false }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match (error.kind(), error.code()) {
            (_, "refused_step") => Exit::Blocked,
            (ErrorKind::Unavailable, _) => Exit::Unavailable,
            (ErrorKind::InvalidConfig | ErrorKind::InvalidName | ErrorKind::Unsupported, _) => Exit::Usage,
            _ => Exit::Other,
        };
        let hint = error.hint().map(ToOwned::to_owned);
        let text = error.to_string();
        // The text ends with the hint.
        let end = hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
        let message = text.strip_suffix(&*end).unwrap_or(&text).to_owned();
        Self { can_pass: error.can_pass(), ..Self::new(exit, error.code(), message, hint) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let is_silent = error.kind() == io::ErrorKind::BrokenPipe;
        let message = format!("cannot use the terminal, a file or a process: {error}");
        Self { is_silent, ..Self::new(Exit::Other, "io", message, None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_follows_from_the_error() {
        let exit = |kind, code| {
            let error = Error::new(kind, "zk").with_message("no").with_hint("yes");
            let failure = Failure::from(match code {
                "" => error,
                code => error.with_code(code),
            });
            assert_eq!((&*failure.message, failure.hint.as_deref()), ("zk: no", Some("yes")));
            failure.exit
        };
        assert_eq!(exit(ErrorKind::Unavailable, "timeout"), Exit::Unavailable);
        assert_eq!(exit(ErrorKind::InvalidConfig, ""), Exit::Usage);
        assert_eq!(exit(ErrorKind::InvalidConfig, "refused_step"), Exit::Blocked);
        assert_eq!(exit(ErrorKind::Denied, ""), Exit::Other);
    }
}
