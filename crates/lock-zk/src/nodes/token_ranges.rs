//! The numbers above a base: which token stands for the transaction that created a node.
//!
//! An election of a leader skips 2^32 transactions, of which tokens should not skip as many. So a base reserves the tokens of
//! the next [`REACH`] transactions only. The first holder whose node was created later extends it; after an election, by a new
//! range that continues where the last one would have ended:
//!
//! ```text
//! transactions   epoch 1: ───┬── from ───────── below ──┬─ ...      epoch 2: ── from ──────── below ── ...
//! tokens                     number ─────────────── number of the next range ─────────────── ...
//! ```
//!
//! Each change of a base leaves no token smaller than it was. So of two states of a base, the later one has the larger token of
//! each transaction, and [both together](TokenRanges::join) are the later one.

use std::{fmt, mem};

use lock_core::TokenBlock;

/// For how many transactions a base reserves tokens: at most so many are skipped by an election, some 17 s of a Redis clock.
const REACH: u64 = 1 << 24;
/// The ranges that are kept. A waiter that has seen as many elections queues up again.
const MOST: usize = 16;
/// The digits of a transaction that count within the time of one leader.
const EPOCH: u32 = 32;

/// The tokens above a base, in the order of transactions; empty while there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenRanges(Vec<Range>);

/// The token of a node that was created by a transaction from `from` to `below` is `number`, and one more for each transaction
/// after `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    from: u64,
    below: u64,
    number: u64,
}

impl Range {
    /// The first token after it.
    const fn end(self) -> u64 {
        self.number.saturating_add(self.below - self.from)
    }

    const fn contains(self, transaction: u64) -> bool {
        self.from <= transaction && transaction < self.below
    }
}

impl TokenRanges {
    /// Parses the data of a node, which this transaction wrote. A single number, as people write it, is the base of all
    /// transactions so far, and of the next ones.
    pub(crate) fn parse(data: &[u8], written: u64) -> Option<Self> {
        let text = std::str::from_utf8(data).ok()?;
        let mut ranges = Vec::new();
        for line in text.lines() {
            let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
            ranges.push(match numbers.ok()?[..] {
                [number] => Range { from: 0, below: written.saturating_add(REACH), number },
                [from, below, number] => Range { from, below, number },
                _ => return None,
            });
        }
        if let [only] = &mut ranges[..] {
            // Grants that do not know of it have blocks, of transactions before it.
            only.number = only.number.max(written.saturating_mul(TokenBlock::SIZE));
        }
        let fits = |number: u64| i64::try_from(number).is_ok();
        let each =
            ranges.iter().all(|range| range.from < range.below && fits(range.below) && fits(range.number));
        let sorted = ranges.is_sorted_by(|one, next| one.below <= next.from && one.end() <= next.number);
        (!ranges.is_empty() && each && sorted).then_some(Self(ranges))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether they cannot have been written by this transaction: a writer begins a range at a transaction before its own, and
    /// reaches [`REACH`] beyond it at most.
    pub(crate) fn is_ahead_of(&self, written: u64) -> bool {
        self.0.last().is_some_and(|last| last.from > written || last.below > written.saturating_add(REACH))
    }

    /// The first token after all of them.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |range| range.end())
    }

    /// The token of a node that this transaction created; none if it is too old, or the base does not reach it yet.
    pub(crate) fn token(&self, transaction: u64) -> Option<u64> {
        let range = self.0.iter().find(|range| range.contains(transaction))?;
        Some(range.number + (transaction - range.from))
    }

    /// Extends the base to this transaction, and some more, unless it is older than all ranges. Returns whether that changed it.
    ///
    /// A waiter may get its turn after others whose nodes are of a later leader. Then the ranges after it are lifted.
    pub(crate) fn reach(&mut self, transaction: u64) -> bool {
        let at = self.0.partition_point(|range| range.below <= transaction);
        let next = self.0.get(at).map_or(u64::MAX, |next| next.from);
        let Some(last) = at.checked_sub(1).map(|at| self.0[at]).filter(|_| transaction < next) else {
            return false;
        };
        let (later, elected) = (self.0.split_off(at), transaction >> EPOCH << EPOCH);
        let below = next.min(transaction + REACH);
        self.push(Range { from: last.below.max(elected), below, number: last.end() });
        later.into_iter().for_each(|range| self.push(range));
        self.compact();
        true
    }

    /// Makes the tokens of all nodes that are created after this transaction larger than `floor`. Returns whether that changed
    /// the base.
    pub(crate) fn raise(&mut self, after: u64, floor: u64) -> bool {
        let next = after + 1;
        if self.is_empty() {
            let is_low = next.saturating_mul(TokenBlock::SIZE) <= floor;
            let number = floor.saturating_sub(after).max(1);
            self.0.extend(is_low.then_some(Range { from: 0, below: next + REACH, number }));
            return is_low;
        }
        self.reach(next);
        let before = mem::take(self);
        for &Range { from, below, number } in &before.0 {
            let at = next.clamp(from, below);
            self.push(Range { from, below: at, number });
            self.push(Range { from: at, below, number: (number + (at - from)).max(floor + 1) });
        }
        let is_raised = *self != before;
        self.compact();
        is_raised
    }

