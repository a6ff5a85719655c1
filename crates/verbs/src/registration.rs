//! Registers memory of the program: the only unsafe code of this crate.
#![expect(
    unsafe_code,
    reason = "registration takes the program's word for what it does with its memory"
)]

use mem::{MemoryTable, ProtectionDomain, Region, RegionId, RegisterError, Rights};

/// Registers memory of the program. Does not check whether the range is mapped.
pub(crate) fn register(
    table: &MemoryTable,
    domain: ProtectionDomain,
    address: usize,
    length: u64,
    remote_address: u64,
    rights: Rights,
) -> Result<Region, RegisterError> {
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: a program that registers memory with a device promises that the memory stays mapped
    // and accessible until the program deregisters the memory. The interface of verbs offers no
    // stronger guarantee. Rust code accesses this memory only through raw pointers.
    unsafe { table.register_raw_lazily(domain, start, length, remote_address, rights) }
}

/// Moves a region to other memory of the program. The region keeps its identifier and key.
pub(crate) fn change(
    table: &MemoryTable,
    region: RegionId,
    domain: ProtectionDomain,
    address: usize,
    length: u64,
    remote_address: u64,
    rights: Rights,
) -> Result<Region, RegisterError> {
    let start = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the program makes the same promise as in `register`.
    unsafe { table.change_raw_lazily(region, domain, start, length, remote_address, rights) }
}
