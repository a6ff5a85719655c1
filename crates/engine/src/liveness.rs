//! Liveness of the peer: when the last frame of the peer arrived, how long the peer may be silent,
//! and when this end asks the peer for a sign of life.

use delivery::{Instant, SilenceBudget};

/// State of the peer's liveness on one connection (protocol.md §4.3).
#[derive(Debug)]
pub(crate) struct Liveness {
    silence: SilenceBudget,
    /// Whether a new packet of the peer has arrived after the engine last served the connection.
    is_heard: bool,
    /// Time at which the engine last noticed that a new packet of the peer had arrived.
    heard_at: Instant,
    /// When to check whether a frame of the peer arrived recently. If no frame arrived, this end
    /// asks the peer. [`Instant::NEVER`] until the connection is established.
    ask_at: Instant,
    /// Whether to ask the peer at `ask_at` even if frames arrived, because links were added or
    /// removed.
    compares_links: bool,
}

// A compressed connection stores `ask_at` separately. The engine can then read this time without
// expanding the connection.
delivery::pack_fields!(Liveness { silence, heard_at, compares_links }
    is_heard = false, ask_at = Instant::NEVER);

impl Liveness {
    /// Creates the state for a peer that has not sent anything yet. The peer may be silent for
    /// `silence_budget_ns` nanoseconds.
    pub(crate) fn new(silence_budget_ns: u64) -> Self {
        Self {
            silence: SilenceBudget::new(silence_budget_ns),
            is_heard: false,
            heard_at: Instant::default(),
            ask_at: Instant::NEVER,
            compares_links: false,
        }
    }

    /// Sets how long the peer may be silent, in nanoseconds.
    pub(crate) fn set_budget(&mut self, silence_budget_ns: u64) {
        self.silence = SilenceBudget::new(silence_budget_ns);
    }

    /// Starts the keep-alive when the connection is established.
    pub(crate) fn begin(&mut self, now: Instant, keep_alive_ns: u64) {
        self.silence.on_progress(None);
        self.ask_at = now.after_ns(keep_alive_ns);
    }

    /// Restores the time of the next question when a compressed connection is expanded.
    pub(crate) const fn wake(&mut self, ask_at: Instant) {
        self.ask_at = ask_at;
    }

    /// Records that a new packet of the peer arrived.
    #[inline]
    pub(crate) const fn on_heard(&mut self) {
        self.is_heard = true;
    }

    /// Returns whether a packet of the peer has arrived since the previous call of this function.
    #[inline]
    pub(crate) const fn poll_heard(&mut self, now: Instant) -> bool {
        if self.is_heard {
            self.heard_at = now;
        }
        core::mem::replace(&mut self.is_heard, false)
    }

    /// Records that this end waits for the peer. The silence of the peer counts from `since`.
    #[inline]
    pub(crate) fn on_waiting(&mut self, since: Instant) {
        self.silence.on_waiting(since);
    }

    /// Records a sign of life, or that this end stopped waiting for the peer.
    ///
    /// If this end still waits for the peer, `silent_since` is the time from which the silence
    /// counts. Otherwise `silent_since` is `None`.
    #[inline]
    pub(crate) const fn on_progress(&mut self, silent_since: Option<Instant>) {
        self.silence.on_progress(silent_since);
    }

    /// Returns whether the peer counts as unreachable. Packets of the peer that arrived count as
    /// signs of life, even if this end has not handled them, for instance because the application
    /// was computing for a long time.
    pub(crate) fn is_exhausted(&self, now: Instant) -> bool {
        !self.is_heard && self.silence.is_exhausted(now)
    }

    /// Returns the time at which the peer counts as unreachable if no frame of the peer arrives
    /// until then.
    #[inline]
    pub(crate) const fn exhausted_at(&self) -> Instant {
        self.silence.deadline()
    }

    /// Returns when a packet of the peer last arrived.
    pub(crate) const fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Returns when to call [`poll_question`](Self::poll_question).
    #[inline]
    pub(crate) const fn ask_at(&self) -> Instant {
        self.ask_at
    }

