//! What a link is measured against: the least that a program can do over the same kernel interface,
//! with no protocol, no checksum and no engine.

pub mod packet;
pub mod shm;
pub mod xdp;
