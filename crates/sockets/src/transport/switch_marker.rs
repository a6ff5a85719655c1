//! Searches bytes for the switch marker, which ends the TCP part of a stream. A marker may be split
//! over several reads of TCP.

use crate::wire::SwitchMarker;

/// The result of a search for the switch marker.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Scan {
    /// Number of bytes at the beginning that belong to the stream, so the program may see them.
    pub(crate) shown: usize,
    /// True if the switch marker follows these bytes.
    pub(crate) has_marker: bool,
}

/// Searches bytes for the switch marker. The bytes after `shown` may be the beginning of the
/// marker. The caller must scan these bytes again together with the bytes that follow.
pub(crate) fn scan(bytes: &[u8], marker: &SwitchMarker) -> Scan {
    if let Some(at) = find(bytes, marker) {
        return Scan { shown: at, has_marker: true };
    }
    let longest = bytes.len().min(SwitchMarker::BYTES - 1);
    let held = (1..=longest).rev().find(|&held| bytes.ends_with(&marker.0[..held])).unwrap_or(0);
    Scan { shown: bytes.len() - held, has_marker: false }
}

/// Searches bytes for two switch markers, and stops at the one that comes first. Returns the
/// result, and true if the second marker was found.
pub(crate) fn scan_for_either(
    bytes: &[u8],
    markers: (&SwitchMarker, Option<&SwitchMarker>),
) -> (Scan, bool) {
    let first = scan(bytes, markers.0);
    let Some(second) = markers.1.map(|marker| scan(bytes, marker)) else { return (first, false) };
    let is_second = second.has_marker && (!first.has_marker || second.shown < first.shown);
    let shown = first.shown.min(second.shown);
    match (first.has_marker, second.has_marker) {
        (false, false) => (Scan { shown, has_marker: false }, false),
        _ => (if is_second { second } else { first }, is_second),
    }
}

fn find(bytes: &[u8], marker: &SwitchMarker) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == marker.0[0]) {
        let at = from + at;
        if bytes.get(at..at + SwitchMarker::BYTES)? == marker.0 {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// Searches for the switch marker without holding bytes back, because the marker may never arrive.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    marker: SwitchMarker,
    /// The last bytes that the program has seen, fewer than the length of a switch marker.
    tail: Vec<u8>,
}

impl Watch {
    pub(crate) const fn new(marker: SwitchMarker) -> Self {
        Self { marker, tail: Vec::new() }
    }

    /// Searches for the switch marker in bytes that the program has not seen yet. If only a few
    /// bytes at the end look like the beginning of the marker, counts them as shown, because no
    /// more bytes may follow.
    pub(crate) fn scan(&self, bytes: &[u8]) -> Scan {
        let scan = scan(bytes, &self.marker);
        let is_short = !scan.has_marker && bytes.len() - scan.shown <= MARKER_BEGINNING_BYTES;
        if is_short { Scan { shown: bytes.len(), ..scan } } else { scan }
    }

    /// Returns true if these bytes, which the program is about to see, complete a switch marker.
    pub(crate) fn completes(&mut self, bytes: &[u8]) -> bool {
        if scan(bytes, &self.marker).has_marker {
            return true;
        }
        let beginning = bytes.len().min(SwitchMarker::BYTES - 1);
        self.tail.extend_from_slice(&bytes[..beginning]);
        let has_come = scan(&self.tail, &self.marker).has_marker;
        if beginning < bytes.len() {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - (SwitchMarker::BYTES - 1)..]);
        } else {
            let too_many = self.tail.len().saturating_sub(SwitchMarker::BYTES - 1);
            self.tail.drain(..too_many);
        }
        has_come
    }
}

/// Largest number of bytes whose match with the beginning of a switch marker counts as chance. If
/// more bytes match, they count as a marker: the bytes of a program match at least 9 bytes of the
/// random marker with a probability of 2^-72.
const MARKER_BEGINNING_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns bytes with few different values, so that beginnings of the switch marker are
    /// frequent.
    fn few_values(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0_u8..3, length)
    }

    fn markers() -> impl Strategy<Value = SwitchMarker> {
        few_values(16..17).prop_map(|bytes| SwitchMarker(bytes.try_into().expect("16 bytes")))
    }

    #[test]
    fn the_first_of_two_markers_is_found_and_the_beginning_of_either_is_held() {
        let (own, peers) = (SwitchMarker(*b"0123456789abcdef"), SwitchMarker(*b"fedcba9876543210"));
        let found = |bytes: &[u8]| scan_for_either(bytes, (&own, Some(&peers)));
        let both = [b"x", &peers.0[..], &own.0].concat();
        assert_eq!(found(&both), (Scan { shown: 1, has_marker: true }, true));
        assert_eq!(found(&own.0), (Scan { shown: 0, has_marker: true }, false));
        for held in [&own.0[..5], &peers.0[..5]] {
            let bytes = [b"x", held].concat();
            assert_eq!(found(&bytes), (Scan { shown: 1, has_marker: false }, false));
            assert_eq!(scan_for_either(&bytes, (&own, None)).0.shown == 6, held != &own.0[..5]);
        }
    }

    proptest! {
        #[test]
        fn the_marker_is_found_at_every_cut(
            before in few_values(0..40),
            after in few_values(0..20),
            marker in markers(),
            cuts in proptest::collection::vec(1_usize..24, 1..40),
        ) {
            let whole = [before.as_slice(), &marker.0, &after].concat();
            let first = whole.windows(SwitchMarker::BYTES).position(|bytes| bytes == marker.0).expect("it is there");
            let (mut seen, mut held, mut at) = (Vec::new(), Vec::new(), 0);
            let mut cuts = cuts.into_iter().cycle();
            loop {
                let cut = cuts.next().expect("it has no end").min(whole.len() - at);
                held.extend_from_slice(&whole[at..at + cut]);
                at += cut;
                let Scan { shown, has_marker } = scan(&held, &marker);
                seen.extend(held.drain(..shown));
                if has_marker {
                    prop_assert!(held.starts_with(&marker.0));
                    break;
                }
                prop_assert!(held.len() < SwitchMarker::BYTES);
                prop_assert!(at < whole.len(), "not found");
            }
            prop_assert_eq!(seen.as_slice(), &whole[..first]);
        }

        #[test]
        fn bytes_that_cannot_be_the_marker_are_not_held_back(
            bytes in few_values(0..60),
            marker in markers(),
        ) {
            let Scan { shown, has_marker } = scan(&bytes, &marker);
            let rest = &bytes[shown..];
            let begins = if has_marker { rest.starts_with(&marker.0) } else { marker.0.starts_with(rest) };
            prop_assert!(begins);
        }

        #[test]
        fn a_watched_marker_is_found_at_every_cut(
            bytes in few_values(0..60),
            marker in markers(),
            ends_in_marker: bool,
            cuts in proptest::collection::vec(1_usize..24, 1..40),
        ) {
            let whole = if ends_in_marker { [bytes.as_slice(), &marker.0].concat() } else { bytes };
            let comes = whole.windows(SwitchMarker::BYTES).any(|bytes| bytes == marker.0);
            let mut watch = Watch::new(marker);
            let (mut has_come, mut at) = (false, 0);
            let mut cuts = cuts.into_iter().cycle();
            while at < whole.len() {
                let cut = cuts.next().expect("it has no end").min(whole.len() - at);
                has_come |= watch.completes(&whole[at..at + cut]);
                at += cut;
            }
            prop_assert_eq!(has_come, comes);
        }
    }
}
