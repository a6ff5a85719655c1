//! State bits of a stream.

use std::sync::atomic::{AtomicU32, Ordering};

/// The state of a stream, with one bit for each event that has occurred.
#[derive(Debug, Default)]
pub(crate) struct State(AtomicU32);

/// Bits of [`State`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bit {
    /// This side's switch marker is in the TCP connection. This side's later bytes go over the link
    /// group.
    Open = 1,
    /// The program has shut down writing.
    WriteShut = 2,
    /// The engine has accepted this side's End.
    EndPosted = 4,
    /// The peer's process has received this side's End.
    EndAcknowledged = 8,
    /// The program has shut down reading.
    ReadShut = 16,
    /// This side must send Reset to the peer.
    ResetDue = 32,
    ResetPosted = 64,
    /// The peer has reset the connection, or has answered this side's Reset.
    PeerReset = 128,
    /// The peer is lost; or the group is lost and the stream cannot return to TCP.
    Lost = 256,
    /// The program has closed its last descriptor of the stream.
    Released = 512,
    /// No more bytes arrive by TCP, or this side expects none.
    TcpDone = 1024,
    /// The stream was broken off: it ended because of a failure or a reset.
    Broken = 2048,
    HomePosted = 4096,
    /// The peer returns its end to TCP, and posts no more operations for this stream.
    PeerHome = 8192,
    /// The group is lost.
    GroupLost = 16_384,
    /// The rings of the stream may belong to another stream.
    Retired = 32_768,
    /// The stream has returned to TCP, which carries all later bytes.
    AtHome = 65_536,
    /// This end reads no byte of its ring and posts none to the peer's ring. The stream returns to
    /// TCP directly after its switch marker.
    Ringless = 131_072,
}

/// A direction that a program can shut down.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    /// The direction in which the program writes.
    Write,
    /// The direction in which the program reads.
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

    /// Sets a bit. Returns true if this call changed it.
    pub(crate) fn set(&self, bit: Bit) -> bool {
        self.0.fetch_or(bit as u32, Ordering::SeqCst) & bit as u32 == 0
    }

    /// Shuts down a direction of the stream. Returns false if the stream has returned to TCP; the
    /// caller must then shut down TCP.
    #[must_use]
    pub(crate) fn shut(&self, direction: Direction) -> bool {
        let before = self.0.fetch_or(direction.bit() as u32, Ordering::SeqCst);
        before & Bit::AtHome as u32 == 0
    }

    /// Records that the stream has returned to TCP. Returns the directions that the program has
    /// already shut down; the caller must shut them down in TCP. For a direction that is shut down
    /// later, [`State::shut`] returns false. Both functions change the same word atomically, so no
    /// direction is missed.
    pub(crate) fn come_home(&self) -> impl Iterator<Item = Direction> + use<> {
        let before = self.0.fetch_or(Bit::AtHome as u32, Ordering::SeqCst);
        Direction::BOTH.into_iter().filter(move |direction| before & direction.bit() as u32 != 0)
    }

    /// Clears the bit of a message that the engine could not post.
    pub(crate) fn clear(&self, bit: Bit) {
        self.0.fetch_and(!(bit as u32), Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn has_any(&self, bits: &[Bit]) -> bool {
        let bits = bits.iter().fold(0, |all, bit| all | *bit as u32);
        self.0.load(Ordering::SeqCst) & bits != 0
    }

    /// Returns true if the stream exchanges no more bytes or messages with the peer.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.has_any(&[Bit::ResetDue, Bit::PeerReset, Bit::Lost])
    }

    /// Returns true if the stream was broken off, so that missing bytes will never arrive.
    #[inline]
    pub(crate) fn is_broken_off(&self) -> bool {
        self.is_broken() && self.has(Bit::Broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_shut_before_or_after_the_return_to_tcp_are_shut_in_tcp_once() {
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