    //= protocol.md: silence.3, compare.1
    /// Returns true if this end must ask the peer now. The reason is that the peer was silent for
    /// `keep_alive_ns`, or that a link may have failed.
    pub(crate) fn poll_question(
        &mut self,
        now: Instant,
        keep_alive_ns: u64,
        is_doubtful: bool,
    ) -> bool {
        let quiet_at = self.heard_at.after_ns(keep_alive_ns);
        let compares = core::mem::replace(&mut self.compares_links, false) || is_doubtful;
        let asks = quiet_at <= now || compares;
        self.ask_at = if asks { now.after_ns(keep_alive_ns) } else { quiet_at };
        asks
    }

    /// Defers the next question to the peer until this time.
    pub(crate) const fn defer(&mut self, until: Instant) {
        self.ask_at = until;
    }

    /// Returns whether this end asks the peer at `ask_at` even if frames have arrived.
    pub(crate) const fn compares_links(&self) -> bool {
        self.compares_links
    }

    //= protocol.md: compare.1
    /// Schedules a comparison of this end's links with the peer's links, because links were added
    /// or removed.
    pub(crate) fn compare_links_soon(&mut self, now: Instant) {
        if self.ask_at != Instant::NEVER {
            self.compares_links = true;
            self.ask_at = self.ask_at.min(now.after_ns(COMPARE_NS));
        }
    }

    /// Returns whether this end waits for nothing, and has handled all packets that arrived.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_heard && self.silence.deadline() == Instant::NEVER
    }
}

/// Time between a change of this end's links and the comparison with the peer's links, in
/// nanoseconds. This time exceeds the time for which a removed link keeps its index.
const COMPARE_NS: u64 = 3_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn established() -> Liveness {
        let mut liveness = Liveness::new(4 * KEEP_ALIVE_NS);
        liveness.begin(START, KEEP_ALIVE_NS);
        liveness
    }

    //= protocol.md: silence.3
    #[test]
    fn a_peer_is_probed_only_after_a_long_silence() {
        let mut liveness = established();
        let heard_at = START.after_ns(KEEP_ALIVE_NS / 2);
        assert!(!liveness.poll_heard(START));
        liveness.on_heard();
        assert!(liveness.poll_heard(heard_at) && !liveness.poll_heard(heard_at));
        let ask_at = liveness.ask_at();
        assert!(!liveness.poll_question(ask_at, KEEP_ALIVE_NS, false));
        assert_eq!(liveness.ask_at(), heard_at.after_ns(KEEP_ALIVE_NS));
        assert!(liveness.poll_question(liveness.ask_at(), KEEP_ALIVE_NS, false));
    }

    //= protocol.md: compare.1
    #[test]
    fn links_are_compared_once_after_a_change_even_if_the_peer_was_heard_recently() {
        let mut liveness = established();
        liveness.on_heard();
        liveness.poll_heard(START);
        liveness.compare_links_soon(START);
        let ask_at = liveness.ask_at();
        assert_eq!(ask_at, START.after_ns(COMPARE_NS));
        assert!(liveness.poll_question(ask_at, KEEP_ALIVE_NS, false));
        assert!(!liveness.poll_question(ask_at, KEEP_ALIVE_NS, false));
        assert!(liveness.poll_question(ask_at, KEEP_ALIVE_NS, true), "a link is in doubt");
    }

    #[test]
    fn links_are_not_compared_before_the_connection_is_established() {
        let mut liveness = Liveness::new(1);
        liveness.compare_links_soon(START);
        assert_eq!(liveness.ask_at(), Instant::NEVER);
        liveness.on_waiting(START);
        assert!(!liveness.is_at_rest() && liveness.is_exhausted(START.after_ns(1)));
    }

    const START: Instant = Instant(1_000_000);
    const KEEP_ALIVE_NS: u64 = 10_000_000_000;
}
