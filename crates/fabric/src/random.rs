//! Random numbers derived from a seed.

/// A random generator with a seed: xoshiro256++, whose state is filled by `SplitMix64`.
///
/// It must not be used for keys. A seed gives the same sequence in every version and on every
/// platform, because the generator uses only integer arithmetic. Each component of a simulation has
/// its own stream ([`Random::stream`]). A change in one component therefore does not change the
/// numbers of another.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Creates the generator for `seed`.
    pub const fn new(seed: u64) -> Self {
        let mut splitter = seed;
        let mut state = [0; 4];
        let mut index = 0;
        while index < state.len() {
            let (next, word) = split(splitter);
            splitter = next;
            state[index] = word;
            index += 1;
        }
        Self { state }
    }

    /// Creates the generator for component `component` of a run with `seed`. Streams of different
    /// components are independent.
    pub const fn stream(seed: u64, component: u64) -> Self {
        let (_, spread) = split(component ^ 0x6661_6272_6963_5f31);
        Self::new(seed ^ spread)
    }

    /// Returns 64 random bits, uniformly distributed.
    pub const fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        let (b, a) = (b ^ c, a ^ d);
        self.state = [a, b, c ^ (self.state[1] << 17), d.rotate_left(45)];
        result
    }

    /// Returns a random number, uniformly distributed in `0..bound`; returns 0 if `bound` is 0. The
    /// bias is less than `bound` / 2^64.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// Returns a random number, uniformly distributed in `low..=high`; returns `low` if `high` is
    /// less.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns true with a probability of `ppm` parts per million.
    pub const fn chance_ppm(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < ppm as u64
    }

    /// Returns one of `choices` at random.
    ///
    /// # Panics
    /// Panics if `choices` is empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns an exponentially distributed random number with this mean, at most 64 times the
    /// mean.
    ///
    /// Uses von Neumann's method, which only compares uniform random numbers. It therefore needs no
    /// floating-point function, whose last bit could differ between platforms.
    pub const fn exponential(&mut self, mean: u64) -> u64 {
        let mut whole = 0;
        while whole < 63 {
            let first = self.next_u64();
            let mut previous = first;
            let mut descending = true;
            loop {
                let next = self.next_u64();
                if next >= previous {
                    break;
                }
                previous = next;
                descending = !descending;
            }
            if descending {
                return whole * mean + ((first as u128 * mean as u128) >> 64) as u64;
            }
            whole += 1;
        }
        whole * mean
    }

    /// Fills `bytes` with random bits.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}

/// Performs one step of `SplitMix64`. Returns the next state, and the word that the step yields.
const fn split(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, word ^ (word >> 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first words of xoshiro256++ for the state 1, 2, 3, 4, as its authors published them.
    #[test]
    fn sequence_is_that_of_xoshiro256_plus_plus() {
        let mut random = Random { state: [1, 2, 3, 4] };
        let words: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(words, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn equal_seeds_give_equal_sequences_and_streams_differ() {
        let mut a = Random::stream(7, 1);
        let mut b = Random::stream(7, 1);
        let mut c = Random::stream(7, 2);
        let first: Vec<u64> = (0..8).map(|_| a.next_u64()).collect();
        assert_eq!(first, (0..8).map(|_| b.next_u64()).collect::<Vec<_>>());
        assert_ne!(first, (0..8).map(|_| c.next_u64()).collect::<Vec<_>>());
    }

    #[test]
    fn bounds_hold_and_both_ends_occur() {
        let mut random = Random::new(3);
        let mut seen = [0_u32; 3];
        for _ in 0..1_000 {
            seen[random.between(5, 7) as usize - 5] += 1;
        }
        assert!(seen.iter().all(|&count| count > 250), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn exponential_has_its_mean_and_its_tail() {
        let mut random = Random::new(11);
        let draws: Vec<u64> = (0..100_000).map(|_| random.exponential(1_000)).collect();
        let mean = draws.iter().sum::<u64>() / draws.len() as u64;
        assert!((980..1_020).contains(&mean), "{mean}");
        let beyond_three_means = draws.iter().filter(|&&draw| draw > 3_000).count();
        assert!((4_600..5_400).contains(&beyond_three_means), "{beyond_three_means}");
    }

    #[test]
    fn probability_is_in_parts_per_million() {
        let mut random = Random::new(5);
        let hits = (0..1_000_000).filter(|_| random.chance_ppm(10_000)).count();
        assert!((9_600..10_400).contains(&hits), "{hits}");
        assert!(!(0..1_000).any(|_| random.chance_ppm(0)));
    }
}
