//! Streams of bare frames over packet sockets. They show the highest rate that the kernel, the
//! virtual links and the shapers of this host permit without a protocol.

use std::io;
use std::time::Duration;

use ethernot::{LinkSpec, PacketConfig};
use link::yardstick::packet::{BarePacket, BareReceive};
use nix::errno::Errno;

use super::bare::{ENVELOPE_BYTES, ETHERNET_MTU, PORT, STATION, Station, listed, station};
use crate::transport::{
    Advertisement, ClientSide, Latencies, Observed, Phase, ServerSide, Setup, Test, Transport,
    TransportError,
};
use crate::transports::idle_limit::IdleLimit;
use testbed::clock::Stopwatch;

/// Sends full frames without content over all links, at the rate of each link.
///
/// Each end regularly reports the number of frames that arrived. The sender limits the number of
/// frames that are sent but not yet reported, so that they fit in the queue of a switch port.
/// Frames are not checked, placed or retransmitted. A message counts as arrived when as many frames
/// have arrived as the edge protocol needs for a message.
#[derive(Debug, Clone, Copy)]
pub struct BareStream;

impl Transport for BareStream {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        "yardstick: full frames without content, neither checked nor retransmitted; they show what \
         rate this host permits"
    }

    fn is_optional(&self) -> bool {
        true
    }

    fn supports(&self, test: Test, message_bytes: u64, _: Option<u32>) -> bool {
        matches!(test, Test::OneWay | Test::TwoWay) && message_bytes >= MESSAGE_BYTES_MIN
    }

    fn link_counts(&self, available: u32) -> Vec<u32> {
        vec![available]
    }

    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError> {
        Ok(Box::new(BareStreamEnd::open(setup, &setup.server_links)?))
    }

    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError> {
        let mut host = BareStreamEnd::open(setup, &setup.client_links)?;
        for (index, link) in host.links.iter_mut().enumerate() {
            let text = advertisement.parameters.get(&format!("{STATION}{index}"));
            let server = text.and_then(|text| station(text));
            link.peer = Some(server.ok_or(TransportError::Advertisement { what: STATION })?);
        }
        Ok(Box::new(host))
    }
}

/// One end of the stream.
struct BareStreamEnd {
    links: Vec<LinkEnd>,
    test: Test,
    /// Number of frames that count as one message.
    frames_each: u64,
}

/// One end of a link, and the progress of the phase on this link.
struct LinkEnd {
    socket: BarePacket,
    /// The address of the other end. The server learns it from the first frame.
    peer: Option<Station>,
    /// Time of a full frame on the link, in nanoseconds; 0 if the rate is unknown.
    frame_ns: f64,
    /// Bytes of a full frame, counted after the envelope.
    content_bytes: u16,
    /// Number of frames that the sender has skipped. If more than [`CATCH_UP_FRAMES`] frames are
    /// overdue, the sender skips the frames beyond [`CATCH_UP_FRAMES`].
    missed: u64,
    sent: u64,
    /// Number of sent frames whose arrival the peer has reported.
    arrived: u64,
    received: u64,
    /// Number of received frames that this end has reported to the peer.
    reported: u64,
}

impl BareStreamEnd {
    fn open(setup: &Setup, names: &[String]) -> Result<Self, TransportError> {
        let mtu = setup.mtu.unwrap_or(ETHERNET_MTU);
        let content_bytes = (u64::from(mtu) - ENVELOPE_BYTES) as u16;
        let rates = setup.rates.iter().copied().chain(std::iter::repeat(0));
        let links = names.iter().zip(rates).map(|(name, rate)| {
            let socket = open(name, content_bytes)?;
            let bits = f64::from(mtu + ETHERNET_HEADER_BYTES) * 8.0;
            let frame_ns = if rate == 0 { 0.0 } else { bits * 1e9 / rate as f64 };
            let counts = (0, 0, 0, 0, 0);
            let (missed, sent, arrived, received, reported) = counts;
            let peer = None;
            Ok(LinkEnd {
                socket,
                peer,
                frame_ns,
                content_bytes,
                missed,
                sent,
                arrived,
                received,
                reported,
            })
        });
        let links = links.collect::<Result<Vec<_>, TransportError>>()?;
        let payload_bytes = u64::from(content_bytes) - EDGE_BYTES;
        let frames_each = setup.message_bytes.div_ceil(payload_bytes);
        Ok(Self { links, test: setup.test, frames_each })
    }

    /// Sends `to_send` frames and receives `to_receive` frames, in total over all links.
    fn stream(&mut self, mut to_send: u64, to_receive: u64) -> Result<(), TransportError> {
        for link in &mut self.links {
            link.begin();
        }
        let started = Stopwatch::start();
        let mut idle_limit = IdleLimit::new("wait for frames of a bare stream");
        let mut silent: Option<Stopwatch> = None;
        loop {
            let mut moved = false;
            let received: u64 = self.links.iter().map(|link| link.received).sum();
            for link in &mut self.links {
                moved |= link.receive();
                let sent = link.send(started.elapsed_ns() as f64, to_send)?;
                to_send -= sent;
                moved |= sent > 0;
                link.report(received >= to_receive)?;
            }
            let is_done =
                |link: &LinkEnd| link.arrived == link.sent && link.reported == link.received;
            if to_send == 0 && received >= to_receive && self.links.iter().all(is_done) {
                return Ok(());
            }
            if moved {
                idle_limit.on_progress();
                silent = None;
                continue;
            }
            idle_limit.on_idle()?;
            let began = received > 0 || self.links.iter().any(|link| link.sent > 0);
            if began && silent.get_or_insert_with(Stopwatch::start).has_passed(SILENCE) {
                // No frame has arrived for the time [`SILENCE`], so the missing frames are lost.
                if to_send == 0 {
                    return Ok(());
                }
                for link in &mut self.links {
                    link.arrived = link.sent;
                }
            }
        }
    }
}

