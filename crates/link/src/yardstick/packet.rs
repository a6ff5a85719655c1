//! A bare exchange of frames through packet sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use wire_edge::EnvelopeKind;

use crate::ethernet::{ETHERNET_BYTES, Framing, Station};
use crate::packet::bare::Bare;
use crate::packet::{PacketConfig, PacketError};

/// The way in which a bare packet socket receives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BareReceive {
    /// Polls a ring in shared memory. Neither a poll nor receiving a frame needs a system call.
    Ring,
    /// Calls `recv` until a frame arrives, like the simplest program.
    Calls,
}

/// A packet socket that exchanges frames of one size, without a protocol. It makes one `send` call
/// per frame, and polls in one of the ways of [`BareReceive`].
///
/// The client sends and polls until a frame arrives. The server polls, and sends the frame back.
#[derive(Debug)]
pub struct BarePacket {
    bare: Bare,
    receive: BareReceive,
    /// The frame to send. Each send writes the destination into it.
    frame: Vec<u8>,
    /// Buffer for a frame received by a system call.
    room: Vec<u8>,
}

impl BarePacket {
    /// Opens a socket for frames with `content_bytes` bytes after Ethernet header and envelope.
    /// Both ends must use the same port.
    ///
    /// # Errors
    /// Returns [`PacketError`]; each variant names one cause.
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

    /// Returns the address of the interface.
    pub const fn station(&self) -> Station {
        self.bare.framing.station
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if the kernel has no room now.
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

    /// Sends `frames` frames in one call, at most 32. Each has `content_bytes` bytes of content,
    /// which begins with the eight bytes of `number`. Returns the number of frames that the kernel
    /// accepted.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if the kernel has no room for a frame now.
    ///
    /// # Panics
    /// Panics if `content_bytes` is below eight, or above the value passed to `open`.
    #[inline]
    pub fn send_numbers(
        &mut self,
        to: Station,
        number: u64,
        content_bytes: u16,
        frames: usize,
    ) -> io::Result<usize> {
        let at = self.bare.framing.header_bytes();
        let frame = &mut self.frame[..at + usize::from(content_bytes)];
        frame[..to.len()].copy_from_slice(&to);
        frame[at..at + 8].copy_from_slice(&number.to_be_bytes());
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: a zeroed message has no name, no entries and no control data.
        let mut message: libc::mmsghdr = unsafe { core::mem::zeroed() };
        message.msg_hdr.msg_iov = &raw mut piece;
        message.msg_hdr.msg_iovlen = 1;
        let mut messages = [message; FRAMES_MAX];
        let socket = self.bare.socket().as_raw_fd();
        let count = frames.min(FRAMES_MAX) as libc::c_uint;
        // SAFETY: there are at least `count` messages. Each has one entry, the frame, which the
        // kernel only reads. The kernel writes only the `msg_len` of each message.
        let sent =
            unsafe { libc::sendmmsg(socket, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Returns the next numbered frame, if a frame has arrived. The socket must have a ring.
    #[inline]
    pub fn poll_number(&mut self) -> Option<NumberedFrame> {
        let at = self.bare.framing.header_bytes();
        let ring = self.bare.ring_mut()?;
        let bytes = ring.peek()?.bytes;
        let content = bytes.get(at..).unwrap_or_default();
        let found = sender(bytes).zip(content.first_chunk()).map(|(from, number)| NumberedFrame {
            from,
            number: u64::from_be_bytes(*number),
            content_bytes: content.len(),
        });
        ring.release();
        found
    }

    /// Receives the next frame, if a frame has arrived, and returns its sender.
    #[inline]
    pub fn poll(&mut self) -> Option<Station> {
        if self.receive == BareReceive::Calls {
            let socket = self.bare.socket().as_fd().as_raw_fd();
            // SAFETY: the kernel writes at most the length of the buffer.
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

/// A frame of a bare stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NumberedFrame {
    /// The sender's address.
    pub from: Station,
    /// The number in the first eight bytes of the frame's content.
    pub number: u64,
    /// The length of the frame's content, in bytes.
    pub content_bytes: usize,
}

/// Maximum number of frames sent in one call.
const FRAMES_MAX: usize = 32;

/// Returns the sender of an Ethernet frame.
fn sender(frame: &[u8]) -> Option<Station> {
    let [_, _, _, _, _, _, s0, s1, s2, s3, s4, s5, _, _] =
        *frame.first_chunk::<ETHERNET_BYTES>()?;
    Some([s0, s1, s2, s3, s4, s5])
}
