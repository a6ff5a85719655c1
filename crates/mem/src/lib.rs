//! Application memory as the protocol sees it: domains, regions, keys, placement, atomics.
//!
//! A [`MemoryTable`] holds the memory regions of one endpoint. Application threads register and
//! deregister regions. The engine begins a [`MemoryAccess`] once per turn and works through it,
//! without locks or allocations:
//!
//! ```
//! use mem::{Buffer, MemoryTable, Rights, TableLimits};
//!
//! let table = MemoryTable::new(TableLimits::default(), [0x243f_6a88, 0x85a3_08d3]);
//! let domain = table.allocate_domain();
//! let buffer = Buffer::new(4096);
//! let region = table.register(domain, buffer.clone(), Rights::LOCAL_WRITE | Rights::REMOTE_WRITE)?;
//!
//! let access = table.access();
//! let target = access.resolve(domain, region.key, region.start + 8, 5, Rights::REMOTE_WRITE)?;
//! access.place(&target, 0, b"hello")?;
//! drop(access);
//!
//! let mut bytes = [0; 5];
//! buffer.read(8, &mut bytes);
//! assert_eq!(&bytes, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Foreign memory
//!
//! The bytes of a region belong to a program that reads and writes them at any time, often from
//! another language, and without notice to this crate. A Rust reference promises the compiler the
//! opposite: that bytes behind `&[u8]` do not change and that bytes behind `&mut [u8]` have no
//! other reader. So this crate never makes a reference to a region's bytes, not even for the length
//! of a copy. It uses raw addresses, copies between them and the engine's own memory, and 1- to
//! 8-byte atomics.
//!
//! A placement that races with the program is a data race in any language's terms. What the race
//! means is for the program and its peer to agree on, as with a network adapter. This crate
//! confines the race to the bytes: copies call the C library's `memmove` through a pointer that the
//! compiler cannot see through, so the compiler draws no conclusions from the race. Bytes that race
//! may be torn, and the race has no other effect.
//!
//! # Order
//!
//! Bytes of one [`MemoryAccess::place`] become visible in any order. The last bytes of a
//! [`MemoryAccess::place_tail`] are stored with release semantics. A thread that loads the last
//! byte with acquire semantics (every load on x86-64 has them) and sees its new value also sees all
//! bytes that this thread placed before.
//!
//! # Memory that goes away
//!
//! Registration touches every page once, as a network adapter pins pages, and refuses a range that
//! cannot be accessed. [`MemoryTable::register_raw_lazily`] only checks that all of it is mapped. A
//! program that unmaps registered memory before it deregisters the memory breaks the contract of
//! [`MemoryTable::register_raw`] (a network adapter would keep the pages). Where faults can be
//! caught, the access then fails with [`AccessError::Unmapped`]. Faults can be caught on x86-64,
//! unless the program has replaced the handler of `SIGSEGV` or `SIGBUS` that registration installs,
//! or blocks one of these signals. Elsewhere the next placement raises the signal that the
//! program's own access would raise. Sends never raise a signal: drivers without a [`FaultGuard`]
//! let the kernel read the bytes, which returns `EFAULT`.
//!
//! The whole-address-space region is for programs that make no promise: the kernel does its copies,
//! and an unmapped address fails with [`AccessError::Unmapped`].

#[cfg(not(target_os = "linux"))]
compile_error!("Ethernot runs on Linux only; build for a target with `target_os = \"linux\"`");

mod access;
mod buffer;
mod copy;
mod error;
mod fault;
mod gate;
mod ghost;
mod hint;
mod home;
mod lendable;
mod mapped;
#[cfg(all(test, not(miri)))]
mod mapping;
mod payload;
mod probe;
mod rights;
mod slot;
mod table;
mod word;

use core::marker::PhantomData;

pub use access::{MemoryAccess, Target};
pub use buffer::Buffer;
pub use copy::copy as copy_foreign;
pub use error::{AccessError, BufferError, RegisterError};
pub use fault::FaultGuard;
pub use ghost::{GhostPlacement, STAMP_BYTES, write_stamp};
pub use hint::prefetch;
pub use lendable::{LentMemory, lendable, lendable_changes, lendable_numbers};
pub use payload::Payload;
pub use rights::Rights;
pub use slot::RegionId;
pub use table::{
    MemoryTable, ProtectionDomain, Reach, Region, TableLimits, WHOLE_ADDRESS_SPACE_KEY, Window,
    is_payload_promised,
};
pub use word::{Integer, Word};

/// Bytes in registered memory that a link driver passes to the kernel. Rust code never dereferences
/// the pointer.
///
/// Valid until its [`MemoryAccess`] ends, because afterwards the region may be gone. The borrow
/// checker enforces this:
///
/// ```compile_fail,E0505
/// # use mem::{Buffer, MemoryTable, Rights, TableLimits};
/// let table = MemoryTable::new(TableLimits::default(), [1, 2]);
/// let domain = table.allocate_domain();
/// let region = table.register(domain, Buffer::new(64), Rights::LOCAL_WRITE).unwrap();
/// let access = table.access();
/// let slice = access.source(region.id, 0, 64).unwrap();
/// drop(access);
/// println!("{} bytes of a region that may be gone", slice.len);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PayloadSlice<'a> {
    /// Pointer to the first byte.
    pub start: *const u8,
    /// Length in bytes.
    pub len: u32,
    access: PhantomData<&'a ()>,
}

impl PayloadSlice<'_> {
    /// An empty slice.
    pub const EMPTY: Self = Self::at(core::ptr::null(), 0);

    /// Makes a slice of bytes at an unchecked address. Its reader must expect unmapped memory,
    /// because programs unmap registered memory, too. The caller is responsible for the bytes that
    /// are read.
    pub const fn at(start: *const u8, len: u32) -> Self {
        Self { start, len, access: PhantomData }
    }
}

// SAFETY: sending an address accesses no memory. Code that reads through the address upholds the
// rules of the region.
unsafe impl Send for PayloadSlice<'_> {}

const _: () = assert!(usize::BITS == 64, "addresses on the wire are 64 bits and used as they are");
