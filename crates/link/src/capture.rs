//! Captures a link's frames in a pcapng file, which Wireshark reads.

mod at_exit;
mod encapsulation;
mod file;
mod ip;
mod recorder;
mod tcp;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use delivery::{Instant, TxBatch};

use self::encapsulation::Envelope;
pub use self::file::{CaptureFile, CapturedFrame};
pub use self::recorder::CaptureStatistics;
use self::recorder::{Queue, Recorder, wall_ns};
pub use self::tcp::{CapturedConnection, TcpCapture};
use crate::pcapng::Direction;
use crate::udp::PayloadUnmapped;
use crate::wrapper::Wrapper;
use crate::{Link, OnFrame, payload};

/// The clock that timestamps captured frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum CaptureClock {
    /// The host's wall clock, for real links.
    Wall,
    /// The engine's clock; its time 0 is written as the start of 1970. Meant for simulated links:
    /// with this clock, a simulation writes the same file in every run. A sent frame gets the time
    /// of the last [`Link::receive`] call, because [`Link::send`] has no parameter for the time.
    Engine,
}

/// A pcapng file for the frames of several links. Each link is an interface of the file.
///
/// Wireshark recognises a connection by its handshake, which may pass over any link of the
/// endpoint. Therefore capture all links of an endpoint in one file.
///
/// A thread writes the file from a queue of at most 4096 frames and 64 MiB. If the queue is full,
/// the capture counts the frame, but does not store it. A slow disk therefore never delays a link.
/// When this value, its clones and all captures are dropped, the file is complete. The last drop
/// waits until all queued frames are written.
///
/// ```no_run
/// use link::{CaptureClock, CaptureOutput, PacketConfig, PacketLink, UdpConfig, UdpLink};
///
/// let output = CaptureOutput::create("run.pcapng".as_ref(), CaptureClock::Wall)?;
/// let udp = UdpLink::bind("10.0.0.1:0".parse()?, &UdpConfig::default())?;
/// let links = (output.capture(udp), output.capture(PacketLink::open(&PacketConfig::new("eth1"))?));
/// # drop(links);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CaptureOutput {
    queue: Arc<Queue>,
    clock: CaptureClock,
}

impl CaptureOutput {
    /// Creates a file at `path`, or truncates an existing one.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn create(path: &Path, clock: CaptureClock) -> io::Result<Self> {
        let file = File::create(path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot create {}: {error}", path.display()))
        })?;
        Self::new(file, clock)
    }

    /// Creates a capture file that is written to `output`. The capture buffers its writes, so
    /// `output` needs no buffer.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn new<W>(output: W, clock: CaptureClock) -> io::Result<Self>
    where
        W: Write + Send + 'static,
    {
        Ok(Self { queue: Queue::start(output)?, clock })
    }

    /// Adds an interface for `link` to the file and writes all frames of the link there.
    pub fn capture<L: Link>(&self, link: L) -> Capture<L> {
        let local = link.caps().local;
        let name = if local.to_shared_memory().is_some() {
            "shared memory".into()
        } else {
            format!("link {local}")
        };
        let recorder = Recorder::new(Arc::clone(&self.queue), &name);
        Capture { link, clock: self.clock, last_now: Instant(0), recorder }
    }
}

impl TcpCapture {
    /// Adds an interface with this name for TCP connections to the file of `output`.
    pub fn new(output: &CaptureOutput, name: &str) -> Self {
        Self::of(Recorder::of_tcp(Arc::clone(&output.queue), name))
    }
}

/// A link whose frames are also written to a pcapng file, with the headers that they had on the
/// wire.
///
/// Frames in shared memory have no such headers. For them, the capture writes raw Ethernet headers
/// with addresses that it derives from the link's address. [`CaptureOutput`] describes the writing
/// thread, and when frames are missing from the file.
#[derive(Debug)]
pub struct Capture<L> {
    link: L,
    clock: CaptureClock,
    last_now: Instant,
    recorder: Recorder,
}

impl<L: Link> Capture<L> {
    /// Captures `link` to a new file at `path`, for this link only.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn create(link: L, path: &Path, clock: CaptureClock) -> io::Result<Self> {
        Ok(CaptureOutput::create(path, clock)?.capture(link))
    }

    /// Captures `link` to `output`, which needs no buffer of its own.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn new<W>(link: L, output: W, clock: CaptureClock) -> io::Result<Self>
    where
        W: Write + Send + 'static,
    {
        Ok(CaptureOutput::new(output, clock)?.capture(link))
    }

    /// Returns the counters so far. Frames that are still queued count as written.
    pub fn capture_statistics(&self) -> CaptureStatistics {
        self.recorder.statistics()
    }

    /// Ends the capture and returns the link.
    pub fn into_inner(self) -> L {
        self.link
    }

    fn record_sent(&mut self, batch: &TxBatch, frames: usize) {
        let envelope = Envelope {
            from: self.link.caps().local,
            to: batch.to(),
            congestion_experienced: false,
            ethernet: self.link.ethernet_header(),
        };
        let at_ns = match self.clock {
            CaptureClock::Wall => wall_ns(),
            CaptureClock::Engine => self.last_now.0,
        };
        for index in 0..frames.min(batch.len()) {
            let frame = batch.frame(index);
            let mut bytes = frame.header.to_vec();
            if payload::append(frame.payload, &mut bytes) {
                record(&mut self.recorder, at_ns, Direction::Outbound, &envelope, &bytes);
            } else {
                self.recorder.record_missing();
            }
        }
    }
}

impl<L: Link> Wrapper for Capture<L> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut L {
        &mut self.link
    }

    fn let_in(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        self.last_now = now;
        let (to, ethernet) = (self.link.caps().local, self.link.ethernet_header());
        let (clock, recorder) = (self.clock, &mut self.recorder);
        let mut now_wall_ns = None;
        self.link.receive(now, limit, &mut |frame| {
            let at_ns = match clock {
                CaptureClock::Wall => now_wall_ns
                    .get_or_insert_with(wall_ns)
                    .saturating_sub(now.since_ns(frame.received_at)),
                CaptureClock::Engine => frame.received_at.0,
            };
            let congestion_experienced = frame.congestion_experienced;
            let envelope = Envelope { from: frame.from, to, congestion_experienced, ethernet };
            if frame.outside.is_empty() {
                record(recorder, at_ns, Direction::Inbound, &envelope, frame.bytes);
            } else {
                let mut whole = Vec::with_capacity(frame.len());
                frame.append_to(&mut whole);
                record(recorder, at_ns, Direction::Inbound, &envelope, &whole);
            }
            on_frame(frame);
        })
    }

    fn let_out(&mut self, batch: &TxBatch) -> io::Result<usize> {
        let result = self.link.send(batch);
        let sent = match &result {
            Ok(frames) => *frames,
            Err(error) => PayloadUnmapped::from_io(error).map_or(0, |unmapped| unmapped.frame),
        };
        self.record_sent(batch, sent);
        result
    }
}

/// Records a frame with the headers of its envelope.
fn record(
    recorder: &mut Recorder,
    at_ns: u64,
    direction: Direction,
    envelope: &Envelope,
    frame: &[u8],
) {
    let mut packet = Vec::with_capacity(frame.len() + HEADERS_BYTES);
    if envelope.put(&mut packet, frame) {
        recorder.record_packet(at_ns, direction, &packet);
    } else {
        recorder.record_missing();
    }
}

/// Length of Ethernet, IPv6 and UDP headers together.
const HEADERS_BYTES: usize = 14 + 40 + 8;
