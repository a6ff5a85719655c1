//! The one place of this crate that is unsafe: memory of the program is registered.
#![expect(
    unsafe_code,
    reason = "registration takes the program's word for what it does with its memory"
)]

use mem::{MemoryTable, ProtectionDomain, Region, RegionId, RegisterError, Rights};

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

/// Makes other memory of the program a region that there is, which keeps its names.
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
    // SAFETY: as above.
    unsafe { table.change_raw_lazily(region, domain, start, length, remote_address, rights) }
}
