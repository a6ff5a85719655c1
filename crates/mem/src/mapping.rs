//! Pages that tests map, protect and unmap.

use core::ptr::copy_nonoverlapping;

/// Anonymous pages that can be unmapped and protected one by one.
pub(crate) struct Mapping {
    start: *mut u8,
    pages: usize,
}

impl Mapping {
    pub(crate) const PAGE: usize = 4096;

    pub(crate) fn new(pages: usize) -> Self {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses an unused address.
        let start =
            unsafe { libc::mmap(core::ptr::null_mut(), pages * Self::PAGE, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start.cast(), pages }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    pub(crate) fn unmap_page(&self, page: usize) {
        self.protect_page(page, libc::PROT_NONE);
    }

    pub(crate) fn protect_page(&self, page: usize, access: libc::c_int) {
        assert!(page < self.pages);
        // SAFETY: the page belongs to this mapping, and no reference to it exists.
        let result = unsafe {
            let page = self.start.add(page * Self::PAGE);
            libc::mprotect(page.cast(), Self::PAGE, access)
        };
        assert_eq!(result, 0);
    }

    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: all pages are mapped and writable when a test calls this.
        unsafe { self.start.write_bytes(byte, self.pages * Self::PAGE) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.pages * Self::PAGE];
        // SAFETY: all pages are mapped and readable when a test calls this.
        unsafe { copy_nonoverlapping(self.start, bytes.as_mut_ptr(), bytes.len()) }
        bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value and is not used afterwards.
        unsafe { libc::munmap(self.start.cast(), self.pages * Self::PAGE) };
    }
}
