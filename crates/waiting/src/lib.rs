//! Decides when a waiting thread spins, and when and until when it sleeps.
//!
//! A *look* is one pass of a thread through the engine, which reads the links.
//!
//! Pure functions of their input: no clock, no thread, no lock. The runtime drives threads by this
//! policy, the simulator simulated hosts. The table of situations and outcomes is in
//! `docs/waiting.md`.

#![forbid(unsafe_code)]

mod moderation;
mod standby;
mod wait_policy;

pub use moderation::Moderation;
pub use standby::Standby;
pub use wait_policy::{Application, Outcome, SleepCost, Spinning, WaitPolicy, WakeUp};

/// Number of wake-ups that are remembered, and measured when a progress thread starts.
pub use wait_policy::WAKE_UPS;
