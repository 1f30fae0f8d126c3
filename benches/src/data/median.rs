//! The middle of some numbers, and how sure it is.

/// The median; NaN without any number.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => numbers[odd / 2],
        even => f64::midpoint(numbers[even / 2 - 1], numbers[even / 2]),
    }
}

/// A confidence interval of the median, of at least 90 %, whatever the distribution; `None` for fewer than five numbers.
pub(crate) fn interval(mut numbers: Vec<f64>) -> Option<[f64; 2]> {
    numbers.sort_by(f64::total_cmp);
    let count = numbers.len();
    // Each number is below the true median with a chance of one half: the number of those below it is binomial.
    let (mut outside, mut chance, mut cut) = (0.0, 0.5_f64.powi(count as i32), 0);
    while 2.0 * (outside + chance) <= DOUBT && cut < count / 2 {
        outside += chance;
        chance *= (count - cut) as f64 / (cut + 1) as f64;
        cut += 1;
    }
    (cut > 0).then(|| [numbers[cut - 1], numbers[count - cut]])
}

const DOUBT: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median(vec![2.0, 1.0, 9.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![1.0, 9.0, 2.0, 4.0]) - 3.0).abs() < 1e-9);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn the_interval_is_that_of_the_binomial_distribution() {
        let of = |count: u32| interval((1..=count).rev().map(f64::from).collect());
        assert_eq!([of(0), of(4)], [None; 2]);
        // As in tables of order statistics: 93.8 %, 96.1 % and 95.9 %.
        assert_eq!([of(5), of(9), of(20)], [Some([1.0, 5.0]), Some([2.0, 8.0]), Some([6.0, 15.0])]);
    }
}
