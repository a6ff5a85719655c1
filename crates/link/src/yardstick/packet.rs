//! A bare exchange of frames through packet sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use wire_edge::EnvelopeKind;

use crate::ethernet::{ETHERNET_BYTES, Framing, Station};
use crate::packet::bare::Bare;
use crate::{PacketConfig, PacketError};

/// How a bare packet socket receives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BareReceive {
    /// A ring in shared memory is polled: no system call until a frame is there, and none then.
    Ring,
    /// `recv` is called until a frame is there: what a program does that takes the least trouble.
    Calls,
}

/// A packet socket on an interface and frames of one size, sent and received as a program without
/// any protocol would: one `send` per frame, and polling in one of two ways.
///
/// The client sends and polls until something comes; the server polls and sends back.
#[derive(Debug)]
pub struct BarePacket {
    bare: Bare,
    receive: BareReceive,
    /// The frame to send; the destination is put into it for each.
    frame: Vec<u8>,
    /// Room for a frame that is received by a call.
    room: Vec<u8>,
}

impl BarePacket {
    /// For frames that carry `content_bytes` bytes behind Ethernet header and envelope. Both ends
    /// need the same port.
    pub fn open(
        config: &PacketConfig,
        receive: BareReceive,
        content_bytes: u16,
    ) -> Result<Self, PacketError> {
        let bare = Bare::open(config, receive == BareReceive::Ring)?;
        let framing: Framing = bare.framing;
        let mut frame = vec![0; framing.header_bytes() + usize::from(content_bytes)];
        let to = (framing.station, framing.port);
        assert!(framing.put(EnvelopeKind::Frame, to, &mut frame), "room was made for it");
        let room = vec![0; frame.len()];
        Ok(Self { bare, receive, frame, room })
    }

    /// Address of the interface.
    pub const fn station(&self) -> Station {
        self.bare.framing.station
    }

    /// Sends one frame that carries `number` in its first eight bytes.
    ///
    /// # Errors
    /// Kind [`io::ErrorKind::WouldBlock`] if the kernel could not take it now.
    ///
    /// # Panics
    /// If the frames carry less than eight bytes.
    #[inline]
    pub fn send_number(&mut self, to: Station, number: u64) -> io::Result<()> {
        let at = self.bare.framing.header_bytes();
        self.frame[at..at + 8].copy_from_slice(&number.to_be_bytes());
        self.send(to)
    }

    /// The sender of the next frame that has come, and the number in it, if one has that has a number.
    #[inline]
    pub fn poll_number(&mut self) -> Option<(Station, u64)> {
        let at = self.bare.framing.header_bytes();
        let ring = self.bare.ring_mut()?;
        let bytes = ring.peek()?.bytes;
        let number = bytes.get(at..).and_then(|content| content.first_chunk());
        let found = sender(bytes).zip(number.map(|bytes| u64::from_be_bytes(*bytes)));
        ring.release();
        found
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// Kind [`io::ErrorKind::WouldBlock`] if the kernel could not take it now.
    #[inline]
    pub fn send(&mut self, to: Station) -> io::Result<()> {
        if let Some(destination) = self.frame.first_chunk_mut::<6>() {
            *destination = to;
        }
        let socket = self.bare.socket().as_raw_fd();
        // SAFETY: the pointer and the length describe the frame, which the kernel only reads.
        let sent = unsafe {
            libc::send(socket, self.frame.as_ptr().cast(), self.frame.len(), libc::MSG_DONTWAIT)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The sender of the next frame that has come, if one has.
    #[inline]
    pub fn poll(&mut self) -> Option<Station> {
        if self.receive == BareReceive::Calls {
            let socket = self.bare.socket().as_fd().as_raw_fd();
            // SAFETY: the kernel writes at most the length of the room.
            let received = unsafe {
                libc::recv(
                    socket,
                    self.room.as_mut_ptr().cast(),
                    self.room.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            return (received > 0).then(|| sender(&self.room)).flatten();
        }
        let ring = self.bare.ring_mut()?;
        let from = sender(ring.peek()?.bytes);
        ring.release();
        from
    }
}

/// Who sent an Ethernet frame.
fn sender(frame: &[u8]) -> Option<Station> {
    let [_, _, _, _, _, _, s0, s1, s2, s3, s4, s5, _, _] =
        *frame.first_chunk::<ETHERNET_BYTES>()?;
    Some([s0, s1, s2, s3, s4, s5])
}
