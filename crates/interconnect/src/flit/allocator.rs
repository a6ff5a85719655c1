//! Allocators: match the inputs of a router with its outputs, in each cycle.

/// Algorithm of an allocator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Allocator {
    /// iSLIP: each output grants one of its requests, and each input accepts one of its grants.
    /// Outputs and inputs choose by round robin.
    Islip,
    /// Wavefront: the allocator grants requests along the diagonals of their matrix. Each cycle
    /// starts with another diagonal.
    Wavefront,
}

/// A request for an output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Request {
    pub(super) input: u16,
    pub(super) output: u16,
    /// Whether the request has a lower priority than requests that are not speculative. Only the
    /// wavefront uses priorities.
    pub(super) is_speculative: bool,
}

/// State of an allocator that persists from cycle to cycle.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    kind: Allocator,
    rounds: u8,
    /// For each output, the input that the output prefers when it grants a request.
    grants: Vec<u16>,
    /// For each input, the output that the input prefers when it accepts a grant.
    accepts: Vec<u16>,
    diagonal: u16,
}

/// The matching of one cycle. All routers use the same memory, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Matching {
    /// Output of each input; [`NONE`] if the input is not matched.
    outputs: Vec<u16>,
    inputs: Vec<u16>,
    /// For each output, the input that it grants in the current round.
    granted: Vec<u16>,
    /// For each input, the output that it accepts in the current round.
    accepted: Vec<u16>,
}

impl Matching {
    /// Reserves memory for a router of this size.
    pub(super) fn reserve(&mut self, inputs: usize, outputs: usize) {
        for (list, count) in [
            (&mut self.outputs, inputs),
            (&mut self.accepted, inputs),
            (&mut self.inputs, outputs),
            (&mut self.granted, outputs),
        ] {
            list.resize(list.len().max(count), NONE);
        }
    }

    /// Returns the output with which an input was matched; `None` if it was not matched.
    pub(super) fn output_of(&self, input: u16) -> Option<u16> {
        Some(self.outputs[usize::from(input)]).filter(|output| *output != NONE)
    }
}

impl Turns {
    pub(super) fn new(kind: Allocator, rounds: u8, inputs: usize, outputs: usize) -> Self {
        Self { kind, rounds, grants: vec![0; outputs], accepts: vec![0; inputs], diagonal: 0 }
    }

    /// Matches requests. Each request must be for a different pair of input and output. The
    /// matching is valid until [`Turns::clear`].
    pub(super) fn allocate(&mut self, requests: &mut [Request], matching: &mut Matching) {
        if requests.is_empty() {
            return;
        }
        match self.kind {
            Allocator::Wavefront => self.wavefront(requests, matching),
            Allocator::Islip => {
                for round in 0..self.rounds.max(1) {
                    if !self.round(requests, matching, round == 0) {
                        break;
                    }
                }
            }
        }
    }

    /// Clears the matching for the next router.
    pub(super) fn clear(requests: &[Request], matching: &mut Matching) {
        for request in requests {
            matching.outputs[usize::from(request.input)] = NONE;
            matching.inputs[usize::from(request.output)] = NONE;
        }
    }

    /// Runs one round of grants and acceptances. After a match in the first round, the input and
    /// the output each prefer the partner that comes after the matched one. Matches in later rounds
    /// do not change preferences. Returns whether the round matched anything.
    fn round(&mut self, requests: &[Request], matching: &mut Matching, is_first: bool) -> bool {
        let Self { grants, accepts, .. } = self;
        let (inputs, outputs) = (accepts.len() as u16, grants.len() as u16);
        for request in requests {
            matching.granted[usize::from(request.output)] = NONE;
            matching.accepted[usize::from(request.input)] = NONE;
        }
        for &Request { input, output, .. } in requests {
            let (row, column) = (usize::from(input), usize::from(output));
            if matching.outputs[row] != NONE || matching.inputs[column] != NONE {
                continue;
            }
            let best = &mut matching.granted[column];
            let first = grants[column];
            if *best == NONE || turn(input, first, inputs) < turn(*best, first, inputs) {
                *best = input;
            }
        }
        for &Request { input, output, .. } in requests {
            if matching.granted[usize::from(output)] != input {
                continue;
            }
            let best = &mut matching.accepted[usize::from(input)];
            let first = accepts[usize::from(input)];
            if *best == NONE || turn(output, first, outputs) < turn(*best, first, outputs) {
                *best = output;
            }
        }
        let mut is_any = false;
        for &Request { input, output, .. } in requests {
            let (row, column) = (usize::from(input), usize::from(output));
            if matching.accepted[row] != output {
                continue;
            }
            is_any = true;
            (matching.outputs[row], matching.inputs[column]) = (output, input);
            if is_first {
                grants[column] = next(input, inputs);
                accepts[row] = next(output, outputs);
            }
        }
        is_any
    }

