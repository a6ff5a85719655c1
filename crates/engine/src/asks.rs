//! Decides which data frames ask the peer for an acknowledgement.

use delivery::ASK_FRAMES_MAX;
use semantics::Fragment;
use wire_edge::{Header, LinkIndex};

use crate::path::Path;

/// Counts the data frames that this end has sent, on all links together, after it last asked the
/// peer for an acknowledgement. The acknowledgement that the peer sends covers all links. In
/// addition, each link counts its own frames.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// Number of data frames sent on all links after this end last asked for an acknowledgement.
    unasked: u32,
    /// The link on which this end last asked for an acknowledgement.
    asked_on: Option<LinkIndex>,
}

delivery::pack_fields!(Asks { unasked, asked_on });

impl Asks {
    /// Counts one more data frame on the link at `position`. Returns whether the frame should ask
    /// for an acknowledgement. The acknowledgement will cover all links.
    #[inline]
    pub(crate) fn asks_with_next(&mut self, paths: &mut [Path], position: usize) -> bool {
        self.unasked += 1;
        let all_asks = self.unasked >= ASK_FRAMES_MAX && self.may_ask_for_all(paths, position);
        let Some(path) = paths.get_mut(position) else { return false };
        let asks = path.asks_with_next() || all_asks;
        if asks {
            self.asked_on = Some(path.index());
            self.on_asked(paths);
        }
        asks
    }

    /// Returns whether a frame of the link at `position` may ask for an acknowledgement for the
    /// frames on all links.
    ///
    /// * Two consecutive questions should use different links, because a link may have failed.
    /// * A question should not use a link with a long round trip. The peer would acknowledge for
    ///   another reason before the question arrives.
    fn may_ask_for_all(&self, paths: &[Path], position: usize) -> bool {
        let [_, _, ..] = paths else { return true };
        let nearest = paths.iter().filter(|path| path.may_carry_data());
        let nearest_ns = nearest.map(|path| path.send().srtt_ns()).min().unwrap_or(0);
        let Some(path) = paths.get(position) else { return false };
        let is_near = path.send().srtt_ns() <= 2 * nearest_ns + ASK_LATE_NS;
        is_near && self.asked_on != Some(path.index())
            || self.unasked >= ASK_FRAMES_MAX + ASK_TURN_FRAMES
                && (is_near || self.unasked >= 2 * ASK_FRAMES_MAX)
    }

    /// Records that this end asks the peer for an acknowledgement.
    pub(crate) fn on_asked(&mut self, paths: &mut [Path]) {
        self.unasked = 0;
        paths.iter_mut().for_each(Path::on_asked);
    }

    /// Handles the acknowledgement of frames of a link. If no frame is in flight any more, this end
    /// needs no further acknowledgement, and its count of frames starts again at 0. Therefore two
    /// ends that alternately send requests and replies never ask for acknowledgements.
    #[inline]
    pub(crate) fn on_acknowledged(&mut self, paths: &mut [Path], link: LinkIndex) {
        let mut is_idle = true;
        for path in paths {
            let is_path_idle = path.send().in_flight_bytes() == 0;
            is_idle &= is_path_idle;
            if is_path_idle && path.index() == link {
                path.on_asked();
            }
        }
        if is_idle {
            self.unasked = 0;
        }
    }
}

/// Returns whether the peer probably answers a fragment with data soon: the fragment is a whole
/// operation other than a patch. Then the answer carries the acknowledgement. The target of a patch
/// does not know of it, so it has no reason to answer.
#[inline]
pub(crate) const fn expects_answer(fragment: &Fragment<'_>) -> bool {
    let is_whole = fragment.carried.last && fragment.carried.offset == 0;
    is_whole && !matches!(fragment.header, Header::Patch { .. })
}

/// Number of data frames beyond `ASK_FRAMES_MAX` after which this end may ask for an
/// acknowledgement on the link on which it asked last.
const ASK_TURN_FRAMES: u32 = 16;

/// Time in nanoseconds by which the round trip of a link may exceed twice the shortest round trip
/// of the connection. A link with a longer round trip is too slow for questions.
const ASK_LATE_NS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use delivery::Instant;

    use super::*;
    use crate::path::tests::path_of;
    use crate::purpose::Purpose;
    use crate::sending::tests::{data, pool};

    #[test]
    fn a_link_requests_twice_in_a_row_only_after_the_others_have_not_for_long() {
        let mut paths = [path_of(0), path_of(1)];
        let mut asks = Asks { asked_on: Some(LinkIndex(0)), unasked: ASK_FRAMES_MAX };
        assert!(!asks.may_ask_for_all(&paths, 0));
        assert!(asks.may_ask_for_all(&paths, 1));
        assert!(
            asks.may_ask_for_all(&paths[..1], 0),
            "the only link cannot ask for an acknowledgement"
        );
        asks.unasked += ASK_TURN_FRAMES;
        assert!(asks.may_ask_for_all(&paths, 0));
        asks.on_asked(&mut paths);
        assert_eq!(asks.unasked, 0);
    }

    #[test]
    fn no_acknowledgement_is_requested_if_none_is_outstanding() {
        let (mut paths, mut pool) = ([path_of(0), path_of(1)], pool());
        let mut asks = Asks { unasked: 7, asked_on: None };
        paths[1].on_sent(&mut pool, Instant(1), 100, Purpose::Data, data(0), false);
        asks.on_acknowledged(&mut paths, LinkIndex(0));
        assert_eq!(
            asks.unasked, 7,
            "the count was reset although the other link waits for an acknowledgement"
        );
        paths[1].let_go(&mut pool);
        asks.on_acknowledged(&mut paths, LinkIndex(1));
        assert_eq!(asks.unasked, 0);
    }
}
