//! Reproduction of *Cost/Performance Evaluation of Gigabit Ethernet and Myrinet as Cluster
//! Interconnect* (Chen, Wyckoff, Moor; Sandia, 1999): its tables and figures from the simulator,
//! next to the values in the paper.

pub mod configurations;
pub mod prices;
pub mod reference;
pub mod results;
mod statements;

pub use results::Reproduction;
pub use statements::Statement;
