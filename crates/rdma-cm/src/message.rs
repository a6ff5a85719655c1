//! Messages between two ids. A message is the private data of Hello, Accept, Reject or Close of the
//! connection manager's service (protocol.md §10.3).

use verbs::{Gid, QueuePairType};

use super::port_space::{PRIVATE_MAX, PortSpace};

/// A connection request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// Port space of the destination port.
    pub space: PortSpace,
    /// Destination port.
    pub port: u16,
    /// Source port.
    pub source_port: u16,
    /// GID of the destination address, which belongs to the responder.
    pub to: Gid,
    /// Parameters of the requester's queue pair.
    pub end: End,
    /// Private data of the program.
    pub private_data: Vec<u8>,
}

/// An acceptance.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reply {
    /// Parameters of the responder's queue pair.
    pub end: End,
    /// Private data of the program.
    pub private_data: Vec<u8>,
}

/// A rejection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// Reason code of InfiniBand (IBA volume 1, table 108).
    pub reason: u16,
    /// Private data of the program.
    pub private_data: Vec<u8>,
}

/// Parameters of one end's queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct End {
    /// Transport service.
    pub service: QueuePairType,
    /// Queue pair number.
    pub number: u32,
    /// Sequence number of the first packet that this end expects. The peer must start with this
    /// number.
    pub psn: u32,
    /// Queue key of the queue pair, used only for datagrams.
    pub queue_key: u32,
    /// GID of this end's port.
    pub gid: Gid,
    /// Maximum number of reads and atomics of the peer that this end answers at the same time.
    pub responder_resources: u8,
    /// Maximum number of reads and atomics that this end has in flight.
    pub initiator_depth: u8,
    /// Number of times that the peer retransmits a request which gets no answer.
    pub retries: u8,
    /// Number of times that the peer retransmits a message for which this end has no receive
    /// posted.
    pub not_ready_retries: u8,
    /// Whether this end offers end-to-end flow control.
    pub flow_control: bool,
    /// Whether this end uses a shared receive queue.
    pub is_shared: bool,
    /// Whether this end offers that its queue pair takes over the connection of the exchange. The
    /// takeover happens only if both ends offer it.
    pub takes_over: bool,
    /// RNR timer code. The code stands for the time after which the peer may retransmit a message
    /// for which this end had no receive posted. Used only if `takes_over` is true.
    pub not_ready_timer: u8,
}

impl Request {
    //= protocol.md: cm.1
    /// Encodes the private data of the Hello.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = header(REQUEST);
        bytes.extend((self.space as u16).to_le_bytes());
        bytes.extend(self.port.to_le_bytes());
        bytes.extend(self.source_port.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(self.to.0);
        self.end.encode(&mut bytes);
        put_private(&mut bytes, &self.private_data);
        bytes
    }

    //= protocol.md: cm.1
    /// Decodes the private data of a Hello. Returns `None` if the data is not a request.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest::of(bytes, REQUEST)?;
        let space = PortSpace::of_number(rest.half()?)?;
        let (port, source_port) = (rest.half()?, rest.half()?);
        rest.skip(2)?;
        let to = rest.gid()?;
        let end = End::decode(&mut rest)?;
        let private_data = rest.private()?;
        Some(Self { space, port, source_port, to, end, private_data })
    }
}

impl Reply {
    //= protocol.md: cm.1
    /// Encodes the private data of the Accept.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = header(REPLY);
        self.end.encode(&mut bytes);
        put_private(&mut bytes, &self.private_data);
        bytes
    }

    //= protocol.md: cm.1
    /// Decodes the private data of an Accept. Returns `None` if the data is not an acceptance.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest::of(bytes, REPLY)?;
        let end = End::decode(&mut rest)?;
        let private_data = rest.private()?;
        Some(Self { end, private_data })
    }
}

impl Refusal {
    /// Creates a rejection without private data of the program.
    pub const fn of(reason: u16) -> Self {
        Self { reason, private_data: Vec::new() }
    }

