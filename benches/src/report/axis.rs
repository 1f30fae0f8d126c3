//! The scale of an axis, and its ticks.

/// From values to places.
#[derive(Debug)]
pub(super) enum Scale {
    Linear {
        end: f64,
    },
    /// The powers of ten at both ends.
    Logarithmic {
        first: f64,
        last: f64,
    },
}

impl Scale {
    /// From 0.0 at the left to 1.0 at the right.
    pub(super) fn position(&self, value: f64) -> f64 {
        let position = match self {
            Self::Linear { end } => value / end,
            Self::Logarithmic { first, last } => (value.log10() - first) / (last - first),
        };
        if position.is_finite() { position.clamp(0.0, 1.0) } else { 0.0 }
    }

    pub(super) fn ticks(&self, span: f64) -> Vec<f64> {
        let room = (span / 70.0).max(1.0);
        match *self {
            Self::Linear { end } => {
                let rough = end / room;
                let power = 10_f64.powf(rough.log10().floor());
                let step =
                    [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough);
                let step = step.unwrap_or(10.0 * power);
                (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= end * 1.0001).collect()
            }
            Self::Logarithmic { first, last } => {
                let every = ((last - first) / room).ceil().max(1.0) as usize;
                (first as i32..=last as i32).step_by(every).map(|power| 10_f64.powi(power)).collect()
            }
        }
    }
}

/// `1.50 s` becomes `1.5 s`.
pub(super) fn round(quantity: &str) -> String {
    let (number, unit) =
        quantity.split_once(' ').map_or((quantity, ""), |(number, _)| (number, &quantity[number.len()..]));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number}{unit}")
}

/// The width of a character, with a margin for other fonts.
pub(super) const CHARACTER: f64 = 7.2;
pub(super) const BOLD: f64 = 8.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_scale() {
        assert_eq!(Scale::Linear { end: 5_000.0 }.ticks(400.0), [0.0, 1e3, 2e3, 3e3, 4e3, 5e3]);
        assert_eq!(Scale::Linear { end: 1.0 }.ticks(200.0), [0.0, 0.5, 1.0]);
        assert_eq!(Scale::Logarithmic { first: -1.0, last: 2.0 }.ticks(400.0), [0.1, 1.0, 10.0, 100.0]);
    }

    #[test]
    fn ticks_have_no_trailing_zeros() {
        assert_eq!(["1.50 s", "10.0", "100 us", "0"].map(round), ["1.5 s", "10", "100 us", "0"]);
    }
}
