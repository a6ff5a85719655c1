//! Vector clocks: how much of each node's log of notices a node has applied.

use crate::identity::Rank;

/// A vector clock. The component of a node is a position in that node's log: the number of notices
/// that the node had published. An interval without writes publishes nothing and so costs no time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Clock(Box<[u64]>);

impl Clock {
    /// Returns the clock of the beginning, for `nodes` nodes.
    pub(crate) fn zero(nodes: usize) -> Self {
        Self(vec![0; nodes].into_boxed_slice())
    }

    /// Returns the position in the log of `rank`; 0 for a rank that the clock does not have.
    pub(crate) fn of(&self, rank: Rank) -> u64 {
        self.0.get(rank.index()).copied().unwrap_or(0)
    }

    /// Raises the position of `rank` to `position`, if that is later.
    pub(crate) fn raise(&mut self, rank: Rank, position: u64) {
        if let Some(own) = self.0.get_mut(rank.index()) {
            *own = position.max(*own);
        }
    }

    /// Raises every position to that of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    /// Returns the ranks whose positions in `other` are later than here, with both positions.
    pub(crate) fn behind<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Rank, u64, u64)> + 'a {
        let pairs = self.0.iter().zip(&other.0).zip(0..);
        pairs
            .filter(|((own, other), _)| own < other)
            .map(|((&own, &other), rank)| (Rank(rank), own, other))
    }

    /// Appends the wire format: 8 bytes for each node.
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        for position in &self.0 {
            to.extend_from_slice(&position.to_le_bytes());
        }
    }

    /// Returns the clock of `nodes` nodes in the first `8 * nodes` bytes; `None` if they are fewer.
    pub(crate) fn decode(bytes: &[u8], nodes: usize) -> Option<Self> {
        let (words, _) = bytes.get(..8 * nodes)?.as_chunks::<8>();
        Some(Self(words.iter().map(|word| u64::from_le_bytes(*word)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn clocks() -> impl Strategy<Value = (Clock, Clock)> {
        (1_usize..8).prop_flat_map(|nodes| {
            let one = proptest::collection::vec(0_u64..5, nodes);
            let other = proptest::collection::vec(0_u64..5, nodes);
            (one, other).prop_map(|(one, other)| (Clock(one.into()), Clock(other.into())))
        })
    }

    proptest! {
        #[test]
        fn a_merged_clock_has_the_later_position_of_each_rank((one, other) in clocks()) {
            let mut merged = one.clone();
            merged.merge(&other);
            for rank in 0..8 {
                let rank = Rank(rank);
                prop_assert_eq!(merged.of(rank), one.of(rank).max(other.of(rank)));
            }
            let behind: Vec<_> = one.behind(&other).map(|(rank, ..)| rank).collect();
            let later = (0..8).map(Rank).filter(|rank| other.of(*rank) > one.of(*rank));
            prop_assert!(later.eq(behind));
        }

        #[test]
        fn a_decoded_clock_is_the_encoded_one((one, _) in clocks()) {
            let mut bytes = Vec::new();
            one.encode(&mut bytes);
            prop_assert_eq!(Clock::decode(&bytes, one.0.len()), Some(one.clone()));
            prop_assert_eq!(Clock::decode(&bytes, one.0.len() + 1), None);
        }
    }
}
