//! Recognizes writes and answers that take turns.

mod rule;
#[cfg(test)]
mod scenario;

use delivery::Instant;
use work::Completion;

use rule::Rule;

/// Decides whether the completion of a write waits for the peer's answer.
///
/// A program like `ib_write_lat` writes, takes the completion, and then spins on its memory until
/// the peer's answer is there. While it spins it makes no call, so that the progress thread must
/// wake up for each answer. This takes several times as long as the answer itself. If the
/// completion comes with the answer instead, the polls of the program read the answer.
///
/// A completion waits only if the last writes and answers took turns ([`Rule`]). If an answer takes
/// too long, its completion stops waiting. Unless such answers are rare, others wait only after
/// enough further turns.
#[derive(Debug)]
pub(crate) struct PingPong {
    rule: Rule,
    /// When the last write completed. `None` if something else has happened since then.
    written_at: Option<Instant>,
    /// Whether the peer has answered that write.
    is_answered: bool,
    waiting: Option<Waiting>,
}

/// A completion that waits for an answer.
#[derive(Debug)]
struct Waiting {
    completion: Completion,
    until: Instant,
}

impl PingPong {
    /// Creates the state of an initiator's stream.
    pub(crate) const fn of_initiator() -> Self {
        Self::with(Rule::of_initiator())
    }

    /// Creates the state of a responder's stream.
    pub(crate) const fn of_responder() -> Self {
        Self::with(Rule::of_responder())
    }

    const fn with(rule: Rule) -> Self {
        Self { rule, written_at: None, is_answered: false, waiting: None }
    }

    /// Handles the completion of a write behind which no other operation is outstanding. Returns
    /// the completion if it does not wait. Call [`PingPong::take`] before.
    pub(crate) fn on_completed(
        &mut self,
        now: Instant,
        completion: Completion,
    ) -> Option<Completion> {
        let is_answered = std::mem::take(&mut self.is_answered);
        match self.written_at.replace(now).filter(|_| is_answered) {
            Some(before) => self.rule.on_turn(now.since_ns(before)),
            None => self.rule.on_other(),
        }
        let Some(limit_ns) = self.rule.wait_ns() else { return Some(completion) };
        self.waiting = Some(Waiting { completion, until: now.after_ns(limit_ns) });
        None
    }

    /// Handles another operation than a lone write. Returns the completion that has waited.
    pub(crate) fn on_other(&mut self) -> Option<Completion> {
        if self.written_at.take().is_some() {
            self.rule.on_other();
        }
        self.take()
    }

    /// Handles bytes of the peer. Returns the completion that has waited for them.
    pub(crate) fn on_bytes(&mut self, now: Instant) -> Option<Completion> {
        if let Some(written_at) = self.written_at.filter(|_| !self.is_answered) {
            self.is_answered = true;
            self.rule.on_answer(now.since_ns(written_at));
        }
        self.take()
    }

    /// Returns the completion that has waited for too long.
    pub(crate) fn on_time(&mut self, now: Instant) -> Option<Completion> {
        if self.due() > now {
            return None;
        }
        if !self.rule.on_late() {
            self.written_at = None;
        }
        self.take()
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

#[cfg(test)]
mod tests {
    use work::{CompletionKind, Owner};

    use super::*;

    pub(super) fn write(context: u64) -> Completion {
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

    /// Time between a write and its answer, in nanoseconds.
    const ANSWER_NS: u64 = 10_000;

    /// Lets writes and answers take turns until completions wait. Returns how many turns it took.
    fn take_turns(ping_pong: &mut PingPong, now: &mut Instant) -> u64 {
        let waits = |turn: &u64| {
            let waits = ping_pong.on_completed(*now, write(*turn)).is_none();
            *now = now.after_ns(ANSWER_NS);
            let answered = ping_pong.on_bytes(*now);
            assert_eq!(context(answered), waits.then_some(*turn));
            waits
        };
        (0..100).find(waits).expect("they wait after some turns")
    }

    #[test]
    fn completions_wait_for_answers_once_writes_and_answers_take_turns() {
        let (mut ping_pong, mut now) = (PingPong::of_initiator(), Instant(0));
        assert_eq!(take_turns(&mut ping_pong, &mut now), 8);
        assert_eq!(take_turns(&mut ping_pong, &mut now), 0);
        assert_eq!(ping_pong.due(), Instant::NEVER);
    }

    #[test]
    fn a_responder_begins_after_its_initiator_has_tried() {
        let (mut ping_pong, mut now) = (PingPong::of_responder(), Instant(0));
        assert_eq!(take_turns(&mut ping_pong, &mut now), 24);
    }

    #[test]
    fn a_late_answer_ends_the_wait_and_the_next_completions_do_not_wait() {
        let (mut ping_pong, mut now) = (PingPong::of_initiator(), Instant(0));
        take_turns(&mut ping_pong, &mut now);
        assert_eq!(context(ping_pong.on_completed(now, write(7))), None);
        let due = ping_pong.due();
        assert_eq!(due, now.after_ns(ANSWER_NS));
        assert_eq!(context(ping_pong.on_time(Instant(due.0 - 1))), None);
        assert_eq!(context(ping_pong.on_time(due)), Some(7));
        assert_eq!(context(ping_pong.on_bytes(due)), None);
        assert_eq!(take_turns(&mut ping_pong, &mut now), 8);
    }

    #[test]
    fn a_late_answer_among_many_ends_only_the_wait_of_its_completion() {
        let (mut ping_pong, mut now) = (PingPong::of_initiator(), Instant(0));
        take_turns(&mut ping_pong, &mut now);
        for is_late in [false; 40].into_iter().chain([true]).chain([false; 40]) {
            assert!(ping_pong.on_completed(now, write(1)).is_none());
            // While completions wait, turns are shorter.
            now = now.after_ns(if is_late { 4 * ANSWER_NS } else { ANSWER_NS / 2 });
            assert_eq!(context(ping_pong.on_time(now)), is_late.then_some(1));
            assert_eq!(context(ping_pong.on_bytes(now)), (!is_late).then_some(1));
        }
        for _ in 0..2 {
            ping_pong.on_completed(now, write(2));
            now = now.after_ns(4 * ANSWER_NS);
            ping_pong.on_time(now);
            ping_pong.on_bytes(now);
        }
        assert_eq!(context(ping_pong.on_completed(now, write(3))), Some(3));
    }

    #[test]
    fn writes_in_a_row_and_other_operations_end_the_turns() {
        let (mut ping_pong, mut now) = (PingPong::of_initiator(), Instant(0));
        take_turns(&mut ping_pong, &mut now);
        assert_eq!(context(ping_pong.on_completed(now, write(1))), None);
        assert_eq!(context(ping_pong.on_other()), Some(1));
        assert_eq!(context(ping_pong.on_completed(now, write(2))), Some(2));
        assert_eq!(context(ping_pong.on_completed(now, write(3))), Some(3));
        assert_eq!(take_turns(&mut ping_pong, &mut now), 8);
        assert_eq!(context(ping_pong.on_completed(now, write(4))), None);
        assert_eq!(context(ping_pong.take()), Some(4));
        assert_eq!(context(ping_pong.on_completed(now, write(5))), Some(5));
    }
}
