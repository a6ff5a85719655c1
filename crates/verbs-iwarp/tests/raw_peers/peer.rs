//! A peer that speaks iWARP over a plain TCP socket, without a device.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use wire_iwarp::{
    EnhancedSetup, FpduLayout, LENGTH_BYTES, Opcode, Parsed, QueueNumber, Revision,
    SEGMENT_HEADER_BYTES_MAX, SETUP_FRAME_BYTES_MAX, Segment, SetupFlags, SetupFrame, SetupKind,
    Stag, Trailer, decode_segment, decode_setup, encode_length,
};

/// A port at which peers accept connections.
pub(crate) struct PeerPort(TcpListener);

impl PeerPort {
    pub(crate) fn new() -> Self {
        Self(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    /// Accepts a connection and its request, without peer-to-peer mode and without CRCs.
    pub(crate) fn accept(&self) -> Peer {
        let (mut socket, _) = self.0.accept().expect("the device connects");
        let mut request = Vec::new();
        loop {
            let parsed = decode_setup(SetupKind::Request, &request).expect("a request");
            let Parsed::Incomplete { needed } = parsed else { break };
            let have = request.len();
            request.resize(needed, 0);
            socket.read_exact(&mut request[have..]).expect("the rest of the request");
        }
        let reply = SetupFrame {
            kind: SetupKind::Reply,
            flags: SetupFlags { enhanced: true, gso: true, ..SetupFlags::default() },
            ..frame(SetupKind::Reply)
        };
        socket.write_all(&encoded(&reply)).expect("room");
        Peer { socket, sends: 0 }
    }
}

/// A connected peer.
pub(crate) struct Peer {
    pub(crate) socket: TcpStream,
    /// Number of Sends so far.
    sends: u32,
}

impl Peer {
    /// Sends a message of one segment.
    pub(crate) fn send(&mut self, payload: &[u8]) {
        self.sends += 1;
        let segment = Segment::untagged(Opcode::Send, true, QueueNumber::Send, self.sends, 0);
        self.socket.write_all(&fpdu(&segment, payload)).expect("the device reads");
    }

    /// Reads until the device ends its side. Returns the opcodes of the FPDUs, and the number of
    /// bytes of payload of writes and sends.
    pub(crate) fn read_to_end(&mut self) -> (Vec<Opcode>, u64) {
        let mut bytes = Vec::new();
        self.socket.read_to_end(&mut bytes).expect("the end of the stream, not a reset");
        let (mut opcodes, mut payload) = (Vec::new(), 0);
        let mut rest = &bytes[..];
        while let Some(length) = rest.first_chunk::<LENGTH_BYTES>() {
            let length = u16::from_be_bytes(*length);
            let total = FpduLayout::of(length).total;
            let Some(fpdu) = rest.get(..total) else { break };
            let ulpdu = &fpdu[LENGTH_BYTES..LENGTH_BYTES + usize::from(length)];
            let (segment, range) = decode_segment(ulpdu).expect("a segment");
            opcodes.push(segment.opcode);
            if segment.opcode != Opcode::Terminate {
                payload += range.len() as u64;
            }
            rest = &rest[total..];
        }
        (opcodes, payload)
    }

    /// Ends the peer's side.
    pub(crate) fn end(&self) {
        // This fails if the device has closed the connection.
        let _gone = self.socket.shutdown(Shutdown::Write);
    }
}

/// Returns the bytes of a request, as an initiator sends it.
pub(crate) fn request() -> Vec<u8> {
    encoded(&frame(SetupKind::Request))
}

/// Returns the bytes of a request of revision 1, which does not say how many reads the initiator
/// answers.
pub(crate) fn request_of_revision_1() -> Vec<u8> {
    encoded(&SetupFrame {
        revision: Revision::One,
        flags: SetupFlags::default(),
        enhanced: None,
        ..frame(SetupKind::Request)
    })
}

/// Returns an empty write, which changes nothing at its receiver.
pub(crate) fn empty_write() -> Vec<u8> {
    fpdu(&Segment::tagged(Opcode::Write, true, Stag(1), 0), &[])
}

fn frame(kind: SetupKind) -> SetupFrame<'static> {
    SetupFrame {
        kind,
        revision: Revision::Two,
        flags: SetupFlags { enhanced: true, ..SetupFlags::default() },
        enhanced: Some(EnhancedSetup { ird: 4, ord: 4, ..EnhancedSetup::default() }),
        private_data: &[],
    }
}

fn encoded(frame: &SetupFrame<'_>) -> Vec<u8> {
    let mut bytes = [0; SETUP_FRAME_BYTES_MAX];
    let length = frame.encode(&mut bytes).expect("it fits");
    bytes[..length].to_vec()
}

fn fpdu(segment: &Segment, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; SEGMENT_HEADER_BYTES_MAX];
    let header_bytes = segment.encode(&mut header);
    let length = u16::try_from(header_bytes + payload.len()).expect("one segment");
    let mut fpdu = encode_length(length).to_vec();
    fpdu.extend_from_slice(&header[..header_bytes]);
    fpdu.extend_from_slice(payload);
    fpdu.extend_from_slice(Trailer::new(length, None).as_bytes());
    fpdu
}
