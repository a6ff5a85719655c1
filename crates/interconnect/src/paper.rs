//! Reproduces *Cost/Performance Evaluation of Gigabit Ethernet and Myrinet as Cluster Interconnect*
//! (Chen, Wyckoff, Moor; Sandia, 1999). Computes its tables and figures with the simulator and
//! compares them with the values in the paper.

pub mod configurations;
pub mod prices;
pub mod reference;
pub mod results;
mod statements;

pub use results::Reproduction;
pub use statements::Statement;
