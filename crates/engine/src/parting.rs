//! A Close of the peer that has not taken effect yet.

use delivery::Instant;
use wire_edge::LinkIndex;

/// A Close of the peer that waits for the Closes on the other links of the connection.
///
/// The peer may have sent the last operations on one link and then Close on all links. The Close on
/// another link can arrive before these operations, for example because this end reads the links
/// one after the other, or because the links differ in their delays.
#[derive(Debug)]
pub(crate) struct Parting {
    /// The links on which the Close has arrived, one bit for each index.
    heard: u16,
    /// When the Close takes effect even if it has not arrived on all links.
    until: Instant,
    private_data: Vec<u8>,
}

impl Parting {
    /// Creates the state when the first Close arrives, before it is recorded by
    /// [`Parting::on_close`].
    pub(crate) fn new(now: Instant, private_data: &[u8]) -> Self {
        Self { heard: 0, until: now.after_ns(PARTING_NS), private_data: private_data.to_vec() }
    }

    /// Records that the Close has arrived on a link.
    pub(crate) fn on_close(&mut self, link: LinkIndex) {
        self.heard |= bit(link);
    }

    /// Returns whether the Close has arrived on a link.
    pub(crate) const fn is_heard_on(&self, link: LinkIndex) -> bool {
        self.heard & bit(link) != 0
    }

    /// Returns when the Close takes effect at the latest.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// Returns the private data of the Close.
    pub(crate) fn into_private_data(self) -> Vec<u8> {
        self.private_data
    }
}

const fn bit(link: LinkIndex) -> u16 {
    // An index has four bits on the wire.
    1 << (link.0 & LinkIndex::MAX)
}

/// Longest time that a Close waits for the Closes on the other links, in nanoseconds. The peer sends
/// all of them at once. The time is as long as the peer's own pause before it repeats a Close.
const PARTING_NS: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_is_heard_on_the_links_on_which_it_has_arrived() {
        let mut parting = Parting::new(Instant(5), b"bye");
        for link in [0, 15] {
            assert!(!parting.is_heard_on(LinkIndex(link)));
            parting.on_close(LinkIndex(link));
            assert!(parting.is_heard_on(LinkIndex(link)));
        }
        assert!((1..15).all(|link| !parting.is_heard_on(LinkIndex(link))));
        assert_eq!(parting.until(), Instant(5 + PARTING_NS));
        assert_eq!(parting.into_private_data(), b"bye");
    }
}