    //= protocol.md: cm.1
    /// Encodes the private data of a Reject. If the program rejects an established connection, a
    /// Close carries this private data instead.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = header(REFUSAL);
        bytes.extend(self.reason.to_le_bytes());
        bytes.extend([0; 2]);
        put_private(&mut bytes, &self.private_data);
        bytes
    }

    //= protocol.md: cm.1
    /// Decodes the private data of a Reject or Close. Returns `None` if the data is not a
    /// rejection.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Rest::of(bytes, REFUSAL)?;
        let reason = rest.half()?;
        rest.skip(2)?;
        let private_data = rest.private()?;
        Some(Self { reason, private_data })
    }
}

impl End {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let service = match self.service {
            QueuePairType::Reliable => 0,
            QueuePairType::Unreliable => 1,
            QueuePairType::Datagram => 2,
        };
        let flags = u8::from(self.flow_control)
            | u8::from(self.is_shared) << 1
            | u8::from(self.takes_over) << 2;
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.psn.to_le_bytes());
        bytes.extend(self.queue_key.to_le_bytes());
        bytes.extend(self.gid.0);
        bytes.extend([service, flags, self.responder_resources, self.initiator_depth]);
        bytes.extend([self.retries, self.not_ready_retries, self.not_ready_timer, 0]);
    }

    fn decode(rest: &mut Rest<'_>) -> Option<Self> {
        let number = rest.word().filter(|&number| number <= NUMBER_MAX)?;
        let psn = rest.word().filter(|&psn| psn <= NUMBER_MAX)?;
        let queue_key = rest.word()?;
        let gid = rest.gid()?;
        let &[service, flags, responder_resources, initiator_depth] = rest.take::<4>()?;
        let &[retries, not_ready_retries, not_ready_timer, _] = rest.take::<4>()?;
        let service = match service {
            0 => QueuePairType::Reliable,
            1 => QueuePairType::Unreliable,
            2 => QueuePairType::Datagram,
            _ => return None,
        };
        if retries > 7 || not_ready_retries > 7 || not_ready_timer > 31 {
            return None;
        }
        let (flow_control, is_shared, takes_over) =
            (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        Some(Self {
            service,
            number,
            psn,
            queue_key,
            gid,
            responder_resources,
            initiator_depth,
            retries,
            not_ready_retries,
            flow_control,
            is_shared,
            takes_over,
            not_ready_timer,
        })
    }
}

fn header(kind: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BYTES_MAX);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, kind, 0, 0]);
    bytes
}

fn put_private(bytes: &mut Vec<u8>, private_data: &[u8]) {
    let said = private_data.get(..private_data.len().min(PRIVATE_MAX)).unwrap_or_default();
    bytes.extend((said.len() as u16).to_le_bytes());
    bytes.extend(said);
}

/// The bytes of a message that are not yet decoded.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn of(bytes: &'a [u8], kind: u8) -> Option<Self> {
        let mut rest = Self(bytes);
        let is_it = *rest.take()? == MAGIC && *rest.take()? == [VERSION, kind];
        rest.skip(2)?;
        is_it.then_some(rest)
    }

    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn half(&mut self) -> Option<u16> {
        self.take().map(|bytes| u16::from_le_bytes(*bytes))
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn gid(&mut self) -> Option<Gid> {
        self.take().map(|bytes| Gid(*bytes))
    }

    /// Decodes the private data of the program, which is the last part of a message.
    fn private(&mut self) -> Option<Vec<u8>> {
        let bytes = usize::from(self.half()?);
        (bytes <= PRIVATE_MAX && bytes == self.0.len()).then(|| self.0.to_vec())
    }
}

