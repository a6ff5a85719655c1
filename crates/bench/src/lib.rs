//! Compares transports: every implementation of [`transport::Transport`] is compared with kernel
//! TCP as the baseline and bare UDP as the yardstick.
//!
//! Client and server are two processes. The path between them is two network namespaces joined by
//! veth pairs, the loopback interface, or a real network. [`run::run`] sets up the path, starts the
//! processes, and samples all transports alternately. Therefore all figures of a run are from the
//! same path and the same minutes. The result is [`results::Results`].

#![forbid(unsafe_code)]

pub mod apache;
pub mod busy;
pub mod client;
pub mod control;
pub mod cpu;
pub mod failover;
pub mod ganglia;
pub mod machine;
pub mod multiedge;
pub mod plan;
pub mod process;
pub mod programs;
pub mod reality;
pub mod results;
pub mod run;
pub mod server;
pub mod sockets;
pub mod statistics;
pub mod transport;
pub mod transports;
pub mod unmodified;
pub mod verbs;
pub mod yardsticks;
pub mod zipf;
