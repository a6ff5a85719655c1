//! Settings of a stream, and what both ends agree on.

use wire_iwarp::{EnhancedSetup, Revision};

/// Largest message in bytes. Verbs devices report the same limit.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 31;

/// Largest inline payload in bytes. It fits into one FPDU whose payload is copied.
pub const INLINE_BYTES_MAX: usize = 256;

/// Maximum number of pieces of one message or receive.
pub const PIECES_MAX: usize = 32;

/// Shortest TCP segment in bytes for which FPDUs are cut. A shorter MSS is treated as this one.
pub const MSS_MIN: u16 = 128;

/// Smallest value of [`Config::fpdu_bytes`].
pub const FPDU_BYTES_MIN: u16 = MSS_MIN;

/// Largest value of [`Config::fpdu_bytes`]. The length field has 16 bits, and with the headers, a
/// longer FPDU would exceed them.
pub const FPDU_BYTES_MAX: u16 = 65_000;

/// The messages that an initiator offers as its ready-to-receive (RTR) message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RtrKinds {
    /// A Write without payload.
    pub write: bool,
    /// A Read Request for 0 bytes.
    pub read: bool,
    /// A Send without payload.
    pub send: bool,
}

impl RtrKinds {
    /// All kinds.
    pub const ALL: Self = Self { write: true, read: true, send: true };

    /// Returns the kinds that a set-up frame names.
    pub(crate) const fn of(words: EnhancedSetup) -> Self {
        Self { write: words.rtr_write, read: words.rtr_read, send: words.rtr_send }
    }

    /// Returns whether no kind is set.
    pub(crate) const fn is_empty(self) -> bool {
        !self.write && !self.read && !self.send
    }

    /// Returns the kinds that are in both sets.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self {
            write: self.write && other.write,
            read: self.read && other.read,
            send: self.send && other.send,
        }
    }

    /// Returns the preferred kind: Write needs nothing of the receiver, Read needs IRD, and Send
    /// may need a receive.
    pub(crate) const fn preferred(self) -> Option<Rtr> {
        if self.write {
            Some(Rtr::Write)
        } else if self.read {
            Some(Rtr::Read)
        } else if self.send {
            Some(Rtr::Send)
        } else {
            None
        }
    }
}

/// The kind of an RTR message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rtr {
    Write,
    Read,
    Send,
}

/// Settings of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// The revision of MPA that an initiator offers. A responder answers in the revision of the
    /// request.
    pub revision: Revision,
    /// Whether this end demands CRCs. Both ends use CRCs if either demands them.
    pub crc: bool,
    /// Whether this end asks for markers. Linux siw refuses a peer that asks.
    pub markers: bool,
    /// Number of Read Requests of the peer that an initiator answers at a time.
    pub ird: u16,
    /// Number of reads that an initiator has outstanding at a time.
    pub ord: u16,
    /// Largest number of reads that this end can answer at a time, at least `ird`. A peer that
    /// cannot negotiate the number may have as many outstanding.
    pub ird_max: u16,
    /// The RTR messages that an initiator of revision 2 offers. `None` does not ask for
    /// peer-to-peer mode.
    pub peer_to_peer: Option<RtrKinds>,
    /// Maximum segment size of the TCP connection in bytes.
    pub mss: u16,
    /// Whether FPDUs may exceed a TCP segment from the start. Otherwise they may once the peer has
    /// set the bit [`wire_iwarp::SetupFlags::gso`].
    pub long_fpdus: bool,
    /// Maximum length of the FPDUs that this end sends, in bytes with CRC and markers, whatever the
    /// peer takes. From [`FPDU_BYTES_MIN`] to [`FPDU_BYTES_MAX`]; other values are treated as the
    /// nearer one. `None` follows what the peer is known to take.
    pub fpdu_bytes: Option<u16>,
    /// Maximum length of the private data in a request of the peer, in bytes.
    pub private_data_max: u16,
    /// Whether a message of the peer may wait for a receive. Otherwise it ends the stream if there is
    /// none. With markers, a message never waits. See [`crate::Stream::waits_for_receive`].
    pub waits_for_receives: bool,
    /// Number of operations that can be posted before the first completes.
    pub work_capacity: u16,
    /// Number of pieces that posted operations can have together.
    pub pieces_capacity: u16,
    /// Number of bytes of inline payload that posted operations can have together.
    pub inline_capacity: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            revision: Revision::Two,
            crc: false,
            markers: false,
            ird: 16,
            ord: 16,
            ird_max: 128,
            peer_to_peer: Some(RtrKinds::ALL),
            mss: 1448,
            long_fpdus: false,
            fpdu_bytes: None,
            private_data_max: 512,
            waits_for_receives: false,
            work_capacity: 32,
            pieces_capacity: 64,
            inline_capacity: 1024,
        }
    }
}

/// What the reserved bits of the set-up say about the software of the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PeerKind {
    /// This project.
    Ethernot,
    /// Linux siw.
    Siw,
    /// Anything else, or a siw that sends FPDUs of one segment and has initiated the stream.
    Unknown,
}

/// What both ends have agreed on, and what the set-up says about the peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Terms {
    /// The revision of MPA.
    pub revision: Revision,
    /// Whether FPDUs have a CRC, in both directions.
    pub crc: bool,
    /// Whether this end sends markers.
    pub sends_markers: bool,
    /// Whether this end receives markers.
    pub receives_markers: bool,
    /// Number of Read Requests that this end answers at a time.
    pub ird: u16,
    /// Number of reads that this end has outstanding at a time.
    pub ord: u16,
    /// Whether FPDUs of this end may exceed a TCP segment.
    pub long_fpdus: bool,
    /// Whether the responder reports the stream as established once the first FPDU has arrived.
    pub peer_to_peer: bool,
    /// The software of the peer.
    pub peer: PeerKind,
}
