//! Memory for the twins of pages.

use dsm_protocol::diff::{PAGE_BYTES, PageBytes};

/// The twins of the pages of a rank.
///
/// A twin that is allocated by itself costs a fault of the kernel, which takes longer than copying
/// the page. So the memory comes in slabs, which the kernel maps by huge pages. It is kept for
/// reuse.
#[derive(Debug)]
pub(crate) struct Twins {
    /// The place of the twin of each page.
    places: Vec<Option<u32>>,
    /// Slabs of [`SLAB_TWINS`] places.
    slabs: Vec<Vec<u8>>,
    free: Vec<u32>,
}

impl Twins {
    /// Returns no twins, for a region of so many pages.
    pub(crate) fn new(pages: usize) -> Self {
        Self { places: vec![None; pages], slabs: Vec::new(), free: Vec::new() }
    }

    /// Returns the twin of a page, if it has one.
    pub(crate) fn get_mut(&mut self, page: usize) -> Option<&mut PageBytes> {
        let place = (*self.places.get(page)?)? as usize;
        let (twins, _) = self.slabs.get_mut(place / SLAB_TWINS)?.as_chunks_mut();
        twins.get_mut(place % SLAB_TWINS)
    }

    /// Returns the twin of a page. A new twin has any bytes. Returns `None` outside of the region.
    pub(crate) fn make(&mut self, page: usize) -> Option<&mut PageBytes> {
        if self.places.get(page)?.is_none() {
            if self.free.is_empty() {
                self.add_slab();
            }
            *self.places.get_mut(page)? = self.free.pop();
        }
        self.get_mut(page)
    }

    /// Frees the twin of a page, if it has one.
    pub(crate) fn remove(&mut self, page: usize) {
        self.free.extend(self.places.get_mut(page).and_then(Option::take));
    }

    fn add_slab(&mut self) {
        // Memory of zeros comes from the kernel, so that no byte is touched before the advice.
        let slab = vec![0_u8; SLAB_TWINS * PAGE_BYTES];
        let start = slab.as_ptr().addr().next_multiple_of(PAGE_BYTES);
        let bytes = slab.len() - PAGE_BYTES;
        let first = slab.as_ptr().cast::<libc::c_void>().cast_mut().with_addr(start);
        // SAFETY: the pages are in the slab, and keep their bytes. If the kernel refuses, they are
        // mapped one by one.
        let _refused = unsafe { libc::madvise(first, bytes, libc::MADV_HUGEPAGE) };
        let places = self.slabs.len() * SLAB_TWINS..(self.slabs.len() + 1) * SLAB_TWINS;
        self.slabs.push(slab);
        self.free.extend(places.rev().map(|place| place as u32));
    }
}

/// Number of twins of a slab: 8 MiB, so that most of it can be huge pages of 2 MiB, wherever it
/// begins.
const SLAB_TWINS: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twin_keeps_its_bytes_until_it_is_removed_and_its_place_is_used_again() {
        let pages = SLAB_TWINS + 1;
        let mut twins = Twins::new(pages);
        for page in 0..pages {
            *twins.make(page).unwrap() = [page as u8; PAGE_BYTES];
        }
        assert_eq!(twins.slabs.len(), 2);
        assert!((0..pages).all(|page| twins.get_mut(page) == Some(&mut [page as u8; PAGE_BYTES])));
        twins.remove(7);
        assert_eq!(twins.get_mut(7), None);
        twins.make(7).unwrap()[0] = 1;
        assert_eq!((twins.slabs.len(), twins.free.len()), (2, SLAB_TWINS - 1));
        assert_eq!(twins.make(8).map(|twin| twin[0]), Some(8));
        assert!(twins.make(pages).is_none());
    }
}
