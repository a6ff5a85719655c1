//! Sending: frames are built in slots that the kernel, or the card, reads.

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

/// Slots that are free, and frames on their way into others.
#[derive(Debug)]
pub(super) struct Transmitter {
    shape: Shape,
    /// Slots to use next; the one used last comes first, as it is in the cache.
    free: Vec<u32>,
    /// Chunks of each slot that the kernel has not given back.
    out: Vec<u8>,
    /// The frames of the batch that is being sent.
    building: Vec<Building>,
    copier: PayloadCopier,
    /// Whether the kernel always has to be notified, as no driver looks at the ring by itself.
    is_copying: bool,
}

/// A frame of the batch in a slot.
#[derive(Clone, Copy, Debug)]
struct Building {
    slot: u32,
    ethernet_bytes: u32,
    /// Its index in the batch.
    frame: u32,
    /// Whether it has payload of registered memory.
    has_payload: bool,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Frames of it that were sent or lost.
    pub(super) frames: usize,
    /// The frame whose payload could not be read.
    pub(super) unmapped: Option<usize>,
}

impl Transmitter {
    /// All slots free.
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

    /// Builds frames of the batch and gives them to the kernel, as many as there is room for. Frames
    /// that cannot be sent at all count as sent.
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
            // SAFETY: the payload's room in the slot is ours until the frame is in the ring, and is
            // used again only behind the copy.
            unsafe { self.copier.push(payload.as_mut_ptr(), frame.payload) };
        }
        sent.frames = room;
        if let Err(error) = self.copier.copy() {
            sent = self.give_up_after(error.whole);
        }
        self.submit(socket, framing, to, statistics);
        sent
    }

    /// Sends an envelope without content, if there is room.
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

    /// Has the kernel send what it was given, as far as it can; true if all was taken.
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
            // Frames wait if the call has sent its share, and if something was full.
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

    /// Takes back the slots of frames that are gone.
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

    /// Writes headers, puts all that was built into the ring.
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

    /// Puts the chunks of one frame into the ring, which has an entry for every chunk.
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

    /// Keeps the frames in front of the one whose payload could not be read.
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

    /// The first `bytes` bytes of a slot that the kernel does not have.
    #[inline]
    fn slot<'a>(&self, socket: &'a mut XdpSocket, slot: u32, bytes: u32) -> &'a mut [u8] {
        let start = self.slot_at(slot);
        assert!(socket.memory.holds(start, u64::from(bytes)));
        // SAFETY: inside the memory, as was just checked; slots do not overlap, the kernel has not
        // got this one, and the socket is borrowed while the result lives.
        unsafe {
            let start = socket.memory.start().add(start as usize);
            slice::from_raw_parts_mut(start.as_ptr(), bytes as usize)
        }
    }
}

/// The error for a batch of which a payload could not be read.
pub(super) fn unmapped(frame: usize) -> io::Error {
    PayloadUnmapped { frame }.into()
}
