//! The texts of tables and reports: names of metrics, what scenarios do, what floors are, and numbers.

use super::Scenario;

impl Scenario<'_> {
    /// One line about the scenario; empty for an unknown one.
    pub(crate) fn about(&self) -> &'static str {
        match self.name {
            "uncontended" => "acquire + release in a loop, one client, a free lock",
            "contended" => "separate processes contend for one lock, each holds it for a moment",
            "tasks" => "many tasks of one process contend for one lock, and release it at once",
            "throughput" => {
                "tasks acquire and release locks with names of their own, as fast as they can; 8 x 64 tasks: in 8 processes"
            }
            "command" => "`polylock run NAME -- true` against `true` alone, from start to end",
            "crash" => "the holder is killed with SIGKILL; the time until a waiting process holds the lock",
            "peers" => "as contended, with the locks of other libraries, one after the other on one server",
            "herd" => {
                "many processes wait for one lock; the requests of each grant, the notifications of each release"
            }
            "held" => "one process holds many locks at once; their memory and renewals",
            "degraded" => "acquire + release in a loop while one of the masters does not answer",
            "migration" => {
                "acquire + release on each rung of the way from redis to zk, and the moves of many names"
            }
            _ => "",
        }
    }

    pub(crate) fn floor_name(&self, metric: &str) -> &'static str {
        match (self.name, metric) {
            (_, "longest_wait") => "ideal",
            ("contended", "handoff_p50_bare" | "handoff_p95_bare") => "bare",
            ("uncontended", "p50_one_server") => "one server",
            ("uncontended", "p50_with_tokens" | "acquire_with_tokens") => "with tokens",
            ("throughput", "pairs_per_s_minting") => "with tokens",
            ("throughput", "pairs_per_s_rslock") => "rslock",
            ("throughput", "pairs_per_s_sqlx") => "sqlx",
            ("command", _) => "true",
            ("contended", _) => "ping",
            ("peers", _) => "ours",
            ("crash", _) => "ttl",
            ("degraded", _) => "healthy",
            ("migration", _) => "stores",
            _ => "floor",
        }
    }

    pub(crate) fn floor_meaning(&self, metric: &str) -> &'static str {
        match (self.name, metric) {
            (_, "longest_wait") => "ideal rotation, in which all take turns",
            ("contended", _) => {
                "median of empty round trips at the same time; postgres: of three, and two commits"
            }
            ("peers", _) => "median of our lock right before and after",
            ("crash", _) => "ttl or session timeout",
            ("uncontended", _) => "floor, the bare commands",
            ("throughput", "pairs_per_s_minting") => "bare commands of a lock with fencing tokens",
            ("throughput", "pairs_per_s_rslock") => "lock of rslock",
            ("throughput", "pairs_per_s_sqlx") => "advisory lock of sqlx",
            ("command", _) => "command without a lock",
            ("tasks", _) => "floor, the bare commands one pair after the other",
            ("degraded", _) => "same lock with all masters healthy",
            ("migration", _) => {
                "time of the stores: redis for old, old for shadow, redis and zk together for dual, zk for move and new"
            }
            _ => "floor",
        }
    }
}

/// How to read a metric, where that is not obvious.
pub(crate) fn meaning(metric: &str) -> Option<&'static str> {
    match metric {
        "jain" => Some("1 is fair"),
        "inversions" => Some(
            "pairs of grants in the opposite order of their calls, per grant; 0 is first come, first served",
        ),
        "ops"
        | "grants_per_s"
        | "pairs_per_s"
        | "pairs_per_s_minting"
        | "pairs_per_s_rslock"
        | "pairs_per_s_sqlx" => Some("more is better"),
        _ => None,
    }
}

/// The name of a metric in tables and reports.
pub(crate) fn title(metric: &str) -> String {
    match metric {
        "ops" => "operations".into(),
        "grants_per_s" => "grants".into(),
        "handoff" => "hand-off".into(),
        "handoff_p50" => "hand-off p50".into(),
        "handoff_p95" => "hand-off p95".into(),
        "handoff_p50_bare" => "p50 against bare".into(),
        "handoff_p95_bare" => "p95 against bare".into(),
        "p50_one_server" => "p50 against one server".into(),
        "p50_with_tokens" => "p50 against tokens".into(),
        "acquire_with_tokens" => "acquire p50 against tokens".into(),
        "alone_p50" => "acquire + release p50".into(),
        "notifications" => "notifications/release".into(),
        "first_try" => "at first try".into(),
        "waiter" => "hand-off to a waiter".into(),
        "waiter_p50" => "to a waiter p50".into(),
        "handoff_p99" => "hand-off p99".into(),
        "pairs_per_s" => "acquire + release".into(),
        "pairs_per_s_minting" => "pairs against tokens".into(),
        "pairs_per_s_rslock" => "pairs against rslock".into(),
        "pairs_per_s_sqlx" => "pairs against sqlx".into(),
        "client_cpu" => "client CPU/pair".into(),
        "server_cpu" => "server CPU/pair".into(),
        "added" => "added to the command".into(),
        "jain" => "Jain index".into(),
        "requests_per_grant" => "requests/grant".into(),
        "takeover" => "take-over".into(),
        "moving" => "the move of a name".into(),
        "move_all" => "all names moved".into(),
        "clean_all" => "all tombstones removed".into(),
        "bytes_per_lock" => "memory/lock".into(),
        "renew_cpu_percent" => "renewal, client".into(),
        "server_cpu_percent" => "server".into(),
        "both_cpu_percent" => "both, one core".into(),
        other => other.replace('_', " "),
    }
}

/// A number with about three significant digits, `-` for NaN and infinities.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if !size.is_finite() => return "-".into(),
        // The bounds are those of rounded numbers: 9.996 becomes 10.0.
        size if size == size.trunc() && size < 1e15 => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    let plain = format!("{value:.decimals$}");
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |digits| ("-", digits));
    if decimals > 0 {
        return plain;
    }
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A value with its unit; times in the most readable unit.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
    let in_us = match unit {
        "ns" => value / 1e3,
        "us" => value,
        "ms" => value * 1e3,
        "s" => value * 1e6,
        "" => return number(value),
        "1/s" => return format!("{}/s", number(value)),
        _ => return format!("{} {unit}", number(value)),
    };
    let (size, unit) = match in_us.abs() {
        0.0 => return "0".into(),
        size if size < 0.9995 => (in_us * 1e3, "ns"),
        size if size < 999.5 => (in_us, "µs"),
        size if size < 999_500.0 => (in_us / 1e3, "ms"),
        _ => (in_us / 1e6, "s"),
    };
    format!("{} {unit}", number(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.0, 0.9931, 1.0, 1.1749, 9.996, 12.34, 99.96, 611.4, 1_420_113.4, -1234.5, f64::NAN]
            .map(number);
        let expected = ["0", "0.993", "1", "1.17", "10.0", "12.3", "100", "611", "1,420,113", "-1,234", "-"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn times_are_shown_in_a_fitting_unit() {
        let shown = [0.61, 88.2, 999.9, 1_893.4, 410_000.0, 2_000_000.0].map(|value| quantity(value, "us"));
        assert_eq!(shown, ["610 ns", "88.2 µs", "1.00 ms", "1.89 ms", "410 ms", "2 s"]);
        assert_eq!(quantity(2_004.1, "ms"), "2.00 s");
        assert_eq!(quantity(702.4, "1/s"), "702/s");
        assert_eq!(quantity(3.42, ""), "3.42");
    }
}
