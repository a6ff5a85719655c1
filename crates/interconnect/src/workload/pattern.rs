//! How messages of an open load choose their destinations.

use super::super::topology::Topology;
use crate::Random;

/// Rule by which messages of [`OpenLoad`](super::OpenLoad) choose their destinations.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// Any other rank, with equal probability.
    Uniform,
    /// Any rank, including the sender, with equal probability.
    Any,
    /// Rank r sends to the r-th rank of this list.
    Permutation(Vec<u32>),
    /// All other ranks send to this rank.
    Incast(u32),
    /// A fraction of the messages goes to `targets`, to each with equal probability. The other
    /// messages go to any other rank, as with [`Self::Uniform`].
    Hotspot {
        /// Ranks that receive more messages, at least one.
        targets: Vec<u32>,
        /// Fraction of the messages that go to `targets`, per million.
        share_ppm: u32,
    },
}

/// Requirement of a permutation for the number of ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NeedsRanks {
    /// The number of ranks must be a square.
    Square,
    /// The number of ranks must be a power of two.
    PowerOfTwo,
}

impl NeedsRanks {
    /// Describes the requirement, with the nearest numbers of ranks that meet it.
    pub fn expected(self, ranks: u32) -> String {
        let (what, below, above) = match self {
            Self::Square => {
                let side = ranks.isqrt();
                ("square", side * side, (side + 1).saturating_mul(side + 1))
            }
            Self::PowerOfTwo => {
                let below = 1 << ranks.max(1).ilog2();
                ("power-of-two", below, ranks.next_power_of_two())
            }
        };
        format!("a {what} number of hosts, such as {below} or {above}")
    }
}

impl Pattern {
    /// Creates a random permutation in which no rank sends to itself. The permutation is a single
    /// circle through all ranks (Sattolo's algorithm).
    pub fn random_permutation(ranks: u32, seed: u64) -> Self {
        let mut random = Random::stream(seed, PERMUTATION_STREAM);
        let mut to: Vec<u32> = (0..ranks).collect();
        for last in (1..to.len()).rev() {
            to.swap(last, random.below(last as u64) as usize);
        }
        Self::Permutation(to)
    }

    /// Creates a permutation on a square of ranks: the rank in column x of row y sends to the rank
    /// in column y of row x. Ranks on the diagonal send to themselves.
    ///
    /// # Errors
    /// Returns [`NeedsRanks`] if the number of ranks is not a square.
    pub fn transpose(ranks: u32) -> Result<Self, NeedsRanks> {
        let side = ranks.isqrt();
        if side * side != ranks {
            return Err(NeedsRanks::Square);
        }
        let to = (0..ranks).map(|rank| rank / side + rank % side * side);
        Ok(Self::Permutation(to.collect()))
    }

    /// Creates a permutation in which each rank sends to the rank whose number has all bits
    /// inverted. The last rank sends to the first.
    ///
    /// # Errors
    /// Returns [`NeedsRanks`] if the number of ranks is not a power of two.
    pub fn bit_complement(ranks: u32) -> Result<Self, NeedsRanks> {
        Self::of_bits(ranks, |rank, _| !rank)
    }

    /// Creates a permutation in which each rank sends to the rank whose number has its bits in
    /// reverse order. Ranks whose numbers are palindromes send to themselves.
    ///
    /// # Errors
    /// Returns [`NeedsRanks`] if the number of ranks is not a power of two.
    pub fn bit_reverse(ranks: u32) -> Result<Self, NeedsRanks> {
        // With only one rank, numbers have no bits, and the shift would be too large.
        Self::of_bits(ranks, |rank, bits| rank.reverse_bits().checked_shr(32 - bits).unwrap_or(0))
    }

    fn of_bits(ranks: u32, to: impl Fn(u32, u32) -> u32) -> Result<Self, NeedsRanks> {
        if !ranks.is_power_of_two() {
            return Err(NeedsRanks::PowerOfTwo);
        }
        let bits = ranks.ilog2();
        Ok(Self::Permutation((0..ranks).map(|rank| to(rank, bits) & (ranks - 1)).collect()))
    }

    /// Creates a permutation. Each host sends to the host that is just less than half of each
    /// dimension away, in one direction of a grid. In other topologies, distances count on a ring
    /// of all hosts.
    pub fn tornado(topology: &Topology) -> Self {
        Self::shifted(topology, |size| size.div_ceil(2) - 1)
    }

    /// Creates a permutation. Each host sends to the host that is one position away along each
    /// dimension of a grid. In other topologies, positions count on a ring of all hosts.
    pub fn neighbour(topology: &Topology) -> Self {
        Self::shifted(topology, |_| 1)
    }

