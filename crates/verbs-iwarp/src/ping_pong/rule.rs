//! Finds out whether it pays that completions wait for answers.

/// Decides whether completions wait, from the times that turns take. A turn is a write and its
/// answer.
///
/// The rule measures turns whose completions do not wait, and then turns whose completions wait.
/// Completions go on waiting only if that has made turns shorter. It does not if the program works
/// on something else between the completion and the answer, or if the peer is far away.
///
/// Both ends see the same turns. If both ends tried at the same time, each would take the gain of
/// the other end for its own. So a responder begins to measure after its initiator has tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    state: State,
    /// Number of turns before each measurement.
    turns_before: usize,
}

/// What a rule does.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Completions do not wait for this number of turns.
    Passing { turns: usize },
    /// Completions do not wait. `answer_ns` is the longest time between a write and its answer.
    Measuring { turns: Turns, answer_ns: u64 },
    /// Completions wait, for at most `limit_ns`. `without_ns` is the median length of the turns
    /// whose completions did not wait.
    Trying { turns: Turns, limit_ns: u64, without_ns: u64 },
    /// Completions wait, for at most `limit_ns`. `turns` is the number of turns since this began, or
    /// since the last late answer.
    Waiting { limit_ns: u64, turns: u32 },
    /// The completions of this number of writes do not wait, because it does not pay.
    Resting { writes: u32 },
}

impl Rule {
    /// Creates the rule of an initiator.
    pub(super) const fn of_initiator() -> Self {
        Self { state: State::Passing { turns: 0 }, turns_before: 0 }
    }

    /// Creates the rule of a responder.
    pub(super) const fn of_responder() -> Self {
        let turns_before = 2 * TURNS;
        Self { state: State::Passing { turns: turns_before }, turns_before }
    }

    /// Returns how long a completion waits at most, in nanoseconds. `None` if it does not wait.
    pub(super) const fn wait_ns(&self) -> Option<u64> {
        match self.state {
            State::Trying { limit_ns, .. } | State::Waiting { limit_ns, .. } => Some(limit_ns),
            State::Passing { .. } | State::Measuring { .. } | State::Resting { .. } => None,
        }
    }

    /// Takes note that an answer arrived this long after the write.
    pub(super) fn on_answer(&mut self, ns: u64) {
        match &mut self.state {
            State::Passing { turns: 0 } => {
                self.state = State::Measuring { turns: Turns::default(), answer_ns: ns };
            }
            State::Measuring { answer_ns, .. } => *answer_ns = ns.max(*answer_ns),
            _ => {}
        }
    }

    /// Takes note of a turn and its length: the time between its write and the next one.
    pub(super) fn on_turn(&mut self, ns: u64) {
        match &mut self.state {
            State::Passing { turns } => *turns = turns.saturating_sub(1),
            State::Measuring { answer_ns, .. } if *answer_ns > ANSWER_NS_MAX => self.restart(),
            State::Measuring { turns, answer_ns } => {
                if let Some(without_ns) = turns.add(ns) {
                    // Answers arrive sooner while completions wait.
                    let limit_ns = *answer_ns;
                    self.state = State::Trying { turns: Turns::default(), limit_ns, without_ns };
                }
            }
            State::Trying { turns, limit_ns, without_ns } => {
                if let Some(with_ns) = turns.add(ns) {
                    let pays = with_ns.saturating_mul(8) <= without_ns.saturating_mul(7);
                    self.state = if pays {
                        State::Waiting { limit_ns: *limit_ns, turns: 0 }
                    } else {
                        State::Resting { writes: RESTING_WRITES }
                    };
                }
            }
            State::Waiting { turns, .. } => *turns = turns.saturating_add(1),
            State::Resting { .. } => self.on_other(),
        }
    }

    /// Takes note that a completion has waited for too long. Returns whether the next ones wait
    /// nevertheless, because answers are rarely late: a host also runs other threads.
    pub(super) fn on_late(&mut self) -> bool {
        match &mut self.state {
            State::Waiting { turns, .. } if *turns >= PUNCTUAL_TURNS => {
                *turns = 0;
                true
            }
            _ => {
                self.on_other();
                false
            }
        }
    }

    /// Takes note that something else than a turn has happened.
    pub(super) fn on_other(&mut self) {
        match &mut self.state {
            State::Resting { writes } if *writes > 0 => *writes -= 1,
            _ => self.restart(),
        }
    }

    fn restart(&mut self) {
        self.state = State::Passing { turns: self.turns_before };
    }
}

/// Lengths of some turns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    ns: [u64; TURNS],
    count: usize,
}

impl Turns {
    /// Adds a turn. Returns the median if there are [`TURNS`] turns now.
    ///
    /// On a busy host, the kernel deschedules an end in one of many turns. The mean would then
    /// depend on that turn alone.
    fn add(&mut self, ns: u64) -> Option<u64> {
        *self.ns.get_mut(self.count)? = ns;
        self.count += 1;
        if self.count < TURNS {
            return None;
        }
        self.ns.sort_unstable();
        self.ns.get(TURNS / 2).copied()
    }
}

/// Number of turns of each measurement. So few that a ping-pong gets its short turns soon, and
/// enough for a median.
const TURNS: usize = 8;

/// Longest answer for which completions may wait, in nanoseconds. An answer that wakes threads at
/// both ends took up to 0.25 ms on a busy host (note 59 of `docs/performance-notes.md`). On a host
/// that is four times as slow, this is 1 ms.
const ANSWER_NS_MAX: u64 = 2_000_000;

/// Number of turns between two late answers from which on completions go on waiting. Late answers
/// then cost at most a thirty-second part of the time.
const PUNCTUAL_TURNS: u32 = 32;

/// Number of writes between two attempts. The turns of an attempt that does not pay are at most
/// twice as long as others, which is then less than one percent of the time.
const RESTING_WRITES: u32 = 1024;
