//! The state of a link of a connection: decides whether the link may carry data, and when to send
//! challenges on it. Also limits how long the connection tolerates silence of the peer (protocol.md
//! §7.2, §7.3, §4.3).

use crate::pack::{Pack, Packer, Unpacker};
use crate::time::Instant;

/// The state of a link of a connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum LinkState {
    /// New: the peer has not answered on the link yet.
    Validating,
    /// The link carries data.
    Up,
    /// The link timed out while other links made progress. This end sends no new data on it, and
    /// retransmits its unacknowledged data on other links.
    Suspect,
    /// The link has failed. Either its carrier is gone, or the first challenge after the failure
    /// has not been sent yet.
    Down,
    /// The link has failed. This end sends challenges on it until the peer answers them.
    Probing,
    /// The link no longer belongs to the connection.
    Removed,
}

impl Pack for LinkState {
    fn pack(&self, to: &mut Packer) {
        (*self as u8).pack(to);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        match u8::unpack(from) {
            0 => Self::Validating,
            1 => Self::Up,
            2 => Self::Suspect,
            3 => Self::Down,
            4 => Self::Probing,
            _ => Self::Removed,
        }
    }
}

/// The action that the engine must take after a change of state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PathChange {
    /// The peer answered for the first time. Start to send data on the link.
    Validated,
    /// Send no new data on the link, and immediately move its unacknowledged data to other links.
    Suspected,
    /// The link was only late. Send data on it again, with the window, round trip and rate that it
    /// had before.
    Recovered,
    /// Send no new data on the link, move its unacknowledged data to other links, and notify the
    /// peer.
    Failed,
    /// Send data on the link again, with an initial window. Its round trip and rate are unknown.
    Restored,
}

/// The state of one link of one connection.
///
/// | state      | timeout while others progress | progress    | answer to a challenge    | link down  | link up    | challenge sent | removed |
/// |------------|-------------------------------|-------------|--------------------------|------------|------------|----------------|---------|
/// | Validating | –                             | –           | Up: validated            | Down: failed | (at once) | –             | Removed |
/// | Up         | Suspect: suspected            | –           | –                        | Down: failed | –         | –             | Removed |
/// | Suspect    | third: Down: failed           | Up: recovered | Up: recovered          | Down: failed | (at once) | –             | Removed |
/// | Down       | –                             | –           | –                        | –          | (at once)  | Probing        | Removed |
/// | Probing    | –                             | –           | third: Up: restored      | Down       | (at once)  | –              | Removed |
/// | Removed    | –                             | –           | –                        | –          | –          | –              | –       |
///
/// An unanswered challenge on a suspected link counts as a timeout. "(at once)" means that the
/// state does not change, and that the next challenge is due at once. In every state except Up and
/// Removed, challenges are due 10 ms, 20 ms, 40 ms … at most 200 ms apart. In Down, no challenges
/// are due while the carrier is gone.
///
/// If no other link makes progress, the peer and not this link may have caused the timeout.
/// Therefore the only link of a connection never becomes Suspect. Instead, [`SilenceBudget`] ends
/// the connection if the peer stays silent.
#[derive(Clone, Debug)]
pub struct PathState {
    state: LinkState,
    /// Number of timeouts of this link since its last progress. A timeout counts only if other
    /// links made progress in the meantime.
    timeouts: u8,
    /// Number of further answers to challenges after which the link may carry data.
    answers_missing: u8,
    /// Number of challenges since the last answer or the last change of state.
    unanswered: u8,
    /// Time at which the next challenge is due.
    challenge_at: Instant,
    /// Nonces of the last challenges. Because several are stored, a late answer still counts. Each
    /// nonce is accepted once.
    nonces: [Option<u64>; NONCES],
    nonce_next: u8,
}

crate::pack_fields!(PathState {
    state,
    timeouts,
    answers_missing,
    unanswered,
    challenge_at,
    nonces,
    nonce_next,
});