    /// Adds what another state of the base has: each token is the larger one of both. What either has forgotten stays forgotten,
    /// as it may have been raised before.
    pub(crate) fn join(&mut self, other: &Self) {
        if self == other {
            return;
        }
        let first = |ranges: &Self| ranges.0.first().map_or(0, |range| range.from);
        let oldest = first(self).max(first(other));
        let bounds = self.0.iter().chain(&other.0).flat_map(|range| [range.from, range.below]);
        let mut bounds: Vec<u64> = bounds.filter(|bound| *bound >= oldest).collect();
        bounds.sort_unstable();
        let mine = mem::take(self);
        for bounds in bounds.windows(2) {
            let (from, below) = (bounds[0], bounds[1]);
            if let Some(number) = mine.token(from).max(other.token(from)) {
                self.push(Range { from, below, number });
            }
        }
    }

    /// Appends a range, which may be empty, and lifts it above those before it.
    fn push(&mut self, mut range: Range) {
        if range.from == range.below {
            return;
        }
        range.number = range.number.max(self.end());
        match self.0.last_mut() {
            Some(last) if last.below == range.from && last.end() == range.number => last.below = range.below,
            _ => self.0.push(range),
        }
    }

    /// Reduces the ranges to those that are kept. The oldest ones are lifted to the next one of the same leader. The oldest one
    /// is forgotten if there is none such: an election lies between all of them, which would skip too many tokens.
    fn compact(&mut self) {
        while self.0.len() > MOST {
            let older = self.0.windows(2).position(|pair| pair[0].below == pair[1].from);
            let older = self.0.remove(older.unwrap_or_default());
            if let Some(next) = self.0.iter_mut().find(|next| next.from == older.below) {
                *next = Range { from: older.from, number: next.number - (next.from - older.from), ..*next };
            }
        }
    }
}

