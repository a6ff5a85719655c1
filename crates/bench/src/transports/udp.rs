//! Bare UDP without a protocol: the yardstick for the cost of a datagram on this host.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::idle_limit::IdleLimit;
use crate::transport::{
    Advertisement, ClientSide, Latencies, Observed, Phase, ServerSide, Setup, Test, Transport,
    TransportError, counter,
};
use testbed::clock::Stopwatch;

/// Busy-polled UDP without retransmission.
///
/// In a ping-pong, a datagram contains the message and [`EDGE_HEADER_BYTES`] more bytes, so that
/// the datagram is as large as a packet of the edge protocol. In the test of the operation rate, a
/// datagram contains only the message.
#[derive(Debug)]
pub struct Udp;

impl Transport for Udp {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn description(&self) -> &'static str {
        "yardstick: bare datagrams, busy-polled, without retransmissions"
    }

    fn supports(&self, test: Test, message_bytes: u64, mtu: Option<u32>) -> bool {
        let mtu = u64::from(mtu.unwrap_or(ETHERNET_MTU));
        let fits = message_bytes + EDGE_HEADER_BYTES as u64 + IP_AND_UDP_HEADER_BYTES <= mtu;
        matches!(test, Test::PingPong | Test::OperationRate) && message_bytes >= 8 && fits
    }

    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError> {
        let link = setup.links.first().ok_or(TransportError::Advertisement { what: "link" })?;
        let (socket, address) = bind(SocketAddr::new(link.server, 0))?;
        Ok(Box::new(Server { socket, address, buffer: buffer(setup), test: setup.test, phases: 0 }))
    }

    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError> {
        let server = advertisement
            .addresses
            .first()
            .copied()
            .ok_or(TransportError::Advertisement { what: "address" })?;
        let unspecified = match server {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = setup.links.first().and_then(|link| link.client).unwrap_or(unspecified);
        let (socket, _) = bind(SocketAddr::new(own, 0))?;
        socket
            .connect(server)
            .map_err(TransportError::io(format!("connect a UDP socket to {server}")))?;
        let (buffer, test) = (buffer(setup), setup.test);
        let mut client = Client { socket, buffer, test, phases: 0, next_ordinal: 0 };
        client.ask(HELLO, "send to the server's UDP socket")?;
        Ok(Box::new(client))
    }
}

struct Server {
    socket: UdpSocket,
    address: SocketAddr,
    buffer: Vec<u8>,
    test: Test,
    /// Number of phases begun, equal on both sides.
    phases: u64,
}

impl ServerSide for Server {
    fn advertisement(&self) -> Advertisement {
        Advertisement { addresses: vec![self.address], ..Advertisement::default() }
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        let mut idle_limit = IdleLimit::new("wait for the client's first datagram");
        loop {
            match self.socket.recv_from(&mut self.buffer) {
                Ok((bytes, client)) if number(&self.buffer, bytes) == HELLO => {
                    self.socket
                        .connect(client)
                        .map_err(TransportError::io(format!("connect a UDP socket to {client}")))?;
                    return send(&self.socket, self.buffer.get(..bytes).unwrap_or_default());
                }
                Ok(_) => idle_limit.on_idle()?,
                Err(error) if is_transient(&error) => idle_limit.on_idle()?,
                Err(error) => return Err(TransportError::io("receive over UDP")(error)),
            }
        }
    }

