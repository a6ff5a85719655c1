//! Registered memory.

use std::ffi::c_void;
use std::sync::Arc;

use ethernot::{Buffer, MemoryRegion, RemoteKey, RemoteRegion, Rights};

use crate::bytes::{given, has_place, put};
use crate::endpoint::{ENDPOINTS, Endpoint};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;

/// Registered memory of this process.
pub struct Memory {
    _opaque: [u8; 0],
}

/// The object of a memory handle.
pub(crate) struct Registered {
    pub(crate) region: MemoryRegion,
    /// The buffer; `None` if the program allocated the memory.
    buffer: Option<Arc<Buffer>>,
    start: usize,
}

pub(crate) static MEMORY: Table<Registered> = Table::new(2, "memory");

/// The library may place messages and the results of reads and atomics in the memory.
pub const ETHERNOT_LOCAL_WRITE: u32 = 1;
/// Peers may read the memory.
pub const ETHERNOT_REMOTE_READ: u32 = 2;
/// Peers may write the memory.
pub const ETHERNOT_REMOTE_WRITE: u32 = 4;
/// Peers may perform atomics on the memory.
pub const ETHERNOT_REMOTE_ATOMIC: u32 = 8;

/// A region of a peer: its address, length and key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct Remote {
    /// Address of the region's first byte, as the peer has announced it.
    pub address: u64,
    /// The length of the region in bytes.
    pub length: u64,
    /// Key of the region.
    pub key: u32,
    /// Reserved, always 0.
    pub reserved: u32,
}

/// Length in bytes of an encoded description of a region. Programs send such a description in
/// private data or in a message.
pub const ETHERNOT_REMOTE_BYTES: usize = 20;

impl From<RemoteRegion> for Remote {
    fn from(remote: RemoteRegion) -> Self {
        Self { address: remote.address, length: remote.len, key: remote.key.0, reserved: 0 }
    }
}

impl From<Remote> for RemoteRegion {
    fn from(remote: Remote) -> Self {
        Self { key: RemoteKey(remote.key), address: remote.address, len: remote.length }
    }
}

fn rights_of(bits: u32) -> std::result::Result<Rights, Failure> {
    let known = u8::try_from(bits).ok().and_then(Rights::from_bits);
    known.ok_or_else(|| Failure::new(Result::Invalid, format!("rights {bits:#x} are unknown")))
}

/// Allocates memory, fills it with zeros and registers it. Free the memory with
/// `ethernot_memory_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_memory_allocate(
    endpoint: *mut Endpoint,
    length: u64,
    rights: u32,
    memory: *mut *mut Memory,
) -> Result {
    call(|| {
        has_place(memory)?;
        let endpoint = ENDPOINTS.get(endpoint)?;
        if length > ALLOCATED_MAX {
            let text = format!("{length} bytes are more than the {ALLOCATED_MAX} that can be");
            return Err(Failure::new(Result::Invalid, text));
        }
        let buffer = Buffer::new(length);
        let region = endpoint.register(Arc::clone(&buffer), rights_of(rights)?)?;
        let start = buffer.as_ptr().expose_provenance();
        let made = MEMORY.add(Registered { region, buffer: Some(buffer), start })?;
        // SAFETY: null was rejected above.
        unsafe { put(memory, made) }
    })
}

/// Registers memory of the program. The memory must stay mapped until `ethernot_memory_free` has
/// returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_memory_register(
    endpoint: *mut Endpoint,
    start: *mut c_void,
    length: u64,
    rights: u32,
    memory: *mut *mut Memory,
) -> Result {
    call(|| {
        has_place(memory)?;
        if start.is_null() {
            return Err(Failure::null("the start of the memory"));
        }
        let (endpoint, rights) = (ENDPOINTS.get(endpoint)?, rights_of(rights)?);
        let table = endpoint.memory();
        // SAFETY: the program promises that the memory stays mapped until `ethernot_memory_free`
        // returns. No Rust reference to the memory exists.
        let region =
            unsafe { table.register_raw(endpoint.domain(), start.cast(), length, rights) }?;
        let region = endpoint.adopt(region)?;
        let start = start.expose_provenance();
        let made = MEMORY.add(Registered { region, buffer: None, start })?;
        // SAFETY: null was rejected above.
        unsafe { put(memory, made) }
    })
}

/// Returns the address and the length in bytes of the memory. Peers may write to the memory at any
/// time. Wait for the completion that reports the arrival of data. Then read the data with atomics
/// or volatile accesses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_memory_data(
    memory: *mut Memory,
    data: *mut *mut c_void,
    length: *mut u64,
) -> Result {
    call(|| {
        let memory = MEMORY.get(memory)?;
        // SAFETY: `length` is null, or it points to room for a number.
        if let Some(length) = unsafe { length.as_mut() } {
            *length = memory.region.len();
        }
        // SAFETY: the program promises that `data` is null or valid.
        unsafe { put(data, std::ptr::with_exposed_provenance_mut(memory.start)) }
    })
}

/// Returns the description of the memory. Peers need this description to access the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_memory_remote(
    memory: *mut Memory,
    remote: *mut Remote,
) -> Result {
    // SAFETY: the program promises that `remote` is null or valid.
    call(|| unsafe { put(remote, MEMORY.get(memory)?.region.remote().into()) })
}

/// Deregisters memory. When the call has returned, peers cannot access the memory any more.
///
/// If the library allocated the memory, the program must not access it after this call. Pending
/// operations that use the memory continue. When the last of them has ended, the library frees the
/// memory.
///
/// If the memory belongs to the program, the library does not access it after this call. If a
/// pending operation still needs the memory, the connection of the operation ends.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_memory_free(memory: *mut Memory) -> Result {
    call(|| {
        let mut memory = MEMORY.remove(memory)?;
        // Another thread may be posting an operation with the memory. Wait until that thread has
        // released the memory.
        let Registered { region, buffer, .. } = loop {
            match Arc::try_unwrap(memory) {
                Ok(memory) => break memory,
                Err(used) => memory = used,
            }
            std::thread::yield_now();
        };
        drop(region);
        drop(buffer);
        Ok(())
    })
}

/// Encodes the description of a region into `ETHERNOT_REMOTE_BYTES` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_remote_to_bytes(remote: *const Remote, bytes: *mut u8) -> Result {
    call(|| {
        // SAFETY: `remote` is null, or valid for the call.
        let remote = unsafe { remote.as_ref() }.ok_or_else(|| Failure::null("remote"))?;
        let written = RemoteRegion::from(*remote).to_bytes();
        has_place(bytes)?;
        // SAFETY: null was rejected above, and the program promises room for the bytes.
        unsafe { std::ptr::copy_nonoverlapping(written.as_ptr(), bytes, written.len()) };
        Ok(())
    })
}

/// Decodes the description of a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_remote_from_bytes(
    bytes: *const c_void,
    length: usize,
    remote: *mut Remote,
) -> Result {
    call(|| {
        // SAFETY: the program promises that `bytes` points to `length` bytes.
        let read = RemoteRegion::from_bytes(unsafe { given(bytes, length) }?)?;
        // SAFETY: the program promises that `remote` is null or valid.
        unsafe { put(remote, read.into()) }
    })
}

/// Maximum allocation in bytes. A larger allocation could exceed the address space, which would
/// abort the process.
const ALLOCATED_MAX: u64 = 1 << 40;
