//! The handler of the processor and the system.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(any(miri, loom)))))]
mod elsewhere;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(any(miri, loom))))]
mod x86_64;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(any(miri, loom)))))]
pub(crate) use elsewhere::{check, install};
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(any(miri, loom))))]
pub(crate) use x86_64::{check, install};
