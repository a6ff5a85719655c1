//! Frame formats of the edge protocol: encode and checked decode.
//!
//! The normative text is `docs/protocol.md`; a number in this crate and a number there are the
//! same number, and both change in one commit.
#![no_std]
#![forbid(unsafe_code)]

mod identity;
mod permutation;

pub use identity::{
    ConnectionId, Epoch, LinkIndex, MessageNumber, OperationNumber, PacketNumber, PeerAddr,
    RemoteKey,
};
pub use permutation::KeyedPermutation;
