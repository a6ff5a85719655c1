//! Writes frames that passed no link, such as frames of a simulation, to a file that Wireshark
//! reads.

use std::io::{self, Write};

use wire_edge::PeerAddr;

use super::encapsulation::Envelope;
use crate::ethernet::EthernetHeader;
use crate::pcapng::{self, Direction};

/// A pcapng file with several interfaces. The caller provides each frame with its interface and
/// time.
///
/// ```
/// use link::{CaptureFile, CapturedFrame, Direction, EthernetHeader};
/// use wire_edge::PeerAddr;
///
/// let mut file = CaptureFile::new(Vec::new())?;
/// let interface = file.add_interface("h0 rail 0")?;
/// let is_written = file.write(&CapturedFrame {
///     interface,
///     at_ns: 1_500,
///     direction: Direction::Outbound,
///     from: PeerAddr::mac([2, 0, 0, 0, 0, 0], 1),
///     to: PeerAddr::mac([2, 0, 0, 0, 1, 0], 1),
///     congestion_experienced: false,
///     ethernet: Some(EthernetHeader { ethertype: 0x88b5, vlan: None }),
///     bytes: b"frame",
/// })?;
/// assert!(is_written);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct CaptureFile<W> {
    output: W,
    interfaces: u32,
    packet: Vec<u8>,
    block: Vec<u8>,
}

/// A frame to write, as one interface sent or received the frame.
#[derive(Clone, Copy, Debug)]
pub struct CapturedFrame<'a> {
    /// The number that [`CaptureFile::add_interface`] returned.
    pub interface: u32,
    /// Nanoseconds since 1970, or since the start of a simulated clock.
    pub at_ns: u64,
    /// Whether `interface` sent or received the frame.
    pub direction: Direction,
    /// The sender's address.
    pub from: PeerAddr,
    /// The receiver's address, of the same kind as `from`.
    pub to: PeerAddr,
    /// True if a switch marked the frame (ECN). The file contains the mark only for frames between
    /// sockets.
    pub congestion_experienced: bool,
    /// The EtherType and VLAN of a frame between stations; `None` for a frame between sockets.
    pub ethernet: Option<EthernetHeader>,
    /// The edge frame, without the headers that [`CaptureFile::write`] adds.
    pub bytes: &'a [u8],
}

impl<W: Write> CaptureFile<W> {
    /// Starts a file. `output` should be buffered.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn new(output: W) -> io::Result<Self> {
        let mut file = Self { output, interfaces: 0, packet: Vec::new(), block: Vec::new() };
        pcapng::put_section_header(&mut file.block);
        file.write_block()?;
        Ok(file)
    }

    /// Adds an interface to the file and returns its number.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn add_interface(&mut self, name: &str) -> io::Result<u32> {
        pcapng::put_interface(&mut self.block, name, pcapng::EDGE);
        self.write_block()?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Writes a frame with the headers that match its addresses. Returns false and writes nothing
    /// in two cases: the frame is longer than any datagram, or its addresses are of different
    /// kinds.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn write(&mut self, frame: &CapturedFrame<'_>) -> io::Result<bool> {
        let CapturedFrame { interface, at_ns, direction, from, to, ethernet, bytes, .. } = *frame;
        let congestion_experienced = frame.congestion_experienced;
        let envelope = Envelope { from, to, congestion_experienced, ethernet };
        self.packet.clear();
        if !envelope.put(&mut self.packet, bytes) {
            return Ok(false);
        }
        pcapng::put_packet(&mut self.block, interface, at_ns, direction, &self.packet);
        self.write_block()?;
        Ok(true)
    }

    /// Passes everything written so far to the operating system.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Returns the output, which contains everything written.
    pub fn into_inner(self) -> W {
        self.output
    }

    fn write_block(&mut self) -> io::Result<()> {
        let written = self.output.write_all(&self.block);
        self.block.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn frame(interface: u32, from: PeerAddr, to: PeerAddr, bytes: &[u8]) -> CapturedFrame<'_> {
        let ethernet = Some(EthernetHeader { ethertype: 0x88b5, vlan: None });
        let (at_ns, direction) = (7, Direction::Inbound);
        let congestion_experienced = false;
        CapturedFrame {
            interface,
            at_ns,
            direction,
            from,
            to,
            congestion_experienced,
            ethernet,
            bytes,
        }
    }

    #[test]
    fn frames_name_their_interface() {
        let mut file = CaptureFile::new(Vec::new()).unwrap();
        let interfaces = [file.add_interface("a").unwrap(), file.add_interface("b").unwrap()];
        assert_eq!(interfaces, [0, 1]);
        let before = file.output.len();
        let ends = (PeerAddr::mac([2; 6], 1), PeerAddr::mac([4; 6], 1));
        assert!(file.write(&frame(1, ends.0, ends.1, b"edge")).unwrap());
        file.flush().unwrap();
        let block = &file.into_inner()[before..];
        assert_eq!(block[8..12], 1_u32.to_le_bytes());
        assert_eq!(block[28..34], [4; 6]);
    }

    #[test]
    fn only_valid_frames_are_written() {
        let mut file = CaptureFile::new(Vec::new()).unwrap();
        let before = file.output.len();
        let station = PeerAddr::mac([2; 6], 1);
        let socket = PeerAddr::from(SocketAddr::from(([10, 0, 0, 1], 5)));
        let long = vec![0; 65_508];
        assert!(!file.write(&frame(0, socket, socket, &long)).unwrap());
        let without = CapturedFrame { ethernet: None, ..frame(0, station, station, b"edge") };
        assert!(!file.write(&without).unwrap());
        assert_eq!(file.into_inner().len(), before);
    }
}
