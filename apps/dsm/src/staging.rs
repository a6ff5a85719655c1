//! Registered memory for the bytes of operations, from the post until the completion.

use std::sync::Arc;

use ethernot::{Buffer, Endpoint, MemoryRegion, RegisterError, Rights, Source};

/// Places for the bytes of operations. Most operations take a place of a pool. Pools are added when
/// all places are taken, because a registration for each operation would cost more than the
/// operation. Longer operations, and those that exceed the last pool, get memory of their own.
#[derive(Debug)]
pub(crate) struct Staging {
    endpoint: Endpoint,
    first: Pool,
    others: Vec<Pool>,
    free: Vec<u32>,
}

/// Memory of [`PLACES`] places.
#[derive(Debug)]
struct Pool {
    region: MemoryRegion,
    buffer: Arc<Buffer>,
}

impl Pool {
    fn new(endpoint: &Endpoint) -> Result<Self, RegisterError> {
        let buffer = Buffer::new(u64::from(PLACES) * PLACE_BYTES);
        let region = endpoint.register(Arc::clone(&buffer), Rights::LOCAL_WRITE)?;
        Ok(Self { region, buffer })
    }
}

/// The place of the bytes of one operation.
#[derive(Debug)]
pub(crate) enum Place {
    /// The operation has no bytes of its own, or carries them by value.
    None,
    /// The operation itself carries the bytes.
    Inline([u8; INLINE_BYTES]),
    /// A place of the pool.
    Pooled(u32),
    /// Memory of its own.
    Own(MemoryRegion, Arc<Buffer>),
}

impl Staging {
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self, RegisterError> {
        let first = Pool::new(endpoint)?;
        let free = (0..PLACES).rev().collect();
        Ok(Self { endpoint: endpoint.clone(), first, others: Vec::new(), free })
    }

    /// Returns the pool of a place, and the offset there.
    fn pool(&self, place: u32) -> (&Pool, u64) {
        let other = (place / PLACES).checked_sub(1).and_then(|pool| self.others.get(pool as usize));
        (other.unwrap_or(&self.first), u64::from(place % PLACES) * PLACE_BYTES)
    }

    /// Adds a pool if all places are taken.
    fn refill(&mut self) -> Result<(), RegisterError> {
        if self.free.is_empty() && self.others.len() < OTHER_POOLS_MAX {
            self.others.push(Pool::new(&self.endpoint)?);
            let first = self.others.len() as u32 * PLACES;
            self.free.extend((first..first + PLACES).rev());
        }
        Ok(())
    }

    /// Takes a place for `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> Result<Place, RegisterError> {
        if length as u64 <= PLACE_BYTES {
            self.refill()?;
            if let Some(index) = self.free.pop() {
                return Ok(Place::Pooled(index));
            }
        }
        let buffer = Buffer::new(length as u64);
        let region = self.endpoint.register(Arc::clone(&buffer), Rights::LOCAL_WRITE)?;
        Ok(Place::Own(region, buffer))
    }

    /// Takes a place for bytes of an operation, and copies them there. Few bytes need no memory.
    pub(crate) fn take_for(&mut self, bytes: &[u8]) -> Result<Place, RegisterError> {
        let mut inline = [0; INLINE_BYTES];
        if let Some(own) = inline.get_mut(..bytes.len()) {
            own.copy_from_slice(bytes);
            return Ok(Place::Inline(inline));
        }
        let place = self.take(bytes.len())?;
        self.fill(&place, bytes);
        Ok(place)
    }

    /// Copies `bytes` to a place.
    fn fill(&self, place: &Place, bytes: &[u8]) {
        match place {
            Place::None | Place::Inline(_) => {}
            Place::Pooled(index) => {
                let (pool, offset) = self.pool(*index);
                pool.buffer.write(offset, bytes);
            }
            Place::Own(_, buffer) => buffer.write(0, bytes),
        }
    }

    /// Returns the first `length` bytes of a place.
    pub(crate) fn read(&self, place: &Place, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        match place {
            Place::None | Place::Inline(_) => {}
            Place::Pooled(index) => {
                let (pool, offset) = self.pool(*index);
                pool.buffer.read(offset, &mut bytes);
            }
            Place::Own(_, buffer) => buffer.read(0, &mut bytes),
        }
        bytes
    }

    /// Returns region and offset of a place, as a receive names them.
    pub(crate) fn region<'a>(&'a self, place: &'a Place) -> (&'a MemoryRegion, u64) {
        match place {
            Place::None | Place::Inline(_) => (&self.first.region, 0),
            Place::Pooled(index) => {
                let (pool, offset) = self.pool(*index);
                (&pool.region, offset)
            }
            Place::Own(region, _) => (region, 0),
        }
    }

    /// Returns region and offset of a place, as an operation names them.
    pub(crate) fn source(&self, place: &Place) -> Source {
        match place {
            Place::None => Source::Inline([0; INLINE_BYTES]),
            Place::Inline(bytes) => Source::Inline(*bytes),
            Place::Pooled(index) => {
                let (pool, offset) = self.pool(*index);
                Source::Region { region: pool.region.region().id, offset }
            }
            Place::Own(region, _) => Source::Region { region: region.region().id, offset: 0 },
        }
    }

    /// Gives a place back.
    pub(crate) fn give_back(&mut self, place: &Place) {
        if let Place::Pooled(index) = place {
            self.free.push(*index);
        }
    }
}

/// Bytes that an operation itself can carry.
const INLINE_BYTES: usize = 64;

/// Bytes of a place: the largest patch of a page has 32 records of 136 bytes.
const PLACE_BYTES: u64 = 4352;

/// Number of places of a pool: 4352 B × 512 = 2.1 MiB.
const PLACES: u32 = 512;

/// Largest number of further pools: 15 MiB in all.
const OTHER_POOLS_MAX: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_find_all_places_taken_get_places_of_further_pools() {
        let endpoint = Endpoint::bind("127.0.0.1:0").unwrap();
        let mut staging = Staging::new(&endpoint).unwrap();
        let count = (1 + OTHER_POOLS_MAX as u64) * u64::from(PLACES);
        let bytes = |number: u64| number.to_le_bytes().repeat(INLINE_BYTES / 4);
        let places: Vec<_> =
            (0..=count).map(|number| staging.take_for(&bytes(number)).unwrap()).collect();
        let (last, pooled) = places.split_last().unwrap();
        assert!(pooled.iter().all(|place| matches!(place, Place::Pooled(_))));
        assert!(matches!(last, Place::Own(..)));
        for (number, place) in (0..).zip(&places) {
            assert_eq!(staging.read(place, 2 * INLINE_BYTES), bytes(number));
        }
        for place in &places {
            staging.give_back(place);
        }
        assert!(matches!(staging.take(1).unwrap(), Place::Pooled(_)));
        assert_eq!(staging.others.len(), OTHER_POOLS_MAX);
    }
}
