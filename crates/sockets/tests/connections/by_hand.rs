//! A handmade peer: a program that uses the edge and builds each message from the tables in
//! docs/sockets-protocol.md.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use ethernot::{
    Buffer, ConnectOptions, Connection, Endpoint, MemoryRegion, OperationOptions, PostError,
    ReceiveHandle, RemoteKey, RemoteRegion, Rights, SubmitError,
};

use crate::pair::Pair;

/// A time limit that is far longer than any step of a test.
pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// The service of link groups.
pub(crate) const SERVICE: u32 = 0x534f_434b;

/// Size of the handmade peer's ring in bytes.
pub(crate) const RING: u32 = 1 << 16;

/// Length of an offer in bytes.
const OFFER: usize = 68;

/// Size of a receive buffer in bytes.
const RECEIVE_BUFFER_BYTES: u64 = 64;

/// Maximum number of messages that can arrive before the test reads them.
const RECEIVE_BUFFERS: u64 = 32;

/// The fields of an offer that the tests use.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) port: u16,
    pub(crate) token: u64,
}

/// The description of one end of a stream, as in a Join or Joined.
#[derive(Clone, Copy)]
pub(crate) struct StreamEnd {
    pub(crate) number: u32,
    pub(crate) marker: [u8; 16],
    pub(crate) ring: RemoteRegion,
}

/// The handmade peer's end of a link group.
pub(crate) struct Hand {
    pub(crate) connection: Connection,
    ring: Arc<Buffer>,
    ring_region: MemoryRegion,
    receive_buffers: MemoryRegion,
    waiting: VecDeque<ReceiveHandle>,
    next_buffer: u64,
    _endpoint: Endpoint,
}

/// Returns the connecting side and the accepting side of a TCP connection, and a rendezvous socket.
/// The connecting side and the rendezvous socket belong to the handmade peer.
pub(crate) fn with_rendezvous_socket(pair: &Pair) -> (TcpStream, TcpStream, UdpSocket) {
    loop {
        let (tcp, server) = pair.tcp();
        // If another socket has the UDP port, try another connection.
        let Ok(rendezvous_socket) = UdpSocket::bind(tcp.local_addr().unwrap()) else { continue };
        rendezvous_socket.set_read_timeout(LIMIT).unwrap();
        return (tcp, server, rendezvous_socket);
    }
}

/// Receives the first offer.
pub(crate) fn offer_at(rendezvous_socket: &UdpSocket) -> Offer {
    let mut bytes = [0; OFFER + 1];
    assert_eq!(rendezvous_socket.recv(&mut bytes).expect("an offer"), OFFER);
    assert_eq!(&bytes[..6], b"ENSO\x03\x01");
    let port = u16::from_be_bytes(bytes[6..8].try_into().unwrap());
    Offer { port, token: u64::from_be_bytes(bytes[8..16].try_into().unwrap()) }
}

/// Encodes an offer of a peer with this incarnation, which has accepted a connection between these
/// addresses.
pub(crate) fn offer_bytes(
    offer: Offer,
    incarnation: u128,
    accepting: SocketAddr,
    connecting: SocketAddr,
) -> Vec<u8> {
    let mut bytes = b"ENSO\x03\x01".to_vec();
    bytes.extend(offer.port.to_be_bytes());
    bytes.extend(offer.token.to_be_bytes());
    bytes.extend(incarnation.to_be_bytes());
    for address in [accepting, connecting] {
        let SocketAddr::V4(address) = address else { panic!("{address} is not of IPv4") };
        bytes.extend(address.ip().to_ipv6_mapped().octets());
        bytes.extend(address.port().to_be_bytes());
    }
    bytes
}

pub(crate) fn greeting(incarnation: u128) -> Vec<u8> {
    [&b"ENSO\x03"[..], &incarnation.to_be_bytes()].concat()
}

pub(crate) fn endpoint() -> Endpoint {
    Endpoint::bind("127.0.0.1:0").expect("loopback is there")
}

impl Hand {
    /// Requests a link group from the endpoint that an offer names.
    pub(crate) fn connect(offer: Offer, incarnation: u128) -> Self {
        let endpoint = endpoint();
        let options = ConnectOptions::new().service(SERVICE).private_data(greeting(incarnation));
        let connection = endpoint
            .connect_with((Ipv4Addr::LOCALHOST, offer.port), options)
            .expect("the group is granted");
        assert_eq!(&connection.peer_data()[..5], b"ENSO\x03");
        assert_eq!(connection.peer_data().len(), 21);
        Self::on(endpoint, connection)
    }