impl PathState {
    /// Creates the state of a link on which no frame of the peer has arrived yet. The first
    /// challenge is due at once.
    pub const fn new(now: Instant) -> Self {
        Self {
            state: LinkState::Validating,
            timeouts: 0,
            answers_missing: 1,
            unanswered: 0,
            challenge_at: now,
            nonces: [None; NONCES],
            nonce_next: 0,
        }
    }

    /// Creates the state of the link that carried the handshake. The handshake counts as the first
    /// answer.
    pub const fn validated(now: Instant) -> Self {
        let mut path = Self::new(now);
        path.enter(LinkState::Up, Instant::NEVER);
        path
    }

    //= protocol.md: state.1, state.4
    /// Records that packets of this link stayed unacknowledged for the length of a probe timeout.
    /// `others_progress` says whether packets of another link of the connection were acknowledged
    /// in that time. Returns the change of state, if there is one.
    #[must_use]
    pub fn on_probe_timeout(&mut self, now: Instant, others_progress: bool) -> Option<PathChange> {
        if !others_progress || !matches!(self.state, LinkState::Up | LinkState::Suspect) {
            return None;
        }
        self.timeouts += 1;
        if self.timeouts >= TIMEOUTS_UNTIL_DOWN {
            self.enter(LinkState::Down, now);
            return Some(PathChange::Failed);
        }
        if self.state == LinkState::Up {
            self.enter(LinkState::Suspect, now);
            return Some(PathChange::Suspected);
        }
        None
    }

    //= protocol.md: state.1
    /// Records that the peer acknowledged a packet of this link. This does not restore a failed
    /// link, because the acknowledgement may be one that the peer sent before the failure. Returns
    /// the change of state, if there is one.
    #[must_use]
    pub const fn on_progress(&mut self) -> Option<PathChange> {
        match self.state {
            LinkState::Up => {
                self.timeouts = 0;
                None
            }
            LinkState::Suspect => {
                self.enter(LinkState::Up, Instant::NEVER);
                Some(PathChange::Recovered)
            }
            _ => None,
        }
    }

    //= protocol.md: state.1
    /// Records that the carrier is gone, or that the peer reported its end of the link as down.
    /// Returns [`PathChange::Failed`] if the link had not failed before.
    #[must_use]
    pub fn on_link_down(&mut self) -> Option<PathChange> {
        let before = self.state;
        if before != LinkState::Removed {
            self.enter(LinkState::Down, Instant::NEVER);
        }
        let working = matches!(before, LinkState::Validating | LinkState::Up | LinkState::Suspect);
        working.then_some(PathChange::Failed)
    }

    /// Records that the carrier is back, or that the peer reported its end of the link as
    /// available.
    pub fn on_link_up(&mut self, now: Instant) {
        if !matches!(self.state, LinkState::Up | LinkState::Removed) {
            self.unanswered = 0;
            self.challenge_at = now;
        }
    }

    /// Records that the link no longer belongs to the connection.
    pub const fn on_removed(&mut self) {
        self.enter(LinkState::Removed, Instant::NEVER);
    }

    //= protocol.md: challenge.1
    /// Returns whether to send a challenge with a new random nonce on this link now. Call this at
    /// [`PathState::deadline`]. If this returns true, send the challenge and call
    /// [`PathState::on_challenge_sent`].
    pub fn poll_challenge(&mut self, now: Instant) -> bool {
        if now < self.challenge_at {
            return false;
        }
        if self.state == LinkState::Down {
            self.state = LinkState::Probing;
        }
        let interval_ns = (CHALLENGE_NS << self.unanswered.min(7)).min(CHALLENGE_NS_MAX);
        self.challenge_at = now.after_ns(interval_ns);
        self.unanswered = self.unanswered.saturating_add(1);
        true
    }

