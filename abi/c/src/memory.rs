//! Memory that peers and operations use.

use std::ffi::c_void;
use std::sync::Arc;

use ethernot::{Buffer, MemoryRegion, RemoteKey, RemoteRegion, Rights};

use crate::bytes::{given, has_place, put};
use crate::endpoint::{ENDPOINTS, Endpoint};
use crate::failure::{Failure, Result, call};
use crate::handle::Table;

/// Memory of this process that is registered.
pub struct Memory {
    _opaque: [u8; 0],
}

/// What is kept of it.
pub(crate) struct Registered {
    pub(crate) region: MemoryRegion,
    /// The library's, or the program's.
    buffer: Option<Arc<Buffer>>,
    start: usize,
}

pub(crate) static MEMORY: Table<Registered> = Table::new(2, "memory");

/// Reads and answers of peers may be placed in the memory (as may messages).
pub const ETHERNOT_LOCAL_WRITE: u32 = 1;
/// Peers may read it.
pub const ETHERNOT_REMOTE_READ: u32 = 2;
/// Peers may write it.
pub const ETHERNOT_REMOTE_WRITE: u32 = 4;
/// Peers may do atomics on it.
pub const ETHERNOT_REMOTE_ATOMIC: u32 = 8;

/// A region of a peer: the key that opens it, the address of its first byte as the peer counts, and bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct Remote {
    /// Address of its first byte.
    pub address: u64,
    /// The length of the region in bytes.
    pub length: u64,
    /// The key that opens the region.
    pub key: u32,
    /// Reserved, always 0.
    pub reserved: u32,
}

/// Bytes of the description of a region, in which it travels in private data and messages.
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

/// Allocates memory, filled with zeros, and registers it. `ethernot_memory_free` frees it.
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
        // SAFETY: null was refused above.
        unsafe { put(memory, made) }
    })
}

/// Registers memory of the program's own, which must stay mapped until `ethernot_memory_free` has returned.
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
        // SAFETY: the program promises that it stays until it is freed here; Rust has no reference to it.
        let region =
            unsafe { table.register_raw(endpoint.domain(), start.cast(), length, rights) }?;
        let region = endpoint.adopt(region)?;
        let start = start.expose_provenance();
        let made = MEMORY.add(Registered { region, buffer: None, start })?;
        // SAFETY: null was refused above.
        unsafe { put(memory, made) }
    })
}

/// Returns the address of the memory, and its length in bytes. Peers write to it at any time: read what they write
/// by atomics or volatile accesses, after a completion reports that it is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_memory_data(
    memory: *mut Memory,
    data: *mut *mut c_void,
    length: *mut u64,
) -> Result {
    call(|| {
        let memory = MEMORY.get(memory)?;
        // SAFETY: null, or room for it.
        if let Some(length) = unsafe { length.as_mut() } {
            *length = memory.region.len();
        }
        // SAFETY: the program's promise.
        unsafe { put(data, std::ptr::with_exposed_provenance_mut(memory.start)) }
    })
}

/// Returns what peers need to know to reach the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_memory_remote(
    memory: *mut Memory,
    remote: *mut Remote,
) -> Result {
    // SAFETY: the program's promise.
    call(|| unsafe { put(remote, MEMORY.get(memory)?.region.remote().into()) })
}

/// Deregisters memory; peers do not reach it any more when this has returned.
///
/// Memory that the library allocated is freed, and the program must not touch it any more. Operations that use it go on, and
/// it is freed when the last of them has ended. Memory of the program's own is not touched any more when this has returned, and
/// operations that still need it end their connection.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_memory_free(memory: *mut Memory) -> Result {
    call(|| {
        let mut memory = MEMORY.remove(memory)?;
        // Another thread that posts an operation with it is done soon.
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

/// Writes the description of a region: `ETHERNOT_REMOTE_BYTES`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_remote_to_bytes(remote: *const Remote, bytes: *mut u8) -> Result {
    call(|| {
        // SAFETY: null, or valid for the call.
        let remote = unsafe { remote.as_ref() }.ok_or_else(|| Failure::null("remote"))?;
        let written = RemoteRegion::from(*remote).to_bytes();
        has_place(bytes)?;
        // SAFETY: the program's promise, and null was refused.
        unsafe { std::ptr::copy_nonoverlapping(written.as_ptr(), bytes, written.len()) };
        Ok(())
    })
}

/// Reads the description of a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_remote_from_bytes(
    bytes: *const c_void,
    length: usize,
    remote: *mut Remote,
) -> Result {
    call(|| {
        // SAFETY: the program's promise.
        let read = RemoteRegion::from_bytes(unsafe { given(bytes, length) }?)?;
        // SAFETY: the program's promise.
        unsafe { put(remote, read.into()) }
    })
}

/// Most bytes that are allocated at a time: what no address space has would end the process.
const ALLOCATED_MAX: u64 = 1 << 40;