impl ServerSide for BareStreamEnd {
    fn advertisement(&self) -> Advertisement {
        let stations = self.links.iter().enumerate();
        let parameters = stations
            .map(|(index, link)| (format!("{STATION}{index}"), listed(link.socket.station())));
        Advertisement { addresses: Vec::new(), parameters: parameters.collect() }
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        let frames = phase.operations * self.frames_each;
        let answers = if self.test == Test::TwoWay { frames } else { 0 };
        self.stream(answers, frames)?;
        Ok(Observed::default())
    }
}

impl ClientSide for BareStreamEnd {
    fn run(&mut self, phase: Phase, _: &mut Latencies) -> Result<Observed, TransportError> {
        let frames = phase.operations * self.frames_each;
        let answers = if self.test == Test::TwoWay { frames } else { 0 };
        self.stream(frames, answers)?;
        Ok(Observed::default())
    }
}

impl LinkEnd {
    fn begin(&mut self) {
        (self.missed, self.sent, self.arrived, self.received, self.reported) = (0, 0, 0, 0, 0);
    }

    /// Receives all frames that have arrived. Returns false if there were none.
    fn receive(&mut self) -> bool {
        let mut came = false;
        while let Some(frame) = self.socket.poll_number() {
            came = true;
            self.peer = Some(frame.from);
            self.arrived = self.arrived.max(frame.number.min(self.sent));
            self.received += u64::from(frame.content_bytes >= usize::from(self.content_bytes));
        }
        came
    }

    /// Sends at most `left` of the frames that are due `now` nanoseconds after the start of the
    /// phase. Returns the number of frames sent.
    fn send(&mut self, now: f64, left: u64) -> Result<u64, TransportError> {
        let Some(peer) = self.peer.filter(|_| left > 0) else { return Ok(0) };
        let mut due = BATCH_FRAMES;
        if self.frame_ns > 0.0 {
            let all = (now / self.frame_ns) as u64 + 1;
            due = all.saturating_sub(self.missed + self.sent);
            self.missed += due.saturating_sub(CATCH_UP_FRAMES);
            due = due.min(CATCH_UP_FRAMES);
        }
        let room = WINDOW_FRAMES.saturating_sub(self.sent - self.arrived);
        let frames = due.min(room).min(left).min(BATCH_FRAMES);
        if frames == 0 {
            return Ok(0);
        }
        let taken =
            self.socket.send_numbers(peer, self.received, self.content_bytes, frames as usize);
        let taken = taken_or_waits(taken)?;
        if taken > 0 {
            self.reported = self.received;
        }
        self.sent += taken;
        Ok(taken)
    }

    /// Reports the number of received frames if a report is due. If `is_last` is true, a report is
    /// due as soon as one frame is unreported.
    fn report(&mut self, is_last: bool) -> Result<(), TransportError> {
        let unreported = self.received - self.reported;
        let due = unreported >= REPORT_FRAMES || is_last && unreported > 0;
        if let Some(peer) = self.peer.filter(|_| due) {
            let taken = self.socket.send_numbers(peer, self.received, REPORT_BYTES, 1);
            if taken_or_waits(taken)? > 0 {
                self.reported = self.received;
            }
        }
        Ok(())
    }
}

fn open(name: &str, content_bytes: u16) -> Result<BarePacket, TransportError> {
    let failed = |error: &dyn std::fmt::Display| {
        TransportError::Other(format!("open {name} for a bare stream: {error}"))
    };
    let spec = name.parse().map_err(|error| failed(&error))?;
    let LinkSpec::Packet { interface, .. } = spec else {
        return Err(failed(&"a bare stream needs packet links"));
    };
    let config = PacketConfig::new(interface).port(PORT);
    BarePacket::open(&config, BareReceive::Ring, content_bytes).map_err(|error| failed(&error))
}

/// Returns the number of frames that the kernel accepted. Returns 0 if the kernel's queue is full.
fn taken_or_waits(taken: io::Result<usize>) -> Result<u64, TransportError> {
    match taken {
        Ok(frames) => Ok(frames as u64),
        Err(error)
            if error.kind() == io::ErrorKind::WouldBlock
                || error.raw_os_error() == Some(Errno::ENOBUFS as i32) =>
        {
            Ok(0)
        }
        Err(error) => Err(TransportError::io("send frames of a bare stream")(error)),
    }
}

/// The name of the contender.
pub const NAME: &str = "bare";

/// Highest number of frames in flight on a link. It is a little less than the queue of a switch
/// port.
const WINDOW_FRAMES: u64 = 190;

/// Highest number of frames sent in one call.
const BATCH_FRAMES: u64 = 32;

/// Highest number of overdue frames that a late sender may send at once. This is the burst that a
/// shaped port permits.
const CATCH_UP_FRAMES: u64 = 20;

/// Number of received frames after which the receiver sends a report.
const REPORT_FRAMES: u64 = 32;

/// Smallest message, in bytes. Smaller messages do not fill the frames.
const MESSAGE_BYTES_MIN: u64 = 128 << 10;

/// Bytes of a report.
const REPORT_BYTES: u16 = 34;

/// Bytes of the edge protocol's headers in the middle of a write.
const EDGE_BYTES: u64 = 42;

const ETHERNET_HEADER_BYTES: u32 = 14;

/// Time without an arrival after which missing frames count as lost.
const SILENCE: Duration = Duration::from_millis(20);
