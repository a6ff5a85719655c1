//! A bare exchange of frames through packet sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use wire_edge::EnvelopeKind;

use crate::ethernet::{ETHERNET_BYTES, Framing, Station};
use crate::packet::bare::Bare;
use crate::{PacketConfig, PacketError};

/// A packet socket on an interface and frames of one size, sent and received as a good program
/// without any protocol would: a ring in shared memory polled, one `send` per frame.
///
/// The client sends and polls until something comes; the server polls and sends back.
#[derive(Debug)]
pub struct BarePacket {
    bare: Bare,
    /// The frame to send; the destination is put into it for each.
    frame: Vec<u8>,
}

impl BarePacket {
    /// For frames that carry `content_bytes` bytes behind Ethernet header and envelope. Both ends
    /// need the same port.
    pub fn open(config: &PacketConfig, content_bytes: u16) -> Result<Self, PacketError> {
        let bare = Bare::open(config)?;
        let framing: Framing = bare.framing;
        let mut frame = vec![0; framing.header_bytes() + usize::from(content_bytes)];
        let to = (framing.station, framing.port);
        assert!(framing.put(EnvelopeKind::Frame, to, &mut frame), "room was made for it");
        Ok(Self { bare, frame })
    }

    /// Address of the interface.
    pub const fn station(&self) -> Station {
        self.bare.framing.station
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
        let socket = self.bare.port.socket.as_fd().as_raw_fd();
        // SAFETY: the pointer and the length describe the frame, which the kernel only reads.
        let sent = unsafe {
            libc::send(socket, self.frame.as_ptr().cast(), self.frame.len(), libc::MSG_DONTWAIT)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The sender of the next frame that has come, if one has.
    #[inline]
    pub fn poll(&mut self) -> Option<Station> {
        let received = self.bare.port.ring.peek()?;
        let from = received.bytes.first_chunk::<ETHERNET_BYTES>().map(|header| {
            let [_, _, _, _, _, _, s0, s1, s2, s3, s4, s5, _, _] = *header;
            [s0, s1, s2, s3, s4, s5]
        });
        self.bare.port.ring.release();
        from
    }
}
