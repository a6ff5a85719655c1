//! Writes frames of a simulation to a file for Wireshark.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use interconnect::edge::{self, Tap, TappedFrame};
use link::{CaptureFile, CapturedFrame, Direction, EthernetHeader};
use wire_edge::{ETHERTYPE_DEFAULT, PeerAddr};

use crate::Failure;
use crate::output::explained;

/// A file for frames of hosts.
#[derive(Debug)]
pub(super) struct FrameFile {
    path: PathBuf,
    writer: Rc<RefCell<Writer>>,
}

/// How many frames were written to the file, and how many were omitted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Written {
    /// Number of frames in the file.
    pub(super) frames: u64,
    /// Number of frames left out because of the limit.
    pub(super) left_out: u64,
}

/// A tap: the simulation calls it for each frame that a host sends or receives.
#[derive(Debug)]
struct Ear {
    /// Hosts to record, in ascending order; if empty, all.
    hosts: Vec<u32>,
    writer: Rc<RefCell<Writer>>,
}

#[derive(Debug)]
struct Writer {
    file: CaptureFile<BufWriter<File>>,
    /// Index of each interface in the file, by host and rail.
    interfaces: BTreeMap<(u32, u8), u32>,
    frames_max: u64,
    /// Whether frames are UDP datagrams, which may have an ECN mark.
    has_datagrams: bool,
    written: Written,
    /// The first error; after it, no more frames are written.
    error: Option<io::Error>,
}

impl FrameFile {
    /// Creates a file for at most `frames_max` frames.
    pub(super) fn create(
        path: &Path,
        frames_max: u64,
        has_datagrams: bool,
    ) -> Result<Self, Failure> {
        let file = File::create(path)
            .and_then(|file| CaptureFile::new(BufWriter::new(file)))
            .map_err(|error| explained(path, &error))?;
        let writer = Writer {
            file,
            interfaces: BTreeMap::new(),
            frames_max,
            has_datagrams,
            written: Written::default(),
            error: None,
        };
        Ok(Self { path: path.to_owned(), writer: Rc::new(RefCell::new(writer)) })
    }

    /// Returns a tap that records frames of `hosts`, or of all hosts if `hosts` is empty.
    pub(super) fn tap(&self, hosts: &[u32]) -> Box<dyn Tap> {
        let mut hosts = hosts.to_vec();
        hosts.sort_unstable();
        Box::new(Ear { hosts, writer: Rc::clone(&self.writer) })
    }

    /// Completes the file. Removes the file if it was not written completely.
    pub(super) fn finish(self) -> Result<Written, Failure> {
        let Self { path, writer } = self;
        let mut writer = writer.borrow_mut();
        let error = writer.error.take().or_else(|| writer.file.flush().err());
        match error {
            None => Ok(writer.written),
            Some(error) => {
                // If this fails too, nothing more can be done.
                let _ = fs::remove_file(&path);
                Err(explained(&path, &error).into())
            }
        }
    }
}

impl Tap for Ear {
    fn wants(&self, host: u32) -> bool {
        self.hosts.is_empty() || self.hosts.binary_search(&host).is_ok()
    }

    fn on_frame(&mut self, frame: &TappedFrame<'_>) {
        self.writer.borrow_mut().on_frame(frame);
    }
}

impl Writer {
    fn on_frame(&mut self, frame: &TappedFrame<'_>) {
        if self.written.frames >= self.frames_max {
            self.written.left_out += 1;
        } else if self.error.is_none() {
            self.written.frames += 1;
            self.error = self.write(frame).err();
        }
    }

    fn write(&mut self, frame: &TappedFrame<'_>) -> io::Result<()> {
        let &TappedFrame { at_ps, host, peer, rail, is_sent, is_marked, bytes } = frame;
        let interface = if let Some(&interface) = self.interfaces.get(&(host, rail)) {
            interface
        } else {
            let interface = self.file.add_interface(&format!("h{host} rail {rail}"))?;
            self.interfaces.insert((host, rail), interface);
            interface
        };
        let (own, other) = (self.address(host, rail), self.address(peer, rail));
        let is_written = self.file.write(&CapturedFrame {
            interface,
            at_ns: at_ps / 1_000,
            direction: if is_sent { Direction::Outbound } else { Direction::Inbound },
            from: if is_sent { own } else { other },
            to: if is_sent { other } else { own },
            congestion_experienced: is_marked,
            ethernet: Some(EthernetHeader { ethertype: ETHERTYPE_DEFAULT, vlan: None }),
            bytes,
        })?;
        if is_written {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "a frame of {} bytes does not fit in a datagram",
            bytes.len()
        )))
    }

    /// Returns the address of a host: an Ethernet (MAC) address for Ethernet frames; for UDP a
    /// socket address, in a separate network for each rail.
    fn address(&self, host: u32, rail: u8) -> PeerAddr {
        if self.has_datagrams {
            let [_, a, b, c] = host.to_be_bytes();
            // A host number has 20 bits, so the rail fits in the four bits above it.
            let ip = Ipv4Addr::new(10, rail << 4 | a, b, c);
            return SocketAddr::from((ip, UDP_PORT)).into();
        }
        edge::address(host, rail)
    }
}

/// UDP port of all hosts.
const UDP_PORT: u16 = 4791;
