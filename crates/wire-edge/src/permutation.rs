//! A keyed permutation of 32-bit numbers. Tables use it to create ids that other hosts cannot
//! guess. From an id, a table computes the index of the entry in constant time.

/// A keyed permutation of the 32-bit numbers: each key selects a different bijection.
///
/// The permutation is a balanced Feistel network over 16-bit halves. A Feistel network is a
/// bijection for any round function. In this permutation, the round function is the multiply-shift
/// hash `(a·x + b) >> 48`, with a separate pair of 64-bit subkeys in every round. One such round is
/// strongly universal. A table makes an id from a table index and a counter. After eight rounds,
/// the id shows no structure of these two values.
///
/// The permutation hides which ids are in use. It is not a cipher for secrets. An attacker can
/// guess only once on each of its own connections, because a wrong id ends that connection.
#[derive(Clone, Debug)]
pub struct KeyedPermutation {
    rounds: [Round; ROUNDS],
}

impl KeyedPermutation {
    /// Creates the permutation for a 128-bit `key`, which should be random.
    pub const fn new(key: [u64; 2]) -> Self {
        let mut rounds = [Round { factor: 0, addend: 0 }; ROUNDS];
        let mut index = 0;
        while index < ROUNDS {
            let position = 2 * index as u64;
            rounds[index] =
                Round { factor: subkey(key, position), addend: subkey(key, position + 1) };
            index += 1;
        }
        Self { rounds }
    }

    /// Returns the number to which the permutation maps `plain`.
    #[inline]
    pub const fn encrypt(&self, plain: u32) -> u32 {
        let (mut left, mut right) = ((plain >> 16) as u16, plain as u16);
        let mut index = 0;
        while index < ROUNDS {
            (left, right) = (right, left ^ self.rounds[index].hash(right));
            index += 1;
        }
        ((left as u32) << 16) | right as u32
    }

    /// Returns the number that the permutation maps to `encrypted`. This is the inverse of
    /// [`KeyedPermutation::encrypt`].
    #[inline]
    pub const fn decrypt(&self, encrypted: u32) -> u32 {
        let (mut left, mut right) = ((encrypted >> 16) as u16, encrypted as u16);
        let mut index = ROUNDS;
        while index > 0 {
            index -= 1;
            (left, right) = (right ^ self.rounds[index].hash(left), left);
        }
        ((left as u32) << 16) | right as u32
    }
}

/// The subkeys of one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    factor: u64,
    addend: u64,
}

impl Round {
    #[inline]
    const fn hash(self, half: u16) -> u16 {
        (self.factor.wrapping_mul(half as u64).wrapping_add(self.addend) >> 48) as u16
    }
}

/// Returns subkey `position`. Each subkey depends on all bits of both words of the key.
const fn subkey(key: [u64; 2], position: u64) -> u64 {
    let first = mix(key[0].wrapping_add((position + 1).wrapping_mul(GOLDEN_RATIO)));
    mix((first ^ key[1]).wrapping_add(GOLDEN_RATIO))
}

/// The finaliser of `SplitMix64`: a bijection in which every input bit affects every output bit.
const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Number of rounds. Four rounds turn pseudorandom functions into a pseudorandom permutation (Luby
/// and Rackoff). The round function of this permutation is weaker than a pseudorandom function, so
/// there are eight rounds.
const ROUNDS: usize = 8;

/// 2^64 divided by the golden ratio, rounded to an odd number. The multiples of this number are
/// evenly distributed and reach all 64-bit numbers.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decrypt_undoes_encrypt(key: [u64; 2], value: u32) {
            let permutation = KeyedPermutation::new(key);
            prop_assert_eq!(permutation.decrypt(permutation.encrypt(value)), value);
        }

        #[test]
        fn encrypt_undoes_decrypt(key: [u64; 2], value: u32) {
            let permutation = KeyedPermutation::new(key);
            prop_assert_eq!(permutation.encrypt(permutation.decrypt(value)), value);
        }

        #[test]
        fn different_values_encrypt_differently(key: [u64; 2], a: u32, b: u32) {
            let permutation = KeyedPermutation::new(key);
            prop_assert_eq!(permutation.encrypt(a) == permutation.encrypt(b), a == b);
        }
    }

    #[test]
    fn weak_looking_keys_still_scatter_neighbours() {
        for key in [[0, 0], [u64::MAX, u64::MAX], [0, 1], [1, 0]] {
            let permutation = KeyedPermutation::new(key);
            let mut flipped = 0;
            for value in 0..4096_u32 {
                let distance = permutation.encrypt(value) ^ permutation.encrypt(value + 1);
                flipped += u64::from(distance.count_ones());
            }
            // On average, 16 of 32 bits differ. For 4096 pairs, the random deviation from 16 is
            // below the limits of this test.
            let mean_in_tenths = flipped * 10 / 4096;
            assert!((155..=165).contains(&mean_in_tenths), "{mean_in_tenths} tenths of a bit");
        }
    }

    #[test]
    fn every_key_bit_matters() {
        let base = KeyedPermutation::new([3, 5]);
        for bit in 0..128 {
            let mut key = [3_u64, 5];
            key[bit / 64] ^= 1 << (bit % 64);
            let other = KeyedPermutation::new(key);
            let equal = (0..1000).filter(|&value| base.encrypt(value) == other.encrypt(value));
            assert!(equal.count() <= 1, "key bit {bit}");
        }
    }
}
