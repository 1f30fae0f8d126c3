//! What the locks log during the cases: never a secret, an owner or a command.

use std::sync::{LazyLock, Mutex};

use lock_core::poison::lock;

use crate::LogCapture;

/// Captures what the locks log in this process, at any level, from now on: a case fails that ends after a line which no log may
/// have. Cases run side by side, and it may be another one that logged the line.
///
/// # Panics
///
/// When the process has another subscriber.
pub fn watch_logs() {
    let log = LogCapture::default();
    tracing::subscriber::set_global_default(log.clone()).expect("nobody else captures logs");
    *lock(&LOG) = Some(log);
}

/// No line of a log may have this text.
pub fn keep_secret(text: impl Into<String>) {
    let (mut secrets, text) = (lock(&SECRETS), text.into());
    if !secrets.contains(&text) {
        secrets.push(text);
    }
}

/// # Panics
///
/// When the logs have a line which they may not have.
pub(crate) fn check() {
    let Some(log) = lock(&LOG).clone() else { return };
    let secrets = lock(&SECRETS).clone();
    for line in log.drain() {
        if let Some(why) = forbidden(&line, &secrets) {
            panic!("the log has {why}: {line}");
        }
    }
}

/// Why no log may have this line.
fn forbidden(line: &str, secrets: &[String]) -> Option<&'static str> {
    let is_id = |word: &str| word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    if secrets.iter().any(|secret| line.contains(secret)) {
        Some("a secret")
    } else if line.split(|letter: char| !letter.is_ascii_alphanumeric()).any(is_id) {
        Some("an owner")
    } else if COMMANDS.iter().any(|command| line.contains(command)) {
        Some("a command")
    } else {
        None
    }
}

/// Parts of what is sent to servers.
const COMMANDS: [&str; 9] = [
    "EVALSHA",
    "evalsha",
    "KEYS[",
    "redis.call",
    "PEXPIRE",
    "SCRIPT LOAD",
    "AUTH ",
    "SELECT polylock.",
    "INSERT INTO",
];

static LOG: Mutex<Option<LogCapture>> = Mutex::new(None);
static SECRETS: LazyLock<Mutex<Vec<String>>> = LazyLock::new(Mutex::default);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_secrets_owners_and_commands_are_refused() {
        let secrets = ["pw".to_owned()];
        let why = |line| forbidden(line, &secrets);
        assert_eq!(why("lock_redis: connected lock=a"), None);
        assert_eq!(why("url=redis://:pw@host"), Some("a secret"));
        assert_eq!(why("owner=0123456789abcdef0123456789ABCDEF"), Some("an owner"));
        assert_eq!(why("EVALSHA failed"), Some("a command"));
    }
}