/// Decodes arbitrary bytes as a message, for fuzzing. If the decoder accepts a message, encodes it,
/// decodes it again, and panics if the result differs.
#[doc(hidden)]
pub fn fuzz_message(bytes: &[u8]) {
    if let Some(request) = Request::decode(bytes) {
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
    if let Some(reply) = Reply::decode(bytes) {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
    if let Some(refusal) = Refusal::decode(bytes) {
        assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
    }
}

/// First bytes of each message.
const MAGIC: [u8; 4] = *b"EVCM";
const VERSION: u8 = 1;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const REFUSAL: u8 = 3;

/// Largest queue pair number and largest packet number. Both have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;

/// Maximum length of a message in bytes. The terms are the header, the addresses, the parameters,
/// the length field of the private data, and the private data. The message fits, because a
/// handshake has room for 512 bytes.
const BYTES_MAX: usize = 8 + 24 + 36 + 2 + PRIVATE_MAX;

/// Reason code: the program rejects the connection (IBA volume 1, table 108).
pub const REJECTED_BY_PROGRAM: u16 = 28;

/// Reason code: no program listens (IBA volume 1, table 108).
pub(crate) const NO_SUCH_SERVICE: u16 = 8;

/// Reason code: there is no room for another request (IBA volume 1, table 108).
pub(crate) const NO_RESOURCES: u16 = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn end() -> impl Strategy<Value = End> {
        let numbers = (0..=NUMBER_MAX, 0..=NUMBER_MAX, any::<u32>(), any::<[u8; 16]>());
        let service = prop_oneof![
            Just(QueuePairType::Reliable),
            Just(QueuePairType::Unreliable),
            Just(QueuePairType::Datagram)
        ];
        let small = (any::<u8>(), any::<u8>(), 0..8_u8, 0..8_u8, 0..32_u8);
        let flags = any::<[bool; 3]>();
        let parts = (numbers, service, small, flags);
        parts.prop_map(|((number, psn, queue_key, gid), service, small, flags)| {
            let (responder_resources, initiator_depth, retries, not_ready_retries, _) = small;
            let (.., not_ready_timer) = small;
            let [flow_control, is_shared, takes_over] = flags;
            let gid = Gid(gid);
            End {
                service,
                number,
                psn,
                queue_key,
                gid,
                responder_resources,
                initiator_depth,
                retries,
                not_ready_retries,
                flow_control,
                is_shared,
                takes_over,
                not_ready_timer,
            }
        })
    }

    fn private_data() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..=PRIVATE_MAX)
    }

    fn request() -> impl Strategy<Value = Request> {
        let ports = (any::<u16>(), any::<u16>(), any::<[u8; 16]>());
        (ports, end(), private_data()).prop_map(|((port, source_port, to), end, private_data)| {
            let (space, to) = (PortSpace::Tcp, Gid(to));
            Request { space, port, source_port, to, end, private_data }
        })
    }

    proptest! {
        //= protocol.md: cm.1
        #[test]
        fn decode_returns_what_was_encoded(
            request in request(), end in end(), private_data in private_data(), reason: u16
        ) {
            prop_assert!(request.encode().len() <= BYTES_MAX);
            prop_assert_eq!(Request::decode(&request.encode()), Some(request.clone()));
            let reply = Reply { end, private_data: private_data.clone() };
            prop_assert_eq!(Reply::decode(&reply.encode()), Some(reply.clone()));
            let refusal = Refusal { reason, private_data };
            prop_assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
            prop_assert_eq!(Reply::decode(&request.encode()), None);
            prop_assert_eq!(Request::decode(&reply.encode()), None);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            request in request(),
            at in 0..BYTES_MAX,
            bit in 0..8,
            len in 0..BYTES_MAX,
        ) {
            fuzz_message(&bytes);
            let mut changed = request.encode();
            let whole = changed.len();
            changed[at % whole] ^= 1_u8 << bit;
            fuzz_message(&changed);
            let cut = &request.encode()[..len.min(whole - 1)];
            prop_assert_eq!(Request::decode(cut), None);
        }
    }
}