    /// Creates a permutation. Each host sends to the host that is `steps` positions away along each
    /// dimension. The hosts of one switch send to the hosts with the same indices at another
    /// switch.
    fn shifted(topology: &Topology, steps: impl Fn(u32) -> u32) -> Self {
        let hosts = topology.hosts();
        let Some(grid) = topology.grid() else {
            let by = steps(hosts);
            return Self::Permutation((0..hosts).map(|rank| (rank + by) % hosts).collect());
        };
        let each = hosts / topology.switches();
        let to = |rank: u32| {
            let mut at = grid.coordinates(rank / each);
            for (place, &size) in at.iter_mut().zip(&grid.sizes) {
                *place = (*place + steps(size)) % size;
            }
            grid.switch_at(&at) * each + rank % each
        };
        Self::Permutation((0..hosts).map(to).collect())
    }

    /// Returns the destination of a rank's next message.
    #[inline]
    pub(super) fn draw(&self, rank: u32, ranks: u64, random: &mut Random) -> u32 {
        match self {
            Self::Uniform => other(rank, ranks, random),
            Self::Any => random.below(ranks) as u32,
            Self::Permutation(to) => to[rank as usize],
            Self::Incast(to) => *to,
            Self::Hotspot { targets, share_ppm } => {
                if random.chance_ppm(*share_ppm) {
                    targets[random.below(targets.len() as u64) as usize]
                } else {
                    other(rank, ranks, random)
                }
            }
        }
    }
}

/// Returns any other rank, with equal probability.
fn other(rank: u32, ranks: u64, random: &mut Random) -> u32 {
    let other = random.below(ranks - 1) as u32;
    other + u32::from(other >= rank)
}

/// Number of the random stream for permutations. The ranks' streams have lower numbers.
const PERMUTATION_STREAM: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn to(pattern: Pattern) -> Vec<u32> {
        let Pattern::Permutation(to) = pattern else { panic!("a permutation") };
        let mut sorted = to.clone();
        sorted.sort_unstable();
        assert!((0..to.len() as u32).eq(sorted), "{to:?}");
        to
    }

    #[test]
    fn a_random_permutation_has_no_fixed_point() {
        for ranks in [2, 3, 16, 101] {
            let to = to(Pattern::random_permutation(ranks, 7));
            assert!((0..).zip(&to).all(|(rank, to)| rank != *to), "{to:?}");
        }
    }

    #[test]
    fn numeric_patterns_are_permutations_by_their_rules() {
        assert_eq!(to(Pattern::transpose(9).unwrap()), [0, 3, 6, 1, 4, 7, 2, 5, 8]);
        assert_eq!(to(Pattern::bit_complement(8).unwrap()), [7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(to(Pattern::bit_reverse(8).unwrap()), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(to(Pattern::bit_reverse(1).unwrap()), [0]);
        assert_eq!(Pattern::transpose(12), Err(NeedsRanks::Square));
        assert_eq!(Pattern::bit_reverse(12), Err(NeedsRanks::PowerOfTwo));
        assert!(NeedsRanks::Square.expected(12).ends_with("such as 9 or 16"));
        assert!(NeedsRanks::PowerOfTwo.expected(12).ends_with("such as 8 or 16"));
    }

    #[test]
    fn grid_patterns_move_along_each_dimension() {
        let torus = Topology::torus(&[8, 5], 2, 1).expect("a torus");
        // A tornado moves by three of eight positions along x and by two of five along y.
        assert_eq!(to(Pattern::tornado(&torus))[1], 2 * (3 + 8 * 2) + 1);
        assert_eq!(to(Pattern::neighbour(&torus))[2 * 7], 2 * 8);
        let star = Topology::star(7).expect("a star");
        assert_eq!(to(Pattern::tornado(&star))[0], 3);
        assert_eq!(to(Pattern::neighbour(&star))[6], 0);
    }

    #[test]
    fn a_hotspot_gets_its_share_and_its_part_of_the_uniform_traffic() {
        let hot = Pattern::Hotspot { targets: vec![3, 5], share_ppm: 200_000 };
        let mut random = Random::new(1);
        let mut got = [0_u32; 8];
        for _ in 0..70_000 {
            got[hot.draw(0, 8, &mut random) as usize] += 1;
        }
        assert_eq!(got[0], 0);
        // A target gets a tenth of the messages. Each other rank gets a seventh of the remaining
        // messages.
        assert!((14_700..15_300).contains(&got[3]), "{got:?}");
        assert!((7_700..8_300).contains(&got[1]), "{got:?}");
    }
}
