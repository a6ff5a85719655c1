//! What has become of a stream.

use std::sync::atomic::{AtomicU32, Ordering};

/// What has become of a stream: bits that are set once.
#[derive(Debug, Default)]
pub(crate) struct State(AtomicU32);

/// Bits of [`State`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bit {
    /// This side's switch marker is in the TCP connection: bytes go by the group.
    Open = 1,
    /// The program writes no more.
    WriteShut = 2,
    /// The end was posted, and not given back.
    EndPosted = 4,
    /// The peer's process has it.
    EndAcknowledged = 8,
    /// The program reads no more.
    ReadShut = 16,
    /// A Reset for the peer is pending.
    ResetDue = 32,
    ResetPosted = 64,
    /// The peer has reset the connection, or has answered that it was.
    PeerReset = 128,
    /// The group is gone, or the peer.
    Lost = 256,
    /// No descriptor of the program is left.
    Released = 512,
    /// Nothing more comes by TCP, or nothing is expected.
    TcpDone = 1024,
    /// It was broken off, for whatever reason.
    Broken = 2048,
    HomePosted = 4096,
    /// The peer posts nothing more.
    PeerHome = 8192,
    /// The group is gone.
    GroupLost = 16_384,
    /// Its rings are those of another stream.
    Retired = 32_768,
    /// It has come home: TCP carries what follows.
    AtHome = 65_536,
    /// No byte of the ring is read or posted: it goes home from here.
    Ringless = 131_072,
}

/// A direction that a program shuts.
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

    /// Whether it was not set before.
    pub(crate) fn set(&self, bit: Bit) -> bool {
        self.0.fetch_or(bit as u32, Ordering::SeqCst) & bit as u32 == 0
    }

    /// The program shuts a direction. False if the stream has come home, so that TCP is to be shut instead.
    #[must_use]
    pub(crate) fn shut(&self, direction: Direction) -> bool {
        let before = self.0.fetch_or(direction.bit() as u32, Ordering::SeqCst);
        before & Bit::AtHome as u32 == 0
    }

    /// The stream comes home. Returns the directions that the program has shut, which TCP is to hear of. Of those that it
    /// shuts later [`State::shut`] says so: both are one step on the same word, so that no direction is forgotten.
    pub(crate) fn come_home(&self) -> impl Iterator<Item = Direction> + use<> {
        let before = self.0.fetch_or(Bit::AtHome as u32, Ordering::SeqCst);
        Direction::BOTH.into_iter().filter(move |direction| before & direction.bit() as u32 != 0)
    }

    /// Clears a bit of what was given back.
    pub(crate) fn clear(&self, bit: Bit) {
        self.0.fetch_and(!(bit as u32), Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn has_any(&self, bits: &[Bit]) -> bool {
        let bits = bits.iter().fold(0, |all, bit| all | *bit as u32);
        self.0.load(Ordering::SeqCst) & bits != 0
    }

    /// Nothing goes to the peer any more, and nothing comes.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.has_any(&[Bit::ResetDue, Bit::PeerReset, Bit::Lost])
    }

    /// The same, and not in order: what has not come never does.
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
