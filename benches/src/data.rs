//! What was measured, and what it is called. Nothing here starts or measures anything.

pub(crate) mod events;
pub(crate) mod exclusion;
mod failure;
pub(crate) mod fault;
mod figures;
mod growth;
pub(crate) mod holds;
mod latency;
pub(crate) mod median;
pub(crate) mod names;
pub(crate) mod plan;
pub(crate) mod results;
pub(crate) mod timeline;
pub(crate) mod window;

pub(crate) use self::events::{EventLog, GrantInfo, TimedHold};
pub(crate) use self::failure::{Failure, Outcome};
pub(crate) use self::fault::{Data, Disturbance, Effect, Fault, Flag, Hits, Losses};
pub(crate) use self::figures::Figures;
pub(crate) use self::growth::Growth;
pub(crate) use self::holds::Hold;
pub(crate) use self::latency::{Compared, Latency, Times};
pub(crate) use self::names::{BackendName, Defect, Peer, Site};
pub(crate) use self::plan::{Load, Plan};
pub(crate) use self::results::{
    Bound, ClaimResult, ExclusionVerdict, ExperimentResult, FaultResult, FaultVerdict, Figure, Meta,
    MetricResult, Mode, Part, Picture, Results, Row, Scenario, TargetResult, Verdict,
};
pub(crate) use self::window::Window;
