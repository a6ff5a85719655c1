//! Errors of registration and of access to memory.

use wire_edge::RemoteKey;

use crate::rights::Rights;
use crate::slot::RegionId;
use crate::table::ProtectionDomain;

/// Reason why an access to registered memory failed. The access touched no byte, with two
/// exceptions: with [`AccessError::Unmapped`] and [`AccessError::Kernel`], it may have touched
/// bytes below `address`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The key or handle names no region, or a region that has ended.
    #[error(
        "no memory region is registered under key or handle {name:#x}; register it, and send peers its new key"
    )]
    InvalidKey {
        /// The remote key, or the raw [`RegionId`].
        name: u64,
    },
    /// The region was registered at another endpoint of this process.
    #[error(
        "{region:?} belongs to another endpoint; register the memory at the endpoint whose connection \
         uses it, too"
    )]
    ForeignRegion {
        /// The region.
        region: RegionId,
    },
    /// The region belongs to another protection domain. A peer gets the error for an unknown key
    /// instead, so that it cannot find out which keys exist.
    #[error(
        "the region belongs to domain {owner:?}, the access came from {accessor:?}; register the memory in the domain of the connection"
    )]
    WrongDomain {
        /// The domain of the connection that made the access.
        accessor: ProtectionDomain,
        /// The domain of the region.
        owner: ProtectionDomain,
    },
    /// The region or the target lacks a right.
    #[error(
        "the access needs the rights [{wanted}], but the region grants [{granted}]; register the region with the needed rights"
    )]
    Permission {
        /// The rights that the access needs. If the access used a [`crate::Target`], one of these
        /// rights suffices.
        wanted: Rights,
        /// The rights that were granted.
        granted: Rights,
    },
    /// The range exceeds the region or the target.
    #[error(
        "{len} bytes at {address:#x} are not within the {limit} bytes at {start:#x}; access only \
         bytes within these"
    )]
    Bounds {
        /// Address of the first byte of the refused range, or the last address of the address space
        /// if the range begins after its end.
        address: u64,
        /// Bytes of the refused range.
        len: u64,
        /// First accessible byte.
        start: u64,
        /// Number of accessible bytes.
        limit: u64,
    },
    /// The address of an atomic is not divisible by eight.
    #[error("atomic access to {address:#x}, which is not a multiple of 8; use an aligned address")]
    Misaligned {
        /// The address.
        address: u64,
    },
    /// The address is not mapped or not accessible. Either the access used the whole-address-space
    /// region, or the program has unmapped registered memory.
    #[error(
        "nothing accessible is mapped at {address:#x}; keep memory mapped while it is registered"
    )]
    Unmapped {
        /// First address that could not be accessed.
        address: u64,
    },
    /// The kernel refused to copy, although the address is valid.
    #[error(
        "the kernel refused a copy at {address:#x}: error {errno}; allow this process process_vm_readv and _writev"
    )]
    Kernel {
        /// First address that was not copied.
        address: u64,
        /// The `errno` of `process_vm_readv` or `process_vm_writev`.
        errno: i32,
    },
}

/// Reason why the bytes of a [`Buffer`](crate::Buffer) were not accessed. No byte was touched.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The range exceeds the buffer.
    #[error(
        "{length} bytes at offset {offset} exceed a buffer of {limit} bytes; use a larger buffer, or access fewer bytes"
    )]
    Bounds {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Length of the buffer in bytes.
        limit: u64,
    },
    /// The integer's address is not a multiple of its length, so processors might not access the
    /// integer in one step.
    #[error(
        "the address at offset {offset} is not a multiple of {alignment}; atomics and words need their own alignment"
    )]
    Misaligned {
        /// Offset of the integer in the buffer.
        offset: u64,
        /// Length of the integer in bytes. The integer's address must be a multiple of this length.
        alignment: u64,
    },
    /// The bytes of the buffer must not change. An example is a buffer that was made by
    /// [`Buffer::from_shared`](crate::Buffer::from_shared).
    #[error("the bytes of this buffer must not change; copy them into another buffer")]
    ReadOnly,
}

