//! The links of a connection, and what the connection remembers about removed links.

use core::ops::{Deref, DerefMut};

use delivery::{Instant, LinkId, Pack, Packer, Unpacker};
use wire_edge::{ADDRESSES_MAX, LinkIndex, PeerAddr};

use crate::path::Path;

/// The links of a connection. Derefs to a slice.
///
/// When a link is [removed](LinkSet::remove), the positions of other links may change, but their
/// indices do not change. No two links have equal indices. Unless the set is empty, the peer has
/// answered on at least one link.
#[derive(Debug, Default)]
pub(crate) struct LinkSet {
    links: Vec<Path>,
    /// Removed links. Their entries store the last packet numbers, because the protocol never
    /// reuses a packet number.
    retired: Vec<Retired>,
    /// The link and the peer's address of each removed link on which the peer had answered, newest
    /// last.
    former: Vec<(LinkId, PeerAddr)>,
}

/// A link that was removed from a connection.
#[derive(Debug)]
pub(crate) struct Retired {
    /// When the link was removed.
    pub(crate) at: Instant,
    /// True if the peer does not know the link, or if the peer has itself replaced the link by
    /// another link under this index. In both cases, neither end reports anything about the removed
    /// link, and no late frame of the removed link can be confused with a frame of a later link.
    pub(crate) is_unnoticed: bool,
    pub(crate) path: Path,
}

delivery::pack_fields!(Retired { at, is_unnoticed, path });

impl Retired {
    /// Returns the time from which the index may be used for a trial.
    ///
    /// If the peer does not know the removed link, the index may be used at once. Otherwise the
    /// result is the time after which no frame of the removed link should still be in flight.
    pub(crate) fn reusable_at(&self) -> Instant {
        if self.is_unnoticed { Instant::default() } else { self.at.after_ns(2 * RETIRED_NS) }
    }
}

impl Deref for LinkSet {
    type Target = [Path];

    #[inline]
    fn deref(&self) -> &[Path] {
        &self.links
    }
}

impl DerefMut for LinkSet {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Path] {
        &mut self.links
    }
}

impl<'a> IntoIterator for &'a LinkSet {
    type Item = &'a Path;
    type IntoIter = core::slice::Iter<'a, Path>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.links.iter()
    }
}

impl<'a> IntoIterator for &'a mut LinkSet {
    type Item = &'a mut Path;
    type IntoIter = core::slice::IterMut<'a, Path>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.links.iter_mut()
    }
}

impl LinkSet {
    /// Returns all links, by position.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[Path] {
        &self.links
    }

    /// Returns the link with this index. Returns `None` if the index is free.
    #[inline]
    pub(crate) fn with(&self, index: LinkIndex) -> Option<&Path> {
        self.links.iter().find(|path| path.index() == index)
    }

    /// Returns a mutable reference to the link with this index. Returns `None` if the index is
    /// free.
    #[inline]
    pub(crate) fn with_mut(&mut self, index: LinkIndex) -> Option<&mut Path> {
        self.links.iter_mut().find(|path| path.index() == index)
    }

    /// Adds a link at the end. Its index must be free.
    pub(crate) fn open(&mut self, path: Path) {
        assert!(self.with(path.index()).is_none(), "a link index is used once at a time");
        assert!(self.retired(path.index()).is_none(), "packet numbers go on from where they were");
        assert!(
            path.is_validated() || self.has_answer_beside(path.index()),
            "the first link is one on which the peer has answered"
        );
        // Most connections have only one link, so allocate no room for further links.
        self.links.reserve_exact(1);
        self.links.push(path);
    }

    /// Returns whether the peer has answered on any link except the link `index`. If the result is
    /// false, the caller must keep that link.
    pub(crate) fn has_answer_beside(&self, index: LinkIndex) -> bool {
        self.links.iter().any(|path| path.is_validated() && path.index() != index)
    }

    /// Removes the link at `position`. The caller [retires](Self::retire) it.
    pub(crate) fn remove(&mut self, position: usize) -> Path {
        let path = self.links.remove(position);
        assert!(self.has_answer_beside(path.index()), "the last link that answered stays");
        path
    }

    /// Stores a removed link. The next link with this index continues its packet numbers. If the
    /// peer has answered on the removed link, also stores the link and the peer's address in the
    /// list of former links.
    pub(crate) fn retire(&mut self, at: Instant, path: Path) {
        if path.is_validated() {
            let pair = path.pair();
            self.former.retain(|&former| former != pair);
            if self.former.len() == ADDRESSES_MAX {
                self.former.remove(0);
            }
            self.former.push(pair);
        }
        self.retired.push(Retired { at, is_unnoticed: false, path });
    }

    /// Records that the peer does not know the link that was retired last.
    pub(crate) fn forget_last_retired(&mut self) {
        if let Some(retired) = self.retired.last_mut() {
            retired.is_unnoticed = true;
        }
    }

    /// Returns the removed link that had this index, if no link has the index now.
    pub(crate) fn retired(&self, index: LinkIndex) -> Option<&Retired> {
        self.retired.iter().find(|retired| retired.path.index() == index)
    }

    /// Removes and returns the entry of the removed link that had this index, for [`Path::renew`].
    /// Returns `None` if there is no such entry.
    pub(crate) fn take_retired(&mut self, index: LinkIndex) -> Option<Path> {
        let before = self.retired.iter().position(|retired| retired.path.index() == index)?;
        Some(self.retired.swap_remove(before).path)
    }

    /// Returns the earliest time at which the index of a removed link may be used for a trial;
    /// `None` if there is no removed link.
    pub(crate) fn index_reusable_at(&self) -> Option<Instant> {
        self.retired.iter().map(Retired::reusable_at).min()
    }

    /// Returns whether this pair (a link of this end and an address of the peer) belonged to a
    /// removed link. Only removed links on which the peer had answered count.
    pub(crate) fn was_link(&self, pair: (LinkId, PeerAddr)) -> bool {
        self.former.contains(&pair)
    }

    /// Releases everything except the memory for links.
    pub(crate) fn clear(&mut self) {
        self.links.clear();
        self.retired = Vec::new();
        self.former = Vec::new();
    }

    /// Writes the whole set.
    pub(crate) fn pack(&self, to: &mut Packer) {
        let Self { links, retired, former } = self;
        links.pack(to);
        retired.pack(to);
        former.pack(to);
    }

    /// Restores a set that [`LinkSet::pack`] wrote. Uses the memory of `self`, which must be empty.
    pub(crate) fn unpack(mut self, from: &mut Unpacker<'_>) -> Self {
        let links = usize::unpack(from);
        self.links.reserve_exact(links);
        self.links.extend((0..links).map(|_| Path::unpack(from)));
        Self { links: self.links, retired: Pack::unpack(from), former: Pack::unpack(from) }
    }
}

/// Time for which frames of a removed link may still arrive, in nanoseconds. A challenge that
/// arrives within this time does not open the link again. If the peer repeats the challenge later,
/// the challenge opens the link.
pub(crate) const RETIRED_NS: u64 = 1_000_000_000;
