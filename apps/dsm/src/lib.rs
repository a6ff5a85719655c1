//! Shared memory over Ethernet: processes, on one host or several, share a region of memory by
//! ordinary loads and stores.
//!
//! Each process is a *rank* of the program. All ranks run the same program, and the region is at the
//! same address in all of them.
//!
//! ```
//! use dsm::{Dsm, Options};
//!
//! # fn main() -> Result<(), dsm::Error> {
//! let dsm = Dsm::join(Options::new())?; // `ethernot dsm run -n 4 -- PROGRAM` starts four ranks.
//! let squares = dsm.alloc::<u64>(1024)?;
//! for index in (dsm.rank()..1024).step_by(dsm.size()) {
//!     squares.set(index, (index * index) as u64);
//! }
//! dsm.barrier()?;
//! assert_eq!(squares.get(31), 961); // Whichever rank has written it.
//! dsm.finalize()
//! # }
//! ```
//!
//! # What a rank sees
//!
//! The memory is release consistent. A rank sees what another rank has written before it released a
//! lock, or entered a barrier, if the rank itself has acquired the lock, or left the barrier, after
//! that. A program without data races sees one memory. The grain is a word of four bytes: two ranks
//! that write different bytes of one word, without an order between them, have a race.
//!
//! # What is unsafe
//!
//! [`DsmSlice::get`] and [`DsmSlice::set`] copy single elements, and are safe: a race gives an old or
//! a new element. References to the memory are `unsafe`, because the compiler assumes that no other
//! thread changes what a reference points to. [`DsmMutex`] and [`DsmRwLock`] are the exceptions: their
//! guards prove that no other thread of any rank changes the value.
//!
//! # What does not work
//!
//! * System calls do not fault. A `read` or `write` of memory that is not present fails with
//!   `EFAULT`. [`Dsm::pin`] makes the memory present and keeps it so; `read_from` and `write_to` of a
//!   [`DsmSlice`] copy by way of memory of the process.
//! * A process joins once, and must not fork afterwards.

#![expect(clippy::disallowed_methods, reason = "the driver of the machine measures time and waits")]

mod allocation;
mod answers;
mod aside;
mod atomics;
mod calls;
mod compare;
mod core;
mod driver;
mod driving;
mod environment;
mod error;
mod failure;
mod greeting;
mod guards;
mod handle;
mod heap;
mod host;
mod landings;
pub mod launch;
mod local;
mod meeting;
mod memory;
mod misuse;
mod mutex;
mod network;
mod objects;
mod options;
mod pins;
mod progress;
mod races;
mod read_write_lock;
mod reports;
mod signals;
mod slice;
mod staging;
mod stalls;
pub mod statistics;
mod streams;
mod thread_numbers;
mod threads;
mod twins;
mod variables;
mod watchdog;
mod words;
mod writable_groups;

pub use allocation::{Allocation, Home};
pub use dsm_protocol::{AtomicOperation, Counters, Misuse};
pub use error::Error;
pub use failure::RankFailure;
#[doc(hidden)]
pub use greeting::fuzz_greeting;
pub use handle::Dsm;
pub use misuse::MisusedCall;
pub use mutex::{DsmMutex, DsmMutexGuard};
pub use options::Options;
pub use page_faults::{Access, Method};
pub use pins::DsmPin;
pub use races::RaceReport;
pub use read_write_lock::{DsmReadGuard, DsmRwLock, DsmWriteGuard};
pub use signals::{DsmCondition, DsmEvent, DsmSemaphore};
pub use slice::DsmSlice;
pub use stalls::StallReport;
pub use variables::{MEET, METHOD, RACES, RANK, SIZE, THREADS};
