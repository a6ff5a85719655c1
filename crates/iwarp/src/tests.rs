//! Tests of the whole machine: single rules against a scripted peer, and two streams under torture.

mod hostile;
mod memory;
mod random;
mod rules;
mod scripted;
mod set_up;
mod sleepy_peer;
mod torture;
mod world;
