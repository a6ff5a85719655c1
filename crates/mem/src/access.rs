//! Access to regions during one engine turn: looks up and checks keys, places and reads bytes, and
//! performs atomics.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use wire_edge::RemoteKey;

use crate::error::AccessError;
use crate::gate::Phase;
use crate::payload::Payload;
use crate::rights::Rights;
use crate::slot::RegionId;
use crate::slot::{Slot, SlotState};
use crate::table::{MemoryTable, ProtectionDomain, Region, Window};
use crate::table::{OpenedKey, WHOLE_ADDRESS_SPACE_KEY, own_rights};
use crate::{PayloadSink, PayloadSlice, copy, fault, probe};

/// The right to look up regions and to access their memory, for one engine turn on one thread.
///
/// If a method of this access has accepted a region, [`MemoryTable::deregister`] of that region
/// does not return before the access ends. So the region's memory stays mapped until the access
/// ends. When a call of `deregister` has begun, methods of this access refuse the region.
pub struct MemoryAccess<'a> {
    table: &'a MemoryTable,
    phase: Phase,
    /// The key of the last lookup, decrypted. Successive frames of a turn usually have the same
    /// key, and decrypting a key costs half as much as placing a full frame.
    last_key: Cell<OpenedKey>,
    /// Makes the type `!Send`, because a thread-local variable counts the access.
    on_this_thread: PhantomData<*const ()>,
}

impl<'a> MemoryAccess<'a> {
    #[inline]
    pub(crate) const fn new(table: &'a MemoryTable, phase: Phase) -> Self {
        let last_key = Cell::new(OpenedKey::NOTHING);
        Self { table, phase, last_key, on_this_thread: PhantomData }
    }

