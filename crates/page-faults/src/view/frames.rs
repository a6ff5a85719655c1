//! Two mappings of the same memory.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::error::ViewError;

/// Memory that is mapped twice. Both mappings end when this value is dropped.
#[derive(Debug)]
pub(super) struct TwoMappings {
    view: NonNull<u8>,
    frames: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
}

// SAFETY: the value only has addresses of mappings of its own. Who accesses the memory, upholds the
// rules of that access.
unsafe impl Send for TwoMappings {}
// SAFETY: as above; no method accesses the memory.
unsafe impl Sync for TwoMappings {}

impl TwoMappings {
    /// Maps `bytes` bytes twice, a multiple of the page length. No access to the view is permitted
    /// at first, if `is_protected` is set.
    pub(super) fn new(
        bytes: usize,
        address: Option<usize>,
        is_protected: bool,
    ) -> Result<Self, ViewError> {
        let no_frames = |source| ViewError::Frames { bytes, source };
        let file = memory_file(bytes).map_err(no_frames)?;
        let frames = map(None, bytes, libc::PROT_READ | libc::PROT_WRITE, &file);
        let frames = frames.map_err(no_frames)?;
        let rights =
            if is_protected { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
        match map(address, bytes, rights, &file) {
            Ok(view) => Ok(Self { view, frames, bytes, file }),
            Err(source) => {
                unmap(frames, bytes);
                Err(match address {
                    Some(address) => ViewError::Address { address, bytes, source },
                    None => no_frames(source),
                })
            }
        }
    }

    pub(super) fn view(&self) -> *mut u8 {
        self.view.as_ptr()
    }

    pub(super) fn frames(&self) -> *mut u8 {
        self.frames.as_ptr()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes `bytes` bytes to the file, from this offset on.
    ///
    /// # Safety
    /// `from` must point to as many bytes.
    pub(super) unsafe fn write(
        &self,
        from: *const u8,
        bytes: usize,
        offset: usize,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let at = libc::off_t::try_from(offset + done).map_err(io::Error::other)?;
            // SAFETY: the caller upholds this.
            let written = unsafe {
                libc::pwrite(self.file.as_raw_fd(), from.add(done).cast(), bytes - done, at)
            };
            match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(_negative) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for TwoMappings {
    fn drop(&mut self) {
        unmap(self.view, self.bytes);
        unmap(self.frames, self.bytes);
    }
}

/// Makes a file in memory, without pages. Its name appears in the kernel's list of mappings.
fn memory_file(bytes: usize) -> io::Result<OwnedFd> {
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: the name is a C string. The descriptor is new, so this value alone owns it.
    let file = unsafe {
        let file = libc::memfd_create(c"page-faults".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(file)
    };
    // SAFETY: the descriptor is open.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Maps a file, at this address if one is given. Never replaces another mapping.
fn map(
    address: Option<usize>,
    bytes: usize,
    rights: libc::c_int,
    file: &OwnedFd,
) -> io::Result<NonNull<u8>> {
    let fixed = if address.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
    let wanted: *mut c_void = ptr::with_exposed_provenance_mut(address.unwrap_or(0));
    // SAFETY: without `MAP_FIXED`, the kernel chooses unused addresses.
    let start = unsafe { libc::mmap(wanted, bytes, rights, flags, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mapped = NonNull::new(start.cast::<u8>())
        .ok_or_else(|| io::Error::other("the kernel mapped the memory at address 0"))?;
    // Kernels before 4.17 take the address as a hint only.
    if address.is_some_and(|address| address != start.addr()) {
        unmap(mapped, bytes);
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    // SAFETY: the mapping belongs to the caller. A child of `fork` must not access it, because the
    // child's accesses would not be seen.
    if unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        unmap(mapped, bytes);
        return Err(error);
    }
    Ok(mapped)
}

fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller owns the mapping, and does not use it afterwards. For a mapping, the call
    // does not fail.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}
