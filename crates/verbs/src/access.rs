//! Access rights to memory that programs request.

use mem::Rights;

use crate::error::Error;

/// Bits of `ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AccessFlags(pub u32);

impl AccessFlags {
    /// The library may write received messages and results of reads and atomics to the memory.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may perform atomics on the memory.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Memory windows may be bound to the region.
    pub const WINDOW_BIND: Self = Self(1 << 4);
    /// Peers and work requests address the region by offsets from its first byte, instead of by
    /// virtual addresses.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// On-demand paging, which is not supported.
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// Bits that a device may ignore, such as relaxed ordering. This device ignores all of them.
    pub const OPTIONAL: Self = Self(0x3ff0_0000);

    /// Returns whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether at least one bit of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the rights for a memory region.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if peers may write to the memory, but the local side may not.
    /// * Returns [`Error::NotSupported`] if unknown bits are set.
    pub(crate) fn of_region(self) -> Result<Rights, Error> {
        let known = Self::PLAIN.union(Self::WINDOW_BIND).union(Self::ZERO_BASED);
        self.check_known(known)?;
        let changing = Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC);
        if self.intersects(changing) && !self.contains(Self::LOCAL_WRITE) {
            let what = "remote write and remote atomic access need local write access";
            return Err(Error::Invalid(what.into()));
        }
        Ok(self.rights())
    }

    /// Returns the rights for a memory window.
    ///
    /// # Errors
    /// Returns [`Error::NotSupported`] if unknown bits are set.
    pub(crate) fn of_window(self) -> Result<Rights, Error> {
        self.check_known(Self::PLAIN.union(Self::ZERO_BASED))?;
        Ok(self.rights())
    }

    fn check_known(self, known: Self) -> Result<(), Error> {
        let unknown = self.0 & !known.union(Self::OPTIONAL).0;
        if unknown == 0 {
            return Ok(());
        }
        Err(Error::NotSupported(format!("memory access flags {unknown:#x}")))
    }

    /// Returns the rights that the bits grant.
    pub fn rights(self) -> Rights {
        let pairs = [
            (Self::LOCAL_WRITE, Rights::LOCAL_WRITE),
            (Self::REMOTE_WRITE, Rights::REMOTE_WRITE),
            (Self::REMOTE_READ, Rights::REMOTE_READ),
            (Self::REMOTE_ATOMIC, Rights::REMOTE_ATOMIC),
        ];
        let granted = pairs.into_iter().filter(|(flag, _)| self.contains(*flag));
        granted.fold(Rights::NONE, |rights, (_, right)| rights | right)
    }

    const PLAIN: Self = Self(0xf);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_access_needs_local_write_access() {
        for flags in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
            assert!(matches!(flags.of_region(), Err(Error::Invalid(_))));
            assert!(flags.union(AccessFlags::LOCAL_WRITE).of_region().is_ok());
        }
        assert_eq!(AccessFlags::REMOTE_READ.of_region(), Ok(Rights::REMOTE_READ));
    }

    #[test]
    fn optional_bits_are_ignored_and_unknown_ones_refused() {
        assert_eq!(AccessFlags::OPTIONAL.of_region(), Ok(Rights::NONE));
        for flags in [AccessFlags::ON_DEMAND, AccessFlags(1 << 7), AccessFlags(1 << 31)] {
            assert!(matches!(flags.of_region(), Err(Error::NotSupported(_))));
        }
    }
}
