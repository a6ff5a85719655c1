//! Memory of the device: memory of the host, which is where the device is.

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

/// What is ours of memory of the device.
pub(crate) struct DeviceMemory {
    /// More than was asked for, by the alignment.
    bytes: Box<[UnsafeCell<u8>]>,
    /// Where the first byte is that the program has.
    start: usize,
    length: usize,
    /// Regions it was registered as.
    regions: AtomicU32,
}

impl DeviceMemory {
    /// Address of `length` bytes from `offset` on, if there are as many.
    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, Error> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let is_inside = start.checked_add(length).is_some_and(|end| end <= self.length);
        if !start.is_multiple_of(WORD) || !length.is_multiple_of(WORD) {
            return invalid("memory of the device is used in words of 4 bytes");
        }
        match self.bytes.get(self.start.saturating_add(start)..) {
            Some(rest) if is_inside => Ok(rest.as_ptr().cast::<u8>().cast_mut()),
            _ => invalid("there is not as much memory of the device"),
        }
    }
}

/// `ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    init: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer("ibv_alloc_dm", || {
        // SAFETY: as the caller says.
        unsafe { of(context) }?;
        // SAFETY: as the caller says.
        let Some(init) = (unsafe { init.as_ref() }) else { return invalid("how much memory?") };
        if init.comp_mask != 0 || init.length == 0 || init.log_align_req > ALIGNMENT_LOG_MAX {
            return invalid("no such memory of the device");
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

/// `ibv_free_dm`.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    code("ibv_free_dm", || {
        // SAFETY: as the caller says.
        let ours = unsafe { shell::DeviceMemory::ours(dm, "memory of the device") }?;
        if ours.regions.load(Ordering::Acquire) > 0 {
            return Err(Error::Busy("the memory is registered".into()));
        }
        // SAFETY: the handle was found alive above; no object uses it, or destroying it had failed; and the
        // program makes no other call with a handle that it destroys.
        unsafe { shell::DeviceMemory::free(dm) };
        Ok(())
    })
}

/// `ibv_reg_dm_mr`: addresses in it count from 0.
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
            return invalid("addresses in memory of the device count from 0");
        }
        // SAFETY: as the caller says.
        let ours = unsafe { shell::DeviceMemory::ours(dm, "memory of the device") }?;
        let address = ours.at(offset, length)?;
        // SAFETY: as the caller says; the memory stays while it is registered.
        let mr = unsafe { register(pd, address.cast(), length, 0, access) }?;
        // SAFETY: the region was just made.
        unsafe {
            shell::Region::ours(mr, "memory region")?.of_device(dm);
            (*mr).addr = ptr::null_mut();
        }
        ours.regions.fetch_add(1, Ordering::AcqRel);
        Ok(mr)
    })
}

/// A region of it was deregistered.
///
/// # Safety
/// It was registered by [`reg_dm_mr`].
pub(crate) unsafe fn on_deregistered(dm: *mut ibv_dm) {
    // SAFETY: memory that is registered is not freed.
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
        // SAFETY: as the caller says.
        let into =
            unsafe { shell::DeviceMemory::ours(dm, "memory of the device") }?.at(offset, length)?;
        // SAFETY: there are as many bytes here, and there, as the caller says.
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
        // SAFETY: as the caller says.
        let from =
            unsafe { shell::DeviceMemory::ours(dm, "memory of the device") }?.at(offset, length)?;
        // SAFETY: there are as many bytes here, and there, as the caller says.
        unsafe { ptr::copy(from, into.cast(), length) };
        Ok(())
    })
}

/// What a program may have at a time, of each piece: 1 MiB, more than devices with such memory have.
pub(crate) const BYTES_MAX: usize = 1 << 20;

/// What there is of it is copied in words, as on devices that have such memory.
const WORD: usize = 4;

/// A large page.
const ALIGNMENT_LOG_MAX: u32 = 21;
