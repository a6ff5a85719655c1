//! The list of claims of a handler. Copies of this crate in other shared objects add to it, so it
//! has the layout of C. If the layout changes, the mark in the handler's code must change, too.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicUsize, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicUsize, Ordering, fence};

/// Returns the address at which a thread goes on after a fault of the instruction at an address, or
/// 0 if the fault is not claimed.
pub type ResumeAt = extern "C" fn(instruction: usize) -> usize;

/// Handles a fault at an address. Returns 0 if the fault is not claimed. The arguments are the
/// claim's context, the address, and the bits [`WRITES`] and [`FORBIDDEN`].
pub(crate) type OnFault = unsafe extern "C" fn(context: usize, address: usize, kind: u32) -> u32;

/// Bit of a fault: the access was a write.
pub(crate) const WRITES: u32 = 1 << 0;

/// Bit of a fault: the signal was `SIGSEGV`, so no mapping permits the access.
pub(crate) const FORBIDDEN: u32 = 1 << 1;

/// The list of claims.
#[repr(C)]
pub(crate) struct Claims {
    /// Addresses of functions of the type [`ResumeAt`]; 0 in free places.
    instructions: [AtomicUsize; INSTRUCTIONS_MAX],
    ranges: [Range; RANGES_MAX],
}

/// A claim of the faults at the addresses of a range.
///
/// A handler that uses the claim is counted in `inside` before it reads `start` again. The owner
/// changes `start` before it waits until `inside` is 0. So either the handler finds the claim gone,
/// or the owner waits for the handler. Both sides have a sequentially consistent fence between their
/// two accesses for that.
#[repr(C)]
struct Range {
    /// First address; [`FREE`] or [`RESERVED`] if the place has no claim in force.
    start: AtomicUsize,
    /// The address behind the last one.
    end: AtomicUsize,
    /// A function of the type [`OnFault`].
    on_fault: AtomicUsize,
    context: AtomicUsize,
    /// Number of handlers that use this claim.
    inside: AtomicUsize,
}

/// What a range claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeEntry {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// A function of the type [`OnFault`].
    pub(crate) on_fault: usize,
    pub(crate) context: usize,
}

/// A claim that is in use by a handler. It stays valid until this value is dropped.
pub(crate) struct Inside<'a> {
    range: &'a Range,
    pub(crate) on_fault: usize,
    pub(crate) context: usize,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.range.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Claims {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            instructions: [const { AtomicUsize::new(0) }; INSTRUCTIONS_MAX],
            ranges: [const { Range::new() }; RANGES_MAX],
        }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            instructions: std::array::from_fn(|_| AtomicUsize::new(0)),
            ranges: std::array::from_fn(|_| Range::new()),
        }
    }

    /// Adds a function of the type [`ResumeAt`], once. Returns false if there is no free place.
    pub(crate) fn add_instructions(&self, resume_at: usize) -> bool {
        self.instructions.iter().any(|place| {
            let taken = place.compare_exchange(0, resume_at, Ordering::SeqCst, Ordering::SeqCst);
            taken.is_ok() || taken == Err(resume_at)
        })
    }

    /// Returns the functions of the type [`ResumeAt`].
    pub(crate) fn instructions(&self) -> impl Iterator<Item = usize> {
        self.instructions
            .iter()
            .map(|place| place.load(Ordering::Acquire))
            .take_while(|&resume_at| resume_at != 0)
    }

    /// Adds a claim. Returns its place, or `None` if there is no free place.
    pub(crate) fn add_range(&self, entry: RangeEntry) -> Option<usize> {
        let take = |range: &Range| {
            range.start.compare_exchange(FREE, RESERVED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let place = self.ranges.iter().position(take)?;
        let range = &self.ranges[place];
        range.end.store(entry.end, Ordering::SeqCst);
        range.on_fault.store(entry.on_fault, Ordering::SeqCst);
        range.context.store(entry.context, Ordering::SeqCst);
        range.start.store(entry.start, Ordering::SeqCst);
        Some(place)
    }

    /// Ends the claim at a place. Calls `wait` repeatedly until no handler uses the claim.
    pub(crate) fn remove_range(&self, place: usize, mut wait: impl FnMut()) {
        let Some(range) = self.ranges.get(place) else { return };
        range.start.store(RESERVED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while range.inside.load(Ordering::SeqCst) != 0 {
            wait();
        }
        range.start.store(FREE, Ordering::SeqCst);
    }

    /// Returns the claim with an address. Costs a load for each of the [`RANGES_MAX`] places at
    /// most, and two atomic additions.
    pub(crate) fn enter(&self, address: usize) -> Option<Inside<'_>> {
        self.ranges.iter().find_map(|range| range.enter(address))
    }
}

impl Range {
    #[cfg(not(loom))]
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(FREE),
            end: AtomicUsize::new(0),
            on_fault: AtomicUsize::new(0),
            context: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
        }
    }

    #[cfg(loom)]
    fn new() -> Self {
        Self {
            start: AtomicUsize::new(FREE),
            end: AtomicUsize::new(0),
            on_fault: AtomicUsize::new(0),
            context: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
        }
    }

    fn enter(&self, address: usize) -> Option<Inside<'_>> {
        if !self.covers(address) {
            return None;
        }
        self.inside.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // The claim may have ended before the addition. From now on, the place keeps the claim that
        // it has, because the owner waits before it removes the claim.
        let is_covered = self.covers(address);
        let inside = Inside {
            range: self,
            on_fault: self.on_fault.load(Ordering::SeqCst),
            context: self.context.load(Ordering::SeqCst),
        };
        is_covered.then_some(inside)
    }

    fn covers(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::SeqCst);
        start > RESERVED && start <= address && address < self.end.load(Ordering::SeqCst)
    }
}

