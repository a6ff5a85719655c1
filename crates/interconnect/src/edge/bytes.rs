//! The memory of hosts if the payload is real bytes. Fills the memory before operations, and checks
//! the bytes that arrive.
//!
//! Each stream (messages from one host to another) has memory at both ends, with a slot for each
//! operation that can be outstanding. The checks are:
//!
//! * Before an operation is posted, its slot at the source is filled with nonzero bytes that differ
//!   from those of all other operations.
//! * At the same time, its slot at the target must be all zeros. A nonzero byte means that a write
//!   arrived while no operation was outstanding.
//! * When the target is notified of a message, and when an operation completes at its source, the
//!   slot at the target must contain the bytes sent.
//! * After the operation has completed, the slot at the target is filled with zeros.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use delivery::TxFrame;
use mem::{
    Buffer, MemoryTable, PayloadSlice, ProtectionDomain, Region, RegionId, RegisterError, Rights,
};
use wire_edge::RemoteKey;

use super::super::statistics::mix;
use super::host::EngineHost;
use super::open_operations::{ADDRESS_START, OpenOperations};
use super::{BYTES_MAX, EdgeConfiguration, EdgeError};

/// Where an operation reads its bytes and where it writes them.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperationPlace {
    pub(super) source: RegionId,
    /// Offset of the bytes in the source region.
    pub(super) offset: u64,
    /// Key of the region at the target.
    pub(super) key: RemoteKey,
    /// Address of the bytes at the target.
    pub(super) address: u64,
}

impl OperationPlace {
    /// Returns where an operation reads and writes, if payloads have no real bytes. Source and
    /// target each have one region.
    pub(super) fn of_ghost(source: &EngineHost, target: &EngineHost, address: u64) -> Self {
        Self {
            source: source.region.id,
            offset: address - ADDRESS_START,
            key: target.region.key,
            address,
        }
    }
}

/// The memory of all streams.
#[derive(Debug)]
pub(super) struct Bytes {
    /// Number of slots of a stream.
    window: u64,
    /// Length of each slot, in bytes.
    place_len: u64,
    /// Memory of each stream; `None` for a stream that has never written.
    streams: Vec<Option<Ends>>,
    /// Index of each stream, by the address of its memory at the source.
    by_address: BTreeMap<u64, u32>,
    work: Vec<u8>,
}

/// The memory of a stream, at both ends.
#[derive(Debug)]
struct Ends {
    source: Arc<Buffer>,
    target: Arc<Buffer>,
    source_region: Region,
    target_region: Region,
}

impl Bytes {
    pub(super) fn new(configuration: &EdgeConfiguration) -> Self {
        Self {
            window: configuration.window.into(),
            place_len: configuration.operation_bytes.into(),
            streams: Vec::new(),
            by_address: BTreeMap::new(),
            work: Vec::new(),
        }
    }

    /// Checks that the memory suffices for all pairs that can send. If `pairs` is empty, all pairs
    /// of `ranks` ranks can send; otherwise only the pairs in `pairs` can.
    pub(super) fn check(&self, pairs: &[(u32, u32)], ranks: u32) -> Result<(), EdgeError> {
        let named: BTreeSet<(u32, u32)> = pairs.iter().copied().filter(|(a, b)| a != b).collect();
        let pairs = match named.len() as u64 {
            0 => u64::from(ranks) * u64::from(ranks.saturating_sub(1)),
            named => named,
        };
        let bytes = pairs.saturating_mul(2 * self.window * self.place_len);
        if bytes > BYTES_MAX { Err(EdgeError::Bytes { bytes, pairs }) } else { Ok(()) }
    }

    /// Writes the bytes of a stream's next operation to the memory at the stream's source. Returns
    /// where the operation reads its bytes and where it writes them. `domains` contains the
    /// protection domains of source and target.
    pub(super) fn place(
        &mut self,
        memory: &MemoryTable,
        open_operations: &mut OpenOperations,
        stream: u32,
        domains: (ProtectionDomain, ProtectionDomain),
        length: u32,
    ) -> Result<OperationPlace, RegisterError> {
        if self.streams.len() <= stream as usize {
            self.streams.resize_with(stream as usize + 1, || None);
        }
        let number = open_operations.next_number(stream);
        let offset = self.offset(number);
        let ends = match self.streams[stream as usize].take() {
            Some(ends) => ends,
            None => self.register(memory, stream, domains)?,
        };
        let ends = self.streams[stream as usize].insert(ends);
        self.work.resize(length as usize, 0);
        ends.target.read(offset, &mut self.work);
        if self.work.iter().any(|&byte| byte != 0) {
            open_operations.violate(format!(
                "stream {stream}: bytes were written at the place of operation {number}, although \
                 no operation for this place was in flight"
            ));
            self.work.fill(0);
            ends.target.write(offset, &self.work);
        }
        fill(stream, number, &mut self.work);
        ends.source.write(offset, &self.work);
        let start = ADDRESS_START + (u64::from(stream) << STREAM_SHIFT);
        Ok(OperationPlace {
            source: ends.source_region.id,
            offset,
            key: ends.target_region.key,
            address: start + offset,
        })
    }

