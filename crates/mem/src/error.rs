//! Why memory could not be registered or accessed.

use wire_edge::RemoteKey;

use crate::{ProtectionDomain, RegionId, Rights};

/// Why an access to registered memory was refused. Nothing was touched, unless it is
/// [`AccessError::Unmapped`]: then bytes below `address` were.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The key or handle names no region, or none any more.
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
    /// The region belongs to another protection domain. A peer gets the same error as for an unknown
    /// key, or it could find out which keys exist.
    #[error(
        "the region belongs to domain {owner:?}, the access came from {accessor:?}; register it in the connection's"
    )]
    WrongDomain {
        /// Whose access it was.
        accessor: ProtectionDomain,
        /// Whose region it is.
        owner: ProtectionDomain,
    },
    /// The region, or the target validated in it, lacks a right.
    #[error(
        "the access needs the rights [{wanted}], granted are [{granted}]; register the region with these, too"
    )]
    Permission {
        /// Rights the access needs; for the use of a [`crate::Target`], one of them.
        wanted: Rights,
        /// Rights there are.
        granted: Rights,
    },
    /// The range leaves the region or the target.
    #[error(
        "{len} bytes at {address:#x} leave the {limit} bytes at {start:#x}; name bytes within these"
    )]
    Bounds {
        /// First byte of the refused range, saturated at the end of the address space.
        address: u64,
        /// Bytes of the refused range.
        len: u64,
        /// First byte of what is accessible.
        start: u64,
        /// Bytes accessible.
        limit: u64,
    },
    /// An atomic needs an address divisible by eight.
    #[error("atomic access to {address:#x}, which is not a multiple of 8; let words begin at one")]
    Misaligned {
        /// The address.
        address: u64,
    },
    /// Nothing accessible is mapped there: within the whole-address-space region, or because the
    /// program has unmapped what it had registered.
    #[error(
        "nothing accessible is mapped at {address:#x}; keep memory mapped while it is registered"
    )]
    Unmapped {
        /// First address that could not be accessed.
        address: u64,
    },
    /// The kernel refused to copy for a reason other than the address.
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

/// Why bytes of a [`Buffer`](crate::Buffer) were not accessed. Nothing was touched.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The range leaves the buffer.
    #[error(
        "{length} bytes at offset {offset} leave a buffer of {limit} bytes; make it larger, or access less"
    )]
    Bounds {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of the buffer.
        limit: u64,
    },
    /// An integer begins where processors do not access it in one step.
    #[error(
        "the address at offset {offset} is not a multiple of {alignment}; atomics and words need their own alignment"
    )]
    Misaligned {
        /// Where it was to begin.
        offset: u64,
        /// Its length, of which its address must be a multiple.
        alignment: u64,
    },
    /// The buffer is of bytes that must not change, by [`Buffer::from_shared`](crate::Buffer::from_shared) or the like.
    #[error("the bytes of this buffer must not change; copy them into a buffer of their own")]
    ReadOnly,
}

/// Why memory was not registered or deregistered.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The range goes beyond the end of the address space.
    #[error("{len} bytes at {start:#x} wrap around the address space; let them end below 2^64")]
    Wraps {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// The part of a buffer that was to be registered is not within it.
    #[error(
        "bytes {start} to {end} are not a part of a buffer of {buffer_bytes} bytes; name a range within it"
    )]
    OutsideBuffer {
        /// First byte of the part.
        start: u64,
        /// End of the part, exclusive.
        end: u64,
        /// Bytes of the buffer.
        buffer_bytes: u64,
    },
    /// A page of the range is not mapped or cannot be read.
    #[error(
        "registering {len} bytes at {start:#x}: the page at {address:#x} is not readable; map it first"
    )]
    Unreadable {
        /// First byte of the range.
        start: u64,
        /// Bytes of the range.
        len: u64,
        /// First byte of the range in the offending page.
        address: u64,
    },
    /// A page of the range cannot be written, which the rights would need.
    #[error(
        "registering {len} bytes at {start:#x}: the page at {address:#x} is not writable; map it so, or grant no right to change it"
    )]
    Unwritable {
        /// First byte of the range.
        start: u64,
        /// Bytes of the range.
        len: u64,
        /// First byte of the range in the offending page.
        address: u64,
    },
    /// The buffer is of bytes that must not change, and the rights would let them.
    #[error(
        "the bytes of this buffer must not change, which the rights [{wanted}] would let them; grant no more than remote \
         reads, or copy them into a buffer of their own"
    )]
    ReadOnly {
        /// The rights that were to be granted.
        wanted: Rights,
    },
    /// The table holds as many regions as its limits allow.
    #[error(
        "all {regions_max} memory regions are in use; deregister some, or register larger ones"
    )]
    TableFull {
        /// The limit.
        regions_max: u32,
    },
    /// The domain was never allocated, or is released.
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
        /// Its regions.
        regions: u32,
    },
    /// The domain's whole address space is registered already.
    #[error("the whole address space is registered in {domain:?} already; use that region")]
    WholeAddressSpaceTwice {
        /// The domain.
        domain: ProtectionDomain,
    },
    /// The kernel does not offer fault-safe copies to this process (a system call filter, usually).
    #[error(
        "the kernel offers no fault-safe copies: process_vm_readv failed with error {errno}; allow that call, or register \
         buffers"
    )]
    NoFaultSafeCopies {
        /// The `errno`.
        errno: i32,
    },
    /// The region was registered at another endpoint of this process.
    #[error("{region:?} belongs to another endpoint; name it there")]
    ForeignRegion {
        /// The region.
        region: RegionId,
    },
    /// The region was never registered, or is deregistered.
    #[error("there is no memory region {region:?}; it was deregistered before")]
    UnknownRegion {
        /// The region.
        region: RegionId,
    },
    /// Windows are bound to the region.
    #[error("memory region {region:?} has {windows} windows; unbind them first")]
    WindowsBound {
        /// The region; it is still registered.
        region: RegionId,
        /// Its windows.
        windows: u32,
    },
    /// The key is that of a region or a window, or no key at all.
    #[error("key {:#x} is in use or reserved; bind the window to another", key.0)]
    KeyInUse {
        /// The key.
        key: RemoteKey,
    },
    /// The window is not within its region.
    #[error(
        "a window of {len} bytes at offset {offset} leaves its region of {region_bytes} bytes; bind a smaller one"
    )]
    OutsideRegion {
        /// First byte of the window, from the start of the region.
        offset: u64,
        /// Bytes of the window.
        len: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// Peers could change bytes through the window that this side may not have changed.
    #[error(
        "a window with the rights [{wanted}] needs a region that its owner may write to, and it grants [{granted}]; \
         register it with local writing"
    )]
    WindowRights {
        /// Rights of the window.
        wanted: Rights,
        /// Rights of the region.
        granted: Rights,
    },
    /// As many windows are bound as there may be regions.
    #[error("all windows are bound; unbind some")]
    TooManyWindows,
    /// The calling thread is inside an engine turn, whose end it would wait for.
    #[error(
        "deregistering {region:?} inside an engine turn would wait for itself; do it after the turn"
    )]
    InsideAccess {
        /// The region; it is still registered.
        region: RegionId,
    },
}
