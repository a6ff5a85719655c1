//! Programs of several ranks, as processes: random ones against one memory, and measurements.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![expect(clippy::disallowed_methods, reason = "waits for processes")]

mod guest;
mod random_programs;
mod ranks;
mod speeds;
