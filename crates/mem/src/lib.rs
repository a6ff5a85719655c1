//! Application memory that peers can access: protection domains, regions, keys, placement and
//! atomics.
//!
//! A [`MemoryTable`] holds the memory regions of one endpoint. Application threads register and
//! deregister regions. The engine begins a [`MemoryAccess`] once per turn, and reads and writes
//! regions through this access, without locks or allocations:
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
//! The bytes of a region belong to a program, often in another language. The program may read and
//! write the bytes at any time without notifying this crate. A Rust reference promises the compiler
//! the opposite: the bytes behind `&[u8]` do not change, and the bytes behind `&mut [u8]` have no
//! other reader. So this crate never makes a reference to the bytes of a region, not even during a
//! copy. It uses raw addresses, copies between these addresses and the engine's own memory, and
//! atomics of 1 to 8 bytes.
//!
//! If the program accesses bytes during a placement, this is a data race in any language. The
//! program and its peer must agree on the meaning of such races, like with a network adapter. In
//! this crate, a race can only tear the bytes; it has no other effect. The reason: copies call the
//! C library's `memmove` through a pointer whose value the compiler does not know, so the compiler
//! draws no conclusions about the bytes.
//!
//! # Order
//!
//! Other threads may see the bytes of one [`MemoryAccess::place`] appear in any order.
//! [`MemoryAccess::place_tail`] stores the last bytes with release semantics. Suppose that a thread
//! loads the last byte with acquire semantics and sees the new value. It then also sees all bytes
//! that the placing thread placed before. (On x86-64, every load has acquire semantics.)
//!
//! # Memory that the program unmaps
//!
//! Registration accesses every page once, and refuses a range that cannot be accessed. (A network
//! adapter would pin the pages.) [`MemoryTable::register_raw_lazily`] only checks that the whole
//! range is mapped.
//!
//! A program must deregister memory before it unmaps the memory. This is part of the contract of
//! [`MemoryTable::register_raw`]. If the program breaks the contract, and faults can be caught, an
//! access fails with [`AccessError::Unmapped`]. Faults can be caught on x86-64, with two
//! exceptions: the program has replaced the handler of `SIGSEGV` or `SIGBUS` that registration
//! installs, or it blocks one of these signals. If faults cannot be caught, the next placement
//! raises the signal that the program's own access would raise.
//!
//! Sends never raise a signal: if a driver has no [`FaultGuard`], it lets the kernel read the
//! bytes, and the system call returns `EFAULT`.
//!
//! The whole-address-space region is for programs that promise nothing about their memory. For this
//! region, the kernel makes the copies, and an access to an unmapped address fails with
//! [`AccessError::Unmapped`].

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
/// The slice is valid until its [`MemoryAccess`] ends, because after that the region may be gone.
/// The borrow checker enforces this:
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

    /// Makes a slice of bytes at an unchecked address. Code that reads the slice must handle
    /// unmapped memory, because programs may even unmap registered memory. The caller is
    /// responsible for the choice of bytes.
    pub const fn at(start: *const u8, len: u32) -> Self {
        Self { start, len, access: PhantomData }
    }
}

// SAFETY: sending an address accesses no memory. Code that reads through the address upholds the
// rules of the region.
unsafe impl Send for PayloadSlice<'_> {}

/// Registered memory in which the kernel stores received bytes, for a link driver that passes it to
/// `readv`. Rust code never dereferences the pointer.
///
/// The memory is valid until its [`MemoryAccess`] ends, like a [`PayloadSlice`]. The kernel reports
/// an error (`EFAULT`) if the program has unmapped the memory.
#[derive(Debug)]
pub struct PayloadSink<'a> {
    start: *mut u8,
    len: u32,
    access: PhantomData<&'a ()>,
}

impl PayloadSink<'_> {
    /// Returns a pointer to the first byte.
    pub const fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub const fn len(&self) -> u32 {
        self.len
    }
}

const _: () = assert!(usize::BITS == 64, "addresses on the wire are 64 bits and used as they are");
