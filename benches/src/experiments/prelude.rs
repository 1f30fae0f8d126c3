//! What all files of experiments import.

pub(crate) use super::bench::{Bench, Measured, connect, time};
pub(crate) use super::claim::{CLAIM, Claim, Judgement, Measuring, bars, curve};
pub(crate) use super::experiment::{EXPERIMENT, Experiment, metric};
pub(crate) use super::target::{
    ETCD, MYSQL, POSTGRES, REDIS, REDLOCK, SQLITE, Size, Target as OurTarget, ZK, at_least, at_most, unless,
};
pub(crate) use crate::data::*;
pub(crate) use crate::rig::*;
