//! Decides when a thread that waits spins, and when and until when it sleeps.
//!
//! Pure: no clock, no thread, no lock. The runtime drives threads by it, the simulator simulated hosts.
//! The table of situations and outcomes is in `docs/waiting.md`.

#![forbid(unsafe_code)]

mod moderation;
mod standby;
mod wait_policy;

pub use moderation::Moderation;
pub use standby::Standby;
pub use wait_policy::{Application, Outcome, SleepCost, Spinning, WaitPolicy, WakeUp};

/// Wake-ups that are remembered, and measured when a progress thread begins.
pub use wait_policy::WAKE_UPS;
