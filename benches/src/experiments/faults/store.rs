//! The resource that the lock protects: a store that refuses the writes of earlier holders.

#[derive(Debug)]
pub(super) struct FencedStore {
    largest: u64,
    compares: bool,
}

impl FencedStore {
    /// A store without writes. `compares`: whether it refuses a token smaller than the largest that it has seen.
    pub(super) const fn new(compares: bool) -> Self {
        Self { largest: 0, compares }
    }

    /// Decides on a write with this token.
    pub(super) fn write(&mut self, token: u64) -> bool {
        let accepted = token >= self.largest || !self.compares;
        self.largest = self.largest.max(token);
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_tokens_are_refused() {
        let mut store = FencedStore::new(true);
        assert_eq!([3, 3, 7, 3, 7, 8].map(|token| store.write(token)), [true, true, true, false, true, true]);
        let mut store = FencedStore::new(false);
        assert_eq!([7, 3].map(|token| store.write(token)), [true, true]);
    }
}