    fn run(&mut self, _phase: Phase) -> Result<Observed, TransportError> {
        let mut received = 0_u64;
        self.phases += 1;
        let end = end_of_phase(self.phases);
        let mut idle_limit = IdleLimit::new("receive over UDP");
        loop {
            let Some(bytes) = try_receive(&self.socket, &mut self.buffer)? else {
                idle_limit.on_idle()?;
                continue;
            };
            idle_limit.on_progress();
            let number = number(&self.buffer, bytes);
            let datagram = self.buffer.get_mut(..bytes).unwrap_or_default();
            if number >= CONTROL {
                // If the number is not `end`, the client has retransmitted a question of the
                // set-up, or of the end of an earlier phase. The server only echoes such a
                // question.
                if number == end {
                    write_number(datagram.get_mut(8..).unwrap_or_default(), received);
                }
                send(&self.socket, datagram)?;
                if number == end {
                    let counters = [(RECEIVED_DATAGRAMS.to_string(), received as f64)].into();
                    return Ok(Observed { counters, ..Observed::default() });
                }
                continue;
            }
            received += 1;
            if self.test == Test::PingPong {
                send(&self.socket, datagram)?;
            }
        }
    }
}

struct Client {
    socket: UdpSocket,
    buffer: Vec<u8>,
    test: Test,
    /// Number of phases begun, equal on both sides.
    phases: u64,
    /// Number of the next datagram. Numbers are never reused, so that the client can detect a late
    /// echo.
    next_ordinal: u64,
}

impl Client {
    /// Sends `question` repeatedly until its echo arrives. Returns the number that follows the
    /// question in the echo.
    fn ask(&mut self, question: u64, attempt: &'static str) -> Result<u64, TransportError> {
        let mut idle_limit = IdleLimit::new(attempt);
        let mut datagram = [0; 16];
        write_number(&mut datagram, question);
        loop {
            send(&self.socket, &datagram)?;
            let asked = Stopwatch::start();
            while !asked.has_passed(REPEAT_AFTER) {
                match try_receive(&self.socket, &mut self.buffer)? {
                    Some(bytes) if number(&self.buffer, bytes) == question => {
                        let answer = self.buffer.get(8..).unwrap_or_default();
                        return Ok(number(answer, bytes.saturating_sub(8)));
                    }
                    _ => idle_limit.on_idle()?,
                }
            }
        }
    }

    /// Sends datagram `ordinal` and waits for its echo. Returns false if the echo does not arrive
    /// in time.
    fn ping(&mut self, ordinal: u64) -> Result<bool, TransportError> {
        write_number(&mut self.buffer, ordinal);
        send(&self.socket, &self.buffer)?;
        let mut polls = 0_u32;
        let mut asked = None;
        loop {
            match try_receive(&self.socket, &mut self.buffer)? {
                Some(bytes) if number(&self.buffer, bytes) == ordinal => return Ok(true),
                // Read the clock only once in many polls, so that the cost of reading is
                // negligible.
                _ => polls += 1,
            }
            if polls.is_multiple_of(1024)
                && asked.get_or_insert_with(Stopwatch::start).has_passed(REPEAT_AFTER)
            {
                return Ok(false);
            }
        }
    }

