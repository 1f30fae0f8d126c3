//! The error of a command.

use std::fmt;
use std::process::ExitCode;

/// A message and the exit code that goes with it.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// A failure: exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1 }
    }

    /// A wrong command line: exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }

    /// Ctrl-C: the exit code of shells for it.
    pub(crate) fn interrupted() -> Self {
        Self { message: "interrupted".into(), code: 130 }
    }

    /// The exit code of the process.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
