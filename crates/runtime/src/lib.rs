//! Drives the protocol engine, which does no I/O. The runtime provides threads, clocks and links,
//! and lets threads sleep and wakes them.
//!
//! * [`ProgressCell`] lets any thread drive the engine, and no thread waits for another.
//! * A *turn* reads the clock once, reads a burst from each link, runs timers, sends, and wakes the
//!   threads whose wait has ended.
//! * Threads of the application make turns when they post, poll and wait. No switch between threads
//!   is then needed, which makes latencies of microseconds possible. A progress thread makes turns
//!   while the application does something else. It does not read the links while the application
//!   polls.
//! * All waiting threads follow one policy (`docs/waiting.md`): they spin, sleep until an event, or
//!   sleep until a time. One of the blocked threads is *on watch*: it sleeps on the descriptors of
//!   the links. When a frame for that thread arrives, its wake-up takes one thread switch instead
//!   of two.
//!
//! The data path allocates nothing and waits for no lock. If another thread is inside the engine, a
//! posting thread puts its operation into a lock-free ring and continues. Code with its own send
//! queues implements [`WorkSource`] for them, and [rings](Runtime::ring) the doorbell of a queue
//! after adding work. The engine takes the work when it has room, so ringing never fails.
//!
//! The same threads also drive protocols other than the engine's, which are called
//! [machines](Machine).
#![expect(
    clippy::disallowed_methods,
    reason = "this crate is where time comes from and where threads wait"
)]

mod arming;
mod attached;
mod attaching;
mod auxiliary;
mod auxiliary_sockets;
mod beside;
mod cell;
mod clock;
mod counters;
mod driver;
mod ending;
mod exit;
mod fork;
mod hooks;
mod local_listener;
mod lookers;
mod machine;
mod mark;
mod on_demand;
mod park;
mod progress_thread;
mod report_socket;
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
pub use auxiliary_sockets::AuxiliaryError;
pub use beside::{WaitError, Waited};
pub use cell::{Drive, Inside, ProgressCell};
pub use counters::RuntimeCounters;
pub use driver::AttachError;
pub use exit::{notify_peers_at_exit, send_before_end};
pub use fork::{Forked, HomeProcess, forks};
pub use hooks::Hooks;
pub use local_listener::LocalListener;
pub use lookers::ChangedBy;
pub use machine::{Descriptors, Machine, MachineError, MachineId, Progress};
pub use mark::Mark;
pub use on_demand::OnDemand;
pub use park::{Interest, Polling};
pub use report_socket::ReportSocket;
pub use retired::Regions;
pub use runtime::{Doorbell, Runtime, RuntimeConfig, StartError, SubmitError};
pub use sleep::Others;
pub use source::{Posted, Rest, SourceDoorbell, WorkSource};
pub use submission::Posting;
pub use tasks::{Enlisted, SpinBudget};
