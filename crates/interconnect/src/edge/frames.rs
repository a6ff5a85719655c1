//! Frames in flight between engines: their header bytes, and where their payload comes from.

use delivery::TxFrame;

use super::RAIL_BITS;

/// Frames in flight; each has an index. The table reuses entries. Its size is therefore the largest
/// number of frames that were in flight at the same time.
#[derive(Debug, Default)]
pub(super) struct Frames {
    entries: Vec<Frame>,
    vacant: Vec<u32>,
    /// Headers that are longer than the array in `Frame`.
    long: Vec<Vec<u8>>,
    vacant_long: Vec<u32>,
}

/// A frame in flight. The payload is not stored.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Frame {
    /// Address of the first payload byte at the sender.
    origin: u64,
    /// Number of payload bytes, which come after the header.
    payload_bytes: u32,
    /// Index in [`Frames::long`]; [`SHORT`] if the header is in `header`.
    long: u32,
    /// Number of header bytes, trailing zeros included.
    header_bytes: u16,
    /// Number of stored header bytes: all bytes up to the last nonzero byte.
    kept_bytes: u16,
    rail: u8,
    header: [u8; HEADER_BYTES],
}

impl Frame {
    const EMPTY: Self = Self {
        origin: 0,
        payload_bytes: 0,
        long: SHORT,
        header_bytes: 0,
        kept_bytes: 0,
        rail: 0,
        header: [0; HEADER_BYTES],
    };
}

/// Number of header bytes that a `Frame` can store. A header with an acknowledgement fits in this
/// space, and a `Frame` occupies exactly two cache lines.
const HEADER_BYTES: usize = 107;
const SHORT: u32 = u32::MAX;

const _: () = assert!(size_of::<Frame>() == 128);
const _: () = assert!(RAIL_BITS < 8);

impl Frames {
    /// Stores a frame that a host sends on a rail. Returns its index.
    pub(super) fn insert(&mut self, rail: u8, frame: &TxFrame<'_>) -> u32 {
        // Trailing zeros are not stored. Path MTU probes consist of a header and zeros. If payloads
        // have no real bytes, the engine's short payloads are zeros too.
        let kept = frame.header.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(Frame::EMPTY);
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.origin = frame.payload.start.addr() as u64;
        entry.payload_bytes = frame.payload.len;
        entry.long = SHORT;
        entry.header_bytes = frame.header.len() as u16;
        entry.kept_bytes = kept as u16;
        entry.rail = rail;
        if let Some(header) = entry.header.get_mut(..kept) {
            header.copy_from_slice(&frame.header[..kept]);
        } else {
            let long = self.insert_long(&frame.header[..kept]);
            self.entries[index as usize].long = long;
        }
        index
    }

    fn insert_long(&mut self, header: &[u8]) -> u32 {
        let index = self.vacant_long.pop().unwrap_or_else(|| {
            self.long.push(Vec::new());
            self.long.len() as u32 - 1
        });
        let kept = &mut self.long[index as usize];
        kept.clear();
        kept.extend_from_slice(header);
        index
    }

    /// Removes a frame.
    pub(super) fn remove(&mut self, index: u32) {
        let long = self.entries[index as usize].long;
        if long != SHORT {
            self.vacant_long.push(long);
        }
        self.vacant.push(index);
    }

    /// Returns the rail of a frame.
    pub(super) fn rail(&self, index: u32) -> u8 {
        self.entries[index as usize].rail
    }

    /// Reads the memory of a frame so that the cache holds it.
    #[inline]
    pub(super) fn touch(&self, index: u32) -> u64 {
        let frame = &self.entries[index as usize];
        frame.origin ^ u64::from(frame.header[HEADER_BYTES - 1])
    }

    /// Returns the length of a frame in bytes, including the payload.
    pub(super) fn len(&self, index: u32) -> u32 {
        let frame = &self.entries[index as usize];
        u32::from(frame.header_bytes) + frame.payload_bytes
    }

    /// Returns the number of frames in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Calls `use_frame` with the bytes of a frame as its receiver gets them. The payload consists
    /// of a stamp, followed by zeros. The stamp contains the address of the payload in the memory
    /// of the sender.
    pub(super) fn with_bytes(
        &self,
        index: u32,
        memory: &mut Vec<u8>,
        use_frame: impl FnOnce(&mut [u8]),
    ) {
        let frame = &self.entries[index as usize];
        let kept = usize::from(frame.kept_bytes);
        let header = match self.long.get(frame.long as usize) {
            Some(header) => header.as_slice(),
            None => &frame.header[..kept],
        };
        let start = usize::from(frame.header_bytes);
        let end = start + frame.payload_bytes as usize;
        if memory.len() < end {
            memory.resize(end, 0);
        }
        memory[..kept].copy_from_slice(header);
        mem::write_stamp(frame.origin, &mut memory[start..end]);
        use_frame(&mut memory[..end]);
        memory[..kept].fill(0);
        mem::write_stamp(0, &mut memory[start..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem::PayloadSlice;

    #[test]
    fn frames_arrive_as_they_were_sent() {
        let mut frames = Frames::default();
        let mut memory = Vec::new();
        let long: Vec<u8> = (0..500_u16).map(|byte| byte as u8).collect();
        for header in [&[1_u8, 2, 0, 3, 0, 0][..], &[0; 900][..], &long] {
            for len in [0, 3, 1_400] {
                let start = core::ptr::without_provenance(0x0807_0605_0403_0201);
                let payload = PayloadSlice::at(start, len);
                let index = frames.insert(1, &TxFrame { header, payload, is_lasting: false });
                assert_eq!(frames.len(index) as usize, header.len() + len as usize);
                let mut expected = header.to_vec();
                expected.extend((0..len).map(|at| if at < 8 { at as u8 + 1 } else { 0 }));
                frames.with_bytes(index, &mut memory, |bytes| assert_eq!(bytes, expected));
                assert!(memory.iter().all(|&byte| byte == 0));
                frames.remove(index);
            }
        }
        assert_eq!((frames.in_flight(), frames.entries.len(), frames.long.len()), (0, 1, 1));
    }
}
