//! Recognizes writes and answers that take turns.

use delivery::Instant;
use work::Completion;

/// Decides whether the completion of a write waits for the peer's answer.
///
/// A program like `ib_write_lat` writes, takes the completion, and then spins on its memory until
/// the peer's answer is there. While it spins it makes no call, so that the progress thread must
/// wake up for each answer. This takes several times as long as the answer itself. If the
/// completion comes with the answer instead, the polls of the program read the answer.
///
/// A completion waits only if the last writes and answers took turns, and for at most
/// [`ANSWER_NS`]. If an answer takes longer, completions do not wait until enough writes and
/// answers have taken turns again.
#[derive(Debug, Default)]
pub(crate) struct PingPong {
    /// Number of answers that followed a single write each, without an exception; at most
    /// [`TURNS_MIN`].
    turns: u8,
    /// Whether a write has completed since the peer's last bytes.
    has_written: bool,
    waiting: Option<Waiting>,
}

/// A completion that waits for an answer.
#[derive(Debug)]
struct Waiting {
    completion: Completion,
    until: Instant,
}

impl PingPong {
    /// Handles the completion of a write behind which no other operation is outstanding. Returns
    /// the completion if it does not wait. Call [`PingPong::take`] before.
    pub(crate) fn on_completed(
        &mut self,
        now: Instant,
        completion: Completion,
    ) -> Option<Completion> {
        if std::mem::replace(&mut self.has_written, true) {
            self.turns = 0;
        }
        if self.turns < TURNS_MIN {
            return Some(completion);
        }
        self.waiting = Some(Waiting { completion, until: now.after_ns(ANSWER_NS) });
        None
    }

    /// Handles another operation than a lone write. Returns the completion that has waited.
    pub(crate) fn on_other(&mut self) -> Option<Completion> {
        self.turns = 0;
        self.take()
    }

    /// Handles bytes of the peer. Returns the completion that has waited for them.
    pub(crate) fn on_bytes(&mut self) -> Option<Completion> {
        if std::mem::take(&mut self.has_written) {
            self.turns = TURNS_MIN.min(self.turns + 1);
        }
        self.take()
    }

    /// Returns the completion that has waited for too long.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<Completion> {
        if self.due() > now {
            return None;
        }
        self.on_other()
    }

    /// Returns the time until which a completion waits. `NEVER` if none does.
    pub(crate) fn due(&self) -> Instant {
        self.waiting.as_ref().map_or(Instant::NEVER, |waiting| waiting.until)
    }

    /// Returns the completion that waits.
    pub(crate) fn take(&mut self) -> Option<Completion> {
        self.waiting.take().map(|waiting| waiting.completion)
    }
}

/// Number of turns after which completions wait.
const TURNS_MIN: u8 = 8;

/// Longest wait of a completion for an answer, in nanoseconds. A round trip in a local network takes
/// less, and a program whose peer is farther away loses little by a delay of this length in one of
/// nine turns.
const ANSWER_NS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use work::{CompletionKind, Owner};

    use super::*;

    fn write(context: u64) -> Completion {
        Completion {
            context,
            owner: Owner::new(0, 0),
            kind: CompletionKind::Write,
            result: Ok(()),
            bytes: 8,
            immediate: None,
            solicited: false,
            value: 0,
        }
    }

    fn context(completion: Option<Completion>) -> Option<u64> {
        completion.map(|completion| completion.context)
    }

    /// Lets writes and answers take turns until completions wait. Returns how many turns it took.
    fn take_turns(ping_pong: &mut PingPong, now: Instant) -> u64 {
        let waits = |turn: &u64| {
            let waits = ping_pong.on_completed(now, write(*turn)).is_none();
            let answered = ping_pong.on_bytes();
            assert_eq!(context(answered), waits.then_some(*turn));
            waits
        };
        (0..100).find(waits).expect("they wait after some turns")
    }

    #[test]
    fn completions_wait_for_answers_once_writes_and_answers_take_turns() {
        let mut ping_pong = PingPong::default();
        assert_eq!(take_turns(&mut ping_pong, Instant(0)), u64::from(TURNS_MIN));
        assert_eq!(take_turns(&mut ping_pong, Instant(0)), 0);
        assert_eq!(ping_pong.due(), Instant::NEVER);
    }

    #[test]
    fn a_late_answer_ends_the_wait_and_the_next_completions_do_not_wait() {
        let mut ping_pong = PingPong::default();
        take_turns(&mut ping_pong, Instant(0));
        assert_eq!(context(ping_pong.on_completed(Instant(5), write(7))), None);
        let due = ping_pong.due();
        assert_eq!(due, Instant(5 + ANSWER_NS));
        assert_eq!(context(ping_pong.on_time(Instant(due.0 - 1))), None);
        assert_eq!(context(ping_pong.on_time(due)), Some(7));
        assert_eq!(context(ping_pong.on_bytes()), None);
        assert_eq!(take_turns(&mut ping_pong, due), u64::from(TURNS_MIN) - 1);
    }

    #[test]
    fn writes_in_a_row_and_other_operations_end_the_turns() {
        let mut ping_pong = PingPong::default();
        take_turns(&mut ping_pong, Instant(0));
        assert_eq!(context(ping_pong.on_completed(Instant(0), write(1))), None);
        assert_eq!(context(ping_pong.on_other()), Some(1));
        assert_eq!(context(ping_pong.on_completed(Instant(0), write(2))), Some(2));
        ping_pong.on_bytes();
        take_turns(&mut ping_pong, Instant(0));
        assert_eq!(context(ping_pong.on_completed(Instant(0), write(3))), None);
        assert_eq!(context(ping_pong.on_bytes()), Some(3));
        assert_eq!(context(ping_pong.on_completed(Instant(0), write(4))), None);
        assert_eq!(context(ping_pong.on_time(Instant(ANSWER_NS))), Some(4));
        assert_eq!(context(ping_pong.on_completed(Instant(0), write(5))), Some(5));
    }
}