    fn ends(&self, stream: u32) -> Option<&Ends> {
        self.streams.get(stream as usize)?.as_ref()
    }

    /// Registers the memory of a stream. The registered addresses do not depend on the real
    /// addresses, so that frames are equal in every run.
    fn register(
        &mut self,
        memory: &MemoryTable,
        stream: u32,
        (source_domain, target_domain): (ProtectionDomain, ProtectionDomain),
    ) -> Result<Ends, RegisterError> {
        let len = self.window * self.place_len;
        let (source, target) = (Buffer::new(len), Buffer::new(len));
        let start = ADDRESS_START + (u64::from(stream) << STREAM_SHIFT);
        let register = |domain, buffer: &Arc<Buffer>| {
            memory.register_as(domain, Arc::clone(buffer), start, Rights::ALL)
        };
        let source_region = register(source_domain, &source)?;
        let target_region = register(target_domain, &target)?;
        self.by_address.insert(source.address(), stream);
        Ok(Ends { source, target, source_region, target_region })
    }

    const fn offset(&self, number: u64) -> u64 {
        number % self.window * self.place_len
    }

    /// Checks the operations of a message at the time when the target is notified of the message.
    pub(super) fn on_notified(&mut self, open_operations: &mut OpenOperations, stream: u32) {
        for (number, length) in open_operations.due(stream) {
            self.compare(open_operations, stream, number, length);
        }
    }

    /// Checks the oldest operation of a stream at the time when the operation completes at its
    /// source.
    pub(super) fn on_completed(&mut self, open_operations: &mut OpenOperations, stream: u32) {
        let Some((number, length, is_found)) = open_operations.oldest(stream) else { return };
        if !is_found {
            self.compare(open_operations, stream, number, length);
        }
        let offset = self.offset(number);
        self.work.clear();
        self.work.resize(length as usize, 0);
        if let Some(Some(ends)) = self.streams.get(stream as usize) {
            ends.target.write(offset, &self.work);
        }
    }

    /// Compares an operation's bytes at the target with the bytes that were sent.
    fn compare(
        &mut self,
        open_operations: &mut OpenOperations,
        stream: u32,
        number: u64,
        length: u32,
    ) {
        let offset = self.offset(number);
        let Some(Some(ends)) = self.streams.get(stream as usize) else { return };
        self.work.resize(2 * length as usize, 0);
        let (expected, found) = self.work.split_at_mut(length as usize);
        fill(stream, number, expected);
        ends.target.read(offset, found);
        match expected.iter().zip(found.iter()).position(|(expected, found)| expected != found) {
            None => open_operations.on_found(stream, number),
            Some(at) => open_operations.violate(format!(
                "stream {stream}: byte {at} of operation {number} is {:#04x} at the target, not {:#04x}",
                found[at], expected[at]
            )),
        }
        self.work.truncate(length as usize);
    }

    /// Checks that all target memory is erased when no operation is outstanding. Reports late
    /// writes as violations.
    pub(super) fn check_erased(&mut self, open_operations: &mut OpenOperations) {
        for (stream, ends) in (0..).zip(&self.streams) {
            let Some(ends) = ends else { continue };
            if open_operations.oldest(stream).is_some() {
                continue;
            }
            self.work.resize(ends.target.len() as usize, 0);
            ends.target.read(0, &mut self.work);
            if self.work.iter().any(|&byte| byte != 0) {
                open_operations.violate(format!(
                    "stream {stream}: bytes were written after the last operation"
                ));
            }
        }
    }

    /// Assembles a frame in `memory`, with a copy of its payload, and returns it.
    ///
    /// # Panics
    /// Panics if the payload is outside the memory of all sources. In this case the engine sends
    /// memory that it must not read.
    pub(super) fn whole<'a>(&self, frame: &TxFrame<'_>, memory: &'a mut Vec<u8>) -> TxFrame<'a> {
        memory.clear();
        memory.extend_from_slice(frame.header);
        let PayloadSlice { start, len, .. } = frame.payload;
        if len > 0 {
            let address = start.addr() as u64;
            let below = self.by_address.range(..=address).next_back();
            let ends = below.and_then(|(start, stream)| Some((start, self.ends(*stream)?)));
            let Some((start, ends)) = ends else {
                panic!("{len} bytes to send at {address:#x} are outside the memory of all streams");
            };
            memory.resize(frame.header.len() + len as usize, 0);
            ends.source.read(address - start, &mut memory[frame.header.len()..]);
        }
        TxFrame { header: memory, payload: PayloadSlice::EMPTY, is_lasting: false }
    }
}

/// Fills `bytes` with the bytes that identify an operation.
fn fill(stream: u32, number: u64, bytes: &mut [u8]) {
    let seed = mix(mix(0, stream.into()), number);
    for (word, chunk) in (0_u64..).zip(bytes.chunks_mut(8)) {
        for (byte, random) in chunk.iter_mut().zip(mix(seed, word).to_le_bytes()) {
            // 0 is reserved for bytes that no operation has written.
            *byte = random.max(1);
        }
    }
}

