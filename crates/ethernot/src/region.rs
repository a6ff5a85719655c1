//! Registered memory of this process and of peers.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

#[cfg(doc)]
use mem::MemoryTable;
use mem::{Buffer, ProtectionDomain, Region, RegionId, RegisterError, Rights};
use runtime::Regions;
use thiserror::Error;
use wire_edge::RemoteKey;

#[cfg(doc)]
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::{PostError, RemoteRegionError};

/// Registered memory of this process. Operations may use it, and peers may access it according to
/// its rights.
///
/// When the region is dropped, peers can no longer access it. For pending operations and receives
/// of this process, the effect depends on the kind of memory:
///
/// * Memory of a [`Buffer`] stays registered until all these operations and receives have ended. So
///   a program may drop the future of an operation together with its memory, for example after a
///   timeout.
/// * Memory that the program owns ([`Endpoint::adopt`]) and the [whole address
///   space](Endpoint::register_whole_address_space) are deregistered at once. The library does not
///   access their bytes after the drop. If a pending operation needs these bytes, the connection of
///   the operation ends.
///
/// ```
/// # use std::{thread, time::Duration};
/// # use ethernot::{Buffer, Endpoint, Error, OperationOptions, RemoteRegion, Rights};
/// # fn main() -> Result<(), Error> {
/// # let target = Endpoint::bind("127.0.0.1:0")?;
/// # let offered = target.register(Buffer::new(4096), Rights::REMOTE_READ)?;
/// # let remote = offered.remote();
/// # let (listener, address) = (target.listen(0)?, target.local_addresses()?[0]);
/// # let accepting = thread::spawn(move || listener.accept(None)?.accept(&[]).map_err(Error::from));
/// # let endpoint = Endpoint::bind("127.0.0.1:0")?;
/// # let connection = endpoint.connect(address)?;
/// let memory = endpoint.register(Buffer::new(4096), Rights::LOCAL_WRITE)?;
/// let read = connection.read(&memory, 0, &remote, 0, 4096, OperationOptions::NONE)?;
/// drop(memory);
/// read.wait(Some(Duration::from_secs(5)))?;
/// # drop((connection, accepting.join().expect("it does not panic")?));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryRegion {
    region: Region,
    registration: Arc<Registration>,
}

/// The registration of a region. Received messages contain a reference to the registration, so that
/// the program can read the messages after it has dropped the region.
#[derive(Debug)]
pub(crate) struct Registration {
    region: RegionId,
    regions: Regions,
}

impl Registration {
    pub(crate) const fn id(&self) -> RegionId {
        self.region
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Ignore the error. It can only mean that the program has already deregistered the region
        // by its identifier.
        let _gone = self.regions.release(self.region);
    }
}

impl MemoryRegion {
    /// Returns the description with which peers can access the region.
    pub const fn remote(&self) -> RemoteRegion {
        RemoteRegion { key: self.region.key, address: self.region.start, len: self.region.len }
    }

    /// Returns the key, identifier, address, length and rights of the region.
    pub const fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) const fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub const fn len(&self) -> u64 {
        self.region.len
    }

    /// Returns a part of the region. The range counts bytes from the start of the region. The
    /// [lists](Connection::write_list) of scatter/gather operations consist of such parts.
    ///
    /// ```
    /// # fn main() -> Result<(), ethernot::Error> {
    /// # let endpoint = ethernot::Endpoint::bind("127.0.0.1:0")?;
    /// let region = endpoint.register(ethernot::Buffer::new(4096), ethernot::Rights::REMOTE_READ)?;
    /// let page = region.slice(1024..2048)?;
    /// assert_eq!((page.len(), page.slice(1000..)?.len()), (1024, 24));
    /// // A peer that gets only this part can still reach the rest, because the key is that of the region.
    /// assert_eq!(page.remote().address, region.remote().address + 1024);
    /// assert!(region.slice(4000..5000).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`RangeError`] if the range exceeds the region.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RegionSlice<'_>, RangeError> {
        RegionSlice { region: self, offset: 0, length: self.len() }.slice(range)
    }
}

/// A byte range of a [`MemoryRegion`].
#[derive(Clone, Copy, Debug)]
pub struct RegionSlice<'a> {
    region: &'a MemoryRegion,
    offset: u64,
    length: u64,
}

