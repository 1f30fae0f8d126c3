//! Random numbers by seed, the same on every machine and in every version.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A stream of random numbers that a seed determines.
///
/// Written by hand (SplitMix64), as a seed that found a failure must find it again: `rand` may change its generators.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A new stream, which depends on this one and on the salt.
    #[must_use]
    pub fn fork(&mut self, salt: u64) -> Self {
        Self(self.number() ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A random number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from zero to `end`, exclusive.
    ///
    /// # Panics
    ///
    /// When `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// A number of the range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// A duration in this range of milliseconds, in steps of one microsecond.
    pub fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_micros(self.within(range.start() * 1000..=range.end() * 1000))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what a double holds.
        ((self.number() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// A random element.
    ///
    /// # Panics
    ///
    /// When the slice is empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        let mut dice = Dice::new(7);
        assert_eq!([dice.number(), dice.number()], [7_191_089_600_892_374_487, 309_689_372_594_955_804]);
        let mut again = Dice::new(7);
        assert_eq!(again.number(), 7_191_089_600_892_374_487);
    }

    #[test]
    fn chances_are_what_they_say() {
        let mut dice = Dice::new(1);
        let heads = (0..10_000).filter(|_| dice.chance(0.25)).count();
        assert!((2_300..2_700).contains(&heads), "{heads}");
        assert!(!dice.chance(0.0) && dice.chance(1.0));
        assert!((0..100).all(|_| (3..=5).contains(&dice.within(3..=5))));
    }
}