/// The data of the node.
impl fmt::Display for TokenRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Range { from, below, number }) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}{from} {below} {number}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nodes::token_base::TokenBase;
    use crate::nodes::watches::WatchBudget;

    const ELECTION: u64 = 1 << EPOCH;

    fn based(number: u64) -> TokenRanges {
        TokenRanges::parse(number.to_string().as_bytes(), 100).unwrap()
    }

    #[test]
    fn a_number_that_people_write_is_a_base() {
        assert_eq!(based(5_000).token(7), Some(5_007));
        assert_eq!(based(1).token(101), Some(1_701), "beyond the blocks of transactions before it");
        for bad in ["", "-1", "x", "9223372036854775808", "1 2", "5 5 1", "2 9 1\n8 9 20", "2 9 5\n9 12 11"] {
            assert_eq!(TokenRanges::parse(bad.as_bytes(), 100), None, "{bad}");
        }
        assert_eq!(TokenRanges::parse(b"\xff", 100), None);
    }

    #[test]
    fn ranges_of_later_transactions_are_ahead() {
        let ahead = |text: &str| TokenRanges::parse(text.as_bytes(), 100).unwrap().is_ahead_of(100);
        let last = 100 + REACH;
        assert!(
            !ahead("5000") && !ahead(&format!("0 {last} 5000")) && !ahead(&format!("0 9 1\n100 {last} 5000"))
        );
        assert!(
            ahead("101 102 5000") && ahead("0 9 1\n101 102 5000") && ahead(&format!("0 {} 5000", last + 1))
        );
    }

    #[test]
    fn an_election_skips_few_tokens() {
        let mut ranges = based(1_000_000);
        let before = ranges.token(200).unwrap();
        let elected = 3 * ELECTION + 5;
        assert_eq!(ranges.token(elected), None);
        assert!(ranges.reach(elected) && !ranges.reach(elected));
        let after = ranges.token(elected).unwrap();
        assert!(before < after && after - before < 2 * REACH, "{before} {after}");
        assert_eq!(ranges.token(200), Some(before), "waiters from before it keep their turn");
        // Under one leader, no token is skipped.
        let later = elected + 5 * REACH;
        assert!(ranges.reach(later));
        assert_eq!(ranges.token(later), Some(after + 5 * REACH));
    }

    #[test]
    fn a_waiter_of_a_time_without_grants_keeps_its_turn() {
        let mut ranges = based(1_000_000);
        let before = ranges.token(200).unwrap();
        let end = ranges.0[0].below;
        // They queue up, and get the lock after others whose nodes are of the fourth leader.
        let waiters = [end + 5, 2 * ELECTION + 7, 3 * ELECTION + 7, 3 * ELECTION + 9 + REACH];
        let holder = 4 * ELECTION + 1;
        assert!(ranges.reach(holder));
        let elected = ranges.token(holder).unwrap();
        for waiter in [1, 3, 0, 2].map(|at| waiters[at]) {
            assert!(ranges.token(waiter).is_some() || ranges.reach(waiter));
            assert!(ranges.token(waiter).is_some());
        }
        let tokens: Vec<_> =
            [200].iter().chain(&waiters).chain([&holder]).map(|at| ranges.token(*at).unwrap()).collect();
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        assert_eq!(tokens[0], before);
        assert!(elected < tokens[5] && tokens[5] - before < 8 * REACH, "{tokens:?}");
        assert!(!ranges.reach(waiters[1]), "that is known by now");
    }

    #[test]
    fn a_raise_lifts_later_tokens_only_and_no_more_than_it_must() {
        let mut ranges = based(1_000_000);
        ranges.reach(ELECTION + 1);
        let (older, floor) = (ranges.token(150).unwrap(), 9_000_000_000);
        assert!(ranges.raise(150, floor));
        assert!(!ranges.raise(150, floor) && !ranges.raise(ELECTION, floor - 5));
        assert_eq!((ranges.token(150), ranges.token(151)), (Some(older), Some(floor + 1)));
        let elected = ranges.token(ELECTION + 1).unwrap();
        assert!(elected > floor && elected - floor <= 2 * REACH, "{elected}");
    }

    #[test]
    fn many_raises_leave_every_node_a_token() {
        let mut ranges = based(1 << 50);
        for raiser in (200..300).step_by(2) {
            let later = ranges.token(raiser + 1).unwrap();
            assert!(ranges.raise(raiser, later + 1_000_000));
        }
        assert_eq!(ranges.0.len(), MOST);
        let tokens: Vec<_> = (150..301).map(|transaction| ranges.token(transaction).unwrap()).collect();
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Grant(u64),
        /// A node that is granted its lock later, if ever.
        Queue(u64),
        /// The turn of one of these.
        Turn(prop::sample::Index),
        Elect,
        Raise {
            back: u64,
            by: u64,
        },
        /// Another session reads the base.
        Read,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..3 * REACH).prop_map(Step::Grant),
            (1..3 * REACH).prop_map(Step::Queue),
            any::<prop::sample::Index>().prop_map(Step::Turn),
            Just(Step::Elect),
            (0..2 * REACH, 0..REACH).prop_map(|(back, by)| Step::Raise { back, by }),
            Just(Step::Read),
        ]
    }

    proptest! {
        /// A later grant has a larger token than an earlier one, whatever was known then.
        #[test]
        fn tokens_grow_and_are_read_as_they_were_written(steps in prop::collection::vec(step(), 1..60)) {
            let (mut ranges, mut transaction) = (based(1 << 50), 200);
            let (mut granted, mut queued) = (Vec::new(), Vec::new());
            let reader = TokenBase::beside("/", WatchBudget::new("").claim(0));
            for step in steps {
                match step {
                    Step::Grant(more) => {
                        transaction += more;
                        ranges.reach(transaction);
                        granted.push((transaction, ranges.token(transaction).unwrap()));
                    }
                    Step::Queue(more) => {
                        transaction += more;
                        queued.push(transaction);
                    }
                    Step::Turn(_) if queued.is_empty() => {}
                    Step::Turn(whose) => {
                        let at = queued.swap_remove(whose.index(queued.len()));
                        ranges.reach(at);
                        let elections = (transaction >> EPOCH) - (at >> EPOCH);
                        let token = ranges.token(at);
                        prop_assert!(token.is_some() || elections >= MOST as u64, "{at} has lost its turn");
                        granted.extend(token.map(|token| (at, token)));
                    }
                    Step::Elect => transaction = (transaction / ELECTION + 1) * ELECTION,
                    Step::Raise { back, by } => {
                        let after = transaction.saturating_sub(back);
                        let floor = ranges.token(after).unwrap_or_default() + by;
                        ranges.raise(after, floor);
                        let next = ranges.token(after + 1);
                        prop_assert!(next.is_none_or(|next| next > floor), "{next:?} {floor}");
                    }
                    Step::Read => prop_assert_eq!(reader.saw(&ranges), ranges.clone()),
                }
                prop_assert_eq!(TokenRanges::parse(ranges.to_string().as_bytes(), 300), Some(ranges.clone()));
                prop_assert!(!ranges.is_ahead_of(transaction + 1), "{ranges} after {transaction}");
                for (at, token) in &granted {
                    let now = ranges.token(*at);
                    let elections = (transaction >> EPOCH) - (at >> EPOCH);
                    prop_assert!(now.is_some() || elections >= MOST as u64, "{at} is forgotten");
                    prop_assert!(now.is_none_or(|now| now >= *token), "{at}: {token}, then {now:?}");
                }
            }
            for (at, one) in granted.iter().enumerate() {
                let mut later = granted[at..].iter().filter(|next| next.0 > one.0);
                prop_assert!(later.all(|next| next.1 > one.1), "{one:?} in {granted:?}");
            }
        }
    }
}
