//! The texts of numbers.

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
