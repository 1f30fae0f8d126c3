//! The lint "Time in tests" of CONTRIBUTING.md: a test waits for what must have happened, never for a time.

use std::fs;
use std::path::Path;

use crate::command::{Result, workspace};

/// Virtual time.
const EXEMPT: [&str; 4] = ["simulation", "model", "virtual_time", "fake"];
/// Lets a line pass, on it or in the comment before it.
const REASON: &str = "// Time:";
const ADVICE: &str = "\
A test waits for what must have happened by asking the store: by `until`, `soon`, `queue_up`, `is_renewed`, `come` and the other steps
of the test kit. Leases and timeouts have 5 s at least. Where the time is the subject, the line or the one before it says why:
`// Time: <why>`. See \"Time in tests\" in CONTRIBUTING.md.";

/// Fails when a test waits for a time, or has a short lease.
pub(crate) fn check() -> Result {
    let (root, mut found) = (workspace(), Vec::new());
    search(&root, &root.join("tests"), &mut found);
    for package in fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        search(&root, &package.path().join("tests"), &mut found);
    }
    found.sort();
    let wrong: Vec<_> = found.iter().map(|(file, line, what)| format!("{file}:{line}: {what}")).collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("\n{}\n\n{ADVICE}", wrong.join("\n"))) }
}

/// Adds the file, the number of the line, and what it has.
fn search(root: &Path, folder: &Path, found: &mut Vec<(String, usize, &'static str)>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if path.is_dir() {
            search(root, &path, found);
        } else if file.ends_with(".rs") && !EXEMPT.iter().any(|part| file.contains(part)) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.extend(times_in(&text).map(|(line, what)| (file.clone(), line, what)));
        }
    }
}

/// The numbers of the lines that give no reason, and what they have.
fn times_in(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let mut is_excused = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let (is_comment, has_reason) = (line.trim_start().starts_with("//"), line.contains(REASON));
        let is_refused = !is_comment && !has_reason && !is_excused;
        is_excused = has_reason || (is_comment && is_excused);
        time_in(line).filter(|_| is_refused).map(|what| (number, what))
    })
}

fn time_in(line: &str) -> Option<&'static str> {
    // Whether the number after this is below 5 s.
    let is_short = |before: &str| {
        line.split(before).skip(1).any(|rest| {
            let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let (least, units) = if unit.starts_with("ms") { (5000, 'm') } else { (5, 's') };
            let number = rest[..rest.len() - unit.len()].parse::<u32>();
            number.is_ok_and(|number| number < least) && unit.starts_with([units, ')'])
        })
    };
    let is_lease = ["ttl", "lease", "timeout"].iter().any(|word| line.to_lowercase().contains(word));
    match () {
        () if line.contains("sleep(") => Some("`sleep`"),
        () if line.contains("Duration::from_millis(") => Some("`Duration::from_millis`"),
        () if is_short("ttl=") || is_short("timeout=") => Some("an option below 5 s"),
        () if is_lease && is_short("from_secs(") => Some("a lease or timeout below 5 s"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_need_a_reason() {
        let text = "sleep(x).await;\n// Time: the pause\n// is the subject.\nsleep(x).await;\n\
                    let url = \"redis://x?ttl=900ms\"; // Time: the lease ends.\n\n\"?connect_timeout=4s\"\n\
                    \"ttl=10s&timeout=5000ms&ttl={ttl}&ttl=1m\"\nfrom_secs(1)\n// sleep(1)\nconst TTL = from_secs(2);";
        assert_eq!(super::times_in(text).map(|(line, _)| line).collect::<Vec<_>>(), [1, 7, 11]);
    }
}
