//! The claims of this copy of the crate, and the lists in which they stand.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::claims::{Claims, INSTRUCTIONS_MAX, RANGES_MAX, RangeEntry, ResumeAt};
use crate::error::ClaimError;

/// Claims faults of instructions in the list in force.
pub(crate) fn catch_instructions(resume_at: ResumeAt) -> Result<(), ClaimError> {
    own().add_instructions(resume_at)
}

/// Claims the faults at the addresses of a range in the list in force.
pub(crate) fn add_range(entry: RangeEntry) -> Result<(), ClaimError> {
    own().add_range(entry)
}

/// Ends a claim in all lists. Calls `wait` repeatedly until no handler uses it.
pub(crate) fn remove_range(entry: RangeEntry, wait: impl Fn()) {
    let places = own().take_range(entry);
    for Place { claims, index, .. } in places {
        claims.remove_range(index, &wait);
    }
}

fn own() -> MutexGuard<'static, OwnClaims> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether this copy of the crate uses a list yet.
pub(crate) fn has_joined() -> bool {
    !JOINED.load(Ordering::Acquire).is_null()
}

/// Makes the claims of this copy of the crate stand in the list `claims`, because the handler of that
/// list is in force now. Returns false if the list has no room.
pub(crate) fn join(claims: &'static Claims) -> bool {
    // Takes no lock if nothing is to be done: a child of `fork` may not get the lock, because a
    // thread that the child does not have may hold it.
    let list = ptr::from_ref(claims).cast_mut();
    if JOINED.load(Ordering::Acquire) == list {
        return true;
    }
    let has_room = own().join(claims);
    if has_room {
        JOINED.store(list, Ordering::Release);
    }
    has_room
}

/// The claims of this copy of the crate, and where they stand.
struct OwnClaims {
    /// The list of the handler in force, as far as this copy knows.
    list: Option<&'static Claims>,
    instructions: Vec<ResumeAt>,
    ranges: Vec<Place>,
}

/// A claim's place in a list. A claim that was added to several lists has several places.
struct Place {
    entry: RangeEntry,
    claims: &'static Claims,
    index: usize,
}

impl OwnClaims {
    fn join(&mut self, claims: &'static Claims) -> bool {
        let added =
            self.instructions.iter().all(|&resume_at| claims.add_instructions(resume_at as usize));
        let mut entries: Vec<RangeEntry> = Vec::new();
        for place in &self.ranges {
            let is_there = |place: &Place| ptr::eq(place.claims, claims);
            let stands =
                self.ranges.iter().any(|other| other.entry == place.entry && is_there(other));
            if !stands && !entries.contains(&place.entry) {
                entries.push(place.entry);
            }
        }
        let all = entries.into_iter().all(|entry| {
            let index = claims.add_range(entry);
            self.ranges.extend(index.map(|index| Place { entry, claims, index }));
            index.is_some()
        });
        if added && all {
            self.list = Some(claims);
        }
        added && all
    }

    fn add_instructions(&mut self, resume_at: ResumeAt) -> Result<(), ClaimError> {
        let list = self.list.ok_or(ClaimError::Unsupported)?;
        if self.instructions.contains(&resume_at) {
            return Ok(());
        }
        if !list.add_instructions(resume_at as usize) {
            return Err(ClaimError::TooMany { most: INSTRUCTIONS_MAX });
        }
        self.instructions.push(resume_at);
        Ok(())
    }

    fn add_range(&mut self, entry: RangeEntry) -> Result<(), ClaimError> {
        let claims = self.list.ok_or(ClaimError::Unsupported)?;
        let index = claims.add_range(entry).ok_or(ClaimError::TooMany { most: RANGES_MAX })?;
        self.ranges.push(Place { entry, claims, index });
        Ok(())
    }

    fn take_range(&mut self, entry: RangeEntry) -> Vec<Place> {
        self.ranges.extract_if(.., |place| place.entry == entry).collect()
    }
}

static OWN: Mutex<OwnClaims> =
    Mutex::new(OwnClaims { list: None, instructions: Vec::new(), ranges: Vec::new() });

/// The list that the claims of this copy stand in, for a look without a lock. Null at first.
static JOINED: AtomicPtr<Claims> = AtomicPtr::new(ptr::null_mut());
