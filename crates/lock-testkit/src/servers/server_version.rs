//! Tests of what some servers lack.

use std::io::{self, Write as _};
use std::thread;

/// Whether the version at the end of the text is before this one.
pub(crate) fn is_before(version: &str, since: (u32, u32)) -> bool {
    let version = version.split_whitespace().next_back().unwrap_or_default();
    let mut numbers = version.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < since
}

/// Reports that the test of this thread is left out. `cargo xtask test` counts such lines.
pub(crate) fn leave_out(server: &str, what: &str) {
    let test = thread::current().name().unwrap_or_default().to_owned();
    // Not by `eprintln`, as the output of tests that pass is not shown.
    let _ = writeln!(io::stderr(), "not on this server: {test}: {server} has no {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_before("Redis 6.2.14", (7, 0)) && is_before("3.5.10-SNAPSHOT", (3, 6)));
        assert!(!is_before("Valkey 9.1.2", (7, 0)) && !is_before("Redis 7.10.0", (7, 9)));
        assert!(is_before("unknown", (0, 1)));
    }
}