impl<'a> RegionSlice<'a> {
    /// Returns a part of the slice. The range counts bytes from the start of the slice.
    ///
    /// # Errors
    /// Returns [`RangeError`] if the range exceeds the slice.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self, RangeError> {
        let (start, length) = part(range, self.length)?;
        // The range is within this slice, and this slice is within its region.
        Ok(Self { region: self.region, offset: self.offset + start, length })
    }

    /// Returns the description of these bytes for peers. It contains the key of the whole region,
    /// so a peer that has the description can access the whole region. To give a peer only part of
    /// a buffer, register this [part](MemoryTable::register_part) separately, so that it has its
    /// own key.
    pub const fn remote(&self) -> RemoteRegion {
        let RemoteRegion { key, address, .. } = self.region.remote();
        RemoteRegion { key, address: address.wrapping_add(self.offset), len: self.length }
    }

    /// Returns the region.
    pub const fn region(&self) -> &'a MemoryRegion {
        self.region
    }

    /// Returns the offset of the first byte from the start of the region, in bytes.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the slice is empty.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Error for a range that exceeds the region or slice.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error(
    "bytes {start} to {end} are outside the {limit} bytes of the region; name a range within these \
     bytes"
)]
pub struct RangeError {
    /// Offset of the first byte of the range.
    pub start: u64,
    /// Offset of the end of the range, exclusive.
    pub end: u64,
    /// Length of the region or slice in bytes.
    pub limit: u64,
}

/// Returns the start and the length of a range within `limit` bytes.
fn part(range: impl RangeBounds<u64>, limit: u64) -> Result<(u64, u64), RangeError> {
    let after = |at: u64| at.checked_add(1);
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => after(before),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => after(last),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(limit),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= limit => Ok((start, end - start)),
        _ => {
            let (start, end) = (start.unwrap_or(u64::MAX), end.unwrap_or(u64::MAX));
            Err(RangeError { start, end, limit })
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let Registration { region, regions } = &*self.registration;
        // If this is the last reference, do nothing: dropping the reference ends the registration.
        if Arc::strong_count(&self.registration) > 1 {
            // Ignore the error. It can only mean that the program has already deregistered the
            // region by its identifier.
            let _gone = regions.revoke(*region);
        }
    }
}

/// A region of a peer: its key, address and length.
///
/// [`RemoteRegion::to_bytes`] encodes the description in 20 bytes. Programs send these bytes as
/// private data of a handshake or in a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemoteRegion {
    /// Key of the region.
    pub key: RemoteKey,
    /// Address of the first byte in the peer's address space.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

impl RemoteRegion {
    /// Length of the encoded description in bytes.
    pub const BYTES: usize = 20;

    /// Encodes the description of the region: key, address and length, little-endian.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let fields = self
            .key
            .0
            .to_le_bytes()
            .into_iter()
            .chain(self.address.to_le_bytes())
            .chain(self.len.to_le_bytes());
        for (byte, field) in bytes.iter_mut().zip(fields) {
            *byte = field;
        }
        bytes
    }

    /// Decodes the description of a region, as encoded by [`RemoteRegion::to_bytes`].
    ///
    /// # Errors
    /// Returns [`RemoteRegionError`] if the bytes have another length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RemoteRegionError> {
        let error = RemoteRegionError(bytes.len());
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| error)?;
        let number = |range: std::ops::Range<usize>| {
            let bytes = bytes.iter().skip(range.start).take(range.len());
            bytes.rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte))
        };
        Ok(Self {
            key: RemoteKey(number(0..4) as u32),
            address: number(4..12),
            len: number(12..20),
        })
    }

    /// Returns a part of the region. The range counts bytes from the start of the region.
    /// Operations on the part cannot exceed the part. Only this end checks this, because the key
    /// permits access to the whole region.
    ///
    /// ```
    /// use ethernot::{RemoteKey, RemoteRegion};
    ///
    /// let region = RemoteRegion { key: RemoteKey(7), address: 4096, len: 1000 };
    /// let record = region.slice(640..704)?;
    /// assert_eq!((record.address, record.len), (4096 + 640, 64));
    /// assert!(region.slice(990..1001).is_err());
    /// # Ok::<(), ethernot::RangeError>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`RangeError`] if the range exceeds the region.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self, RangeError> {
        let (start, len) = part(range, self.len)?;
        match self.address.checked_add(start) {
            Some(address) => Ok(Self { key: self.key, address, len }),
            // The region as described by the peer exceeds the address space.
            None => Err(RangeError { start, end: start.saturating_add(len), limit: self.len }),
        }
    }

    /// Returns the address at `offset`, if the `length` bytes from this address are in the region.
    pub(crate) fn address_of(&self, offset: u64, length: u64) -> Result<u64, PostError> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.len);
        match self.address.checked_add(offset) {
            Some(address) if inside => Ok(address),
            _ => Err(PostError::RemoteBounds { offset, length, limit: self.len }),
        }
    }
}

