//! What turns the engine, which does nothing by itself, into an endpoint that makes progress.
//!
//! * [`ProgressCell`] lets any thread drive the engine and none wait for another.
//! * A *turn* reads the clock once, reads a burst from each link, runs timers, sends, and wakes those whose wait has
//!   ended.
//! * Threads of the application make turns when they post, poll and wait; that is where latencies
//!   of microseconds come from. A progress thread makes them while the application does something
//!   else, and leaves the links to it while it polls.
//! * Waiting is one policy (`docs/waiting.md`): spin, sleep until an event, sleep until a time. Of all blocked threads
//!   one sleeps on the links itself, so that a wake-up is one switch of threads and not two.
//!
//! On the data path nothing is allocated and no lock is waited for: a thread that finds another one
//! inside the engine puts its operation into a lock-free ring and goes on. Who has send queues of his own
//! makes each a [`WorkSource`] and [rings](Runtime::ring): work is taken from it as there is room, and none
//! is ever refused.
//!
//! Other protocols than the engine's are [machines](Machine), driven beside it by the same threads.
#![expect(
    clippy::disallowed_methods,
    reason = "this crate is where time comes from and where threads wait"
)]

mod arming;
mod attached;
mod auxiliary;
mod beside;
mod cell;
mod clock;
mod counters;
mod doors;
mod driver;
mod ending;
mod exit;
mod fork;
mod hooks;
mod lookers;
mod machine;
mod mark;
mod park;
mod progress_thread;
mod retired;
mod runtime;
mod sleep;
mod source;
mod submission;
mod tasks;
mod timer;
mod turn_access;
mod waits;
mod watch;

pub use auxiliary::Readiness;
pub use beside::{WaitError, Waited};
pub use cell::{Drive, Inside, ProgressCell};
pub use counters::RuntimeCounters;
pub use doors::DoorError;
pub use driver::AttachError;
pub use exit::{notify_peers_at_exit, send_before_end};
pub use fork::{Forked, HomeProcess, forks};
pub use hooks::Hooks;
pub use lookers::ChangedBy;
pub use machine::{Descriptors, Machine, MachineError, MachineId, Progress};
pub use mark::Mark;
pub use park::{Interest, Polling};
pub use retired::Regions;
pub use runtime::{Doorbell, Runtime, RuntimeConfig, StartError, SubmitError};
pub use sleep::Others;
pub use source::{Bell, Posted, Rest, WorkSource};
pub use submission::Posting;
pub use tasks::{Enlisted, Patience};
