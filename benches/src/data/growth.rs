//! How a figure grows with the work.

use std::fmt;

/// How a figure grows, by the exponent of the power law that fits its points best: `x^exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth {
    exponent: f64,
}

impl Growth {
    /// Fits a line to the logarithms of the points, by least squares. `None` with fewer than two places.
    pub(crate) fn of(points: &[(f64, f64)]) -> Option<Self> {
        // What is too small to be measured shows no growth.
        let measured = points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0);
        let logs: Vec<_> = measured.map(|(x, y)| (x.ln(), y.ln())).collect();
        let count = logs.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
        let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = logs.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
        let together: f64 = logs.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
        (spread > 1e-9).then(|| Self { exponent: together / spread })
    }

    /// Whether it is at least nearly proportional.
    pub(crate) fn is_linear_or_worse(self) -> bool {
        self.exponent >= LINEAR_FROM
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.exponent {
            small if small < LOGARITHMIC_FROM => "constant",
            small if small < LINEAR_FROM => "logarithmic",
            small if small < WORSE_FROM => "linear",
            _ => "worse than linear",
        };
        write!(f, "{name} (x^{:.2})", self.exponent)
    }
}

/// Over three decades a logarithm grows like a power of some 0.15 to 0.4.
const LOGARITHMIC_FROM: f64 = 0.15;
const LINEAR_FROM: f64 = 0.6;
const WORSE_FROM: f64 = 1.3;

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(of: fn(f64) -> f64) -> String {
        let points: Vec<_> = [1.0, 10.0, 100.0, 1000.0].into_iter().map(|x| (x, of(x))).collect();
        let text = Growth::of(&points).unwrap().to_string();
        text.split(" (").next().unwrap_or_default().to_owned()
    }

    #[test]
    fn growth_has_names() {
        assert_eq!(growth(|_| 5.0), "constant");
        assert_eq!(growth(|x| 5.0 + x.ln()), "constant");
        assert_eq!(growth(|x| 1.0 + x.ln()), "logarithmic");
        assert_eq!(growth(|x| 3.0 * x), "linear");
        assert_eq!(growth(|x| 2.0 + x), "linear");
        assert_eq!(growth(|x| x * x), "worse than linear");
    }

    #[test]
    fn one_place_shows_no_growth() {
        assert_eq!(Growth::of(&[(8.0, 1.0), (8.0, 2.0)]), None);
        assert_eq!(Growth::of(&[]), None);
        assert_eq!(Growth::of(&[(8.0, 0.0), (64.0, 2.0)]), None);
    }
}
