//! Device memory, implemented with host memory.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use verbs::{AccessFlags, Error};

use crate::device::of;
use crate::failure::{code, invalid, pointer};
use crate::layout::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::memory::{handle, register};
use crate::shell;

/// The library's state of device memory.
pub(crate) struct DeviceMemory {
    /// The memory, with extra bytes before the aligned part.
    bytes: Box<[UnsafeCell<u8>]>,
    /// Index of the first byte that the program may use.
    start: usize,
    length: usize,
    /// Number of memory regions that are registered in this memory.
    regions: AtomicU32,
}

impl DeviceMemory {
    /// Returns the address of `length` bytes at `offset`. Returns an error if some of the bytes are
    /// outside the memory.
    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, Error> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let is_inside = start.checked_add(length).is_some_and(|end| end <= self.length);
        if !start.is_multiple_of(WORD) || !length.is_multiple_of(WORD) {
            return invalid("offset and length in device memory must be multiples of 4 bytes");
        }
        match self.bytes.get(self.start.saturating_add(start)..) {
            Some(rest) if is_inside => Ok(rest.as_ptr().cast::<u8>().cast_mut()),
            _ => invalid("offset and length exceed the device memory"),
        }
    }
}

/// Implements `ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    init: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer("ibv_alloc_dm", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { of(context) }?;
        // SAFETY: the caller meets the requirements of this function.
        let Some(init) = (unsafe { init.as_ref() }) else {
            return invalid("the attributes are null");
        };
        if init.comp_mask != 0 || init.length == 0 || init.log_align_req > ALIGNMENT_LOG_MAX {
            return invalid(
                "unknown attributes, a length of 0 or a too large alignment of device memory",
            );
        }
        if init.length > BYTES_MAX {
            return Err(Error::NoRoom(format!(
                "there are {BYTES_MAX} bytes of memory of the device"
            )));
        }
        let alignment = 1_usize << init.log_align_req;
        let bytes: Box<[_]> = (0..init.length + alignment).map(|_| UnsafeCell::new(0)).collect();
        let start = bytes.as_ptr().align_offset(alignment);
        let ours = DeviceMemory { bytes, start, length: init.length, regions: AtomicU32::new(0) };
        let c = ibv_dm {
            context,
            memcpy_to_dm: Some(copy_to),
            memcpy_from_dm: Some(copy_from),
            comp_mask: 0,
            handle: handle(),
        };
        Ok(shell::DeviceMemory::make(c, ours))
    })
}

/// Implements `ibv_free_dm`.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    code("ibv_free_dm", || {
        // SAFETY: the caller meets the requirements of this function.
        let ours = unsafe { shell::DeviceMemory::ours(dm, "memory of the device") }?;
        if ours.regions.load(Ordering::Acquire) > 0 {
            return Err(Error::Busy("the memory is registered".into()));
        }
        // SAFETY: the handle is alive, because the call above has checked it. That call fails if
        // another object still uses the handle. The program must not use a handle in another call
        // while it destroys the handle.
        unsafe { shell::DeviceMemory::free(dm) };
        Ok(())
    })
}

/// Implements `ibv_reg_dm_mr`. Addresses in the region are offsets from its first byte.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    pointer("ibv_reg_dm_mr", || {
        let access = AccessFlags(access);
        if !access.contains(AccessFlags::ZERO_BASED) {
            return invalid("device memory must be registered with IBV_ACCESS_ZERO_BASED");
        }
        // SAFETY: the caller meets the requirements of this function.
        let ours = unsafe { shell::DeviceMemory::ours(dm, "memory of the device") }?;
        let address = ours.at(offset, length)?;
        // SAFETY: the caller meets the requirements of this function. The memory is not freed as
        // long as it is registered.
        let mr = unsafe { register(pd, address.cast(), length, 0, access) }?;
        // SAFETY: the region was created just above.
        unsafe {
            shell::Region::ours(mr, "memory region")?.of_device(dm);
            (*mr).addr = ptr::null_mut();
        }
        ours.regions.fetch_add(1, Ordering::AcqRel);
        Ok(mr)
    })
}

/// Records that a region of this memory was deregistered.
///
/// # Safety
/// [`reg_dm_mr`] must have registered the region.
pub(crate) unsafe fn on_deregistered(dm: *mut ibv_dm) {
    // SAFETY: registered memory is not freed.
    if let Ok(ours) = unsafe { shell::DeviceMemory::ours(dm, "memory of the device") } {
        ours.regions.fetch_sub(1, Ordering::AcqRel);
    }
}

unsafe extern "C" fn copy_to(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    code("ibv_memcpy_to_dm", || {
        // SAFETY: the caller meets the requirements of this function.
        let into =
            unsafe { shell::DeviceMemory::ours(dm, "memory of the device") }?.at(offset, length)?;
        // SAFETY: the caller guarantees `length` bytes at `from`; `at` has checked `into`.
        unsafe { ptr::copy(from.cast(), into, length) };
        Ok(())
    })
}

unsafe extern "C" fn copy_from(
    into: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    code("ibv_memcpy_from_dm", || {
        // SAFETY: the caller meets the requirements of this function.
        let from =
            unsafe { shell::DeviceMemory::ours(dm, "memory of the device") }?.at(offset, length)?;
        // SAFETY: the caller guarantees `length` bytes at `into`; `at` has checked `from`.
        unsafe { ptr::copy(from, into.cast(), length) };
        Ok(())
    })
}

/// Maximum size of one allocation: 1 MiB. Network adapters with device memory have less.
pub(crate) const BYTES_MAX: usize = 1 << 20;

/// Offsets and lengths must be multiples of this number of bytes, like on network adapters with
/// device memory.
const WORD: usize = 4;

/// Base-2 logarithm of the largest alignment: a 2 MiB page.
const ALIGNMENT_LOG_MAX: u32 = 21;
