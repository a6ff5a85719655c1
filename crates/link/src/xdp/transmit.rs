//! Sending: builds frames in slots, from which the kernel or the network card reads them.

use std::io;
use std::slice;

use delivery::TxBatch;
use libc::xdp_desc;
use wire_edge::EnvelopeKind;

use super::config::XdpMode;
use super::shape::Shape;
use super::socket::XdpSocket;
use crate::LinkStatistics;
use crate::ethernet::{Framing, Station};
use crate::payload::PayloadCopier;
use crate::udp::PayloadUnmapped;

/// The free slots, and the frames under construction in other slots.
#[derive(Debug)]
pub(super) struct Transmitter {
    shape: Shape,
    /// Free slots. The slot that was freed last is used first, because it is in the cache.
    free: Vec<u32>,
    /// For each slot, the number of its chunks that the kernel has not returned.
    out: Vec<u8>,
    /// The frames of the batch that is being sent.
    building: Vec<Building>,
    copier: PayloadCopier,
    /// True if the kernel copies frames. In this case the link must notify the kernel of every
    /// batch, because no driver polls the ring.
    is_copying: bool,
}

/// A frame of the batch, in a slot.
#[derive(Clone, Copy, Debug)]
struct Building {
    slot: u32,
    ethernet_bytes: u32,
    /// The frame's index in the batch.
    frame: u32,
    /// True if the frame has payload in registered memory.
    has_payload: bool,
}

/// Result of sending a batch.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Number of frames that were sent or lost.
    pub(super) frames: usize,
    /// Index of the frame whose payload could not be read.
    pub(super) unmapped: Option<usize>,
}

impl Transmitter {
    /// Creates a transmitter with all slots free.
    pub(super) fn new(shape: &Shape, mode: XdpMode) -> Self {
        Self {
            shape: *shape,
            free: (0..shape.slots).rev().collect(),
            out: vec![0; shape.slots as usize],
            building: Vec::with_capacity(shape.slots as usize),
            copier: PayloadCopier::new(shape.slots as usize),
            is_copying: mode != XdpMode::ZeroCopy,
        }
    }

    /// Builds frames of the batch and publishes them to the kernel, while there are free slots.
    /// Frames that can never be sent count as sent.
    pub(super) fn send(
        &mut self,
        socket: &mut XdpSocket,
        framing: &Framing,
        frame_bytes_max: u16,
        batch: &TxBatch,
        statistics: &mut LinkStatistics,
    ) -> Sent {
        let mut sent = Sent { frames: batch.len(), unmapped: None };
        let Some(to) = batch.to().to_mac() else {
            statistics.send_unreachable += batch.len() as u64;
            return sent;
        };
        self.reap(socket);
        let room = self.free.len().min(batch.len());
        let header_bytes = framing.header_bytes();
        for index in 0..room {
            let frame = batch.frame(index);
            if frame.len() > usize::from(frame_bytes_max) {
                statistics.send_too_big += 1;
                continue;
            }
            let Some(slot) = self.free.pop() else { break };
            let ethernet_bytes = (header_bytes + frame.len()) as u32;
            let has_payload = frame.payload.len > 0;
            self.building.push(Building { slot, ethernet_bytes, frame: index as u32, has_payload });
            let bytes = self.slot(socket, slot, ethernet_bytes);
            let Some(room) = bytes.get_mut(header_bytes..) else { continue };
            let (header, payload) = room.split_at_mut(frame.header.len());
            header.copy_from_slice(frame.header);
            // SAFETY: the slot belongs to this process until the frame is in the ring. No code uses
            // its room for payload before the copy.
            unsafe { self.copier.push(payload.as_mut_ptr(), frame.payload) };
        }
        sent.frames = room;
        if let Err(error) = self.copier.copy() {
            sent = self.give_up_after(error.whole);
        }
        self.submit(socket, framing, to, statistics);
        sent
    }

    /// Sends an envelope without content. Does nothing if there is no free slot.
    #[cold]
    pub(super) fn send_empty(
        &mut self,
        socket: &mut XdpSocket,
        framing: &Framing,
        kind: EnvelopeKind,
        to: (Station, u16),
    ) {
        self.reap(socket);
        let Some(slot) = self.free.pop() else { return };
        let ethernet_bytes = framing.header_bytes() as u32;
        if framing.put(kind, to, self.slot(socket, slot, ethernet_bytes)) {
            self.push(socket, slot, ethernet_bytes);
            socket.transmit.submit();
        } else {
            self.free.push(slot);
        }
    }