impl Endpoint {
    /// Registers a buffer in the endpoint's own protection domain. If the endpoint shares memory
    /// with other processes, some of them can read the buffer: see [`Buffer`].
    ///
    /// # Errors
    /// Returns [`RegisterError`]; each variant names one cause.
    pub fn register(
        &self,
        buffer: Arc<Buffer>,
        rights: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        self.register_in(self.domain(), buffer, rights)
    }

    /// Registers a buffer in a protection domain. Only connections of this domain can access it.
    ///
    /// # Errors
    /// Returns [`RegisterError`]; each variant names one cause.
    pub fn register_in(
        &self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        rights: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        self.adopt(self.memory().register(domain, buffer, rights)?)
    }

    /// Registers every address of this process. Peers can then use plain addresses, as in
    /// `MultiEdge`. Peers can read and change all memory, so use this method only in trusted
    /// clusters. Each copy costs a system call. Access to an unmapped address is an error.
    ///
    /// # Errors
    /// Returns [`RegisterError`]; each variant names one cause.
    pub fn register_whole_address_space(
        &self,
        rights: Rights,
    ) -> Result<MemoryRegion, RegisterError> {
        self.adopt(self.memory().register_whole_address_space(self.domain(), rights)?)
    }

    /// Returns an owner for a region in the endpoint's table. Dropping the owner deregisters the
    /// region. The owner is useful for memory of the program that was registered by the unsafe
    /// [`MemoryTable::register_raw`].
    ///
    /// ```no_run
    /// # fn f(endpoint: &ethernot::Endpoint, start: *mut u8) -> Result<(), ethernot::Error> {
    /// let (table, domain) = (endpoint.memory(), endpoint.domain());
    /// // SAFETY: the bytes outlive the region.
    /// let raw = unsafe { table.register_raw(domain, start, 4096, ethernot::Rights::REMOTE_READ)? };
    /// let region = endpoint.adopt(raw)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`RegisterError`] if the region belongs to another table.
    pub fn adopt(&self, region: Region) -> Result<MemoryRegion, RegisterError> {
        self.memory().check_region(region.id)?;
        let regions = self.inner.runtime.regions();
        let registration = Arc::new(Registration { region: region.id, regions });
        Ok(MemoryRegion { region, registration })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_region_decodes_from_its_bytes() {
        let region = RemoteRegion {
            key: RemoteKey(0x0102_0304),
            address: 0x1122_3344_5566_7788,
            len: 0x99aa_bbcc_ddee_ff00,
        };
        assert_eq!(RemoteRegion::from_bytes(&region.to_bytes()), Ok(region));
        assert_eq!(RemoteRegion::from_bytes(&[0; 19]), Err(RemoteRegionError(19)));
    }

    #[test]
    fn slices_stay_within_their_region() {
        assert_eq!(part(.., 10), Ok((0, 10)));
        assert_eq!(part(3..=9, 10), Ok((3, 7)));
        assert_eq!(part(10.., 10), Ok((10, 0)));
        assert_eq!(part((Bound::Excluded(2), Bound::Unbounded), 10), Ok((3, 7)));
        for (start, end) in [(3, 11), (11, 11), (5, 4), (0, u64::MAX)] {
            assert_eq!(part(start..end, 10), Err(RangeError { start, end, limit: 10 }));
        }
        assert!(part(0..=u64::MAX, u64::MAX).is_err());
        let region = RemoteRegion { key: RemoteKey(1), address: u64::MAX - 4, len: 10 };
        assert_eq!(region.slice(4..5).map(|slice| slice.address), Ok(u64::MAX));
        assert_eq!(region.slice(5..6), Err(RangeError { start: 5, end: 6, limit: 10 }));
    }

    #[test]
    fn ranges_beyond_a_remote_region_are_refused() {
        let region = RemoteRegion { key: RemoteKey(1), address: 1000, len: 10 };
        assert_eq!(region.address_of(3, 7), Ok(1003));
        assert_eq!(region.address_of(10, 0), Ok(1010));
        for (offset, length) in [(3, 8), (11, 0), (u64::MAX, 2)] {
            assert!(region.address_of(offset, length).is_err());
        }
    }
}