    /// Returns the table of the regions, so that windows can be bound and ended during a turn.
    pub const fn table(&self) -> &'a MemoryTable {
        self.table
    }

    /// Returns the description of a region, with its current rights.
    ///
    /// # Errors
    /// Returns [`AccessError::InvalidKey`] if the region has ended, [`AccessError::ForeignRegion`]
    /// if the region belongs to another table.
    pub fn region(&self, id: RegionId) -> Result<Region, AccessError> {
        let found = self.find(id)?;
        let key = self.table.key_of(id, found.state);
        Ok(Region { id, key, start: found.start(), len: found.len(), rights: found.state.rights() })
    }

    /// Returns bytes of a region for a driver to send. The slice is valid until the access ends.
    ///
    /// # Errors
    /// Returns [`AccessError::InvalidKey`] or [`AccessError::ForeignRegion`] if there is no such
    /// region, [`AccessError::Bounds`] if the `len` bytes from `offset` exceed the region.
    #[inline]
    pub fn source(
        &self,
        region: RegionId,
        offset: u64,
        len: u32,
    ) -> Result<PayloadSlice<'_>, AccessError> {
        let place = self.find(region)?.local(offset, u64::from(len))?;
        Ok(PayloadSlice::at(place.memory(), len))
    }

    /// Copies bytes of a region to `out`. Meant for short payloads, which the engine copies behind
    /// the header of their frame.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::source`], and [`AccessError::Unmapped`] if the memory
    /// is not mapped and the fault can be caught.
    #[inline]
    pub fn copy_out(
        &self,
        region: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        self.find(region)?.local(offset, out.len() as u64)?.read(out)
    }

    /// Validates a peer's access to `[address, address + len)` under `key`. The key must be
    /// registered in the connection's `domain` with all rights of `want`, and the range must be in
    /// the region.
    ///
    /// An empty range is validated, too. It may be at the end of the region.
    ///
    /// # Errors
    /// Returns [`AccessError`] for an unknown key, a wrong domain, a missing right, or a range
    /// outside the region.
    #[inline]
    pub fn resolve(
        &self,
        domain: ProtectionDomain,
        key: RemoteKey,
        address: u64,
        len: u64,
        want: Rights,
    ) -> Result<Target, AccessError> {
        let (id, found) = self.find_key(domain, key)?;
        let owner = self.table.domain_of(found.slot);
        if owner != domain {
            return Err(AccessError::WrongDomain { accessor: domain, owner });
        }
        found.validate(id, address, len, want)
    }

    /// Finds the region of a range of local memory, with the checks of [`MemoryAccess::resolve`].
    /// Returns the region and the range's offset in the region, in bytes. Meant for callers that
    /// post work by key and address.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::resolve`].
    #[inline]
    pub fn locate(
        &self,
        domain: ProtectionDomain,
        key: RemoteKey,
        address: u64,
        len: u64,
        want: Rights,
    ) -> Result<(RegionId, u64), AccessError> {
        let target = self.resolve(domain, key, address, len, want)?;
        let start = self.find(target.region)?.start();
        Ok((target.region, target.address.wrapping_sub(start)))
    }

    /// Validates a peer's access like [`MemoryAccess::resolve`], but also accepts keys of
    /// [windows](crate::Window). `connection` is the number of the peer's connection, because some
    /// windows are bound for a single connection.
    ///
    /// Do not pass the target of a window to [`MemoryAccess::resolve_again`]. That function checks
    /// only the bounds of the region, and the window may be smaller.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::resolve`].
    #[inline]
    pub fn resolve_for(
        &self,
        domain: ProtectionDomain,
        connection: u64,
        key: RemoteKey,
        address: u64,
        len: u64,
        want: Rights,
    ) -> Result<Target, AccessError> {
        match self.resolve(domain, key, address, len, want) {
            Err(AccessError::InvalidKey { .. }) => {
                self.resolve_window(domain, connection, key, (address, len), want)
            }
            result => result,
        }
    }

    /// Resolves an access through a window to a target in the window's region. Checks two things:
    /// the window gives the peer the rights `want`, and the region gives its owner the rights that
    /// a window with the rights `want` requires.
    #[cold]
    fn resolve_window(
        &self,
        domain: ProtectionDomain,
        connection: u64,
        key: RemoteKey,
        (address, len): (u64, u64),
        want: Rights,
    ) -> Result<Target, AccessError> {
        let window = self.table.find_window(domain, connection, key);
        let window = window.ok_or(AccessError::InvalidKey { name: u64::from(key.0) })?;
        if !window.rights.contains(want) {
            return Err(AccessError::Permission { wanted: want, granted: window.rights });
        }
        match address.checked_sub(window.remote_start) {
            Some(offset) if offset <= window.len && len <= window.len - offset => {
                let offset = window.offset + offset;
                self.resolve_local(window.region, offset, len, own_rights(want))
            }
            _ => {
                let (start, limit) = (window.remote_start, window.len);
                Err(AccessError::Bounds { address, len, start, limit })
            }
        }
    }

    /// Ends a window like [`MemoryTable::invalidate`].
    ///
    /// # Errors
    /// Returns [`AccessError::InvalidKey`] if no window with this key was bound for this
    /// connection.
    pub fn invalidate(
        &self,
        domain: ProtectionDomain,
        connection: u64,
        key: RemoteKey,
    ) -> Result<Window, AccessError> {
        self.table.invalidate(domain, connection, key)
    }

    /// Validates another range of the region of `known`, for the same rights, without a key lookup.
    /// Returns the same result as [`MemoryAccess::resolve`] with the same domain and key.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::resolve`].
    #[inline]
    pub fn resolve_again(
        &self,
        known: &Target,
        address: u64,
        len: u64,
    ) -> Result<Target, AccessError> {
        self.find(known.region)?.validate(known.region, address, len, known.rights)
    }

    /// Validates a local access, for example to the memory into which a read or receive places its
    /// bytes. `offset` is in bytes from the start of the region.
    ///
    /// # Errors
    /// Returns one of these errors:
    ///
    /// * [`AccessError::InvalidKey`] or [`AccessError::ForeignRegion`] if there is no such region;
    /// * [`AccessError::Permission`] if the region lacks a right of `want`;
    /// * [`AccessError::Bounds`] if the `len` bytes from `offset` exceed the region.
    #[inline]
    pub fn resolve_local(
        &self,
        region: RegionId,
        offset: u64,
        len: u64,
        want: Rights,
    ) -> Result<Target, AccessError> {
        let found = self.find(region)?;
        let Some(address) = found.start().checked_add(offset) else {
            return Err(found.out_of_bounds(u64::MAX, len));
        };
        found.validate(region, address, len, want)
    }

    /// Copies `bytes` to the target, `offset` bytes after its start. Other threads may see the
    /// bytes appear in any order.
    ///
    /// The target must come from a validation for [`Rights::LOCAL_WRITE`] or
    /// [`Rights::REMOTE_WRITE`].
    ///
    /// # Errors
    /// Returns one of these errors, like all functions that use a target:
    ///
    /// * [`AccessError::InvalidKey`] if the region of the target has ended;
    /// * [`AccessError::Permission`] if the target was validated for other rights;
    /// * [`AccessError::Bounds`] if the range exceeds the target;
    /// * [`AccessError::Unmapped`] if the memory is not mapped and the fault can be caught.
    #[inline]
    pub fn place<'p>(
        &self,
        target: &Target,
        offset: u64,
        bytes: impl Into<Payload<'p>>,
    ) -> Result<(), AccessError> {
        let bytes = bytes.into();
        let place = self.find_target(target, offset, bytes.len() as u64, Use::Write)?;
        if !place.state.is_plain() {
            return self.place_elsewhere(&place, bytes, copy::write_fault_safe);
        }
        // SAFETY: the region is live during this access. So its memory is mapped and writable, by
        // the contract of its registration. The bounds were checked, and a payload is readable.
        let copied = unsafe { fault::copy(place.memory, bytes.as_ptr(), bytes.len()) };
        place.check(copied, bytes.len())
    }

    //= protocol.md: relaxed.2
    /// Copies bytes like [`MemoryAccess::place`], but stores the last 1 to 8 bytes after all others
    /// and with release semantics. If a thread sees the last bytes, it therefore also sees all
    /// bytes that this thread placed before.
    ///
    /// The last bytes are the widest naturally aligned word of at most 8 bytes at the end of the
    /// range. A program that polls on the last byte of a word therefore never sees the word torn.
    /// In the whole-address-space region, only one byte is stored last.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`].
    #[inline]
    pub fn place_tail<'p>(
        &self,
        target: &Target,
        offset: u64,
        bytes: impl Into<Payload<'p>>,
    ) -> Result<(), AccessError> {
        let bytes = bytes.into();
        let place = self.find_target(target, offset, bytes.len() as u64, Use::Write)?;
        if !place.state.is_plain() {
            return self.place_elsewhere(&place, bytes, copy::write_tail_fault_safe);
        }
        // SAFETY: the region is live during this access. So its memory is mapped and writable, by
        // the contract of its registration. The bounds were checked, and a payload is readable.
        let copied = unsafe { copy::copy_tail(place.memory, bytes.as_ptr(), bytes.len()) };
        place.check(copied, bytes.len())
    }

    //= protocol.md: patch.6
    /// Stores scattered words of four bytes in a block of at most 32 words. The block begins
    /// `offset` bytes after the start of the target. If bit i of `bitmap` is set, stores the next
    /// word of `words` in word i of the block.
    ///
    /// Each word is one store, so other threads see the old word or the new word. The last word is
    /// stored after the others and with release semantics. In the whole-address-space region, the
    /// kernel copies and may tear words.
    ///
    /// The target must come from a validation for [`Rights::LOCAL_WRITE`] or
    /// [`Rights::REMOTE_WRITE`]. Only the words whose bits are set must be in the target. Costs one
    /// check of the region, and 1 to 2 ns for each word.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`], and [`AccessError::Misaligned`] if the
    /// address of the block is not a multiple of 4. Returns [`AccessError::Unmapped`] for a region
    /// without memory.
    ///
    /// # Panics
    /// Panics if `words` does not have four bytes for each bit of `bitmap` that is set.
    pub fn place_words<'p>(
        &self,
        target: &Target,
        offset: u64,
        bitmap: u32,
        words: impl Into<Payload<'p>>,
    ) -> Result<(), AccessError> {
        let words = words.into();
        assert_eq!(words.len(), 4 * bitmap.count_ones() as usize, "four bytes for each bit");
        if bitmap == 0 {
            return Ok(());
        }
        let first = bitmap.trailing_zeros();
        let bitmap = bitmap >> first;
        let offset = offset.saturating_add(u64::from(4 * first));
        let len = 4 * u64::from(32 - bitmap.leading_zeros());
        let place = self.find_target(target, offset, len, Use::Write)?;
        // Check the local address, because peers may use remote addresses with another alignment.
        if !place.memory().addr().is_multiple_of(4) {
            return Err(AccessError::Misaligned { address: place.address });
        }
        if !place.state.is_plain() {
            return Self::place_words_elsewhere(&place, bitmap, words);
        }
        // SAFETY: the region is live during this access. So its memory is mapped and writable, by
        // the contract of its registration. The bounds and the alignment were checked. The payload
        // is readable, and has a word for each bit.
        let left = unsafe { fault::store_words(place.memory, bitmap, words.as_ptr()) };
        if left == 0 { Ok(()) } else { Err(place.unmapped(4 * left.trailing_zeros() as usize)) }
    }

    #[cold]
    fn place_words_elsewhere(
        place: &CheckedPlace,
        bitmap: u32,
        words: Payload<'_>,
    ) -> Result<(), AccessError> {
        if place.state.is_ghost() {
            return Err(AccessError::Unmapped { address: place.address });
        }
        copy::write_words_fault_safe(place.address, bitmap, words)
    }

    /// Returns the address of the target's first byte in this process. Meant for comparing targets
    /// in regions for which peers use different addresses.
    ///
    /// The target must come from a validation for [`Rights::LOCAL_WRITE`] or
    /// [`Rights::REMOTE_WRITE`].
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`], except that unmapped memory is not detected.
    pub fn memory_address(&self, target: &Target) -> Result<u64, AccessError> {
        let place = self.find_target(target, 0, target.len, Use::Write)?;
        Ok(place.memory().addr() as u64)
    }

    /// Returns bytes of a target for a driver to send as the answer to a peer's read. The slice is
    /// valid until the access ends.
    ///
    /// The target must come from a validation for [`Rights::REMOTE_READ`], or from
    /// [`MemoryAccess::resolve_local`].
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`], except that unmapped memory is not detected.
    #[inline]
    pub fn source_of(
        &self,
        target: &Target,
        offset: u64,
        len: u32,
    ) -> Result<PayloadSlice<'_>, AccessError> {
        let place = self.find_target(target, offset, u64::from(len), Use::Read)?;
        Ok(PayloadSlice::at(place.memory(), len))
    }

    /// Returns memory of a target in which a driver lets the kernel store received bytes, beginning
    /// `offset` bytes after the start of the target. The memory is valid until the access ends.
    ///
    /// The kernel stores bytes in any order. If a program may poll on the last bytes of a message,
    /// place these bytes by [`MemoryAccess::place_tail`].
    ///
    /// The target must come from a validation for [`Rights::LOCAL_WRITE`] or
    /// [`Rights::REMOTE_WRITE`].
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`], except that unmapped memory is not detected.
    /// Returns [`AccessError::Unmapped`] for a region without memory.
    #[inline]
    pub fn sink(
        &self,
        target: &Target,
        offset: u64,
        len: u32,
    ) -> Result<PayloadSink<'_>, AccessError> {
        let place = self.find_target(target, offset, u64::from(len), Use::Write)?;
        if place.state.is_ghost() {
            return Err(AccessError::Unmapped { address: place.address });
        }
        Ok(PayloadSink { start: place.memory(), len, access: PhantomData })
    }

    /// Copies bytes of a target to `out`, beginning `offset` bytes after the start of the target.
    ///
    /// The target must come from a validation for [`Rights::REMOTE_READ`], or from
    /// [`MemoryAccess::resolve_local`].
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`].
    #[inline]
    pub fn copy_from(
        &self,
        target: &Target,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        self.find_target(target, offset, out.len() as u64, Use::Read)?.read(out)
    }

    //= protocol.md: answer.3
    /// Adds `operand` to the first eight bytes of the target and returns their old value. The
    /// addition is atomic for all processors. The bytes are in native order, and their address must
    /// be a multiple of 8.
    ///
    /// The target must come from a validation for [`Rights::REMOTE_ATOMIC`] or
    /// [`Rights::LOCAL_WRITE`].
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`], and [`AccessError::Misaligned`] if the
    /// address is not a multiple of 8.
    pub fn fetch_add(&self, target: &Target, operand: u64) -> Result<u64, AccessError> {
        let word = self.word(target)?;
        // SAFETY: `word` checked the alignment, and the bounds and rights of a live region.
        let held = unsafe { fault::fetch_add(word, operand) };
        held.ok_or(AccessError::Unmapped { address: target.address })
    }

    //= protocol.md: answer.3
    /// Stores `swap` in the first eight bytes of the target if these bytes equal `compare`, and
    /// returns their old value. Atomicity, byte order and required rights are the same as for
    /// [`MemoryAccess::fetch_add`].
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::fetch_add`].
    pub fn compare_swap(
        &self,
        target: &Target,
        compare: u64,
        swap: u64,
    ) -> Result<u64, AccessError> {
        let word = self.word(target)?;
        // SAFETY: `word` checked the alignment, and the bounds and rights of a live region.
        let held = unsafe { fault::compare_swap(word, compare, swap) };
        held.ok_or(AccessError::Unmapped { address: target.address })
    }

    //= protocol.md: answer.3
    /// Stores `value` in the first eight bytes of the target, and returns their old value.
    /// Atomicity, byte order and required rights are the same as for [`MemoryAccess::fetch_add`].
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::fetch_add`].
    pub fn swap(&self, target: &Target, value: u64) -> Result<u64, AccessError> {
        let word = self.word(target)?;
        // SAFETY: `word` checked the alignment, and the bounds and rights of a live region.
        let held = unsafe { fault::swap(word, value) };
        held.ok_or(AccessError::Unmapped { address: target.address })
    }

    /// Returns the first eight bytes of the target, in native byte order.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`], for the 8 bytes.
    pub fn read_value(&self, target: &Target) -> Result<u64, AccessError> {
        let mut bytes = [0; 8];
        self.copy_from(target, 0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Places `value` at the start of the target in native byte order, like
    /// [`MemoryAccess::place_tail`]. Meant for the result of a local atomic operation.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryAccess::place`], for the 8 bytes.
    pub fn write_value(&self, target: &Target, value: u64) -> Result<(), AccessError> {
        self.place_tail(target, 0, &value.to_ne_bytes())
    }

    /// Places bytes in regions where a plain copy is impossible. For the whole address space, the
    /// kernel copies. For ghost regions, which have no memory, appends the placement to their log.
    #[cold]
    fn place_elsewhere(
        &self,
        place: &CheckedPlace,
        bytes: Payload<'_>,
        through_kernel: fn(u64, Payload<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if place.state.is_ghost() {
            self.table.log_ghost(place.address, bytes);
            return Ok(());
        }
        through_kernel(place.address, bytes)
    }

    #[inline]
    fn find(&self, id: RegionId) -> Result<Found<'_>, AccessError> {
        if id.table() != self.table.number() {
            return Err(AccessError::ForeignRegion { region: id });
        }
        if let Some(slot) = self.table.slot(id.index()) {
            let state = slot.state();
            if state.is_live(id.generation()) {
                return Ok(Found { slot, state });
            }
        }
        Err(AccessError::InvalidKey { name: id.to_raw() })
    }

    //= protocol.md: peer.1
    #[inline]
    fn find_key(
        &self,
        domain: ProtectionDomain,
        key: RemoteKey,
    ) -> Result<(RegionId, Found<'_>), AccessError> {
        let unknown = AccessError::InvalidKey { name: u64::from(key.0) };
        if key == WHOLE_ADDRESS_SPACE_KEY {
            let id = self.table.whole_address_space(domain).ok_or(unknown)?;
            return Ok((id, self.find(id).map_err(|_| unknown)?));
        }
        let mut opened = self.last_key.get();
        if opened.key != key {
            opened = self.table.open_key(key);
            self.last_key.set(opened);
        }
        let slot = self.table.slot(opened.index).ok_or(unknown)?;
        let state = slot.state();
        if state.is_live_key(opened.generation) && !state.is_whole_address_space() {
            let id = RegionId::new(self.table.number(), opened.index, state.generation());
            Ok((id, Found { slot, state }))
        } else {
            Err(unknown)
        }
    }

    /// Repeats all checks of the validation of the target. This costs little.
    #[inline]
    fn find_target(
        &self,
        target: &Target,
        offset: u64,
        len: u64,
        purpose: Use,
    ) -> Result<CheckedPlace, AccessError> {
        let found = self.find(target.region)?;
        let granted = target.rights;
        let allowed = match purpose {
            Use::Write => granted.intersects(Rights::LOCAL_WRITE.union(Rights::REMOTE_WRITE)),
            Use::Atomic => granted.intersects(Rights::LOCAL_WRITE.union(Rights::REMOTE_ATOMIC)),
            Use::Read => {
                let remote = Rights::REMOTE_WRITE.union(Rights::REMOTE_ATOMIC);
                granted.contains(Rights::REMOTE_READ) || !granted.intersects(remote)
            }
        };
        if !allowed {
            return Err(purpose.refused(granted));
        }
        if !found.state.rights().contains(granted) {
            return Err(found.lacks(target.region, granted));
        }
        let inside = offset.checked_add(len).is_some_and(|end| end <= target.len);
        if !inside {
            let address = target.address.saturating_add(offset);
            let (start, limit) = (target.address, target.len);
            return Err(AccessError::Bounds { address, len, start, limit });
        }
        found.place(target.address.wrapping_add(offset), len)
    }

    fn word(&self, target: &Target) -> Result<*mut u8, AccessError> {
        let place = self.find_target(target, 0, 8, Use::Atomic)?;
        // Check the local address, because peers may use remote addresses with another alignment.
        let memory = place.memory();
        if !target.address.is_multiple_of(8) || !memory.addr().is_multiple_of(8) {
            return Err(AccessError::Misaligned { address: target.address });
        }
        let is_there = place.state.is_plain()
            || (!place.state.is_ghost() && probe::is_writable(place.address));
        if !is_there {
            return Err(AccessError::Unmapped { address: place.address });
        }
        Ok(memory)
    }
}

impl Drop for MemoryAccess<'_> {
    #[inline]
    fn drop(&mut self) {
        self.table.gate().leave(&self.phase);
    }
}

