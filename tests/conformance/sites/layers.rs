//! Any backend through layers.

use std::fmt;
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Capabilities, Locks};
use lock_testkit::conformance::{Fault, Handle, Harness};
use polylock::layers::{ChaosLayer, MetricsLayer, PrefixLayer, TracingLayer};

use super::Flavour;

/// The prefix of all names: without a character that a store escapes.
const PREFIX: &str = "team-a.";

/// Which layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layers {
    All,
    Tracing,
    Metrics,
    Prefix,
    Chaos,
}

impl Layers {
    /// The locks through these layers. None of them injects a fault.
    pub fn over(self, locks: polylock::Locks) -> polylock::Locks {
        let prefix = || PrefixLayer::new(PREFIX).expect("the prefix is short");
        match self {
            Self::All => {
                let below = locks.layer(ChaosLayer::new(0)).layer(prefix());
                below.layer(MetricsLayer::new()).layer(TracingLayer::new())
            }
            Self::Tracing => locks.layer(TracingLayer::new()),
            Self::Metrics => locks.layer(MetricsLayer::new()),
            Self::Prefix => locks.layer(prefix()),
            Self::Chaos => locks.layer(ChaosLayer::new(0)),
        }
    }

    /// The name or part of a name, as the store has it.
    fn below(self, name: &str) -> String {
        match self {
            Self::All | Self::Prefix if !name.is_empty() => format!("{PREFIX}{name}"),
            _ => name.to_owned(),
        }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Tracing => "tracing",
            Self::Metrics => "metrics",
            Self::Prefix => "prefix",
            Self::Chaos => "chaos",
        })
    }
}

/// A backend whose clients have layers. The harness below connects them; this one knows the names of the store.
pub struct LayersHarness {
    flavour: Flavour,
    layers: Layers,
    below: Box<dyn Harness>,
}

impl LayersHarness {
    pub fn new(flavour: Flavour, below: Box<dyn Harness>) -> Self {
        let Flavour::Layers(layers) = flavour else { panic!("{flavour} has no layers") };
        Self { flavour, layers, below }
    }
}

#[async_trait]
impl Harness for LayersHarness {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn handle(&self) -> Handle {
        self.below.handle()
    }

    fn capabilities(&self) -> Capabilities {
        self.below.capabilities()
    }

    fn longest_name(&self) -> usize {
        let prefix = self.layers.below("x").len() - 1;
        self.below.longest_name() - prefix
    }

    fn short_lease(&self) -> Duration {
        self.below.short_lease()
    }

    async fn connect(&self, lease: Duration) -> lock_core::Result<Locks> {
        self.below.connect(lease).await
    }

    async fn worker(&self, lease: Duration) -> Command {
        self.below.worker(lease).await
    }

    async fn leftovers(&self, part: &str) -> Vec<String> {
        self.below.leftovers(&self.layers.below(part)).await
    }

    async fn delete_behind_the_back(&self, name: &str) {
        self.below.delete_behind_the_back(&self.layers.below(name)).await;
    }

    async fn link(&self) -> Box<dyn Harness> {
        Box::new(Self::new(self.flavour, self.below.link().await))
    }

    async fn private(&self) -> Box<dyn Harness> {
        Box::new(Self::new(self.flavour, self.below.private().await))
    }

    async fn fault(&self, fault: Fault) {
        self.below.fault(fault).await;
    }

    async fn restart(&self) {
        self.below.restart().await;
    }
}
