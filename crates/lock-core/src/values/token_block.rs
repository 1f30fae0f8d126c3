//! The tokens that one grant reserves, for hand-overs among the tasks of the process that got it.

use std::time::Duration;

use crate::{BootInstant, Token};

/// How long a lock may go from task to task before the store chooses the next holder.
const LONGEST_SERIES: Duration = Duration::from_millis(10);

/// The tokens that one grant reserves, and how many tasks of the process may still use them in a row.
///
/// A lock that goes from task to task within a process stays the same in the store; each task has a token of its own all the
/// same. So a grant reserves [`SIZE`](Self::SIZE) tokens: the store mints multiples of that number, and the tokens up to
/// the next multiple belong to the process. After [`most`](Self::granted) holders in a row, or 10 ms after the first hand-over,
/// the lock goes back to the store, where other processes may wait.
///
/// For backends that implement [`Lease::pass_on`](crate::Lease::pass_on).
///
/// # Examples
///
/// ```
/// # use lock_core::{Clock, Token, TokenBlock};
/// let now = Clock::boot().now();
/// let mut block = TokenBlock::granted(Token::new(1_600), 3);
/// assert!(block.advance(now) && block.advance(now));
/// assert_eq!(block.token(), Token::new(1_602));
/// assert!(!block.advance(now), "three holders had it in a row");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokenBlock {
    token: Token,
    /// How many more hand-overs there may be in this process.
    left: u32,
    /// When the series ends, from its first hand-over on.
    until: Option<BootInstant>,
}

impl TokenBlock {
    /// How many tokens a grant reserves.
    pub const SIZE: u64 = 16;

    /// How many holders there may be in a row by default: as many as there are tokens.
    pub const USUAL_SERIES: u32 = Self::SIZE as u32;

    /// The first token of the block that this number is in.
    #[must_use]
    pub const fn start(number: u64) -> u64 {
        number - number % Self::SIZE
    }

    /// The last token of the block that this number is in.
    #[must_use]
    pub const fn end(number: u64) -> u64 {
        Self::start(number) + (Self::SIZE - 1)
    }

    /// The block of a lock that the store granted with this token, to the first of at most `most` holders in a row.
    #[must_use]
    pub const fn granted(token: Token, most: u32) -> Self {
        Self { token, left: most.saturating_sub(1), until: None }
    }

    /// The token of the present holder.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Whether the next holder may be another task of this process.
    #[must_use]
    pub fn may_stay(&self, now: BootInstant) -> bool {
        self.left > 0 && self.until.is_none_or(|until| now < until)
    }

    /// Moves on to the token of the next holder in this process, and returns whether there is one.
    #[must_use]
    pub fn advance(&mut self, now: BootInstant) -> bool {
        let number = self.token.get();
        if !self.may_stay(now) || number == Self::end(number) {
            return false;
        }
        *self = self.succeeded_by(Token::new(number + 1), now);
        true
    }

    /// The block of the next holder in this process, to which the store has granted another one with this token.
    #[must_use]
    pub fn succeeded_by(&self, token: Token, now: BootInstant) -> Self {
        let until = self.until.unwrap_or(now + LONGEST_SERIES);
        Self { token, left: self.left.saturating_sub(1), until: Some(until) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;

    #[test]
    fn a_block_ends_before_the_next_multiple() {
        let now = Clock::boot().now();
        for (first, holders) in [(1_600, 16), (1_610, 6), (1_615, 1)] {
            let mut block = TokenBlock::granted(Token::new(first), 100);
            let mut had = 1;
            while block.advance(now) {
                had += 1;
            }
            assert_eq!((had, block.token().get()), (holders, 1_615));
        }
        assert_eq!((TokenBlock::start(1_615), TokenBlock::end(1_600)), (1_600, 1_615));
    }

    #[test]
    fn a_series_ends_with_its_last_holder_or_its_time() {
        let now = Clock::boot().now();
        for most in [0, 1] {
            assert!(!TokenBlock::granted(Token::new(1_600), most).advance(now));
        }
        let mut block = TokenBlock::granted(Token::new(1_600), 4);
        let late = now + LONGEST_SERIES;
        assert!(block.may_stay(late), "the first holder may have it for long");
        assert!(block.advance(now));
        assert!(block.may_stay(now) && !block.may_stay(late) && !block.advance(late));
        // Another grant does not begin another series.
        let mut next = block.succeeded_by(Token::new(3_200), late);
        assert!(!next.may_stay(late) && next.advance(now) && !next.advance(now));
        assert_eq!(next.token(), Token::new(3_201));
    }
}
