//! `MultiEdge`'s testbed and past it: the set-ups of the paper and further ones on shaped virtual
//! Ethernet, with our rules and `MultiEdge`'s side by side in the same run.

pub mod results;
pub mod run;
pub mod setups;
