//! Pauses of a simulated processor.

use crate::random::Random;

/// Times in which a host does not run, because the kernel or a hypervisor uses its processor.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Pauses<'a> {
    /// Mean time between the end of a pause and the start of the next, in nanoseconds; at least 1.
    pub every_ns: u64,
    /// Possible lengths of a pause, in nanoseconds, all equally likely. If empty, there are no
    /// pauses.
    pub lengths_ns: &'a [u32],
}

/// The pauses of one processor.
#[derive(Clone, Debug)]
pub(super) struct Interruptions {
    every_ns: u64,
    lengths_ns: Vec<u32>,
    random: Random,
    /// Time when the next pause begins, in picoseconds.
    next_ps: u64,
    /// End of the last pause, in picoseconds.
    ended_ps: u64,
}

impl Interruptions {
    pub(super) fn new(pauses: &Pauses<'_>, mut random: Random) -> Self {
        let every_ns = pauses.every_ns.max(1);
        let first_ns = random.exponential(every_ns);
        let next_ps = if pauses.lengths_ns.is_empty() { u64::MAX } else { first_ns * PS_PER_NS };
        Self { every_ns, lengths_ns: pauses.lengths_ns.to_vec(), random, next_ps, ended_ps: 0 }
    }

    /// Returns the time at which a processor can continue, in picoseconds. The processor wants to
    /// continue at `now_ps`. If a pause has begun, the result is the end of the pause.
    pub(super) fn end_of_pause(&mut self, now_ps: u64) -> u64 {
        while self.next_ps <= now_ps {
            let length_ns = u64::from(self.random.pick(&self.lengths_ns));
            self.ended_ps = self.next_ps + length_ns * PS_PER_NS;
            self.next_ps = self.ended_ps + self.random.exponential(self.every_ns) * PS_PER_NS;
        }
        self.ended_ps.max(now_ps)
    }
}

const PS_PER_NS: u64 = 1_000;
