//! Decides when a waiting thread spins, when it sleeps, and which events end the sleep.
//!
//! A *look* is one pass of a thread through the engine, in which the thread reads the links.
//!
//! All functions in this crate depend only on their arguments and on earlier calls: they use no
//! clock, no thread and no lock. The runtime applies this policy to threads, and the simulator
//! applies it to simulated hosts. `docs/waiting.md` has the table of situations and outcomes.

#![forbid(unsafe_code)]

mod moderation;
mod standby;
mod wait_policy;

pub use moderation::Moderation;
pub use standby::Standby;
pub use wait_policy::{Application, Outcome, SleepCost, Spinning, WaitPolicy, WakeUp};

/// Number of wake-ups that the policy remembers. A progress thread measures the same number of
/// wake-ups when it starts, to learn the cost of a sleep.
pub use wait_policy::WAKE_UPS;
