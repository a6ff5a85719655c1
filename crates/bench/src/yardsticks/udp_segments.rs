//! A bare stream over UDP with segmentation offload. It gathers and copies payloads like a stream
//! of remote writes. The result is the highest rate that this host reaches with the system calls of
//! the edge protocol, but without the protocol.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use socket2::SockRef;

use crate::transport::{
    Advertisement, ClientSide, Latencies, Observed, Phase, ServerSide, Setup, Test, Transport,
    TransportError, counter,
};
use crate::transports::idle_limit::IdleLimit;

/// Busy-polled UDP. In one call, the sender passes [`BATCH_DATAGRAMS`] headers and the same number
/// of payloads to the kernel. The payloads come from a buffer of the size of a message. The kernel
/// sends all of them as one segmented datagram (`UDP_SEGMENT`), and delivers them as one datagram
/// (`UDP_GRO`). The receiver copies each payload to its place in a buffer of the same size.
///
/// The receiver grants a credit for each message that has arrived. The sender has at most
/// [`Setup::in_flight`] messages in flight, and at most the bytes that fit in the receiver's socket
/// buffer. Lost datagrams are not retransmitted. All datagrams are full: if the bytes at the end of
/// the buffer do not fill a payload, they are not sent.
#[derive(Debug, Clone, Copy)]
pub struct UdpSegments;

impl Transport for UdpSegments {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> &'static str {
        "yardstick: bare UDP with segmentation, gathered from 88 entries and copied to its \
         destination, polled"
    }

    fn is_optional(&self) -> bool {
        true
    }

    fn supports(&self, test: Test, message_bytes: u64, _: Option<u32>) -> bool {
        test == Test::OneWay && message_bytes >= MESSAGE_BYTES_MIN
    }

    fn listen(&self, setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError> {
        let link = setup.links.first().ok_or(TransportError::Advertisement { what: "link" })?;
        let socket = bind(SocketAddr::new(link.server, 0))?;
        let address = socket.local_addr();
        let address = address.map_err(TransportError::io("read the address of a UDP socket"))?;
        let window_bytes = receive_buffer(&socket)?;
        setsockopt(&socket, sockopt::UdpGroSegment, &true)
            .map_err(io::Error::from)
            .map_err(TransportError::io("set UDP_GRO"))?;
        let end = End { socket, shape: Shape::of(setup), phases: 0 };
        let memory = vec![0x5a; setup.message_bytes as usize];
        let arrived = vec![0; DATAGRAM_BYTES_MAX];
        Ok(Box::new(Server { end, address, window_bytes, memory, arrived }))
    }

    fn connect(
        &self,
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError> {
        let server = advertisement.addresses.first().copied();
        let server = server.ok_or(TransportError::Advertisement { what: "address" })?;
        let window = advertisement.parameters.get(WINDOW).and_then(|text| text.parse().ok());
        let window_bytes: u64 = window.ok_or(TransportError::Advertisement { what: WINDOW })?;
        let unspecified = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = setup.links.first().and_then(|link| link.client).unwrap_or(unspecified);
        let socket = bind(SocketAddr::new(own, 0))?;
        socket
            .connect(server)
            .map_err(TransportError::io(format!("connect a UDP socket to {server}")))?;
        let shape = Shape::of(setup);
        let segment_bytes = i32::try_from(shape.datagram_bytes()).unwrap_or(i32::MAX);
        setsockopt(&socket, sockopt::UdpGsoSegment, &segment_bytes)
            .map_err(io::Error::from)
            .map_err(TransportError::io("set UDP_SEGMENT"))?;
        let window = (window_bytes / shape.datagram_bytes() as u64)
            .min(u64::from(setup.in_flight.max(1)) * shape.datagrams_each);
        let headers = vec![0x5a; HEADER_BYTES * BATCH_DATAGRAMS];
        let memory = vec![0xa5; setup.message_bytes as usize];
        let end = End { socket, shape, phases: 0 };
        let client = Client { end, window: window.max(1), memory, headers };
        client
            .ask(Control { kind: HELLO, phase: 0, value: 0 }, "send to the server's UDP socket")?;
        Ok(Box::new(client))
    }
}

/// The division of messages into datagrams.
#[derive(Debug, Clone, Copy)]
struct Shape {
    payload_bytes: usize,
    /// Number of payloads that fit in the buffer of a message.
    places: u64,
    /// Number of datagrams of a message.
    datagrams_each: u64,
}

impl Shape {
    fn of(setup: &Setup) -> Self {
        let mtu = setup.mtu.unwrap_or(ETHERNET_MTU).min(DATAGRAM_BYTES_MAX as u32);
        let payload_bytes = (mtu as usize).saturating_sub(IP_AND_UDP_BYTES + HEADER_BYTES).max(1);
        let places = (setup.message_bytes / payload_bytes as u64).max(1);
        let datagrams_each = setup.message_bytes.div_ceil(payload_bytes as u64);
        Self { payload_bytes, places, datagrams_each }
    }

    fn datagram_bytes(self) -> usize {
        HEADER_BYTES + self.payload_bytes
    }

    /// Returns the range of payload `number` in the buffer.
    fn place(self, number: u64) -> std::ops::Range<usize> {
        let start = (number % self.places) as usize * self.payload_bytes;
        start..start + self.payload_bytes
    }

    /// Returns the number of datagrams in one call: as many as fit in the large datagram that the
    /// kernel divides, and at most `BATCH_DATAGRAMS`.
    fn batch(self) -> usize {
        (DATAGRAM_BYTES_MAX / self.datagram_bytes()).clamp(1, BATCH_DATAGRAMS)
    }
}

/// State that both ends have.
struct End {
    socket: UdpSocket,
    shape: Shape,
    /// Number of phases begun, equal at both ends.
    phases: u64,
}

/// A datagram without payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Control {
    kind: u32,
    phase: u64,
    value: u64,
}

