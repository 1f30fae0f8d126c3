//! The middle of some numbers.

/// The median; NaN without any number.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => numbers[odd / 2],
        even => f64::midpoint(numbers[even / 2 - 1], numbers[even / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median(vec![2.0, 1.0, 9.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![1.0, 9.0, 2.0, 4.0]) - 3.0).abs() < 1e-9);
        assert!(median(Vec::new()).is_nan());
    }
}