/// Value of [`Range::start`] in a free place.
const FREE: usize = 0;

/// Value of [`Range::start`] in a place whose claim is being written or removed.
const RESERVED: usize = 1;

/// Number of functions of instructions: one for each shared object with a copy of this crate.
pub(crate) const INSTRUCTIONS_MAX: usize = 32;

/// Number of ranges of all shared objects of a process.
pub(crate) const RANGES_MAX: usize = if cfg!(loom) { 1 } else { 64 };

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry(start: usize, end: usize) -> RangeEntry {
        RangeEntry { start, end, on_fault: 7, context: start + 1 }
    }

    #[test]
    fn an_address_belongs_to_the_claim_whose_range_has_it() {
        let claims = Claims::new();
        let first = claims.add_range(entry(0x1000, 0x2000)).expect("the list is empty");
        claims.add_range(entry(0x3000, 0x4000)).expect("the list has room");
        for (address, context) in [
            (0xfff, None),
            (0x1000, Some(0x1001)),
            (0x1fff, Some(0x1001)),
            (0x2000, None),
            (0x3000, Some(0x3001)),
        ] {
            assert_eq!(claims.enter(address).map(|inside| inside.context), context, "{address:#x}");
        }
        claims.remove_range(first, || panic!("no handler is inside"));
        assert!(claims.enter(0x1000).is_none());
        assert_eq!(claims.add_range(entry(0x5000, 0x6000)), Some(first));
    }

    #[test]
    fn a_full_list_takes_no_more_claims() {
        let claims = Claims::new();
        for place in 0..RANGES_MAX {
            assert_eq!(claims.add_range(entry(0x1000, 0x2000)), Some(place));
        }
        assert_eq!(claims.add_range(entry(0x1000, 0x2000)), None);
        for function in 1..=INSTRUCTIONS_MAX {
            assert!(claims.add_instructions(function));
            assert!(claims.add_instructions(function), "again, which takes no place");
        }
        assert!(!claims.add_instructions(INSTRUCTIONS_MAX + 1));
        assert_eq!(claims.instructions().count(), INSTRUCTIONS_MAX);
    }

    #[test]
    fn the_end_of_a_claim_waits_for_the_handlers_inside() {
        let claims = Claims::new();
        let place = claims.add_range(entry(0x1000, 0x2000)).expect("the list is empty");
        let mut inside = claims.enter(0x1800);
        let mut waits = 0;
        claims.remove_range(place, || {
            waits += 1;
            assert!(claims.enter(0x1800).is_none(), "no handler enters any more");
            if waits == 3 {
                inside = None;
            }
        });
        assert_eq!(waits, 3);
    }
}

/// Model: a handler, and the end of the claim that it may use. To run it: `./x loom`.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn no_handler_uses_a_claim_that_has_ended() {
        loom::model(|| {
            let claims = Arc::new(Claims::new());
            let is_alive = Arc::new(AtomicBool::new(true));
            let entry = RangeEntry { start: 0x1000, end: 0x2000, on_fault: 1, context: 2 };
            let place = claims.add_range(entry).expect("the list is empty");
            let handler = {
                let (claims, is_alive) = (Arc::clone(&claims), Arc::clone(&is_alive));
                loom::thread::spawn(move || {
                    if let Some(inside) = claims.enter(0x1800) {
                        assert_eq!((inside.on_fault, inside.context), (1, 2));
                        assert!(is_alive.load(Ordering::Relaxed), "used after its end");
                    }
                })
            };
            claims.remove_range(place, loom::thread::yield_now);
            is_alive.store(false, Ordering::Relaxed);
            handler.join().expect("the handler does not panic");
        });
    }
}
