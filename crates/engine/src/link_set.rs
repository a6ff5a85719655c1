//! The links of a connection: those there are, and what must be known of those that were.

use core::ops::{Deref, DerefMut};

use delivery::{Instant, LinkId, Pack, Packer, Unpacker};
use wire_edge::{ADDRESSES_MAX, LinkIndex, PeerAddr};

use crate::path::Path;

/// The links of a connection. It can be used as a slice of them, in which positions hold until one is
/// [removed](LinkSet::remove); across that a link is named by its index.
///
/// While there is any, there is one on which the peer has answered. No two have one index.
#[derive(Debug, Default)]
pub(crate) struct LinkSet {
    links: Vec<Path>,
    /// Links that were taken away: their packet numbers must not be used again.
    retired: Vec<Retired>,
    /// Pairs that were links once and were taken away, the newest last: at these addresses the peer has
    /// answered.
    former: Vec<(LinkId, PeerAddr)>,
}

/// A link that was taken away from a connection.
#[derive(Debug)]
pub(crate) struct Retired {
    /// When it was taken away.
    pub(crate) at: Instant,
    /// The peer does not know that it was there, or gave it up itself for another under this index: neither end reports
    /// anything about it to the other, and no later link can be taken for it.
    pub(crate) is_unnoticed: bool,
    pub(crate) path: Path,
}

delivery::pack_fields!(Retired { at, is_unnoticed, path });

impl Retired {
    /// When the index may serve a trial. A link that the peer did not notice is new to it; any other index may be used
    /// only when the peer believes that no earlier frame is in flight.
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
    /// All links, by position.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[Path] {
        &self.links
    }

    /// The link with this index, if it is there.
    #[inline]
    pub(crate) fn with(&self, index: LinkIndex) -> Option<&Path> {
        self.links.iter().find(|path| path.index() == index)
    }

    /// The link with this index, if it is there.
    #[inline]
    pub(crate) fn with_mut(&mut self, index: LinkIndex) -> Option<&mut Path> {
        self.links.iter_mut().find(|path| path.index() == index)
    }

    /// Adds a link, the last from now on. Its index is free.
    pub(crate) fn open(&mut self, path: Path) {
        assert!(self.with(path.index()).is_none(), "a link index is used once at a time");
        assert!(self.retired(path.index()).is_none(), "packet numbers go on from where they were");
        assert!(
            path.is_validated() || self.has_answer_beside(path.index()),
            "the first link is one on which the peer has answered"
        );
        // Room for one link is not wasted on the many connections that have no other.
        self.links.reserve_exact(1);
        self.links.push(path);
    }

    /// Whether the peer has answered on a link other than this one: the last such link stays.
    pub(crate) fn has_answer_beside(&self, index: LinkIndex) -> bool {
        self.links.iter().any(|path| path.is_validated() && path.index() != index)
    }

    /// Takes out the link at `position`, which is to [retire](Self::retire).
    pub(crate) fn remove(&mut self, position: usize) -> Path {
        let path = self.links.remove(position);
        assert!(self.has_answer_beside(path.index()), "the last link that answered stays");
        path
    }

    /// A link that was taken out leaves its packet numbers to the next with its index; if the peer has
    /// answered on it, its pair is remembered.
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

    /// The link that retired last is one of which the peer knows nothing, or nothing any more.
    pub(crate) fn forget_last_retired(&mut self) {
        if let Some(retired) = self.retired.last_mut() {
            retired.is_unnoticed = true;
        }
    }

    /// The link that had this index before, if it is not in use again.
    pub(crate) fn retired(&self, index: LinkIndex) -> Option<&Retired> {
        self.retired.iter().find(|retired| retired.path.index() == index)
    }

    /// Gives out the link that had this index before, which is to be renewed.
    pub(crate) fn take_retired(&mut self, index: LinkIndex) -> Option<Path> {
        let before = self.retired.iter().position(|retired| retired.path.index() == index)?;
        Some(self.retired.swap_remove(before).path)
    }

    /// When an index may serve a trial again, if there are any that may.
    pub(crate) fn index_reusable_at(&self) -> Option<Instant> {
        self.retired.iter().map(Retired::reusable_at).min()
    }

    /// Whether this pair was a link once.
    pub(crate) fn was_link(&self, pair: (LinkId, PeerAddr)) -> bool {
        self.former.contains(&pair)
    }

    /// Lets go of everything but the memory for links.
    pub(crate) fn clear(&mut self) {
        self.links.clear();
        self.retired = Vec::new();
        self.former = Vec::new();
    }

    /// Writes everything down.
    pub(crate) fn pack(&self, to: &mut Packer) {
        let Self { links, retired, former } = self;
        links.pack(to);
        retired.pack(to);
        former.pack(to);
    }

    /// Reads what [`LinkSet::pack`] wrote. The memory of this set, which is empty, is used.
    pub(crate) fn unpack(mut self, from: &mut Unpacker<'_>) -> Self {
        let links = usize::unpack(from);
        self.links.reserve_exact(links);
        self.links.extend((0..links).map(|_| Path::unpack(from)));
        Self { links: self.links, retired: Pack::unpack(from), former: Pack::unpack(from) }
    }
}

/// How long frames of a link that was taken away may still arrive. A challenge of that time does not
/// open it again; the peer's next one does.
pub(crate) const RETIRED_NS: u64 = 1_000_000_000;
