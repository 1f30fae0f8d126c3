//! Claim 3: without sequential nodes there is a herd.

use super::waiting_cost::{GRANT_NOTIFICATIONS, GRANT_REQUESTS, measure_crowds};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "one-node",
    figures: Some(|run| Box::pin(figures(run))),
    claim: Some(Claim {
        id: 3,
        says: "Without sequential nodes there is a herd: each release wakes all waiters.",
        how: "As claim 2, with more waiters: the requests and notifications of each grant, over the number of waiters. \
              `zk` is the queue of sequential nodes, `zk recipe=ephemeral` one node that all waiters watch.",
        rule: "Holds when the requests and notifications of a grant grow at least like the 0.6th power of the number of \
               waiters with one node, and less with sequential nodes; otherwise it does not hold.",
        in_quick: true,
        pictures: || {
            vec![
                curve("Requests per grant", GRANT_REQUESTS, "waiters"),
                curve("Notifications per grant", GRANT_NOTIFICATIONS, "waiters"),
            ]
        },
        judge,
        ..CLAIM
    }),
    ..EXPERIMENT
};

async fn figures(run: &mut Measuring<'_>) {
    let waiters = run.mode.pick::<&[u32]>(&[8, 64], &[8, 32, 128, 512]);
    measure_crowds(run, "herd", &[HERD, QUEUE], waiters).await;
}

fn judge(figures: &Figures) -> Outcome<Judgement> {
    let (one_node, queue) = (messages(figures, HERD)?, messages(figures, QUEUE)?);
    let (herd, turns) = (growth(&one_node)?, growth(&queue)?);
    let is_herd = herd.is_linear_or_worse() && !turns.is_linear_or_worse();
    let verdict = if is_herd { Verdict::Holds } else { Verdict::DoesNotHold };
    let at_most = |points: &[(f64, f64)]| points.last().map_or(f64::NAN, |(_, messages)| *messages);
    let waiters = one_node.last().map_or(f64::NAN, |(waiters, _)| *waiters);
    let because = format!(
        "with {waiters} waiters a grant takes {:.0} requests and notifications with one node and {:.1} with sequential \
         nodes; growth: {herd} and {turns}",
        at_most(&one_node),
        at_most(&queue)
    );
    Ok(Judgement::new(verdict, because))
}

/// The requests and notifications of a grant, over the number of waiters.
fn messages(figures: &Figures, subject: &str) -> Outcome<Vec<(f64, f64)>> {
    let requests = figures.curve(subject, GRANT_REQUESTS).into_iter();
    requests
        .map(|(waiters, requests)| {
            Ok((waiters, requests + figures.at(subject, GRANT_NOTIFICATIONS, waiters)?))
        })
        .collect()
}

fn growth(points: &[(f64, f64)]) -> Outcome<Growth> {
    Growth::of(points).ok_or_else(|| Failure::new("too few crowds were measured to see how a grant grows"))
}

const QUEUE: &str = "zk";
const HERD: &str = "zk recipe=ephemeral";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::claim::judged;

    #[test]
    fn a_herd_grows_with_the_waiters() {
        let by = |herd: fn(f64) -> f64, queue: fn(f64) -> f64| {
            let of = |waiters: f64, subject, requests| {
                [(GRANT_REQUESTS, requests), (GRANT_NOTIFICATIONS, 1.0)]
                    .map(|(metric, value)| Figure::new(subject, metric, "", value).at(waiters))
            };
            let all = [8.0, 64.0, 512.0].into_iter();
            let all = all
                .flat_map(|waiters| [of(waiters, HERD, herd(waiters)), of(waiters, QUEUE, queue(waiters))]);
            judged(&THIS, all.flatten()).0
        };
        assert_eq!(by(|waiters| 2.0 * waiters, |_| 4.0), Verdict::Holds);
        assert_eq!(by(|_| 4.0, |_| 4.0), Verdict::DoesNotHold);
        assert_eq!(by(|waiters| waiters, |waiters| waiters), Verdict::DoesNotHold);
    }
}