/// Reason why memory was not registered or deregistered.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The range exceeds the address space.
    #[error("{len} bytes at {start:#x} wrap around the address space; let them end below 2^64")]
    Wraps {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The part to register is not within the buffer.
    #[error(
        "bytes {start} to {end} are not a part of a buffer of {buffer_bytes} bytes; name a range within it"
    )]
    OutsideBuffer {
        /// First byte of the part.
        start: u64,
        /// End of the part, exclusive.
        end: u64,
        /// Length of the buffer in bytes.
        buffer_bytes: u64,
    },
    /// A page of the range is not mapped or cannot be read.
    #[error(
        "registering {len} bytes at {start:#x}: the page at {address:#x} is not readable; map it first"
    )]
    Unreadable {
        /// Address of the first byte of the range.
        start: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Address of the first byte of the range that cannot be read.
        address: u64,
    },
    /// A page of the range cannot be written, but the rights permit writes.
    #[error(
        "registering {len} bytes at {start:#x}: the page at {address:#x} is not writable; map it as writable, or grant no right to write"
    )]
    Unwritable {
        /// Address of the first byte of the range.
        start: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Address of the first byte of the range that cannot be written.
        address: u64,
    },
    /// The bytes of the buffer must not change, but the rights allow changes.
    #[error(
        "the bytes of this buffer must not change, but the rights [{wanted}] permit changes; grant \
         only remote reads, or copy the bytes into another buffer"
    )]
    ReadOnly {
        /// The requested rights.
        wanted: Rights,
    },
    /// The table has reached its limit of regions.
    #[error(
        "all {regions_max} memory regions are in use; deregister some, or register larger ones"
    )]
    TableFull {
        /// Maximum number of regions of the table.
        regions_max: u32,
    },
    /// The domain was never allocated, or it was released.
    #[error("there is no protection domain {domain:?}; allocate one, and keep it while it is used")]
    UnknownDomain {
        /// The domain.
        domain: ProtectionDomain,
    },
    /// The domain was allocated at another endpoint of this process.
    #[error(
        "{domain:?} belongs to another endpoint; use a domain of the endpoint that registers memory in \
         it or connects"
    )]
    ForeignDomain {
        /// The domain.
        domain: ProtectionDomain,
    },
    /// The domain still has regions.
    #[error("protection domain {domain:?} still has {regions} regions; deregister them first")]
    DomainBusy {
        /// The domain.
        domain: ProtectionDomain,
        /// Number of regions in the domain.
        regions: u32,
    },
    /// The whole address space is already registered in the domain.
    #[error("the whole address space is registered in {domain:?} already; use that region")]
    WholeAddressSpaceTwice {
        /// The domain.
        domain: ProtectionDomain,
    },
    /// The kernel does not let this process make fault-safe copies, usually because of a
    /// system-call filter.
    #[error(
        "the kernel offers no fault-safe copies: process_vm_readv failed with error {errno}; allow that call, or register \
         buffers"
    )]
    NoFaultSafeCopies {
        /// The `errno` of `process_vm_readv`.
        errno: i32,
    },
    /// The region was registered at another endpoint of this process.
    #[error("{region:?} belongs to another endpoint; use it at that endpoint")]
    ForeignRegion {
        /// The region.
        region: RegionId,
    },
    /// The region was never registered, or has been deregistered.
    #[error("there is no memory region {region:?}; it was deregistered before")]
    UnknownRegion {
        /// The region.
        region: RegionId,
    },
    /// Windows are bound to the region.
    #[error("memory region {region:?} has {windows} windows; unbind them first")]
    WindowsBound {
        /// The region, which is still registered.
        region: RegionId,
        /// Number of windows that are bound to the region.
        windows: u32,
    },
    /// A region or a window already has the key, or the key is reserved.
    #[error("key {:#x} is in use or reserved; bind the window to another key", key.0)]
    KeyInUse {
        /// The key.
        key: RemoteKey,
    },
    /// The window exceeds its region.
    #[error(
        "a window of {len} bytes at offset {offset} exceeds its region of {region_bytes} bytes; bind a smaller window"
    )]
    OutsideRegion {
        /// Offset of the window in the region, in bytes.
        offset: u64,
        /// Length of the window in bytes.
        len: u64,
        /// Length of the region in bytes.
        region_bytes: u64,
    },
    /// Peers could change bytes through the window, but the region has no [`Rights::LOCAL_WRITE`].
    #[error(
        "a window with the rights [{wanted}] needs a region with the right of local writes, but \
         the region grants [{granted}]; register the region with this right"
    )]
    WindowRights {
        /// The rights of the window.
        wanted: Rights,
        /// The rights of the region.
        granted: Rights,
    },
    /// The table has reached its limit of windows, which equals the largest possible number of
    /// regions.
    #[error("all windows are bound; unbind some")]
    TooManyWindows,
    /// The calling thread is inside an engine turn. The call waits for the end of all turns, so the
    /// thread would wait for itself.
    #[error(
        "deregistering {region:?} inside an engine turn would wait for itself; do it after the turn"
    )]
    InsideAccess {
        /// The region, which is still registered.
        region: RegionId,
    },
}
