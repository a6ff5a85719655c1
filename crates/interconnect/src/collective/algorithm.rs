//! The steps of each collective algorithm.

use super::{Collective, Exchange, Peers, Reduction, Step};

impl Collective {
    /// Returns the number of steps of the collective if `ranks` ranks take part.
    pub fn steps(&self, ranks: u32) -> u32 {
        if ranks < 2 {
            return 0;
        }
        match self {
            Self::Ring { .. }
            | Self::Incast { .. }
            | Self::AllToAll { exchange: Exchange::AtOnce, .. } => 1,
            Self::AllToAll { exchange: Exchange::Pairwise, .. } if !ranks.is_power_of_two() => {
                ranks
            }
            Self::AllToAll { .. } => ranks - 1,
            Self::AllReduce { reduction: Reduction::Ring, .. } => 2 * (ranks - 1),
            Self::AllReduce { reduction, .. } => {
                let folded = Folded::new(ranks);
                let rounds = match reduction {
                    Reduction::Rabenseifner => 2 * folded.doublings(),
                    _ => folded.doublings(),
                };
                rounds + 2 * u32::from(folded.extra > 0)
            }
            Self::Broadcast { .. } | Self::Barrier { .. } => doublings_to_reach(ranks),
        }
    }

    /// Returns the action of a rank in a step. `rank` must be below `ranks`, and `step` below
    /// [`Self::steps`].
    pub fn step(&self, ranks: u32, rank: u32, step: u32) -> Step {
        match *self {
            Self::Ring { distance, .. } if distance.is_multiple_of(ranks) => Step::default(),
            Self::Ring { bytes, distance } => shift(ranks, rank, distance, bytes),
            Self::Incast { target, .. } if rank == target => {
                Step { from: Peers::Others, ..Step::default() }
            }
            Self::Incast { bytes, target } => send(target, bytes),
            Self::AllToAll { bytes, exchange } => all_to_all(ranks, rank, step, bytes, exchange),
            Self::AllReduce { bytes, reduction: Reduction::Ring } => {
                ring_all_reduce(ranks, rank, step, bytes)
            }
            Self::AllReduce { bytes, reduction } => {
                folded_all_reduce(ranks, rank, step, bytes, reduction)
            }
            Self::Broadcast { bytes, root } => broadcast(ranks, rank, step, bytes, root),
            Self::Barrier { bytes } => shift(ranks, rank, 1 << step, bytes),
        }
    }
}

/// Returns the step that sends to the rank `distance` places to the right and receives from the
/// rank `distance` places to the left.
fn shift(ranks: u32, rank: u32, distance: u32, bytes: u32) -> Step {
    let (to, from) = (right(ranks, rank, distance), left(ranks, rank, distance));
    Step { from: Peers::One(from), ..send(to, bytes) }
}

/// Returns the step that only sends to a rank.
const fn send(to: u32, bytes: u32) -> Step {
    Step { to: Peers::One(to), bytes, from: Peers::NoPeer, reduced_bytes: 0 }
}

/// Returns the step that only receives from a rank.
const fn receive(from: u32) -> Step {
    Step { to: Peers::NoPeer, bytes: 0, from: Peers::One(from), reduced_bytes: 0 }
}

fn all_to_all(ranks: u32, rank: u32, step: u32, bytes: u32, exchange: Exchange) -> Step {
    match exchange {
        Exchange::AtOnce => {
            Step { to: Peers::Others, bytes, from: Peers::Others, reduced_bytes: 0 }
        }
        Exchange::Shifted => shift(ranks, rank, step + 1, bytes),
        Exchange::Pairwise => {
            let partner =
                if ranks.is_power_of_two() { rank ^ (step + 1) } else { left(ranks, step, rank) };
            if partner == rank { Step::default() } else { exchanged(partner, bytes, 0) }
        }
    }
}

/// Returns a step of a ring all-reduce. In step 0, rank r sends piece r to the right. In the first
/// half of the steps, each rank adds the received piece to its own data. In the second half, the
/// ranks pass complete sums round the ring.
fn ring_all_reduce(ranks: u32, rank: u32, step: u32, bytes: u32) -> Step {
    let is_summing = step < ranks - 1;
    let sent = if is_summing {
        left(ranks, rank, step)
    } else {
        left(ranks, right(ranks, rank, 1), step - (ranks - 1))
    };
    let got = left(ranks, sent, 1);
    let piece = |number: u32| part(bytes, number, number + 1, ranks);
    Step {
        from: Peers::One(left(ranks, rank, 1)),
        reduced_bytes: if is_summing { piece(got) } else { 0 },
        ..send(right(ranks, rank, 1), piece(sent))
    }
}