    /// Records that the next challenge is due. If the link is suspected and the last challenge is
    /// unanswered, this counts as a timeout, because a suspected link has no packets in flight that
    /// could time out. Call this at [`PathState::deadline`], before [`PathState::poll_challenge`].
    /// Returns the change of state, if there is one.
    #[must_use]
    pub fn on_challenge_due(&mut self, now: Instant) -> Option<PathChange> {
        if self.state != LinkState::Suspect || self.unanswered == 0 || now < self.challenge_at {
            return None;
        }
        self.on_probe_timeout(now, true)
    }

    /// Records that a challenge with this nonce was sent.
    pub fn on_challenge_sent(&mut self, nonce: u64) {
        let slot = usize::from(self.nonce_next) % NONCES;
        self.nonces[slot] = Some(nonce);
        self.nonce_next = self.nonce_next.wrapping_add(1);
    }

    //= protocol.md: challenge.4
    /// Records that the peer answered a challenge on this link. Ignores unknown nonces. Only the
    /// nonces of the last four challenges are known. Returns the change of state, if there is one.
    #[must_use]
    pub fn on_challenge_answered(&mut self, now: Instant, nonce: u64) -> Option<PathChange> {
        let slot = self.nonces.iter_mut().find(|slot| **slot == Some(nonce))?;
        *slot = None;
        let change = match self.state {
            LinkState::Validating => PathChange::Validated,
            LinkState::Suspect => PathChange::Recovered,
            LinkState::Probing => PathChange::Restored,
            LinkState::Up | LinkState::Down | LinkState::Removed => return None,
        };
        self.answers_missing = self.answers_missing.saturating_sub(1);
        if self.answers_missing > 0 {
            self.unanswered = 0;
            self.challenge_at = self.challenge_at.min(now.after_ns(CHALLENGE_NS));
            return None;
        }
        self.enter(LinkState::Up, Instant::NEVER);
        Some(change)
    }

    /// Returns the number of challenges since the last answer or the last change of state.
    pub const fn unanswered(&self) -> u8 {
        self.unanswered
    }

    /// Returns the state of the link.
    pub const fn state(&self) -> LinkState {
        self.state
    }

    /// Returns whether new data may be sent on the link.
    pub const fn may_carry_data(&self) -> bool {
        matches!(self.state, LinkState::Up)
    }

    /// Returns the time at which to call [`PathState::poll_challenge`], or [`Instant::NEVER`] if no
    /// challenge is due.
    pub const fn deadline(&self) -> Instant {
        self.challenge_at
    }

    const fn enter(&mut self, state: LinkState, challenge_at: Instant) {
        self.challenge_at = challenge_at;
        self.unanswered = 0;
        match state {
            LinkState::Suspect => self.answers_missing = 1,
            LinkState::Up => self.timeouts = 0,
            _ => {
                // Discard the nonces. An answer to a challenge that was sent before the failure
                // does not show that the link works now.
                self.nonces = [None; NONCES];
                self.timeouts = 0;
                self.answers_missing = ANSWERS_UNTIL_UP;
            }
        }
        self.state = state;
    }
}

/// Limits how long a connection waits for a frame of the peer on any link.
#[derive(Clone, Copy, Debug)]
pub struct SilenceBudget {
    budget_ns: u64,
    /// Time at which the peer became silent; `NEVER` if this end awaits no answer.
    silent_since: Instant,
}

crate::pack_fields!(SilenceBudget { budget_ns, silent_since });

impl SilenceBudget {
    /// Creates a budget of `budget_ns` nanoseconds. No answer is awaited yet.
    pub const fn new(budget_ns: u64) -> Self {
        Self { budget_ns, silent_since: Instant::NEVER }
    }

    /// Records that this end awaits an answer from time `since` on. If this end already awaited an
    /// answer, the earlier of the two times applies. `since` may be in the future.
    pub fn on_waiting(&mut self, since: Instant) {
        self.silent_since = self.silent_since.min(since);
    }

