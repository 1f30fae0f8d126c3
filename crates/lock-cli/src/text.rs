//! How numbers, spans and tables read.

use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

/// A number with its noun.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A duration in its largest unit that makes sense.
pub(crate) fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A table without lines, as wide as the terminal.
pub(crate) fn rows() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table
}

/// The same with a head.
pub(crate) fn table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = rows();
    table.set_header(head);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rough() {
        let seconds = [0, 119, 120, 7_199, 7_200, 172_800].map(|s| rough(Duration::from_secs(s)));
        assert_eq!(seconds, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
    }
}