impl fmt::Debug for MemoryAccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryAccess").finish_non_exhaustive()
    }
}

/// A validated range of a region. A caller may keep it across turns, because each use checks that
/// the region has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    address: u64,
    len: u64,
    region: RegionId,
    /// The rights for which the range was validated.
    rights: Rights,
}

impl Target {
    /// Returns the address that peers use for the first byte of the target.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns the region that contains the range.
    pub const fn region(&self) -> RegionId {
        self.region
    }

    /// Returns the rights for which the range was validated.
    pub const fn rights(&self) -> Rights {
        self.rights
    }
}

/// A live entry of the table.
struct Found<'a> {
    slot: &'a Slot,
    state: SlotState,
}

impl Found<'_> {
    #[inline]
    fn start(&self) -> u64 {
        self.slot.start.load(Ordering::Relaxed)
    }

    #[inline]
    fn len(&self) -> u64 {
        self.slot.len.load(Ordering::Relaxed)
    }

    #[inline]
    fn validate(
        &self,
        region: RegionId,
        address: u64,
        len: u64,
        want: Rights,
    ) -> Result<Target, AccessError> {
        let granted = self.state.rights();
        if !granted.contains(want) {
            return Err(self.lacks(region, want));
        }
        self.offset_of(address, len)?;
        Ok(Target { address, len, region, rights: want })
    }

    /// Returns the offset of `address` in the region, if the `len` bytes from there are in the
    /// region.
    #[inline]
    fn offset_of(&self, address: u64, len: u64) -> Result<u64, AccessError> {
        let limit = self.len();
        match address.checked_sub(self.start()) {
            Some(offset) if offset <= limit && len <= limit - offset => Ok(offset),
            _ => Err(self.out_of_bounds(address, len)),
        }
    }

    #[inline]
    fn local(&self, offset: u64, len: u64) -> Result<CheckedPlace, AccessError> {
        match self.start().checked_add(offset) {
            Some(address) => self.place(address, len),
            None => Err(self.out_of_bounds(u64::MAX, len)),
        }
    }

    #[inline]
    fn place(&self, address: u64, len: u64) -> Result<CheckedPlace, AccessError> {
        let offset = self.offset_of(address, len)?;
        Ok(CheckedPlace {
            memory: self.slot.memory.load(Ordering::Relaxed).wrapping_add(offset as usize),
            address,
            state: self.state,
        })
    }

    /// Returns the error for missing rights. If the region is revoked, peers get the error for a
    /// region that has ended.
    #[cold]
    fn lacks(&self, region: RegionId, wanted: Rights) -> AccessError {
        if self.state.is_revoked() && wanted.intersects(Rights::REMOTE) {
            return AccessError::InvalidKey { name: region.to_raw() };
        }
        AccessError::Permission { wanted, granted: self.state.rights() }
    }

    #[cold]
    fn out_of_bounds(&self, address: u64, len: u64) -> AccessError {
        AccessError::Bounds { address, len, start: self.start(), limit: self.len() }
    }
}

