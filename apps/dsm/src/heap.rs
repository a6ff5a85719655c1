//! The memory of the region that is in use: shared allocations, and those of this rank alone.

use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dsm_protocol::PageNumber;

use crate::error::Error;

/// The address of the region in all processes.
pub(crate) const REGION: usize = 0x2000_0000_0000;

/// An allocation that was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocated {
    /// Offset in the region.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The line of the program.
    pub(crate) place: &'static Location<'static>,
}

/// The memory of the region that is in use.
#[derive(Debug)]
pub(crate) struct Heap(Mutex<Uses>);

#[derive(Debug)]
struct Uses {
    shared: Space,
    /// The memory of this rank alone.
    local: Space,
    /// By time. Shared allocations ascend, and so do local ones.
    made: Vec<Allocated>,
}

/// A part of the region, by offsets. `next` is between the other two.
#[derive(Debug)]
struct Space {
    next: u64,
    end: u64,
    /// The option that makes the part larger.
    option: &'static str,
}

impl Heap {
    /// `shared` bytes are for shared allocations. Those of the local allocations of each rank
    /// follow: `local` bytes for each.
    pub(crate) fn new(shared: u64, local: u64, rank: usize) -> Self {
        let start = shared + local * rank as u64;
        Self(Mutex::new(Uses {
            shared: Space { next: 0, end: shared, option: "Options::region_bytes" },
            local: Space { next: start, end: start + local, option: "Options::local_bytes" },
            made: Vec::new(),
        }))
    }

    /// Returns how many bytes the shared allocations have so far.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.uses().shared.next
    }

    /// Returns the allocation that has the byte at an offset.
    pub(crate) fn find(&self, offset: u64) -> Option<Allocated> {
        let has = |made: &&Allocated| (made.start..made.start + made.bytes).contains(&offset);
        self.uses().made.iter().find(has).copied()
    }

    /// Returns the allocations that have bytes of a page.
    pub(crate) fn of_page(&self, page: PageNumber) -> Vec<Allocated> {
        let (start, end) = (u64::from(page.0) * PAGE, u64::from(page.0) * PAGE + PAGE);
        let has = |made: &&Allocated| made.start < end && start < made.start + made.bytes;
        self.uses().made.iter().filter(has).copied().collect()
    }

    /// Takes memory that all ranks take in the same order. Returns its offset.
    pub(crate) fn take_shared(
        &self,
        bytes: u64,
        align: u64,
        place: &'static Location<'static>,
    ) -> Result<u64, Error> {
        self.take(|uses| &mut uses.shared, bytes, align, place)
    }

    /// Takes memory of this rank alone. Returns its offset.
    pub(crate) fn take_local(
        &self,
        bytes: u64,
        align: u64,
        place: &'static Location<'static>,
    ) -> Result<u64, Error> {
        self.take(|uses| &mut uses.local, bytes, align, place)
    }

    fn take(
        &self,
        part: impl FnOnce(&mut Uses) -> &mut Space,
        bytes: u64,
        align: u64,
        place: &'static Location<'static>,
    ) -> Result<u64, Error> {
        let mut uses = self.uses();
        let Space { next, end, option } = part(&mut uses);
        let (old, end, option) = (*next, *end, *option);
        let start = next.checked_next_multiple_of(align);
        let taken = start.and_then(|start| Some((start, start.checked_add(bytes)?)));
        let Some((start, after)) = taken.filter(|(_, after)| *after <= end) else {
            return Err(Error::NoRoom { wanted: bytes, left: end.saturating_sub(old), option });
        };
        *next = after;
        uses.made.push(Allocated { start, bytes, place });
        Ok(start)
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn take(heap: &Heap, bytes: u64, align: u64) -> Result<u64, String> {
        let taken = heap.take_shared(bytes, align, Location::caller());
        taken.map_err(|error| error.to_string())
    }

    #[test]
    fn allocations_are_aligned_and_found_by_their_bytes() {
        let heap = Heap::new(3 * PAGE, 0, 0);
        assert_eq!(take(&heap, 10, 64), Ok(0));
        assert_eq!(take(&heap, 10, 64), Ok(64));
        assert_eq!(take(&heap, PAGE, PAGE), Ok(PAGE));
        assert_eq!(heap.find(70).unwrap().start, 64);
        assert!(heap.find(80).is_none());
        assert_eq!(heap.of_page(PageNumber(0)).len(), 2);
        assert_eq!(heap.of_page(PageNumber(1)).len(), 1);
        assert_eq!(heap.shared_bytes(), 2 * PAGE);
    }

    #[test]
    fn a_full_region_names_what_is_left_and_the_option() {
        let heap = Heap::new(PAGE, 100, 2);
        assert_eq!(take(&heap, 64, 64), Ok(0));
        let text = take(&heap, PAGE, 64).unwrap_err();
        assert!(text.contains("4096 bytes") && text.contains("4032 bytes that are left"), "{text}");
        assert!(text.contains("Options::region_bytes"), "{text}");
        assert!(take(&heap, u64::MAX, 64).is_err());
        assert_eq!(take(&heap, PAGE - 64, 64), Ok(64));
    }

    #[test]
    fn each_rank_has_its_own_local_memory_behind_the_shared_one() {
        for rank in 0..3 {
            let heap = Heap::new(PAGE, 2 * PAGE, rank);
            let local = |bytes| heap.take_local(bytes, 64, Location::caller());
            assert_eq!(local(2 * PAGE).unwrap(), PAGE + 2 * PAGE * rank as u64);
            let text = local(1).unwrap_err().to_string();
            assert!(text.contains("Options::local_bytes"), "{text}");
        }
    }
}
