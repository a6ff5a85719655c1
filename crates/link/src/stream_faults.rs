//! Faults that are injected into the byte streams of TCP connections.

use crate::random::Random;

/// The rates of faults in the byte streams of TCP connections, from 0.0 to 1.0. TCP itself repairs
/// losses, so that a protocol over TCP only meets bytes that arrive late, and readings and writings
/// that end anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamFaultShares {
    /// Fraction of readings that take place later.
    pub delay: f64,
    /// Fraction of readings and writings that end after a random number of bytes.
    pub cut: f64,
}

impl StreamFaultShares {
    /// Returns whether any rate is above zero.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Sets the rate with this name, if there is one. Returns whether there is.
    pub(crate) fn set(&mut self, name: &str, share: f64) -> bool {
        match name {
            "delay" => self.delay = share,
            "cut" => self.cut = share,
            _ => return false,
        }
        true
    }
}

/// Injects faults into the byte streams of a process. A seed determines the random choices.
#[derive(Debug)]
pub struct StreamFaults {
    shares: StreamFaultShares,
    random: Random,
}

impl StreamFaults {
    /// Injects faults with these rates.
    pub fn new(shares: StreamFaultShares, seed: u64) -> Self {
        Self { shares, random: Random::new(seed) }
    }

    /// Returns by how many nanoseconds the next reading is late, or `None` if it takes place at
    /// once.
    pub fn delay_ns(&mut self) -> Option<u64> {
        self.random.is_hit(self.shares.delay).then(|| 1 + self.random.below(DELAY_NS_MAX))
    }

    /// Returns after how many of `bytes` bytes a reading or writing ends, at least 1, or `None` if
    /// it is not cut.
    pub fn cut(&mut self, bytes: usize) -> Option<usize> {
        let is_cut = bytes > 1 && self.random.is_hit(self.shares.cut);
        // A short cut is more likely to end inside of a header.
        let below = if self.random.is_hit(SHORT_CUTS) { bytes.min(SHORT_BYTES) } else { bytes };
        is_cut.then(|| 1 + self.random.below(below as u64 - 1) as usize)
    }
}

/// Longest delay of a reading, in nanoseconds.
const DELAY_NS_MAX: u64 = 2_000_000;

/// Fraction of the cuts that are short.
const SHORT_CUTS: f64 = 0.5;

/// Bytes before which a short cut ends: the headers of two short messages.
const SHORT_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_readings_are_late_and_cut_as_the_shares_say() {
        let mut faults = StreamFaults::new(StreamFaultShares { delay: 0.25, cut: 0.5 }, 7);
        let delays: Vec<_> = (0..10_000).filter_map(|_| faults.delay_ns()).collect();
        assert!((2_300..2_700).contains(&delays.len()), "{}", delays.len());
        assert!(delays.iter().all(|ns| (1..=DELAY_NS_MAX).contains(ns)));
        let cuts: Vec<_> = (0..10_000).filter_map(|_| faults.cut(1_000)).collect();
        assert!((4_700..5_300).contains(&cuts.len()), "{}", cuts.len());
        assert!(cuts.iter().all(|bytes| (1..1_000).contains(bytes)));
        assert!(cuts.contains(&1) && cuts.iter().any(|bytes| *bytes > 900));
        assert!((0..100).filter_map(|_| faults.cut(2)).all(|bytes| bytes == 1));
        assert_eq!((0..100).find_map(|_| faults.cut(1)), None);
    }

    #[test]
    fn without_shares_nothing_is_late_or_cut() {
        let mut faults = StreamFaults::new(StreamFaultShares::default(), 7);
        assert_eq!((0..1_000).find_map(|_| faults.delay_ns()), None);
        assert_eq!((0..1_000).find_map(|_| faults.cut(1_000)), None);
    }
}