impl Control {
    fn to_bytes(self) -> [u8; CONTROL_BYTES] {
        let mut bytes = [0; CONTROL_BYTES];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.phase.to_le_bytes());
        bytes[12..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONTROL_BYTES] = bytes.try_into().ok()?;
        let (kind, rest) = bytes.split_first_chunk::<4>()?;
        let (phase, rest) = rest.split_first_chunk::<8>()?;
        let (value, _) = rest.split_first_chunk::<8>()?;
        Some(Self {
            kind: u32::from_le_bytes(*kind),
            phase: u64::from_le_bytes(*phase),
            value: u64::from_le_bytes(*value),
        })
    }
}

struct Server {
    end: End,
    address: SocketAddr,
    window_bytes: u64,
    /// The buffer to which payloads are copied.
    memory: Vec<u8>,
    /// The receive buffer of one call.
    arrived: Vec<u8>,
}

impl ServerSide for Server {
    fn advertisement(&self) -> Advertisement {
        let parameters = [(WINDOW.to_string(), self.window_bytes.to_string())].into();
        Advertisement { addresses: vec![self.address], parameters }
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        let mut idle_limit = IdleLimit::new("wait for the client's first datagram");
        loop {
            match self.end.socket.recv_from(&mut self.arrived) {
                Ok((_, client)) => {
                    let connected = self.end.socket.connect(client);
                    connected
                        .map_err(TransportError::io(format!("connect a UDP socket to {client}")))?;
                    return self.send_control(Control { kind: HELLO, phase: 0, value: 0 });
                }
                Err(error) if is_transient(&error) => idle_limit.on_idle()?,
                Err(error) => return Err(TransportError::io("receive over UDP")(error)),
            }
        }
    }

    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        self.end.phases += 1;
        let phase_number = self.end.phases;
        let shape = self.end.shape;
        let (mut received, mut next, mut granted) = (0_u64, 0_u64, 0_u64);
        let mut idle_limit = IdleLimit::new("receive over UDP with segmentation");
        loop {
            let Some(bytes) = try_receive(&self.end.socket, &mut self.arrived)? else {
                idle_limit.on_idle()?;
                continue;
            };
            idle_limit.on_progress();
            let arrived = self.arrived.get(..bytes).unwrap_or_default();
            if let Some(control) = Control::from_bytes(arrived) {
                if control.kind == END && control.phase == phase_number {
                    self.send_control(Control { kind: END, phase: phase_number, value: received })?;
                    let lost = (phase.operations * shape.datagrams_each).saturating_sub(received);
                    let counters = [(counter::LOST_DATAGRAMS.to_string(), lost as f64)].into();
                    return Ok(Observed { counters, ..Observed::default() });
                }
                continue;
            }
            for datagram in arrived.chunks_exact(shape.datagram_bytes()) {
                let Some((number, _)) = datagram.split_first_chunk::<8>() else { continue };
                let number = u64::from_le_bytes(*number);
                let payload = datagram.get(HEADER_BYTES..).unwrap_or_default();
                if let Some(place) = self.memory.get_mut(shape.place(number)) {
                    place.copy_from_slice(payload);
                }
                received += 1;
                next = next.max(number.saturating_add(1));
            }
            // Grant the credits of lost messages, too. Otherwise the sender would wait for these
            // credits forever.
            if next / shape.datagrams_each > granted {
                granted = next / shape.datagrams_each;
                self.send_control(Control { kind: CREDIT, phase: phase_number, value: next })?;
            }
        }
    }
}

impl Server {
    fn send_control(&self, control: Control) -> Result<(), TransportError> {
        send(&self.end.socket, &control.to_bytes())
    }
}