/// The location of checked bytes.
struct CheckedPlace {
    memory: *mut u8,
    /// The address by which peers reach the bytes. In the whole-address-space region, this is also
    /// the local address.
    address: u64,
    /// State of the region's table entry, which contains the kind of the region.
    state: SlotState,
}

impl CheckedPlace {
    #[inline]
    fn memory(&self) -> *mut u8 {
        if self.state.is_plain() {
            self.memory
        } else {
            core::ptr::with_exposed_provenance_mut(self.address as usize)
        }
    }

    #[inline]
    fn read(&self, out: &mut [u8]) -> Result<(), AccessError> {
        if !self.state.is_plain() {
            return self.read_elsewhere(out);
        }
        // SAFETY: a place belongs to a live region, its bounds were checked, and it is used within
        // the access. So its memory is mapped and readable, by the contract of the registration.
        let copied = unsafe { fault::copy(out.as_mut_ptr(), self.memory, out.len()) };
        self.check(copied, out.len())
    }

    /// Checks that all bytes were copied.
    #[inline]
    fn check(&self, copied: usize, len: usize) -> Result<(), AccessError> {
        if copied == len { Ok(()) } else { Err(self.unmapped(copied)) }
    }

    #[cold]
    fn unmapped(&self, copied: usize) -> AccessError {
        AccessError::Unmapped { address: self.address.wrapping_add(copied as u64) }
    }

    #[cold]
    fn read_elsewhere(&self, out: &mut [u8]) -> Result<(), AccessError> {
        if !self.state.is_ghost() {
            return copy::read_fault_safe(self.address, out);
        }
        crate::ghost::write_stamp(self.address, out);
        Ok(())
    }
}

/// The use of a target.
#[derive(Clone, Copy)]
enum Use {
    Read,
    Write,
    Atomic,
}

impl Use {
    #[cold]
    fn refused(self, granted: Rights) -> AccessError {
        let wanted = match self {
            Self::Read => Rights::REMOTE_READ,
            Self::Write => Rights::LOCAL_WRITE.union(Rights::REMOTE_WRITE),
            Self::Atomic => Rights::LOCAL_WRITE.union(Rights::REMOTE_ATOMIC),
        };
        AccessError::Permission { wanted, granted }
    }
}

#[cfg(test)]
mod tests;