    /// Records that an authentic frame of the peer arrived. If this end awaits a further answer,
    /// the budget starts again at `waiting_since`.
    pub const fn on_progress(&mut self, waiting_since: Option<Instant>) {
        self.silent_since = match waiting_since {
            Some(since) => since,
            None => Instant::NEVER,
        };
    }

    //= protocol.md: silence.2
    /// Returns whether the peer counts as unreachable.
    pub fn is_exhausted(&self, now: Instant) -> bool {
        self.deadline() <= now
    }

    /// Returns the time at which the peer counts as unreachable, or [`Instant::NEVER`] if no answer
    /// is awaited.
    pub const fn deadline(&self) -> Instant {
        self.silent_since.after_ns(self.budget_ns)
    }
}

impl Default for SilenceBudget {
    fn default() -> Self {
        Self::new(SILENCE_BUDGET_NS)
    }
}

/// Default time of a [`SilenceBudget`], in nanoseconds. In this time, a switch can restart its
/// forwarding plane, and rapid spanning tree can converge. The time is also short enough for an
/// application that fails over to another host.
pub const SILENCE_BUDGET_NS: u64 = 5_000_000_000;

/// Number of timeouts after which a link fails. Each timeout is twice as long as the timeout
/// before, so the third expires after seven times the length of the first.
const TIMEOUTS_UNTIL_DOWN: u8 = 3;

/// Number of answers after which a failed link is up again. A single answer is not enough, because
/// it may also arrive over a flapping link. Three answers take at least 20 ms.
const ANSWERS_UNTIL_UP: u8 = 3;

/// Pause after the first challenge, in nanoseconds. The pause doubles with each unanswered
/// challenge.
const CHALLENGE_NS: u64 = 10_000_000;

/// Longest pause between challenges, in nanoseconds. While a cable is unplugged, this end therefore
/// sends five small frames per second. When the cable is plugged in again, the link carries data
/// after three answers. This takes at most one pause of this length, two pauses of the shortest
/// length, and the round trips.
const CHALLENGE_NS_MAX: u64 = 200_000_000;

