//! Questions on the terminal.

use std::io::{self, IsTerminal, Write};

use tokio::task::spawn_blocking;

use crate::failure::Failure;

/// Whether a step needs an answer of the operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    yes: bool,
}

impl Question {
    /// Refuses a step that would need an answer where nobody can give one.
    pub(crate) fn new(yes: bool) -> Result<Self, Failure> {
        if yes || io::stdin().is_terminal() {
            return Ok(Self { yes });
        }
        Err(Failure::usage(
            "standard input is not a terminal, so nobody can be asked",
            "add --yes to do it without a question",
        ))
    }

    /// Asks for a yes, unless the command line has it.
    pub(crate) async fn ask(self, question: &str) -> Result<bool, Failure> {
        if self.yes {
            return Ok(true);
        }
        write!(io::stderr(), "{question} [y/N] ")?;
        let mut answer = String::new();
        let read = spawn_blocking(move || io::stdin().read_line(&mut answer).map(|_| answer)).await;
        let answer = read.map_err(io::Error::other)??;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }
}

/// Clears the terminal of standard output, where it is one.
pub(crate) fn clear() -> &'static str {
    if io::stdout().is_terminal() { "\u{1b}[2J\u{1b}[H" } else { "" }
}
