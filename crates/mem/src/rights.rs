//! Access rights of a region.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// A set of access rights. The owner can always send from the region, even if the set is empty.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Rights(u8);

impl Rights {
    /// The empty set: the owner can only send from the region.
    pub const NONE: Self = Self(0);
    /// The owner's receives, reads and atomics may place their results in the region.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may read the region.
    pub const REMOTE_READ: Self = Self(1 << 1);
    /// Peers may write the region.
    pub const REMOTE_WRITE: Self = Self(1 << 2);
    /// Peers may perform atomic operations on the region.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Reserved: operations on the region may be reordered freely.
    pub const RELAXED_ORDERING: Self = Self(1 << 4);
    /// All rights.
    pub const ALL: Self = Self((1 << 5) - 1);

    /// Returns the set with these bits, or `None` if a bit stands for no right.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }

    /// Returns the bits of the set.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns whether this set contains every right of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether this set contains at least one right of `other`.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The rights that allow changes of the region's bytes.
    pub(crate) const CHANGING: Self =
        Self(Self::LOCAL_WRITE.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0);

    /// All rights of peers.
    pub(crate) const REMOTE: Self =
        Self(Self::REMOTE_READ.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0);

    /// Returns the set with the low bits of `bits`, and ignores bits that stand for no right. Meant
    /// for words that this crate wrote.
    pub(crate) const fn from_bits_truncating(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

impl BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for Rights {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.union(other);
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Rights, &str); 5] = [
            (Rights::LOCAL_WRITE, "local write"),
            (Rights::REMOTE_READ, "remote read"),
            (Rights::REMOTE_WRITE, "remote write"),
            (Rights::REMOTE_ATOMIC, "remote atomic"),
            (Rights::RELAXED_ORDERING, "relaxed ordering"),
        ];
        let mut separator = "";
        for (_, name) in NAMES.iter().filter(|(right, _)| self.contains(*right)) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_are_refused() {
        assert_eq!(Rights::from_bits(Rights::ALL.bits()), Some(Rights::ALL));
        assert_eq!(Rights::from_bits(1 << 5), None);
    }

    #[test]
    fn sets_print_their_members() {
        assert_eq!(Rights::NONE.to_string(), "none");
        let both = Rights::LOCAL_WRITE | Rights::REMOTE_ATOMIC;
        assert_eq!(both.to_string(), "local write, remote atomic");
    }
}
