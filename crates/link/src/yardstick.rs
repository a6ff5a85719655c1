//! Bare baselines for links: the least work with which a program can exchange messages over the
//! same kernel interface, without protocol, checksum and engine.

pub mod packet;
pub mod shm;
pub mod xdp;