    /// Creates the handmade peer's end of an established link group.
    pub(crate) fn on(endpoint: Endpoint, connection: Connection) -> Self {
        let ring = Buffer::new(RING.into());
        let ring_region =
            endpoint.register(Arc::clone(&ring), Rights::REMOTE_WRITE).expect("it is registered");
        let receive_buffers = endpoint
            .register(Buffer::new(RECEIVE_BUFFER_BYTES * RECEIVE_BUFFERS), Rights::LOCAL_WRITE)
            .expect("it is registered");
        let (waiting, next_buffer) = (VecDeque::new(), 0);
        let mut hand = Self {
            connection,
            ring,
            ring_region,
            receive_buffers,
            waiting,
            next_buffer,
            _endpoint: endpoint,
        };
        (0..RECEIVE_BUFFERS).for_each(|_| hand.post_receive_buffer());
        hand
    }

    fn post_receive_buffer(&mut self) {
        let offset = self.next_buffer % RECEIVE_BUFFERS * RECEIVE_BUFFER_BYTES;
        self.next_buffer += 1;
        let posted =
            self.connection.receive(&self.receive_buffers, offset, RECEIVE_BUFFER_BYTES as u32);
        self.waiting.push_back(posted.expect("there is room"));
    }

    /// Sends a message.
    pub(crate) fn say(&self, parts: &[&[u8]]) {
        let sent = self.connection.send_bytes(&parts.concat(), OperationOptions::NONE);
        drop(sent.expect("it is sent"));
    }

    /// Waits for the next message and returns it.
    pub(crate) fn hear(&mut self) -> Vec<u8> {
        let handle = self.waiting.pop_front().expect("more than one is posted");
        let message = handle.wait(LIMIT).expect("a message").to_vec().expect("its bytes");
        drop(handle);
        self.post_receive_buffer();
        message
    }

    /// Encodes this side's end of a stream: number, switch marker and ring.
    pub(crate) fn end(&self, number: u32, marker: &[u8; 16]) -> Vec<u8> {
        let ring = self.ring_region.remote();
        [
            &number.to_be_bytes()[..],
            marker,
            &ring.key.0.to_be_bytes(),
            &ring.address.to_be_bytes(),
            &RING.to_be_bytes(),
        ]
        .concat()
    }

    /// Writes to the peer's ring.
    pub(crate) fn write(&self, bytes: &[u8], to: &StreamEnd, offset: u64) {
        let options = OperationOptions::NONE.immediate(Some(to.number));
        loop {
            match self.connection.write_bytes(bytes, &to.ring, offset, options) {
                Ok(handle) => return drop(handle),
                // Too many operations are in flight, so retry.
                Err(PostError::Submit(SubmitError::Busy(_))) => std::thread::yield_now(),
                Err(error) => panic!("it cannot be posted: {error}"),
            }
        }
    }

    /// Waits until `length` bytes have arrived in this peer's ring, and returns them.
    pub(crate) fn ring_bytes(&self, length: usize) -> Vec<u8> {
        let mut arrived = 0;
        while arrived < length {
            let completion = self.connection.wait_completion(LIMIT).expect("bytes come");
            if completion.kind == ethernot::CompletionKind::Notification {
                arrived += completion.bytes as usize;
            }
        }
        let mut bytes = vec![0; length];
        self.ring.read(0, &mut bytes);
        bytes
    }
}

/// Decodes the description of one end of a stream, which is the last field of a Join or Joined.
pub(crate) fn end_in(message: &[u8]) -> StreamEnd {
    let at = message.len() - 36;
    let field = |from: usize, to: usize| &message[at + from..at + to];
    let key = u32::from_be_bytes(field(20, 24).try_into().unwrap());
    StreamEnd {
        number: u32::from_be_bytes(field(0, 4).try_into().unwrap()),
        marker: field(4, 20).try_into().unwrap(),
        ring: RemoteRegion {
            key: RemoteKey(key),
            address: u64::from_be_bytes(field(24, 32).try_into().unwrap()),
            len: u32::from_be_bytes(field(32, 36).try_into().unwrap()).into(),
        },
    }
}