/// Returns a step of recursive doubling or of Rabenseifner's algorithm. These algorithms need a
/// power of two of ranks. For any other number of ranks, there is one more step before the
/// algorithm and one after it, so that the two ranks of a pair act as one rank. In the step before,
/// the first rank of each pair sends its data to the second rank, which then takes part for both.
/// In the step after, the second rank sends the result back.
fn folded_all_reduce(ranks: u32, rank: u32, step: u32, bytes: u32, reduction: Reduction) -> Step {
    let folded = Folded::new(ranks);
    let is_paired = rank < 2 * folded.extra;
    let round = step.wrapping_sub(u32::from(folded.extra > 0));
    let doublings = folded.doublings();
    let rounds = if reduction == Reduction::Rabenseifner { 2 * doublings } else { doublings };
    if round >= rounds {
        // In the first step and in the last step, only the paired ranks act.
        let is_before = step == 0;
        return match (is_paired, rank.is_multiple_of(2), is_before) {
            (false, ..) => Step::default(),
            (true, true, true) => send(rank + 1, bytes),
            (true, false, true) => Step { reduced_bytes: bytes, ..receive(rank - 1) },
            (true, true, false) => receive(rank + 1),
            (true, false, false) => send(rank - 1, bytes),
        };
    }
    let Some(place) = folded.place(rank) else { return Step::default() };
    if reduction != Reduction::Rabenseifner {
        return exchanged(folded.rank(place ^ (1 << round)), bytes, bytes);
    }
    let is_halving = round < doublings;
    let distance = if is_halving { folded.ranks >> (round + 1) } else { 1 << (round - doublings) };
    let partner = place ^ distance;
    // Returns the length in bytes of the block of `distance` parts that contains the part `place`.
    let of = |place: u32| {
        let start = place & !(distance - 1);
        part(bytes, start, start + distance, folded.ranks)
    };
    let partner_rank = folded.rank(partner);
    if is_halving {
        exchanged(partner_rank, of(partner), of(place))
    } else {
        exchanged(partner_rank, of(place), 0)
    }
}

/// Returns a step of a broadcast. Each rank that has the data sends it to a rank at half the
/// distance of the previous step.
fn broadcast(ranks: u32, rank: u32, step: u32, bytes: u32, root: u32) -> Step {
    let place = left(ranks, rank, root % ranks);
    let distance = 1_u32 << (doublings_to_reach(ranks) - 1 - step);
    let of_place = |place: u32| right(ranks, place, root % ranks);
    let first = match place {
        0 => u32::MAX,
        place => place & place.wrapping_neg(),
    };
    if first == distance {
        return receive(of_place(place - distance));
    }
    if first > distance && place + distance < ranks {
        return send(of_place(place + distance), bytes);
    }
    Step::default()
}

fn exchanged(partner: u32, bytes: u32, reduced_bytes: u32) -> Step {
    Step { from: Peers::One(partner), reduced_bytes, ..send(partner, bytes) }
}

/// A number of ranks, reduced to a power of two. The first `2 · extra` ranks form pairs of
/// neighbours. Only the second rank of each pair takes part in the algorithm; all ranks without a
/// pair take part too.
struct Folded {
    /// Number of ranks that take part: the largest power of two that does not exceed the number of
    /// all ranks.
    ranks: u32,
    /// Number of pairs.
    extra: u32,
}

impl Folded {
    fn new(all: u32) -> Self {
        let ranks = 1 << all.ilog2();
        Self { ranks, extra: all - ranks }
    }

    fn doublings(&self) -> u32 {
        self.ranks.ilog2()
    }

    /// Returns the index of a rank among the ranks that take part; `None` if the rank does not take
    /// part.
    fn place(&self, rank: u32) -> Option<u32> {
        if rank >= 2 * self.extra {
            return Some(rank - self.extra);
        }
        (rank % 2 == 1).then_some(rank / 2)
    }

    fn rank(&self, place: u32) -> u32 {
        if place < self.extra { 2 * place + 1 } else { place + self.extra }
    }
}

fn right(ranks: u32, rank: u32, distance: u32) -> u32 {
    ((u64::from(rank) + u64::from(distance)) % u64::from(ranks)) as u32
}

fn left(ranks: u32, rank: u32, distance: u32) -> u32 {
    right(ranks, rank, ranks - distance % ranks)
}

/// Returns the number of bytes in the pieces `start` to `end - 1`, if `bytes` bytes are divided
/// into `pieces` pieces as equally as possible.
fn part(bytes: u32, start: u32, end: u32, pieces: u32) -> u32 {
    let up_to = |piece: u32| u64::from(bytes) * u64::from(piece) / u64::from(pieces);
    (up_to(end) - up_to(start)) as u32
}

/// Returns how often 1 must be doubled to reach at least `ranks`.
const fn doublings_to_reach(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}
