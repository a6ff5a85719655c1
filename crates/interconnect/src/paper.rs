//! *Cost/Performance Evaluation of Gigabit Ethernet and Myrinet as Cluster Interconnect* (Chen,
//! Wyckoff, Moor; Sandia, 1999), reproduced: its tables and figures from the simulator, beside what
//! the paper prints.

pub mod configurations;
pub mod prices;
pub mod reference;
pub mod results;
mod statements;

pub use results::Reproduction;
pub use statements::Statement;