/// Number of remembered nonces. Because pauses start at 10 ms and double, four nonces cover round
/// trips of up to 70 ms.
const NONCES: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use LinkState::{Down, Probing, Removed, Suspect, Up, Validating};

    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// A probe timeout. The field says whether other links make progress.
        Timeout(bool),
        Progress,
        Answer,
        LinkDown,
        LinkUp,
        Challenge,
        Remove,
    }

    #[test]
    fn a_suspect_link_that_answers_no_challenge_goes_down() {
        let mut path = PathState::validated(Instant(0));
        assert_eq!(path.on_probe_timeout(Instant(0), true), Some(PathChange::Suspected));
        let mut changes = Vec::new();
        for _ in 0..5 {
            let now = path.deadline();
            changes.extend(path.on_challenge_due(now));
            assert!(path.poll_challenge(now));
        }
        assert_eq!(changes, [PathChange::Failed]);
        assert_eq!(path.state(), Probing);
    }

    //= protocol.md: state.1
    #[test]
    fn transitions_are_those_of_the_table() {
        use Event::{Answer, Challenge, LinkDown, LinkUp, Progress, Remove, Timeout};
        let events =
            [Timeout(true), Timeout(false), Progress, Answer, LinkDown, LinkUp, Challenge, Remove];
        for (state, row) in table() {
            for (event, cell) in events.into_iter().zip(row) {
                let (after, change) = cell.unwrap_or((state, None));
                let mut path = path_in(state);
                assert_eq!(apply(&mut path, NOW, event), change, "{state:?} {event:?}");
                assert_eq!(path.state(), after, "{state:?} {event:?}");
                assert_eq!(path.may_carry_data(), after == Up);
            }
        }
    }

    /// The new state and the change after an event; `None` if the state ignores the event.
    type Cell = Option<(LinkState, Option<PathChange>)>;

    /// Returns a row for each state, with a column for each event.
    fn table() -> [(LinkState, [Cell; 8]); 6] {
        use PathChange::{Failed, Recovered, Suspected, Validated};
        let to = |state, change| Some((state, Some(change)));
        let silently = |state| Some((state, None));
        let (stay, gone) = (None, silently(Removed));
        let (up, down) = (to(Up, Recovered), to(Down, Failed));
        [
            (Validating, [stay, stay, stay, to(Up, Validated), down, stay, stay, gone]),
            (Up, [to(Suspect, Suspected), stay, stay, stay, down, stay, stay, gone]),
            (Suspect, [stay, stay, up, up, down, stay, stay, gone]),
            (Down, [stay, stay, stay, stay, stay, stay, silently(Probing), gone]),
            (Probing, [stay, stay, stay, stay, silently(Down), stay, stay, gone]),
            (Removed, [stay; 8]),
        ]
    }

    #[test]
    fn three_timeouts_while_others_progress_end_a_link() {
        let mut path = PathState::validated(NOW);
        let outcomes = [true, false, true, true].map(|others| path.on_probe_timeout(NOW, others));
        let (suspected, failed) = (Some(PathChange::Suspected), Some(PathChange::Failed));
        assert_eq!(outcomes, [suspected, None, None, failed]);
    }

    #[test]
    fn progress_forgives_earlier_timeouts() {
        let mut path = PathState::validated(NOW);
        for _ in 0..10 {
            assert_eq!(path.on_probe_timeout(NOW, true), Some(PathChange::Suspected));
            assert_eq!(path.on_probe_timeout(NOW, true), None);
            assert_eq!(path.on_progress(), Some(PathChange::Recovered));
        }
    }

    //= protocol.md: state.4
    #[test]
    fn the_only_link_is_never_suspected() {
        let mut path = PathState::validated(NOW);
        for _ in 0..100 {
            assert_eq!(path.on_probe_timeout(NOW, false), None);
        }
        assert!(path.may_carry_data());
    }

    #[test]
    fn a_link_that_was_down_needs_three_answers() {
        let mut path = path_in(Probing);
        let mut now = NOW;
        for answer in 1..=3 {
            let change = apply(&mut path, now, Event::Answer);
            assert_eq!(change, (answer == 3).then_some(PathChange::Restored));
            now = now.max(path.deadline().min(now.after_ns(CHALLENGE_NS)));
        }
        assert_eq!(path.deadline(), Instant::NEVER);
        assert!(now.since_ns(NOW) >= 20_000_000);
    }

    //= protocol.md: challenge.1
    #[test]
    fn challenge_intervals_double_up_to_a_fifth_of_a_second() {
        let mut path = PathState::new(NOW);
        let mut pauses_ms = Vec::new();
        for _ in 0..10 {
            let at = path.deadline();
            assert!(path.poll_challenge(at));
            assert!(!path.poll_challenge(at));
            pauses_ms.push(path.deadline().since_ns(at) / 1_000_000);
        }
        assert_eq!(pauses_ms, [10, 20, 40, 80, 160, 200, 200, 200, 200, 200]);
    }

    //= protocol.md: challenge.1
    #[test]
    fn a_link_without_carrier_is_not_challenged_until_the_carrier_returns() {
        let mut path = PathState::validated(NOW);
        assert_eq!(path.on_link_down(), Some(PathChange::Failed));
        assert_eq!(path.deadline(), Instant::NEVER);
        path.on_link_up(NOW.after_ns(5));
        assert_eq!(path.deadline(), NOW.after_ns(5));
        assert!(path.poll_challenge(NOW.after_ns(5)));
        assert_eq!(path.state(), Probing);
    }

    //= protocol.md: challenge.4
    #[test]
    fn unrequested_and_repeated_answers_do_not_count() {
        let mut path = path_in(Probing);
        path.on_challenge_sent(9);
        for nonce in [8, 9, 9, 9, 0] {
            assert_eq!(path.on_challenge_answered(NOW, nonce), None);
        }
        assert_eq!(path.answers_missing, 2);
    }

    //= protocol.md: challenge.4
    #[test]
    fn answers_to_challenges_from_before_a_failure_do_not_count() {
        let mut path = path_in(Suspect);
        path.on_challenge_sent(9);
        assert_eq!(path.on_link_down(), Some(PathChange::Failed));
        path.on_link_up(NOW);
        assert!(path.poll_challenge(NOW));
        assert_eq!(path.on_challenge_answered(NOW, 9), None);
        assert_eq!(path.answers_missing, 3);
    }

    //= protocol.md: silence.2
    #[test]
    fn silence_counts_only_while_an_answer_is_awaited() {
        let mut budget = SilenceBudget::default();
        assert!(!budget.is_exhausted(NOW.after_ns(1 << 60)));
        budget.on_waiting(NOW);
        budget.on_waiting(NOW.after_ns(1_000_000_000));
        assert_eq!(budget.deadline(), NOW.after_ns(SILENCE_BUDGET_NS));
        budget.on_progress(Some(NOW.after_ns(2)));
        assert!(!budget.is_exhausted(NOW.after_ns(SILENCE_BUDGET_NS)));
        assert!(budget.is_exhausted(NOW.after_ns(SILENCE_BUDGET_NS + 2)));
        budget.on_progress(None);
        assert_eq!(budget.deadline(), Instant::NEVER);
    }

    proptest! {
        /// If the peer answers on an unused link, the link is used again, except while the carrier
        /// is gone.
        #[test]
        fn a_link_with_an_answering_peer_comes_up_again(
            steps in prop::collection::vec((0_u8..7, 0_u64..2_000_000_000), 0..100),
        ) {
            let mut path = PathState::new(NOW);
            let mut now = NOW;
            for (step, pause) in steps {
                now = now.after_ns(pause);
                let event = match step {
                    0 => Event::Timeout(false),
                    1 => Event::Progress,
                    2 => Event::Answer,
                    3 => Event::LinkDown,
                    4 => Event::LinkUp,
                    5 => Event::Challenge,
                    _ => Event::Timeout(true),
                };
                apply(&mut path, now, event);
                prop_assert_eq!(path.may_carry_data(), path.state() == Up);
                let asks = path.deadline() != Instant::NEVER;
                prop_assert!(asks != path.may_carry_data() || path.state() == Down);
            }
            path.on_link_up(now);
            for _ in 0..3 {
                now = now.max(path.deadline().min(now.after_ns(CHALLENGE_NS_MAX)));
                apply(&mut path, now, Event::Challenge);
                apply(&mut path, now, Event::Answer);
            }
            prop_assert!(path.may_carry_data());
        }
    }

    fn apply(path: &mut PathState, now: Instant, event: Event) -> Option<PathChange> {
        match event {
            Event::Timeout(others_progress) => path.on_probe_timeout(now, others_progress),
            Event::Progress => path.on_progress(),
            Event::Answer => {
                path.on_challenge_sent(42);
                path.on_challenge_answered(now, 42)
            }
            Event::LinkDown => path.on_link_down(),
            Event::LinkUp => {
                path.on_link_up(now);
                None
            }
            Event::Challenge => {
                let _ = path.poll_challenge(now);
                None
            }
            Event::Remove => {
                path.on_removed();
                None
            }
        }
    }

    fn path_in(state: LinkState) -> PathState {
        let mut path = PathState::validated(NOW);
        match state {
            Up => {}
            Validating => path = PathState::new(NOW),
            Suspect => drop(path.on_probe_timeout(NOW, true)),
            Down | Probing => {
                for _ in 0..3 {
                    let _ = path.on_probe_timeout(NOW, true);
                }
                assert!(state == Down || path.poll_challenge(NOW));
            }
            Removed => path.on_removed(),
        }
        assert_eq!(path.state(), state);
        path
    }

    const NOW: Instant = Instant(3_000_000_000);
}
