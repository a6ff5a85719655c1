//! A bare exchange of frames over `AF_XDP`.

use std::io;
use std::slice;

use libc::xdp_desc;
use wire_edge::EnvelopeKind;

use crate::ethernet::{ETHERNET_BYTES, Framing, Station};
use crate::xdp::yardstick::Bare;
use crate::xdp::{XdpConfig, XdpError, XdpMode};

/// One queue of an interface, over which frames of one size are exchanged without a protocol. Polls
/// the rings. For a sent frame, makes a system call only if the kernel requires one.
///
/// The client sends and polls until a frame arrives. The server polls, and sends the frame back.
#[derive(Debug)]
pub struct BareXdp {
    bare: Bare,
    /// The frame to send. Each send writes the destination into it.
    frame: Vec<u8>,
    next_slot: u32,
}

impl BareXdp {
    /// Opens the queue for frames with `content_bytes` bytes after Ethernet header and envelope.
    /// Both ends must use the same port.
    ///
    /// # Errors
    /// Returns [`XdpError`]; each variant names one cause.
    pub fn open(config: &XdpConfig, content_bytes: u16) -> Result<Self, XdpError> {
        let bare = Bare::open(config)?;
        let framing: Framing = bare.framing;
        let mut frame = vec![0; framing.header_bytes() + usize::from(content_bytes)];
        let to = (framing.station, framing.port);
        assert!(framing.put(EnvelopeKind::Frame, to, &mut frame), "room was made for it");
        Ok(Self { bare, frame, next_slot: 0 })
    }

    /// Returns the address of the interface.
    pub const fn station(&self) -> Station {
        self.bare.framing.station
    }

    /// Returns the mode in which frames reach the process.
    pub const fn mode(&self) -> XdpMode {
        self.bare.live.mode
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// Returns the kernel's error. Also returns [`io::ErrorKind::TimedOut`] if the kernel does not
    /// accept the frame after many attempts.
    #[inline]
    pub fn send(&mut self, to: Station) -> io::Result<()> {
        let live = &mut self.bare.live;
        let socket = &mut live.socket;
        let mut is_returned = false;
        while socket.completion.take().is_some() {
            is_returned = true;
        }
        if is_returned {
            socket.completion.release();
        }
        // Only one frame is in flight at a time, and sends use one slot after the other. So the
        // next slot is always free.
        let shape = &live.shape;
        self.next_slot = (self.next_slot + 1) % shape.slots;
        let address = shape.slots_at() + u64::from(self.next_slot) * u64::from(shape.slot_bytes());
        let length = self.frame.len();
        assert!(socket.memory.holds(address, length as u64));
        // SAFETY: the slot is inside the memory, as just checked. No other reference to the slot
        // exists.
        let slot = unsafe {
            slice::from_raw_parts_mut(socket.memory.start().as_ptr().add(address as usize), length)
        };
        slot.copy_from_slice(&self.frame);
        if let Some(destination) = slot.first_chunk_mut::<6>() {
            *destination = to;
        }
        socket.transmit.push(xdp_desc { addr: address, len: length as u32, options: 0 });
        socket.transmit.submit();
        if live.mode == XdpMode::ZeroCopy && !socket.transmit.needs_wakeup() {
            return Ok(());
        }
        for _ in 0..KICKS_MAX {
            match socket.kick() {
                // The frame is already in the ring. Another push would send it twice.
                Err(error) if is_passing(&error) && socket.transmit.untaken() > 0 => {}
                Err(error) if is_passing(&error) => return Ok(()),
                result => return result,
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Receives the next frame, if a frame has arrived, and returns its sender.
    #[inline]
    pub fn poll(&mut self) -> Option<Station> {
        let socket = &mut self.bare.live.socket;
        let descriptor = socket.receive.take()?;
        let length = u64::from(descriptor.len);
        assert!(socket.memory.holds(descriptor.addr, length), "chunk outside of the memory");
        // SAFETY: the bytes are inside the memory, as just checked. The kernel has returned the
        // chunk to this process.
        let bytes = unsafe {
            let start = socket.memory.start().as_ptr().add(descriptor.addr as usize);
            slice::from_raw_parts(start, descriptor.len as usize)
        };
        let from = bytes.first_chunk::<ETHERNET_BYTES>().map(|header| {
            let [_, _, _, _, _, _, s0, s1, s2, s3, s4, s5, _, _] = *header;
            [s0, s1, s2, s3, s4, s5]
        });
        let chunk = u64::from(self.bare.live.shape.chunk_bytes);
        socket.fill.push(descriptor.addr & !(chunk - 1));
        socket.receive.release();
        socket.fill.submit();
        from
    }
}

fn is_passing(error: &io::Error) -> bool {
    let passing = [libc::EAGAIN, libc::EBUSY, libc::ENOBUFS, libc::EINTR];
    error.raw_os_error().is_some_and(|number| passing.contains(&number))
}

/// Maximum number of system calls for one frame. The kernel needs far fewer.
const KICKS_MAX: u32 = 1_000_000;
