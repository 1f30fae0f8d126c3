//! Claim 12: moving from Redis to ZooKeeper.

use async_trait::async_trait;

use super::{About, Claim, Figures, Judgement, Measuring};
use crate::failure::{Failure, Outcome};

/// The claim.
#[derive(Debug)]
pub(super) struct Migration;

#[async_trait(?Send)]
impl Claim for Migration {
    fn about(&self) -> About {
        About {
            id: 12,
            says: "A running fleet can move from Redis locks to ZooKeeper without a moment of double locking.",
            how: "Not measured: polylock has no migration yet.",
            rule: "None yet: it will compare the latency of each step of a migration with that of its two backends.",
            needs: &[],
            in_quick: false,
        }
    }

    async fn measure(&self, _run: &mut Measuring<'_>) {}

    fn judge(&self, _figures: &Figures) -> Outcome<Judgement> {
        Err(Failure::new("polylock has no migration yet"))
    }
}