    /// Makes the kernel send as many of the published frames as it can. Returns whether the kernel
    /// took all of them.
    #[inline]
    pub(super) fn kick(
        &self,
        socket: &mut XdpSocket,
        statistics: &mut LinkStatistics,
    ) -> io::Result<bool> {
        if !self.is_copying && !socket.transmit.needs_wakeup() {
            return Ok(true);
        }
        let mut waiting = u32::MAX;
        loop {
            statistics.send_calls += 1;
            let result = socket.kick();
            if result.is_ok() {
                return Ok(true);
            }
            // Some frames may still wait, because the call has sent its maximum or a queue was
            // full.
            let left = if self.is_copying { socket.transmit.untaken() } else { 0 };
            match result.map_err(|error| (error.raw_os_error(), error)) {
                Ok(()) => return Ok(true),
                Err((Some(libc::EINTR), _)) => {}
                Err((Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM), _)) => {
                    if left == 0 || left >= waiting {
                        return Ok(left == 0);
                    }
                }
                Err((_, error)) => return Err(error),
            }
            waiting = left;
        }
    }

    /// Frees the slots of frames that were sent.
    #[inline]
    pub(super) fn reap(&mut self, socket: &mut XdpSocket) {
        let mut any = false;
        while let Some(address) = socket.completion.take() {
            any = true;
            let slot = (address - self.shape.slots_at()) / u64::from(self.shape.slot_bytes());
            let Some(out) = self.out.get_mut(slot as usize) else { continue };
            *out = out.saturating_sub(1);
            if *out == 0 {
                self.free.push(slot as u32);
            }
        }
        if any {
            socket.completion.release();
        }
    }

    /// Writes the headers of all built frames and publishes the frames.
    fn submit(
        &mut self,
        socket: &mut XdpSocket,
        framing: &Framing,
        to: (Station, u16),
        statistics: &mut LinkStatistics,
    ) {
        for index in 0..self.building.len() {
            let building = self.building[index];
            let bytes = self.slot(socket, building.slot, building.ethernet_bytes);
            if framing.put(EnvelopeKind::Frame, to, bytes) {
                self.push(socket, building.slot, building.ethernet_bytes);
                statistics.send_frames += 1;
                let edge_bytes = building.ethernet_bytes as usize - framing.header_bytes();
                statistics.send_bytes += edge_bytes as u64;
            } else {
                self.free.push(building.slot);
            }
        }
        if !self.building.is_empty() {
            statistics.send_messages += self.building.len() as u64;
            self.building.clear();
            socket.transmit.submit();
        }
    }

    /// Pushes the chunks of one frame to the ring. The ring has room for the chunks of all slots.
    #[inline]
    fn push(&mut self, socket: &mut XdpSocket, slot: u32, ethernet_bytes: u32) {
        let start = self.slot_at(slot);
        let chunks = ethernet_bytes.div_ceil(self.shape.chunk_bytes);
        for chunk in 0..chunks {
            let offset = chunk * self.shape.chunk_bytes;
            socket.transmit.push(xdp_desc {
                addr: start + u64::from(offset),
                len: (ethernet_bytes - offset).min(self.shape.chunk_bytes),
                options: if chunk + 1 < chunks { libc::XDP_PKT_CONTD } else { 0 },
            });
        }
        self.out[slot as usize] = chunks as u8;
    }

    /// Keeps the frames before the frame whose payload could not be read, and frees the other
    /// slots.
    #[cold]
    fn give_up_after(&mut self, payloads_whole: usize) -> Sent {
        let with_payload = self.building.iter().enumerate().filter(|(_, b)| b.has_payload);
        let failed = with_payload.map(|(at, b)| (at, b.frame as usize)).nth(payloads_whole);
        let (at, frame) = failed.unwrap_or((self.building.len(), 0));
        self.free.extend(self.building.drain(at..).map(|building| building.slot));
        Sent { frames: frame, unmapped: Some(frame) }
    }

    const fn slot_at(&self, slot: u32) -> u64 {
        self.shape.slots_at() + slot as u64 * self.shape.slot_bytes() as u64
    }

    /// Returns the first `bytes` bytes of a slot. The kernel must not own the slot.
    #[inline]
    fn slot<'a>(&self, socket: &'a mut XdpSocket, slot: u32, bytes: u32) -> &'a mut [u8] {
        let start = self.slot_at(slot);
        assert!(socket.memory.holds(start, u64::from(bytes)));
        // SAFETY: the bytes are inside the memory, as just checked. Slots do not overlap, the
        // kernel does not own this slot, and the result borrows the socket.
        unsafe {
            let start = socket.memory.start().add(start as usize);
            slice::from_raw_parts_mut(start.as_ptr(), bytes as usize)
        }
    }
}

/// Returns the error for a batch with a payload that could not be read.
pub(super) fn unmapped(frame: usize) -> io::Error {
    PayloadUnmapped { frame }.into()
}
