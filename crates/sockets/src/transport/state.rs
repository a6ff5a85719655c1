//! State of a stream.

use std::sync::atomic::{AtomicU32, Ordering};

/// State of a stream: bits that are set once.
#[derive(Debug, Default)]
pub(crate) struct State(AtomicU32);

/// Bits of [`State`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bit {
    /// This side's switch marker is in the TCP connection. Bytes go by the group.
    Open = 1,
    /// The program has shut down writing.
    WriteShut = 2,
    /// The End was posted.
    EndPosted = 4,
    /// The peer's process has the End.
    EndAcknowledged = 8,
    /// The program has shut down reading.
    ReadShut = 16,
    /// A Reset for the peer is due.
    ResetDue = 32,
    ResetPosted = 64,
    /// The peer has reset the connection, or has answered a Reset.
    PeerReset = 128,
    /// The peer is lost, or the group is lost and the stream cannot go home.
    Lost = 256,
    /// No descriptor of the program is left.
    Released = 512,
    /// Nothing more comes by TCP, or nothing is expected.
    TcpDone = 1024,
    /// It was broken off, for any reason.
    Broken = 2048,
    HomePosted = 4096,
    /// The peer posts nothing more: it goes home.
    PeerHome = 8192,
    /// The group is lost.
    GroupLost = 16_384,
    /// Its rings may belong to another stream.
    Retired = 32_768,
    /// It has come home. TCP carries what follows.
    AtHome = 65_536,
    /// No byte of the ring is read or posted. The stream goes home from its switch marker.
    Ringless = 131_072,
}

/// A direction that a program shuts down.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    /// The program writes no more.
    Write,
    /// The program reads no more.
    Read,
}

impl Direction {
    pub(crate) const BOTH: [Self; 2] = [Self::Write, Self::Read];

    const fn bit(self) -> Bit {
        match self {
            Self::Write => Bit::WriteShut,
            Self::Read => Bit::ReadShut,
        }
    }
}

impl State {
    #[inline]
    pub(crate) fn has(&self, bit: Bit) -> bool {
        self.0.load(Ordering::SeqCst) & bit as u32 != 0
    }

    /// Sets a bit. Returns whether it was clear before.
    pub(crate) fn set(&self, bit: Bit) -> bool {
        self.0.fetch_or(bit as u32, Ordering::SeqCst) & bit as u32 == 0
    }

    /// Shuts a direction of the stream. Returns false if the stream has come home, so that TCP is to be shut instead.
    #[must_use]
    pub(crate) fn shut(&self, direction: Direction) -> bool {
        let before = self.0.fetch_or(direction.bit() as u32, Ordering::SeqCst);
        before & Bit::AtHome as u32 == 0
    }

    /// The stream comes home. Returns the directions that the program has shut, which are to be shut in TCP. For later
    /// ones [`State::shut`] returns false. Both change the same word atomically, so no direction is missed.
    pub(crate) fn come_home(&self) -> impl Iterator<Item = Direction> + use<> {
        let before = self.0.fetch_or(Bit::AtHome as u32, Ordering::SeqCst);
        Direction::BOTH.into_iter().filter(move |direction| before & direction.bit() as u32 != 0)
    }

    /// Clears a bit whose message could not be posted.
    pub(crate) fn clear(&self, bit: Bit) {
        self.0.fetch_and(!(bit as u32), Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn has_any(&self, bits: &[Bit]) -> bool {
        let bits = bits.iter().fold(0, |all, bit| all | *bit as u32);
        self.0.load(Ordering::SeqCst) & bits != 0
    }

    /// Returns whether nothing is sent to the peer or received any more.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.has_any(&[Bit::ResetDue, Bit::PeerReset, Bit::Lost])
    }

    /// Returns whether it is broken and has not ended in order: missing bytes never come.
    #[inline]
    pub(crate) fn is_broken_off(&self) -> bool {
        self.is_broken() && self.has(Bit::Broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_shut_before_and_after_a_stream_is_home_are_each_shut_in_tcp_once() {
        for (before, after) in [(&[][..], &Direction::BOTH[..]), (&Direction::BOTH, &[])]
            .into_iter()
            .chain([(&[Direction::Write][..], &[Direction::Read][..])])
            .chain([(&[Direction::Read][..], &[Direction::Write][..])])
        {
            let state = State::default();
            assert!(before.iter().all(|&direction| state.shut(direction)), "by the group");
            let mut in_tcp: Vec<Direction> = state.come_home().collect();
            assert_eq!(in_tcp, before);
            in_tcp.extend(after.iter().filter(|&&direction| !state.shut(direction)));
            assert_eq!(in_tcp.len(), 2, "{before:?} before and {after:?} after: {in_tcp:?}");
        }
    }
}
