//! Memory in a separate mapping. The kernel allocates each page at the first access to the page.

use core::ptr::{NonNull, null_mut};

/// Zeroed pages of this process only. They do not come from the heap, because a large aligned
/// allocation from the heap would write to all pages.
#[derive(Debug)]
pub(crate) struct MappedPages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to this value, and are not tied to a thread.
unsafe impl Send for MappedPages {}
// SAFETY: a shared reference gives access to the address only.
unsafe impl Sync for MappedPages {}

impl MappedPages {
    /// Maps `len` bytes. Returns `None` if they are too few for a mapping, or the kernel refuses.
    pub(crate) fn new(len: usize) -> Option<Self> {
        if cfg!(miri) || len < MAPPED_BYTES_MIN {
            return None;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing mapping.
        let start = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast()).map(|start| Self { start, len })
    }

    /// Returns a pointer to the first byte.
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory with this length. The buffer that owns the pages uses no
        // pointer to them any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Shortest memory in bytes that gets a mapping. Shorter memory comes from the heap. A mapping
/// costs two system calls, which take as long as zeroing memory of this length.
const MAPPED_BYTES_MIN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use crate::buffer::Buffer;

    /// Returns how many pages of a buffer are in memory, according to `mincore`.
    fn resident(buffer: &Buffer) -> usize {
        let mut pages = vec![0_u8; (buffer.len() as usize).div_ceil(4096)];
        // SAFETY: the buffer begins at a page, and the vector has a byte for each page.
        let result = unsafe {
            libc::mincore(buffer.as_ptr().cast(), buffer.len() as usize, pages.as_mut_ptr())
        };
        assert_eq!(result, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    /// The first access to a page allocates the page. This saves memory in a process with thousands
    /// of streams: each stream has large rings, but most streams use only a page or two of them.
    #[test]
    #[cfg_attr(miri, ignore = "there is no kernel")]
    fn pages_of_large_buffers_are_allocated_on_first_access() {
        // These are more buffers than can be lent.
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
