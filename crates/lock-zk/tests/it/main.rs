//! The tests of lock-zk as its users see it: one program, a module per subject.

mod bugs;
mod common;
mod connect;
mod fake_zookeeper;
mod model;
mod operate;
mod recipes;
mod servers;
mod simulation;
mod topology;
mod waiting;
