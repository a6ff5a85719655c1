//! Exchanges bare frames over the kernel interfaces of raw links, without a protocol. The result is
//! the cost of a frame on this host.

use ethernot::{LinkSpec, PacketConfig, XdpConfig};
use link::yardstick::packet::{BarePacket, BareReceive};
use link::yardstick::shm::BareShm;
use link::yardstick::xdp::BareXdp;

use crate::transport::{
    Advertisement, ClientSide, Latencies, Observed, Phase, ServerSide, Setup, Test, Transport,
    TransportError,
};
use crate::transports::EDGE_HEADER_BYTES;
use crate::transports::idle_limit::IdleLimit;
use testbed::clock::Stopwatch;

/// Bare frames as large as those of the edge protocol in a ping-pong. The ends poll and do not
/// retransmit. The links must have no loss, because a lost frame ends the measurement.
#[derive(Debug, Clone, Copy)]
pub enum Bare {
    /// Frames over packet sockets.
    Packet,
    /// Frames over `AF_XDP`.
    Xdp,
    /// One cache line of shared memory in each direction, whatever the message size. The edge
    /// protocol's ping-pong of small writes also moves one cache line in each direction between the
    /// processors.
    Shm,
}

impl Transport for Bare {
    fn name(&self) -> &'static str {
        match self {
            Self::Packet => "bare-packet",
            Self::Xdp => "bare-xdp",
            Self::Shm => BARE_SHM,
        }
    }

    fn description(&self) -> &'static str {
        match self {
            Self::Shm => "yardstick: a cache line of shared memory, busy-polled",
            _ => "yardstick: bare frames, busy-polled, without retransmissions",
        }
    }

    fn is_optional(&self) -> bool {
        true
    }

    fn supports(&self, test: Test, message_bytes: u64, mtu: Option<u32>) -> bool {
        if matches!(self, Self::Shm) {
            return test == Test::PingPong && message_bytes == WORD_BYTES;
        }
        let frame_bytes = message_bytes + EDGE_HEADER_BYTES as u64 + ENVELOPE_BYTES;
        test == Test::PingPong && frame_bytes <= u64::from(mtu.unwrap_or(ETHERNET_MTU))
    }

    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError> {
        if matches!(self, Self::Shm) {
            let memory = BareShm::create().map_err(TransportError::io("make shared memory"))?;
            return Ok(Box::new(MemoryServer(memory)));
        }
        Ok(Box::new(Server(Socket::open(*self, &setup.server_links, setup.message_bytes)?)))
    }

    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError> {
        if matches!(self, Self::Shm) {
            let path = advertisement.parameters.get(MEMORY);
            let path = path.ok_or(TransportError::Advertisement { what: MEMORY })?;
            let memory = BareShm::open(path.as_ref());
            let memory = memory.map_err(TransportError::io("open the server's shared memory"))?;
            return Ok(Box::new(MemoryClient(memory)));
        }
        let server = advertisement.parameters.get(STATION).and_then(|text| station(text));
        let server = server.ok_or(TransportError::Advertisement { what: STATION })?;
        let socket = Socket::open(*self, &setup.client_links, setup.message_bytes)?;
        Ok(Box::new(Client { socket, server }))
    }
}

pub(super) type Station = [u8; 6];

enum Socket {
    Packet(Box<BarePacket>),
    Xdp(Box<BareXdp>),
}

impl Socket {
    fn open(kind: Bare, links: &[String], message_bytes: u64) -> Result<Self, TransportError> {
        let name = links.first().ok_or(TransportError::Advertisement { what: "link" })?;
        let failed = |error: &dyn std::fmt::Display| {
            TransportError::Other(format!("open {name} for a bare exchange: {error}"))
        };
        let specs = LinkSpec::parse_list(name).map_err(|error| failed(&error))?;
        let content_bytes = message_bytes as u16 + EDGE_HEADER_BYTES as u16;
        match (kind, specs.into_iter().next()) {
            (Bare::Packet, Some(LinkSpec::Packet { interface, .. })) => {
                let config = PacketConfig::new(interface).port(PORT);
                let bare = BarePacket::open(&config, BareReceive::Ring, content_bytes);
                Ok(Self::Packet(Box::new(bare.map_err(|error| failed(&error))?)))
            }
            (Bare::Xdp, Some(LinkSpec::Xdp { interface, options, .. })) => {
                let mode = options.mode;
                let config = XdpConfig::new(interface).port(PORT).mode(mode);
                let bare = BareXdp::open(&config, content_bytes);
                Ok(Self::Xdp(Box::new(bare.map_err(|error| failed(&error))?)))
            }
            _ => Err(failed(&"another kind of link")),
        }
    }

