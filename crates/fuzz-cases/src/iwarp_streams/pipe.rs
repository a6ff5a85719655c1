//! The bytes in flight to one end, and what an attacker does with them.

use std::collections::VecDeque;

use iwarp::Piece;
use wire_iwarp::{
    Crc, DdpHeader, FpduLayout, Opcode, QueueNumber, ReadRequest, SEGMENT_HEADER_BYTES_MAX,
    Segment, Stag, Trailer, encode_length,
};

use super::memory::{any_address, any_key};
use crate::input::Input;

/// Maximum number of bytes in flight, so that repeating them ends.
const BYTES_MAX: usize = 64 * 1024;

/// Bytes in flight, as chunks. A chunk is a frame as its sender wrote it, unless the attacker or the
/// receiver has divided it.
#[derive(Default)]
pub(super) struct Pipe {
    chunks: VecDeque<Vec<u8>>,
}

impl Pipe {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Appends bytes, whose frames have these lengths.
    pub(super) fn write(&mut self, mut bytes: &[u8], lengths: impl Iterator<Item = usize>) {
        for length in lengths {
            let (frame, rest) = bytes.split_at(length.min(bytes.len()));
            self.push(frame.to_vec());
            bytes = rest;
        }
        self.push(bytes.to_vec());
    }

    fn push(&mut self, chunk: Vec<u8>) {
        if !chunk.is_empty() {
            self.chunks.push_back(chunk);
        }
    }

    /// Removes and returns the first `count` bytes, or all.
    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(mut chunk) = self.chunks.pop_front() {
            if chunk.len() > count - bytes.len() {
                let rest = chunk.split_off(count - bytes.len());
                self.chunks.push_front(rest);
                bytes.extend(chunk);
                break;
            }
            bytes.extend(chunk);
        }
        bytes
    }

    /// Flips, inserts, drops, repeats or swaps bytes.
    pub(super) fn change(&mut self, input: &mut Input<'_>) {
        let at = input.below(self.chunks.len());
        let choice = input.u8();
        let total: usize = self.chunks.iter().map(Vec::len).sum();
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        let place = input.below(chunk.len());
        match choice & 7 {
            0 => chunk[place] ^= 1 << (input.u8() & 7),
            1 => chunk[place] = input.u8(),
            2 => {
                chunk.truncate(place);
                if place == 0 {
                    self.chunks.remove(at);
                }
            }
            3 => {
                let bytes: Vec<u8> = (0..input.u8() & 15).map(|_| input.u8()).collect();
                chunk.splice(place..place, bytes);
            }
            4 => {
                let _dropped = self.chunks.remove(at);
            }
            5 if total < BYTES_MAX => {
                let again = chunk.clone();
                self.chunks.insert(at, again);
            }
            6 => {
                let other = input.below(self.chunks.len());
                self.chunks.swap(at, other);
            }
            _ => {
                let rest = chunk.split_off(place);
                if place == 0 {
                    self.chunks[at] = rest;
                } else {
                    self.chunks.insert(at + 1, rest);
                }
            }
        }
    }

    /// Changes a byte of an FPDU without markers, and makes its CRC right again.
    pub(super) fn change_frame(&mut self, input: &mut Input<'_>) {
        let at = input.below(self.chunks.len());
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        let place = input.below(chunk.len());
        chunk[place] =
            if input.one_in(2) { input.u8() } else { chunk[place] ^ (1 << (input.u8() & 7)) };
        if let Some((covered, field)) = chunk.split_last_chunk_mut() {
            let mut crc = Crc::new();
            crc.update(covered);
            *field = crc.encode();
        }
    }

    /// Puts an FPDU with any fields before or behind the others. `sink` is where the answer to an
    /// outstanding read begins.
    pub(super) fn forge(&mut self, input: &mut Input<'_>, has_crc: bool, sink: Option<Piece>) {
        let flags = input.u8();
        let last = flags & 1 == 0;
        let opcode = Opcode::ALL[usize::from(flags >> 1 & 7) % Opcode::ALL.len()];
        let (stag, offset) = match sink.filter(|_| opcode == Opcode::ReadResponse) {
            Some(sink) => (sink.key, sink.address + u64::from(input.small())),
            None => (any_key(input), any_address(input)),
        };
        let ddp = match opcode.queue() {
            None => DdpHeader::Tagged { last, stag: Stag(stag), offset },
            Some(queue) => {
                let queue = if flags & 0x70 == 0x70 { QueueNumber::Send } else { queue };
                let (msn, mo) = (input.small(), if last { 0 } else { input.small() });
                DdpHeader::Untagged { last, queue, msn, mo, upper_layer: stag }
            }
        };
        let segment = Segment { ddp, opcode, reserved: 0 };
        let payload = match opcode {
            Opcode::ReadRequest if flags & 0x80 == 0 => ReadRequest {
                sink_stag: Stag(any_key(input)),
                sink_offset: any_address(input),
                size: input.small().wrapping_mul(60),
                source_stag: Stag(any_key(input)),
                source_offset: any_address(input),
            }
            .encode()
            .to_vec(),
            Opcode::Terminate => (0..input.u8() & 63).map(|_| input.u8()).collect(),
            _ => vec![0xa5; input.u8().into()],
        };
        let chunk = fpdu(&segment, &payload, has_crc);
        if flags & 8 == 0 {
            self.chunks.push_back(chunk);
        } else {
            self.chunks.push_front(chunk);
        }
    }
}

/// Returns an FPDU.
fn fpdu(segment: &Segment, payload: &[u8], has_crc: bool) -> Vec<u8> {
    let mut header = [0; SEGMENT_HEADER_BYTES_MAX];
    let header_bytes = segment.encode(&mut header);
    let length = (header_bytes + payload.len()) as u16;
    let mut bytes = Vec::with_capacity(FpduLayout::of(length).total);
    bytes.extend(encode_length(length));
    bytes.extend(&header[..header_bytes]);
    bytes.extend(payload);
    let mut crc = Crc::new();
    crc.update(&bytes);
    bytes.extend(Trailer::new(length, has_crc.then_some(crc)).as_bytes());
    bytes
}
