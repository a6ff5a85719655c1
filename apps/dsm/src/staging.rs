//! Registered memory for the bytes of operations, from the post until the completion.

use std::sync::Arc;

use ethernot::{Buffer, Endpoint, MemoryRegion, RegisterError, Rights, Source};

/// Places for the bytes of operations. Most operations take a place of the pool; longer ones, and
/// those that find the pool empty, get memory of their own.
#[derive(Debug)]
pub(crate) struct Staging {
    endpoint: Endpoint,
    pool: MemoryRegion,
    buffer: Arc<Buffer>,
    free: Vec<u32>,
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
        let buffer = Buffer::new(u64::from(PLACES) * PLACE_BYTES);
        let pool = endpoint.register(Arc::clone(&buffer), Rights::LOCAL_WRITE)?;
        let free = (0..PLACES).rev().collect();
        Ok(Self { endpoint: endpoint.clone(), pool, buffer, free })
    }

    /// Takes a place for `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> Result<Place, RegisterError> {
        if length as u64 <= PLACE_BYTES
            && let Some(index) = self.free.pop()
        {
            return Ok(Place::Pooled(index));
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
            Place::Pooled(index) => self.buffer.write(u64::from(*index) * PLACE_BYTES, bytes),
            Place::Own(_, buffer) => buffer.write(0, bytes),
        }
    }

    /// Returns the first `length` bytes of a place.
    pub(crate) fn read(&self, place: &Place, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        match place {
            Place::None | Place::Inline(_) => {}
            Place::Pooled(index) => self.buffer.read(u64::from(*index) * PLACE_BYTES, &mut bytes),
            Place::Own(_, buffer) => buffer.read(0, &mut bytes),
        }
        bytes
    }

    /// Returns region and offset of a place, as a receive names them.
    pub(crate) fn region<'a>(&'a self, place: &'a Place) -> (&'a MemoryRegion, u64) {
        match place {
            Place::None | Place::Inline(_) => (&self.pool, 0),
            Place::Pooled(index) => (&self.pool, u64::from(*index) * PLACE_BYTES),
            Place::Own(region, _) => (region, 0),
        }
    }

    /// Returns region and offset of a place, as an operation names them.
    pub(crate) fn source(&self, place: &Place) -> Source {
        match place {
            Place::None => Source::Inline([0; INLINE_BYTES]),
            Place::Inline(bytes) => Source::Inline(*bytes),
            Place::Pooled(index) => Source::Region {
                region: self.pool.region().id,
                offset: u64::from(*index) * PLACE_BYTES,
            },
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

/// Number of places: 4352 B × 512 = 2.1 MiB.
const PLACES: u32 = 512;
