//! Baselines for measurements of links. Each baseline exchanges messages over the same kernel
//! interface as a link, but with the least possible work: without protocol, checksum or engine.

pub mod packet;
pub mod shm;
pub mod xdp;
