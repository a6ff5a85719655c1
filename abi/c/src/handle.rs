//! Handles: numbers that identify objects.

use std::sync::{Arc, PoisonError, RwLock};

use crate::failure::{Failure, Result};

/// Table of all objects of one kind, by handle.
///
/// The highest byte of a handle is the kind of the object. The other bytes contain the generation
/// of the object's place in the table and the index of the place, plus one. A handle is therefore
/// never null. After a handle is freed, the table rejects it until its place has been reused 2^24
/// times.
pub(crate) struct Table<T> {
    kind: u8,
    name: &'static str,
    places: RwLock<Places<T>>,
}

struct Places<T> {
    all: Vec<HandleSlot<T>>,
    free: Vec<u32>,
}

struct HandleSlot<T> {
    generation: u32,
    object: Option<Arc<T>>,
}

const _: () = assert!(size_of::<usize>() == 8, "handles are 64-bit numbers");
const GENERATIONS: u32 = 1 << 24;

impl<T> Table<T> {
    pub(crate) const fn new(kind: u8, name: &'static str) -> Self {
        Self { kind, name, places: RwLock::new(Places { all: Vec::new(), free: Vec::new() }) }
    }

    /// Stores an object and returns its handle. `H` is the type of the handle in C.
    pub(crate) fn add<H>(&self, object: T) -> std::result::Result<*mut H, Failure> {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let object = Some(Arc::new(object));
        let index = if let Some(index) = places.free.pop() {
            index
        } else {
            let index = u32::try_from(places.all.len()).ok().filter(|&index| index < u32::MAX);
            let full = || Failure::new(Result::Again, format!("too many objects: {}", self.name));
            places.all.push(HandleSlot { generation: 0, object: None });
            index.ok_or_else(full)?
        };
        let Some(place) = places.all.get_mut(index as usize) else {
            return Err(Failure::new(Result::Fault, "a free place that is not there"));
        };
        place.object = object;
        let generation = u64::from(place.generation % GENERATIONS);
        let number = u64::from(self.kind) << 56 | generation << 32 | u64::from(index + 1);
        Ok(std::ptr::without_provenance_mut(number as usize))
    }

    /// Returns the object with this handle.
    pub(crate) fn get<H>(&self, handle: *const H) -> std::result::Result<Arc<T>, Failure> {
        let found = self.place_of(handle).and_then(|(index, generation)| {
            let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
            let place = places.all.get(index)?;
            place.object.clone().filter(|_| place.generation % GENERATIONS == generation)
        });
        found.ok_or_else(|| self.bad(handle))
    }

    /// Removes and returns the object with this handle. After the call, the handle is invalid.
    pub(crate) fn remove<H>(&self, handle: *const H) -> std::result::Result<Arc<T>, Failure> {
        let found = self.place_of(handle).and_then(|(index, generation)| {
            let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
            let place = places.all.get_mut(index)?;
            if place.generation % GENERATIONS != generation {
                return None;
            }
            let object = place.object.take()?;
            place.generation = place.generation.wrapping_add(1);
            places.free.push(index as u32);
            Some(object)
        });
        found.ok_or_else(|| self.bad(handle))
    }

    fn place_of<H>(&self, handle: *const H) -> Option<(usize, u32)> {
        let number = handle.addr() as u64;
        let is_ours = number >> 56 == u64::from(self.kind);
        let index = (number & u64::from(u32::MAX)).checked_sub(1)? as usize;
        is_ours.then_some((index, (number >> 32) as u32 % GENERATIONS))
    }

    #[cold]
    fn bad<H>(&self, handle: *const H) -> Failure {
        let what = if handle.is_null() { "is null" } else { "is of another kind, or was freed" };
        Failure::new(Result::BadHandle, format!("the handle of {} {what}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_refers_to_its_object_until_it_is_freed() {
        let table = Table::new(7, "a number");
        let handles = [1, 2, 3].map(|number| table.add::<u8>(number).expect("there is room"));
        assert_eq!(table.get(handles[1]).ok().as_deref(), Some(&2));
        assert_eq!(table.remove(handles[1]).ok().as_deref(), Some(&2));
        assert!(table.get(handles[1]).is_err() && table.remove(handles[1]).is_err());
        let again: *mut u8 = table.add(4).expect("there is room");
        assert_ne!(again, handles[1], "the same place, another handle");
        assert!(table.get(handles[1]).is_err());
        assert_eq!(table.get(again).ok().as_deref(), Some(&4));
    }

    #[test]
    fn handles_of_other_kinds_and_invalid_handles_are_errors() {
        let (table, other) = (Table::new(1, "a number"), Table::new(2, "another"));
        let handle: *mut u8 = other.add(1).expect("there is room");
        let wild = std::ptr::without_provenance::<u8>(usize::MAX);
        for bad in [handle.cast_const(), std::ptr::null(), wild, &raw const *c"x".as_ptr().cast()] {
            let refused = table.get(bad).map(|_: Arc<i32>| ()).expect_err("it is none");
            assert_eq!(refused.result, Result::BadHandle);
        }
    }
}
