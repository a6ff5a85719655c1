//! The interconnect simulator: predicts the behaviour and costs of a network before it is bought.
//!
//! A [`Simulation`](simulation::Simulation) runs a [`Workload`](workload::Workload) of ranks on
//! hosts, which are connected by a [`Fabric`](simulation::Fabric). All fabrics use the same
//! topologies, routes and workloads. Times are integers in picoseconds.
//!
//! All runs of a configuration are equal, bit for bit, in every build and on every machine.
//! [`Outcome::hash`](simulation::Outcome::hash) shows whether two runs are equal. To achieve this:
//!
//! * Simultaneous events are ordered by their contents, not by when they were scheduled.
//! * Each component has its own stream of random numbers.
//!
//! The crate uses no thread, clock, socket or global random generator.
#![forbid(unsafe_code)]

pub mod benchmark;
pub mod calibration;
pub mod collective;
pub mod configuration;
pub mod coroutine;
pub mod cost;
pub mod dependency;
pub mod drawing;
pub mod edge;
pub mod ethernet;
pub mod flit;
pub mod fluid;
pub mod goal;
pub mod loggp;
mod matching;
mod nearest;
pub mod paper;
pub mod receiving;
pub mod records;
pub mod routing;
pub mod saturation;
pub mod simulation;
mod slab;
pub mod statistics;
pub mod theory;
pub mod topology;
mod wheel;
pub mod workload;
pub mod wormhole;

use fabric::Random;

pub use slab::Slab;
pub use wheel::{Event, Wheel};