    fn ping_pong(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<(), TransportError> {
        let mut lost_in_a_row = 0_u32;
        for _ in 0..phase.operations {
            let ordinal = self.next_ordinal;
            self.next_ordinal += 1;
            loop {
                let started = Stopwatch::start();
                if self.ping(ordinal)? {
                    latencies.record_ns(started.elapsed_ns() / 2);
                    lost_in_a_row = 0;
                    break;
                }
                lost_in_a_row += 1;
                if lost_in_a_row > LOST_IN_A_ROW_MAX {
                    return Err(super::idle_limit::timed_out("ping over UDP"));
                }
            }
        }
        Ok(())
    }

    fn send_all(&mut self, phase: Phase) -> Result<(), TransportError> {
        let datagram_bytes = self.buffer.len() - EDGE_HEADER_BYTES;
        for ordinal in 0..phase.operations {
            let datagram = self.buffer.get_mut(..datagram_bytes).unwrap_or_default();
            write_number(datagram, ordinal);
            send(&self.socket, datagram)?;
        }
        Ok(())
    }
}

impl ClientSide for Client {
    fn run(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<Observed, TransportError> {
        self.phases += 1;
        let end = end_of_phase(self.phases);
        if self.test == Test::PingPong {
            self.ping_pong(phase, latencies)?;
            self.ask(end, "end a phase over UDP")?;
            return Ok(Observed::default());
        }
        self.send_all(phase)?;
        let received = self.ask(end, "end a phase over UDP")?;
        let lost = phase.operations.saturating_sub(received) as f64;
        Ok(Observed {
            counters: [(counter::LOST_DATAGRAMS.to_string(), lost)].into(),
            ..Observed::default()
        })
    }
}

/// Returns the question that ends a phase. Its echo contains the number of datagrams received.
fn end_of_phase(phase: u64) -> u64 {
    CONTROL | (phase & 0xffff_ffff)
}

fn bind(address: SocketAddr) -> Result<(UdpSocket, SocketAddr), TransportError> {
    let attempt = || format!("bind a UDP socket to {address}");
    let socket = UdpSocket::bind(address).map_err(TransportError::io(attempt()))?;
    socket.set_nonblocking(true).map_err(TransportError::io("make a UDP socket non-blocking"))?;
    let bound = socket.local_addr().map_err(TransportError::io(attempt()))?;
    Ok((socket, bound))
}

fn buffer(setup: &Setup) -> Vec<u8> {
    vec![0x5a; setup.message_bytes.clamp(8, DATAGRAM_BYTES_MAX) as usize + EDGE_HEADER_BYTES]
}

fn try_receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
    match socket.recv(buffer) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_transient(&error) => Ok(None),
        Err(error) => Err(TransportError::io("receive over UDP")(error)),
    }
}

/// Sends a datagram. Polls while the socket buffer is full.
fn send(socket: &UdpSocket, datagram: &[u8]) -> Result<(), TransportError> {
    let mut idle_limit = IdleLimit::new("send over UDP");
    loop {
        match socket.send(datagram) {
            Ok(_) => return Ok(()),
            Err(error) if is_transient(&error) => idle_limit.on_idle()?,
            Err(error) => return Err(TransportError::io("send over UDP")(error)),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Returns the number at the start of a datagram of `bytes` bytes, or `UNNUMBERED` if the datagram
/// is too short.
fn number(buffer: &[u8], bytes: usize) -> u64 {
    let prefix = buffer.get(..bytes).and_then(|datagram| datagram.first_chunk::<8>());
    prefix.map_or(UNNUMBERED, |prefix| u64::from_le_bytes(*prefix))
}

fn write_number(datagram: &mut [u8], number: u64) {
    if let Some(prefix) = datagram.first_chunk_mut::<8>() {
        *prefix = number.to_le_bytes();
    }
}

/// Bytes of the headers of the edge protocol before a small write in a steady ping-pong
/// (`docs/protocol.md` section 3): packet header, acknowledgement of the peer's write, and header
/// of the write.
pub const EDGE_HEADER_BYTES: usize = 12 + 20 + 24;

/// Numbers from this value upwards are questions. Lower numbers are messages.
const CONTROL: u64 = 0xffff_ffff_0000_0000;
/// Asks for an echo at set-up.
const HELLO: u64 = CONTROL;
/// Stands for the number of a datagram that is too short to contain a number.
const UNNUMBERED: u64 = 0;

const RECEIVED_DATAGRAMS: &str = "received_datagrams";
const ETHERNET_MTU: u32 = 1500;
const IP_AND_UDP_HEADER_BYTES: u64 = 28;
const DATAGRAM_BYTES_MAX: u64 = 65_507 - EDGE_HEADER_BYTES as u64;

/// Time after which a datagram is retransmitted. It is much longer than a round trip, and much
/// shorter than a phase.
const REPEAT_AFTER: Duration = Duration::from_millis(20);
/// Number of timeouts in a row, each 20 ms, after which the path counts as down.
const LOST_IN_A_ROW_MAX: u32 = 100;
