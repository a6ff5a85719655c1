//! Application memory as the protocol sees it: domains, regions, keys, placement, atomics.
//!
//! A [`MemoryTable`] holds the memory regions of one endpoint. Application threads register and
//! deregister; the engine takes a [`MemoryAccess`] once per turn and works through it, without a
//! lock and without an allocation:
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
//! The bytes of a region belong to a program that reads and writes them whenever it likes, often
//! from another language and always without telling this crate. A Rust reference would promise the
//! compiler that nothing does: that bytes behind `&[u8]` do not change and that bytes behind
//! `&mut [u8]` have no other reader. Both promises would be lies, so no reference to a region's
//! bytes is ever made, not even for the length of a copy. There are raw addresses, copies between
//! them and the engine's own memory, and 1- to 8-byte atomics.
//!
//! A placement that races with the program is a data race in any language's terms; whether it means
//! something is a matter between the program and its peer, as it is with a network adapter. What
//! this crate owes is that the race stays in the bytes: copies go through the C library's `memmove`,
//! called through a pointer that the compiler cannot see through, so it can draw no conclusions from
//! the race; bytes that race may be torn, and nothing else happens.
//!
//! # Order
//!
//! Bytes of one [`MemoryAccess::place`] become visible in any order. The last bytes of a
//! [`MemoryAccess::place_tail`] are stored with release semantics: a thread that sees the last byte
//! (and loads it with acquire semantics, as every load on x86-64 does) sees all bytes placed before
//! by this thread.
//!
//! # Memory that goes away
//!
//! Registration touches every page once, as a network adapter pins them, and refuses a range that
//! could not be accessed; [`MemoryTable::register_raw_lazily`] only looks whether all of it is mapped. A program that unmaps registered memory without deregistering it first
//! breaks the contract of [`MemoryTable::register_raw`] (a network adapter would keep the pages). It
//! gets [`AccessError::Unmapped`] nevertheless, where faults can be caught: on x86-64, unless it has
//! replaced the handler of `SIGSEGV` or `SIGBUS` that registration installs, or blocks one of these
//! signals. Then the next placement raises the signal that the program's own access would raise. Sends
//! survive in any case: drivers that hold no [`FaultGuard`] have the kernel read the bytes, which
//! answers `EFAULT`.
//!
//! The whole-address-space region is for programs that make no promise: its copies go through the
//! kernel and answer [`AccessError::Unmapped`].

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

/// Bytes in registered memory, for a link driver to hand to the kernel. Never dereferenced in Rust.
///
/// Good until the [`MemoryAccess`] it came from ends: afterwards the region may be gone. So it does not
/// outlive that:
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
    /// First byte.
    pub start: *const u8,
    /// Bytes.
    pub len: u32,
    access: PhantomData<&'a ()>,
}

impl PayloadSlice<'_> {
    /// No bytes.
    pub const EMPTY: Self = Self::at(core::ptr::null(), 0);

    /// Makes a slice of bytes at an address of which nothing is known. Its reader must be ready to find nothing
    /// there, as programs unmap registered memory, too; the caller is responsible for what is read.
    pub const fn at(start: *const u8, len: u32) -> Self {
        Self { start, len, access: PhantomData }
    }
}

// SAFETY: an address is not an access; code that reads through it upholds the rules of the region.
unsafe impl Send for PayloadSlice<'_> {}

const _: () = assert!(usize::BITS == 64, "addresses on the wire are 64 bits and used as they are");
