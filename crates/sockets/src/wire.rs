//! What processes send each other, besides the bytes of programs: `docs/sockets-protocol.md`.

/// What a side writes into the TCP connection behind its last byte there. Chosen by the other side at random.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Seal(pub(crate) [u8; Seal::BYTES]);

impl Seal {
    /// Bytes of a seal.
    pub(crate) const BYTES: usize = 16;
}
