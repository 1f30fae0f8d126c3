//! What the command prints: its result on standard output, all else on standard error.

use std::io::{self, Write};

use polylock::migrate::Obstacle;
use polylock::one_line;
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
            writeln!(stdout, "{}", printable_json(&serde_json::to_string_pretty(document)?))?;
        } else {
            writeln!(stdout, "{}", text.trim_end())?;
        }
        stdout.flush()
    }

    /// Prints a result of many as one line of JSON.
    pub(crate) fn line(self, document: &impl Serialize) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{}", printable_json(&serde_json::to_string(document)?))?;
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

/// The text in [one line](one_line): names of locks and hosts come from others, and could move the cursor.
pub(crate) fn printable(text: &str) -> String {
    one_line(text).into_owned()
}

/// The same of a text of ours that has several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(one_line).collect::<Vec<_>>().join("\n")
}

/// The same document, whose strings a terminal prints as they are.
fn printable_json(document: &str) -> String {
    let mut printable = String::with_capacity(document.len());
    for character in document.chars() {
        let text = character.encode_utf8(&mut [0; 4]).to_owned();
        if character == '\n' || one_line(&text) == text {
            printable.push(character);
        } else {
            // What is not ASCII is in a string, and of ASCII only DEL is left.
            let units = character.encode_utf16(&mut [0; 2]).to_vec();
            printable.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("orders/é \u{1b}[2J\r\n"), "orders/é \\u{1b}[2J\\r\\n");
        assert_eq!(printable_lines("a\u{9b}\nb"), "a\\u{9b}\nb");
    }

    #[test]
    fn a_document_says_the_same_in_printable_characters() {
        let text = "it's \"é\\\" \n\u{1b}\u{7f}\u{9b}\u{202e}\u{e0001}";
        let document = json!({ "text": text });
        let printed = printable_json(&serde_json::to_string_pretty(&document).unwrap());
        assert!(printed.contains('é') && printed.lines().count() == 3, "{printed}");
        assert!(
            !printed.contains(|c: char| c != '\n' && one_line(&c.to_string()) != c.to_string()),
            "{printed}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), document);
    }
}
