//! The quorum of the masters.

use smallvec::SmallVec;

/// One for each master. There are seven at most, as a rule.
pub(crate) type OfEach<T> = SmallVec<[T; 7]>;

/// The smallest number of masters that any other such number has one in common with.
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