    fn station(&self) -> Station {
        match self {
            Self::Packet(bare) => bare.station(),
            Self::Xdp(bare) => bare.station(),
        }
    }

    #[inline]
    fn send(&mut self, to: Station) -> Result<(), TransportError> {
        let mut idle_limit = IdleLimit::new("send a bare frame");
        loop {
            let sent = match self {
                Self::Packet(bare) => bare.send(to),
                Self::Xdp(bare) => bare.send(to),
            };
            match sent {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    idle_limit.on_idle()?;
                }
                Err(error) => return Err(TransportError::io("send a bare frame")(error)),
            }
        }
    }

    #[inline]
    fn receive(&mut self) -> Result<Station, TransportError> {
        let mut idle_limit = IdleLimit::new("wait for a bare frame");
        loop {
            let from = match self {
                Self::Packet(bare) => bare.poll(),
                Self::Xdp(bare) => bare.poll(),
            };
            match from {
                Some(from) => return Ok(from),
                None => idle_limit.on_idle()?,
            }
        }
    }
}

struct Server(Socket);

impl ServerSide for Server {
    fn advertisement(&self) -> Advertisement {
        let parameters = [(STATION.to_string(), listed(self.0.station()))].into();
        Advertisement { addresses: Vec::new(), parameters }
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        for _ in 0..phase.operations {
            let from = self.0.receive()?;
            self.0.send(from)?;
        }
        Ok(Observed::default())
    }
}

struct Client {
    socket: Socket,
    server: Station,
}

impl ClientSide for Client {
    fn run(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<Observed, TransportError> {
        for _ in 0..phase.operations {
            let started = Stopwatch::start();
            self.socket.send(self.server)?;
            self.socket.receive()?;
            latencies.record_ns(started.elapsed_ns() / 2);
        }
        Ok(Observed::default())
    }
}

struct MemoryServer(BareShm);

impl ServerSide for MemoryServer {
    fn advertisement(&self) -> Advertisement {
        let path = self.0.path().to_string_lossy().into_owned();
        Advertisement { addresses: Vec::new(), parameters: [(MEMORY.to_string(), path)].into() }
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        for _ in 0..phase.operations {
            await_line(&mut self.0)?;
            self.0.send();
        }
        Ok(Observed::default())
    }
}

struct MemoryClient(BareShm);

impl ClientSide for MemoryClient {
    fn run(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<Observed, TransportError> {
        for _ in 0..phase.operations {
            let started = Stopwatch::start();
            self.0.send();
            await_line(&mut self.0)?;
            latencies.record_ns(started.elapsed_ns() / 2);
        }
        Ok(Observed::default())
    }
}

#[inline]
fn await_line(memory: &mut BareShm) -> Result<(), TransportError> {
    let mut idle_limit = IdleLimit::new("wait for a line of shared memory");
    while !memory.poll() {
        idle_limit.on_idle()?;
    }
    Ok(())
}

pub(super) fn listed(station: Station) -> String {
    station.map(|byte| format!("{byte:02x}")).join(":")
}

pub(super) fn station(text: &str) -> Option<Station> {
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

/// Name of the yardstick for small messages over shared memory.
const BARE_SHM: &str = "bare-shm";
/// Smallest message of the edge protocol's ping-pong, in bytes.
const WORD_BYTES: u64 = 8;
/// Parameter with the location of the server's memory.
const MEMORY: &str = "memory";
/// Parameter with the server's hardware address.
pub(super) const STATION: &str = "station";
/// A fixed port number. It is always free, because no other program uses these interfaces.
pub(super) const PORT: u16 = 7;
/// Bytes of the envelope, which follows the Ethernet header and precedes the frame.
pub(super) const ENVELOPE_BYTES: u64 = 12;
pub(super) const ETHERNET_MTU: u32 = 1500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_parses_from_its_text() {
        let one = [2, 0, 0, 0xab, 0xcd, 0xef];
        assert_eq!(station(&listed(one)), Some(one));
        assert_eq!(station("02:00"), None);
        assert_eq!(station("no:no:no:no:no:no"), None);
    }
}
