//! Memory for the twins of pages.

use dsm_protocol::diff::{PAGE_BYTES, PageBytes};

/// The twins of the pages of a rank.
///
/// A twin that is allocated by itself costs a fault of the kernel, which takes longer than copying
/// the page. So the memory comes in slabs, which the kernel maps by huge pages. When no page has a
/// twin, one slab is kept for reuse.
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

    /// Replaces the twin of a page, if it has one, by another place: `renew` gets the new twin, with
    /// any bytes, and the old one. So no bytes are copied from one to the other.
    pub(crate) fn replace<R>(
        &mut self,
        page: usize,
        renew: impl FnOnce(&mut PageBytes, &PageBytes) -> R,
    ) -> Option<R> {
        let old = (*self.places.get(page)?)?;
        if self.free.is_empty() {
            self.add_slab();
        }
        let new = self.free.pop()?;
        let slab = |place: u32| place as usize / SLAB_TWINS;
        let index = |place: u32| place as usize % SLAB_TWINS;
        let renewed = if slab(new) == slab(old) {
            let (twins, _) = self.slabs.get_mut(slab(new))?.as_chunks_mut();
            let [new, old] = twins.get_disjoint_mut([index(new), index(old)]).ok()?;
            renew(new, old)
        } else {
            let slabs = self.slabs.get_disjoint_mut([slab(new), slab(old)]);
            let [news, olds] = slabs.ok()?.map(|slab| slab.as_chunks_mut().0);
            renew(news.get_mut(index(new))?, olds.get(index(old))?)
        };
        *self.places.get_mut(page)? = Some(new);
        self.free.push(old);
        Some(renewed)
    }

    /// Frees the twin of a page, if it has one.
    pub(crate) fn remove(&mut self, page: usize) {
        self.free.extend(self.places.get_mut(page).and_then(Option::take));
        if self.slabs.len() > 1 && self.free.len() == self.slabs.len() * SLAB_TWINS {
            self.slabs.truncate(1);
            self.free.retain(|place| (*place as usize) < SLAB_TWINS);
        }
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
        // The new places are in the second slab, and then in the first one.
        for page in [3, 4, SLAB_TWINS] {
            let old = twins.replace(page, |new, old| {
                *new = [9; PAGE_BYTES];
                old[0]
            });
            assert_eq!((old, twins.get_mut(page)), (Some(page as u8), Some(&mut [9; PAGE_BYTES])));
        }
        assert_eq!(twins.get_mut(5), Some(&mut [5; PAGE_BYTES]));
        twins.remove(7);
        assert_eq!(twins.get_mut(7), None);
        assert_eq!(twins.replace(7, |_, _| ()), None);
        twins.make(7).unwrap()[0] = 1;
        assert_eq!((twins.slabs.len(), twins.free.len()), (2, SLAB_TWINS - 1));
        assert_eq!(twins.make(8).map(|twin| twin[0]), Some(8));
        assert!(twins.make(pages).is_none());
    }

    #[test]
    fn one_slab_is_kept_when_no_page_has_a_twin() {
        let pages = 3 * SLAB_TWINS;
        let mut twins = Twins::new(pages);
        for page in 0..pages {
            twins.make(page).unwrap();
        }
        assert_eq!(twins.slabs.len(), 3);
        for page in 0..pages {
            twins.remove(page);
        }
        assert_eq!((twins.slabs.len(), twins.free.len()), (1, SLAB_TWINS));
        for page in 0..pages {
            twins.make(page).unwrap()[0] = page as u8;
        }
        assert!((0..pages).all(|page| twins.get_mut(page).unwrap()[0] == page as u8));
    }
}