struct Client {
    end: End,
    /// Highest number of datagrams in flight.
    window: u64,
    /// The buffer from which payloads are gathered.
    memory: Vec<u8>,
    headers: Vec<u8>,
}

impl ClientSide for Client {
    fn run(&mut self, phase: Phase, _: &mut Latencies) -> Result<Observed, TransportError> {
        self.end.phases += 1;
        let total = phase.operations * self.end.shape.datagrams_each;
        let batch = self.end.shape.batch() as u64;
        let (mut sent, mut granted) = (0, 0);
        let mut idle_limit = IdleLimit::new("send over UDP with segmentation");
        while sent < total {
            let room = (granted + self.window).saturating_sub(sent);
            let count = batch.min(total - sent).min(room);
            // Wait for the credits of a whole batch, because smaller batches would need more system
            // calls.
            let waits = count < batch.min(total - sent).min(self.window);
            if !waits && self.send_batch(sent, count as usize)? {
                sent += count;
                idle_limit.on_progress();
                continue;
            }
            match self.credit()? {
                Some(credit) => granted = granted.max(credit),
                None => idle_limit.on_idle()?,
            }
        }
        let end = Control { kind: END, phase: self.end.phases, value: 0 };
        self.ask(end, "end a phase over UDP with segmentation")?;
        Ok(Observed::default())
    }
}

impl Client {
    /// Sends `count` datagrams, starting with number `first`, by one call. Returns false if the
    /// socket buffer is full.
    fn send_batch(&mut self, first: u64, count: usize) -> Result<bool, TransportError> {
        let shape = self.end.shape;
        let headers = self.headers.chunks_exact_mut(HEADER_BYTES);
        for (number, header) in (first..).zip(headers).take(count) {
            header[..8].copy_from_slice(&number.to_le_bytes());
        }
        let mut pieces = [IoSlice::new(&[]); 2 * BATCH_DATAGRAMS];
        let headers = self.headers.chunks_exact(HEADER_BYTES);
        let slots = pieces.chunks_exact_mut(2);
        for ((number, header), slot) in (first..).zip(headers).zip(slots).take(count) {
            let payload = self.memory.get(shape.place(number)).unwrap_or_default();
            slot.copy_from_slice(&[IoSlice::new(header), IoSlice::new(payload)]);
        }
        let pieces = pieces.get(..2 * count).unwrap_or_default();
        match SockRef::from(&self.end.socket).send_vectored(pieces) {
            Ok(_) => Ok(true),
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => Ok(false),
            Err(error) => Err(TransportError::io("send over UDP with segmentation")(error)),
        }
    }

    /// Returns the number of datagrams in the receiver's latest report. Returns `None` if no report
    /// has arrived since the last call.
    fn credit(&self) -> Result<Option<u64>, TransportError> {
        let mut latest = None;
        let mut bytes = [0; CONTROL_BYTES];
        while try_receive(&self.end.socket, &mut bytes)?.is_some() {
            let control = Control::from_bytes(&bytes);
            let is_due = |c: &Control| c.kind == CREDIT && c.phase == self.end.phases;
            latest = control.filter(is_due).map(|control| control.value).or(latest);
        }
        Ok(latest)
    }

    /// Sends `question` repeatedly until its echo arrives.
    fn ask(&self, question: Control, attempt: &'static str) -> Result<(), TransportError> {
        let mut idle_limit = IdleLimit::new(attempt);
        let mut bytes = [0; CONTROL_BYTES];
        for poll in 0_u64.. {
            if poll.is_multiple_of(POLLS_PER_QUESTION) {
                send(&self.end.socket, &question.to_bytes())?;
            }
            if try_receive(&self.end.socket, &mut bytes)?.is_none() {
                idle_limit.on_idle()?;
                continue;
            }
            let answer = Control::from_bytes(&bytes);
            if answer.is_some_and(|a| (a.kind, a.phase) == (question.kind, question.phase)) {
                break;
            }
        }
        Ok(())
    }
}

fn bind(address: SocketAddr) -> Result<UdpSocket, TransportError> {
    UdpSocket::bind(address)
        .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
        .map_err(TransportError::io(format!("bind a UDP socket to {address}")))
}

/// Sets the size of the receive buffer to the highest value that the system permits, up to
/// [`RECEIVE_BUFFER_BYTES`]. Returns the number of bytes that datagrams may occupy in the buffer.
fn receive_buffer(socket: &UdpSocket) -> Result<u64, TransportError> {
    if setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &RECEIVE_BUFFER_BYTES)
            .map_err(io::Error::from)
            .map_err(TransportError::io("set the receive buffer of a UDP socket"))?;
    }
    let granted = getsockopt(socket, sockopt::RcvBuf)
        .map_err(io::Error::from)
        .map_err(TransportError::io("read the receive buffer of a UDP socket"))?;
    // Linux doubles the requested size to account for its own structures.
    Ok(granted as u64 / 2)
}

