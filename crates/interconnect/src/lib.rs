//! The interconnect simulator: which network to buy, and how it behaves.
//!
//! A [`Simulation`](simulation::Simulation) runs a [`Workload`](workload::Workload) of ranks on hosts over a
//! [`Fabric`](simulation::Fabric). Topologies, routes and workloads are the same objects for every fabric. Times are
//! integer picoseconds; events that fall together are ordered by what they are, not by when they were scheduled; each
//! component draws from its own stream of random numbers. So a run is the same, bit for bit, in every build and on
//! every machine, which [`Outcome::hash`](simulation::Outcome::hash) shows.
//!
//! No thread, clock, socket or global generator is used.
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