/// Each stream has 2^31 addresses, which is more than [`BYTES_MAX`].
const STREAM_SHIFT: u32 = 31;

#[cfg(test)]
mod tests {
    use mem::{TableLimits, Target};

    use super::super::open_operations::Order;
    use super::*;

    struct Setting {
        memory: MemoryTable,
        domains: (ProtectionDomain, ProtectionDomain),
        open_operations: OpenOperations,
        bytes: Bytes,
    }

    impl Setting {
        fn new() -> Self {
            let memory = MemoryTable::new(TableLimits::default(), [1, 2]);
            let domains = (memory.allocate_domain(), memory.allocate_domain());
            let mut open_operations = OpenOperations::new(Order::default());
            open_operations.add_stream(1);
            let configuration = EdgeConfiguration {
                window: 2,
                operation_bytes: 100,
                ..EdgeConfiguration::default()
            };
            Self { memory, domains, open_operations, bytes: Bytes::new(&configuration) }
        }

        fn post(&mut self, message: Option<u32>) -> OperationPlace {
            let Self { memory, domains, open_operations, bytes } = self;
            let place = bytes.place(memory, open_operations, 0, *domains, 90).unwrap();
            open_operations.on_posted(0, 90, message);
            place
        }

        /// Copies the bytes from source to target, as the network would.
        fn carry(&self, place: OperationPlace, bytes: u64) {
            let ends = self.bytes.ends(0).unwrap();
            let mut carried = vec![0; bytes as usize];
            ends.source.read(place.offset, &mut carried);
            ends.target.write(place.offset, &carried);
        }

        fn notify(&mut self, message: u32) {
            self.bytes.on_notified(&mut self.open_operations, 0);
            self.open_operations.on_notified(0, message);
        }

        fn complete(&mut self) {
            self.bytes.on_completed(&mut self.open_operations, 0);
            self.open_operations.on_completed(0, true);
        }

        fn verdict(mut self) -> String {
            self.bytes.check_erased(&mut self.open_operations);
            self.open_operations.violations().join("; ")
        }
    }

    #[test]
    fn correct_bytes_pass_the_check_and_memory_slots_are_reused() {
        let mut setting = Setting::new();
        for round in 0..5 {
            let (first, last) = (setting.post(None), setting.post(Some(round)));
            setting.carry(last, 90);
            setting.carry(first, 90);
            setting.notify(round);
            setting.complete();
            setting.complete();
        }
        assert_eq!(setting.verdict(), "");
    }

    #[test]
    fn memory_slots_have_addresses_at_the_target() {
        let mut setting = Setting::new();
        let place = setting.post(None);
        let access = setting.memory.access();
        let target: Result<Target, _> =
            access.resolve(setting.domains.1, place.key, place.address, 90, Rights::ALL);
        assert!(target.is_ok(), "{target:?}");
    }

    #[test]
    fn missing_wrong_or_late_bytes_are_found() {
        let found = |act: &dyn Fn(&mut Setting, OperationPlace)| {
            let mut setting = Setting::new();
            let place = setting.post(Some(7));
            act(&mut setting, place);
            setting.verdict()
        };
        let missing = found(&|setting, place| {
            setting.carry(place, 50);
            setting.notify(7);
        });
        assert!(missing.contains("byte 50 of operation 0 is 0x00"), "{missing}");
        assert!(missing.contains("before all of it"), "{missing}");
        let other = found(&|setting, place| {
            setting.carry(place, 90);
            setting.bytes.ends(0).unwrap().target.write(place.offset + 3, &[0]);
            setting.notify(7);
        });
        assert!(other.contains("byte 3 of operation 0"), "{other}");
        let late = found(&|setting, place| {
            setting.carry(place, 90);
            setting.notify(7);
            setting.complete();
            setting.carry(place, 1);
        });
        assert!(late.contains("after the last operation"), "{late}");
        let reused = found(&|setting, place| {
            setting.carry(place, 90);
            setting.notify(7);
            setting.complete();
            setting.post(None);
            setting.carry(place, 1);
            setting.post(None);
        });
        assert!(reused.contains("although no operation for this place was in flight"), "{reused}");
    }

    #[test]
    fn too_much_memory_is_refused_with_its_size() {
        let configuration = EdgeConfiguration::default();
        let bytes = Bytes::new(&configuration);
        // Each pair needs memory for a window, 1 MiB, at both ends.
        assert!(bytes.check(&[(0, 1), (1, 0), (0, 1)], 1 << 20).is_ok());
        assert!(bytes.check(&[], 23).is_ok());
        let error = bytes.check(&[], 24).expect_err("too much").to_string();
        assert!(error.contains("1157627904 bytes") && error.contains("552 pairs"), "{error}");
        assert!(error.contains("operation_bytes") && error.contains("ghost"), "{error}");
    }
}
