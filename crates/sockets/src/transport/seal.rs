//! The switch marker that ends the TCP part of a stream: found in whatever pieces TCP hands out.

use crate::wire::Seal;

/// What is known of bytes in which a switch marker may come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Scan {
    /// So many bytes at the beginning are the stream's, whatever follows.
    pub(crate) shown: usize,
    /// The switch marker follows them.
    pub(crate) is_sealed: bool,
}

/// Looks for the switch marker in bytes none of which was looked at before, or all but a tail that was not shown. What
/// is not shown, and is no switch marker, may be its beginning: it must be looked at again with what follows.
pub(crate) fn scan(bytes: &[u8], seal: &Seal) -> Scan {
    if let Some(at) = find(bytes, seal) {
        return Scan { shown: at, is_sealed: true };
    }
    let longest = bytes.len().min(Seal::BYTES - 1);
    let held = (1..=longest).rev().find(|&held| bytes.ends_with(&seal.0[..held])).unwrap_or(0);
    Scan { shown: bytes.len() - held, is_sealed: false }
}

/// The same for the first of two switch markers, and whether that is the second one.
pub(crate) fn scan_for_either(bytes: &[u8], seals: (&Seal, Option<&Seal>)) -> (Scan, bool) {
    let first = scan(bytes, seals.0);
    let Some(second) = seals.1.map(|seal| scan(bytes, seal)) else { return (first, false) };
    let is_second = second.is_sealed && (!first.is_sealed || second.shown < first.shown);
    let shown = first.shown.min(second.shown);
    match (first.is_sealed, second.is_sealed) {
        (false, false) => (Scan { shown, is_sealed: false }, false),
        _ => (if is_second { second } else { first }, is_second),
    }
}

fn find(bytes: &[u8], seal: &Seal) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == seal.0[0]) {
        let at = from + at;
        if bytes.get(at..at + Seal::BYTES)? == seal.0 {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// Looks for the switch marker in bytes that are shown as they come, because it may never come.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    seal: Seal,
    /// The last bytes before those that come, fewer than a switch marker has.
    tail: Vec<u8>,
}

impl Watch {
    pub(crate) const fn new(seal: Seal) -> Self {
        Self { seal, tail: Vec::new() }
    }

    /// Looks for the switch marker in bytes that are not shown yet. Few bytes of a program may look like the beginning
    /// of a switch marker, and nothing may follow them: those are shown.
    pub(crate) fn scan(&self, bytes: &[u8]) -> Scan {
        let scan = scan(bytes, &self.seal);
        let is_short = !scan.is_sealed && bytes.len() - scan.shown <= SEAL_BEGINS;
        if is_short { Scan { shown: bytes.len(), ..scan } } else { scan }
    }

    /// Whether these bytes, which are shown, end a switch marker.
    pub(crate) fn completes(&mut self, bytes: &[u8]) -> bool {
        if scan(bytes, &self.seal).is_sealed {
            return true;
        }
        let beginning = bytes.len().min(Seal::BYTES - 1);
        self.tail.extend_from_slice(&bytes[..beginning]);
        let has_come = scan(&self.tail, &self.seal).is_sealed;
        if beginning < bytes.len() {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - (Seal::BYTES - 1)..]);
        } else {
            let too_many = self.tail.len().saturating_sub(Seal::BYTES - 1);
            self.tail.drain(..too_many);
        }
        has_come
    }
}

/// More bytes than these that look like the beginning of a switch marker are one: a program's are by chance once in
/// 2^72 times.
const SEAL_BEGINS: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of few values, so that beginnings of the switch marker are frequent.
    fn few_values(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0_u8..3, length)
    }

    fn seals() -> impl Strategy<Value = Seal> {
        few_values(16..17).prop_map(|bytes| Seal(bytes.try_into().expect("16 bytes")))
    }

    #[test]
    fn the_first_of_two_seals_is_found_and_the_beginning_of_either_is_held() {
        let (own, peers) = (Seal(*b"0123456789abcdef"), Seal(*b"fedcba9876543210"));
        let found = |bytes: &[u8]| scan_for_either(bytes, (&own, Some(&peers)));
        let both = [b"x", &peers.0[..], &own.0].concat();
        assert_eq!(found(&both), (Scan { shown: 1, is_sealed: true }, true));
        assert_eq!(found(&own.0), (Scan { shown: 0, is_sealed: true }, false));
        for held in [&own.0[..5], &peers.0[..5]] {
            let bytes = [b"x", held].concat();
            assert_eq!(found(&bytes), (Scan { shown: 1, is_sealed: false }, false));
            assert_eq!(scan_for_either(&bytes, (&own, None)).0.shown == 6, held != &own.0[..5]);
        }
    }

    proptest! {
        #[test]
        fn the_seal_is_found_at_every_cut(
            before in few_values(0..40),
            after in few_values(0..20),
            seal in seals(),
            cuts in proptest::collection::vec(1_usize..24, 1..40),
        ) {
            let whole = [before.as_slice(), &seal.0, &after].concat();
            let first = whole.windows(Seal::BYTES).position(|bytes| bytes == seal.0).expect("it is there");
            let (mut seen, mut held, mut at) = (Vec::new(), Vec::new(), 0);
            let mut cuts = cuts.into_iter().cycle();
            loop {
                let cut = cuts.next().expect("it has no end").min(whole.len() - at);
                held.extend_from_slice(&whole[at..at + cut]);
                at += cut;
                let Scan { shown, is_sealed } = scan(&held, &seal);
                seen.extend(held.drain(..shown));
                if is_sealed {
                    prop_assert!(held.starts_with(&seal.0));
                    break;
                }
                prop_assert!(held.len() < Seal::BYTES);
                prop_assert!(at < whole.len(), "not found");
            }
            prop_assert_eq!(seen.as_slice(), &whole[..first]);
        }

        #[test]
        fn nothing_is_held_back_that_cannot_be_the_seal(bytes in few_values(0..60), seal in seals()) {
            let Scan { shown, is_sealed } = scan(&bytes, &seal);
            let rest = &bytes[shown..];
            let begins = if is_sealed { rest.starts_with(&seal.0) } else { seal.0.starts_with(rest) };
            prop_assert!(begins);
        }

        #[test]
        fn who_watches_sees_the_seal_at_every_cut(
            bytes in few_values(0..60),
            seal in seals(),
            ends_in_seal: bool,
            cuts in proptest::collection::vec(1_usize..24, 1..40),
        ) {
            let whole = if ends_in_seal { [bytes.as_slice(), &seal.0].concat() } else { bytes };
            let comes = whole.windows(Seal::BYTES).any(|bytes| bytes == seal.0);
            let mut watch = Watch::new(seal);
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