    fn wavefront(&mut self, requests: &mut [Request], matching: &mut Matching) {
        let square = self.accepts.len().max(self.grants.len()) as u16;
        let diagonal = self.diagonal;
        let wave = |request: &Request| {
            let sum = (u32::from(request.input) + u32::from(request.output)) % u32::from(square);
            (request.is_speculative, turn(sum as u16, diagonal, square))
        };
        requests.sort_unstable_by_key(|request| (wave(request), request.output));
        for &Request { input, output, .. } in requests.iter() {
            let (row, column) = (usize::from(input), usize::from(output));
            if matching.outputs[row] == NONE && matching.inputs[column] == NONE {
                (matching.outputs[row], matching.inputs[column]) = (output, input);
            }
        }
        self.diagonal = next(diagonal, square);
    }
}

/// Returns how many places come before `place` in the round-robin order that starts with `first`.
pub(super) const fn turn(place: u16, first: u16, places: u16) -> u16 {
    if place >= first { place - first } else { place + places - first }
}

const fn next(place: u16, places: u16) -> u16 {
    if place + 1 == places { 0 } else { place + 1 }
}

/// Means that there is no match; larger than the inputs of any router.
pub(super) const NONE: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(pairs: &[(u16, u16)]) -> Vec<Request> {
        let request = |&(input, output)| Request { input, output, is_speculative: false };
        pairs.iter().map(request).collect()
    }

    /// Matches the same requests in each of `cycles` cycles. Returns the matched pairs of each
    /// cycle.
    fn matches(turns: &mut Turns, pairs: &[(u16, u16)], cycles: usize) -> Vec<Vec<(u16, u16)>> {
        let mut matching = Matching::default();
        matching.reserve(turns.accepts.len(), turns.grants.len());
        let cycle = |_| {
            let mut list = requests(pairs);
            turns.allocate(&mut list, &mut matching);
            let inputs = 0..turns.accepts.len() as u16;
            let pair = |input| Some((input, matching.output_of(input)?));
            let found = inputs.filter_map(pair).collect();
            Turns::clear(&list, &mut matching);
            found
        };
        (0..cycles).map(cycle).collect()
    }

    const FULL: [(u16, u16); 9] =
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)];

    #[test]
    fn islip_under_full_load_converges_to_full_rotating_matchings() {
        let mut turns = Turns::new(Allocator::Islip, 1, 3, 3);
        let cycles = matches(&mut turns, &FULL, 8);
        // In the first cycle, all outputs prefer input 0, so only one pair is matched. After that,
        // the outputs prefer different inputs, so soon all pairs are matched.
        assert_eq!(cycles[0], [(0, 0)]);
        assert!(cycles[3..].iter().all(|pairs| pairs.len() == 3), "{cycles:?}");
    }

    #[test]
    fn more_iterations_find_larger_matchings() {
        let cycles = matches(&mut Turns::new(Allocator::Islip, 3, 3, 3), &FULL, 1);
        assert_eq!(cycles[0].len(), 3);
        assert_eq!(matches(&mut Turns::new(Allocator::Islip, 2, 3, 3), &FULL, 1)[0].len(), 2);
    }

    #[test]
    fn a_wavefront_matching_is_maximal_and_serves_each_pair_in_turn() {
        let mut turns = Turns::new(Allocator::Wavefront, 1, 3, 3);
        let cycles = matches(&mut turns, &FULL, 3);
        assert!(cycles.iter().all(|pairs| pairs.len() == 3));
        let mut pairs = cycles.concat();
        pairs.sort_unstable();
        assert_eq!(pairs, FULL);
    }
}
