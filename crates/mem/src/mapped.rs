//! Memory of its own mapping: the kernel gives each page when it is touched first.

use core::ptr::{NonNull, null_mut};

/// Zeroed pages of this process alone. An aligned allocation of the heap would write all of them.
#[derive(Debug)]
pub(crate) struct MappedPages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to this value, whichever thread has it.
unsafe impl Send for MappedPages {}
// SAFETY: it lends nothing by a shared reference but its address.
unsafe impl Sync for MappedPages {}

impl MappedPages {
    /// `len` bytes, if they are worth a mapping and the kernel grants them.
    pub(crate) fn new(len: usize) -> Option<Self> {
        if cfg!(miri) || len < MAPPED_BYTES_MIN {
            return None;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let start = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast()).map(|start| Self { start, len })
    }

    /// The first byte.
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the buffer whose pages these are has given up all pointers.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Smaller pieces come from the heap, in bytes: a mapping costs two system calls, as much as writing zeros to them.
const MAPPED_BYTES_MIN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use crate::Buffer;

    /// Pages of a buffer that are in memory, by `mincore`.
    fn resident(buffer: &Buffer) -> usize {
        let mut pages = vec![0_u8; (buffer.len() as usize).div_ceil(4096)];
        // SAFETY: the buffer begins at a page, and there is a byte for each of its pages.
        let result = unsafe {
            libc::mincore(buffer.as_ptr().cast(), buffer.len() as usize, pages.as_mut_ptr())
        };
        assert_eq!(result, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    /// A process with thousands of streams has rings for each, and touches a page or two of most.
    #[test]
    #[cfg_attr(miri, ignore = "there is no kernel")]
    fn pages_of_large_buffers_are_there_when_they_are_touched() {
        // More than can be lent.
        let buffers: Vec<_> = (0..80).map(|_| Buffer::new(1 << 20)).collect();
        for buffer in &buffers {
            assert_eq!(resident(buffer), 0);
            buffer.write(5000, b"touched");
            assert_eq!(resident(buffer), 1);
            let mut bytes = [1; 9];
            buffer.read(4999, &mut bytes);
            assert_eq!(&bytes, b"\0touched\0");
        }
    }
}
