//! What the command prints: its result on standard output, all else on standard error.

use std::io::{self, Write};

use polylock::migrate::Obstacle;
use serde::Serialize;
use serde_json::json;

use crate::failure::{Exit, Failure};

/// Prints text or JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    level: Level,
}

/// How much is said beside the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Quiet,
    Normal,
    Verbose,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json, level: Level::Normal }
    }

    /// The same at this level.
    pub(crate) const fn at(self, level: Level) -> Self {
        Self { level, ..self }
    }

    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints the result, as text for people or as the document for programs.
    pub(crate) fn result(self, text: &str, document: &impl Serialize) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut stdout, document)?;
            writeln!(stdout)?;
        } else {
            writeln!(stdout, "{}", text.trim_end())?;
        }
        stdout.flush()
    }

    /// Prints a result of many as one line of JSON.
    pub(crate) fn line(self, document: &impl Serialize) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, document)?;
        writeln!(stdout)?;
        stdout.flush()
    }

    /// Prints an empty line, which separates results for people.
    pub(crate) fn blank(self) -> io::Result<()> {
        writeln!(io::stdout())
    }

    /// Mentions what is no error, unless the user wants quiet.
    pub(crate) fn note(self, text: &str) {
        if self.level >= Level::Normal {
            self.say(&format!("polylock: {text}"));
        }
    }

    /// Mentions a step, if the user wants to know each.
    pub(crate) fn detail(self, text: &str) {
        if self.level == Level::Verbose {
            self.say(&format!("polylock: {text}"));
        }
    }

    pub(crate) fn is_quiet(self) -> bool {
        self.level == Level::Quiet
    }

    /// Prints text beside the result.
    pub(crate) fn say(self, text: &str) {
        // Whoever closes standard error does not want to know.
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Prints what blocks a step, and the way out of each.
    pub(crate) fn blocked(self, step: &str, obstacles: &[Obstacle]) -> io::Result<Exit> {
        let mut text = format!("{step} is blocked:\n");
        for Obstacle { what, advice, .. } in obstacles {
            text.push_str(&format!("  - {}\n    way out: {}\n", printable(what), printable(advice)));
        }
        self.result(&text, &json!({ "passed": false, "obstacles": obstacles }))?;
        Ok(Exit::Blocked)
    }

    /// Prints why the command failed.
    pub(crate) fn fail(self, failure: &Failure) -> Exit {
        let Failure { exit, kind, message, hint, is_silent, .. } = failure;
        if *is_silent {
            return *exit;
        }
        if self.json {
            let error = json!({ "error": { "kind": kind, "message": message, "hint": hint } });
            let _ = self.result("", &error);
            return *exit;
        }
        let mut text = format!("error: {}", printable(message));
        if let Some(hint) = hint {
            text.push_str(&format!("\nway out: {}", printable(hint)));
        }
        self.say(&text);
        *exit
    }
}

/// The text without control characters: names of locks and hosts come from others, and could move the cursor.
pub(crate) fn printable(text: &str) -> String {
    let escape = |character: char| match character {
        '\n' => '\n'.to_string(),
        character if character.is_control() => character.escape_default().to_string(),
        character => character.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("orders/é \u{1b}[2J\r"), "orders/é \\u{1b}[2J\\r");
    }
}
