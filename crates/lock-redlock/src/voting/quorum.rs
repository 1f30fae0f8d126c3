//! The quorum of the masters.

use smallvec::SmallVec;

/// One value for each master; rarely more than seven.
pub(crate) type OfEach<T> = SmallVec<[T; 7]>;

/// The smallest number of masters such that any two sets of that size overlap.
pub(crate) const fn quorum(masters: usize) -> usize {
    masters / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorums() {
        assert_eq!([3, 5, 7].map(quorum), [2, 3, 4]);
    }
}