fn send(socket: &UdpSocket, bytes: &[u8]) -> Result<(), TransportError> {
    match socket.send(bytes) {
        Ok(_) => Ok(()),
        Err(error) if is_transient(&error) => Ok(()),
        Err(error) => Err(TransportError::io("send over UDP")(error)),
    }
}

fn try_receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<Option<usize>, TransportError> {
    match socket.recv(buffer) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_transient(&error) => Ok(None),
        Err(error) => Err(TransportError::io("receive over UDP")(error)),
    }
}

/// Returns whether the error may be transient: the peer might not have opened its socket yet.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
    )
}

/// The name of the contender.
pub const NAME: &str = "udp-segments";

/// Highest number of datagrams in one call. The kernel splits the buffer of the call into these
/// datagrams. Each has a header of 32 bytes and as much payload as fits in an Ethernet frame. A
/// larger number would exceed the maximum length of the buffer, 65,507 bytes.
pub const BATCH_DATAGRAMS: usize = 44;

/// Size of an edge protocol header in the middle of a write.
const HEADER_BYTES: usize = 32;

const IP_AND_UDP_BYTES: usize = 28;

const ETHERNET_MTU: u32 = 1500;

/// The largest payload of a UDP datagram over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Receive buffer size that a link of the edge protocol requests.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Smallest message, in bytes. A smaller message does not fill a call.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;

/// Bytes of a control message: a kind and two numbers. Datagrams with payload are always longer, so
/// the receiver distinguishes the two by length.
const CONTROL_BYTES: usize = 20;

/// The client has opened its socket. The server learns the address from this message.
const HELLO: u32 = 1;
/// The number of datagrams that have arrived.
const CREDIT: u32 = 2;
/// End of a phase; the answer has the number of datagrams that have arrived.
const END: u32 = 3;

/// Number of polls before a question is retransmitted. These polls take about a millisecond.
const POLLS_PER_QUESTION: u64 = 4096;

/// Parameter with the bytes that fit in the receiver's socket buffer.
const WINDOW: &str = "window";

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::transport::Waiting;
    use testbed::pair::LinkAddresses;

    fn setup(message_bytes: u64) -> Setup {
        Setup {
            test: Test::OneWay,
            message_bytes,
            links: vec![LinkAddresses { client: None, server: IpAddr::from([127, 0, 0, 1]) }],
            client_links: Vec::new(),
            server_links: Vec::new(),
            mtu: Some(ETHERNET_MTU),
            in_flight: 64,
            connections: 1,
            in_order: false,
            waiting: Waiting::Poll,
            delays_us: Vec::new(),
            rates: Vec::new(),
        }
    }

    #[test]
    fn one_call_gathers_88_sges_within_the_buffer() {
        for message_bytes in [64 << 10, 1 << 20] {
            let shape = Shape::of(&setup(message_bytes));
            assert_eq!((shape.batch(), shape.payload_bytes), (44, 1440));
            assert!((0..2000).all(|number| shape.place(number).end <= message_bytes as usize));
        }
        let jumbo = Shape::of(&Setup { mtu: Some(9000), ..setup(1 << 20) });
        assert!(jumbo.batch() * jumbo.datagram_bytes() <= DATAGRAM_BYTES_MAX);
    }

    #[test]
    fn control_datagrams_decode_and_payload_does_not_decode_as_control() {
        let control = Control { kind: CREDIT, phase: 3, value: u64::MAX };
        assert_eq!(Control::from_bytes(&control.to_bytes()), Some(control));
        assert_eq!(Control::from_bytes(&[0; HEADER_BYTES + 1]), None);
    }

    #[test]
    fn every_phase_ends_with_all_bytes_received() {
        let setup = setup(64 << 10);
        let (sender, advertised) = mpsc::channel();
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let mut server = UdpSegments.listen(&setup).expect("a socket on loopback");
                sender.send(server.advertisement()).expect("the client waits for it");
                server.accept().expect("a client");
                let phases = [1, 50].map(|operations| Phase { operations });
                phases.map(|phase| server.run(phase).expect("a phase"))
            });
            let advertisement = advertised.recv().expect("the server listens");
            let mut client = UdpSegments.connect(&setup, &advertisement).expect("a server");
            for operations in [1, 50] {
                client.run(Phase { operations }, &mut Latencies::new()).expect("a phase");
            }
            for observed in serving.join().expect("no panic") {
                assert!(observed.counters[counter::LOST_DATAGRAMS] < 1.0, "{observed:?}");
            }
        });
    }
}
