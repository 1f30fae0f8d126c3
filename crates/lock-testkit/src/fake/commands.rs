//! The commands.

pub(super) mod command;
mod connection;
mod keys;
mod lists;
mod publish;
mod scripting;
mod sorted_sets;
mod strings;

use std::collections::HashMap;
use std::sync::LazyLock;

use self::command::Command;
use super::reply::Bytes;
use super::server::text;

/// The command of this name, which is in lower case.
pub(super) fn named(name: &str) -> Option<&'static Command> {
    static BY_NAME: LazyLock<HashMap<&str, &Command>> = LazyLock::new(|| {
        let all = [
            connection::COMMANDS,
            keys::COMMANDS,
            lists::COMMANDS,
            publish::COMMANDS,
            scripting::COMMANDS,
            sorted_sets::COMMANDS,
            strings::COMMANDS,
        ];
        all.into_iter().flatten().map(|command| (command.name, command)).collect()
    });
    BY_NAME.get(name).copied()
}

/// A command as the log shows it.
pub(super) fn show(words: &[Bytes]) -> String {
    let scripted = words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"EVALSHA"));
    let mut shown: Vec<String> =
        words.iter().map(|word| text(word).chars().take(40).collect::<String>().replace('\n', " ")).collect();
    if scripted && let Some(hash) = shown.get_mut(1) {
        hash.truncate(6);
    }
    shown.join(" ")
}
