//! The one place of this crate that is unsafe: memory of the program is registered.
#![expect(
    unsafe_code,
    reason = "registration takes the program's word for what it does with its memory"
)]

use mem::{MemoryTable, ProtectionDomain, Region, RegisterError, Rights};

/// Registers memory of the program, whatever is there.
pub(crate) fn register(
    table: &MemoryTable,
    domain: ProtectionDomain,
    address: usize,
    length: u64,
    remote_address: u64,
    rights: Rights,
) -> Result<Region, RegisterError> {
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: programs that register memory with a device promise what is asked for here, and there is no other way to
    // use one: the memory stays as it is until it is deregistered. In Rust it is reached by raw pointers only.
    unsafe { table.register_raw_lazily(domain, start, length, remote_address, rights) }
}
