//! Decides when a connection moves. Two conditions must hold: the edge is faster than TCP for the
//! connection, and the connection has lasted long enough to repay the cost of the move.
//!
//! A move costs datagrams, descriptors, memory and about a millisecond. A short connection is
//! therefore faster on TCP. The edge is faster than TCP in three cases: over shared memory, over
//! several links, and for threads that poll.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// The setting that decides when connections move: `ETHERNOT_SOCKETS_MOVE`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Moving {
    /// All connections, at their first use.
    Always,
    /// Connections for which the edge is faster, after they have lasted long enough.
    #[default]
    WhenItPays,
    /// No connections.
    Never,
}

/// The error for an unknown value of [`Moving`].
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("give always, when-it-pays or never")]
pub struct MovingError;

impl FromStr for Moving {
    type Err = MovingError;

    fn from_str(text: &str) -> Result<Self, MovingError> {
        match text.trim() {
            "always" => Ok(Self::Always),
            "when-it-pays" => Ok(Self::WhenItPays),
            "never" => Ok(Self::Never),
            _ => Err(MovingError),
        }
    }
}

/// The properties of this process that can make the edge faster than TCP.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Gains {
    /// True if the endpoint has a shared-memory link to processes on the same host.
    pub(crate) shares_memory: bool,
    /// True if several links carry one connection.
    pub(crate) has_several_links: bool,
    /// True if threads poll instead of sleeping.
    pub(crate) polls: bool,
}

impl Gains {
    /// Returns true if the edge would be faster for a connection between these addresses.
    pub(crate) fn are_had(self, local: IpAddr, peer: IpAddr) -> bool {
        self.has_several_links || self.polls || (self.shares_memory && is_one_host(local, peer))
    }
}

/// Returns true if both addresses belong to this host. If a program connects to an address of its
/// host, the kernel uses the same address as the source.
fn is_one_host(local: IpAddr, peer: IpAddr) -> bool {
    let (local, peer) = (local.to_canonical(), peer.to_canonical());
    local == peer || local.is_loopback() || peer.is_loopback()
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From the peer.
    Received,
    /// To the peer.
    Sent,
}

/// The trial of a connection: the time in which the connection uses TCP, and the library decides
/// whether a move pays. Holds the traffic of the connection so far, and the number of the program's
/// calls that are executing in the kernel. All values fit in one word, so that threads can update
/// them atomically.
///
/// A connection must not begin to move while a call of the program executes in the kernel.
/// Otherwise that call could return the peer's switch marker to the program.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct Trial(u64);

impl Trial {
    /// The trial of a connection that moves at its first use. It has ended, because the library
    /// need not find out whether the move pays.
    pub const ENDED: Self = Self(ENDED);

    /// Decodes a trial (the traffic of a connection so far) from a word.
    pub const fn of_word(word: u64) -> Self {
        Self(word)
    }

    /// Encodes the trial as a word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Returns true if the library has decided whether the move pays. The connection then moves, or
    /// stays on TCP permanently.
    pub const fn has_ended(self) -> bool {
        self.0 & ENDED != 0
    }

    /// Returns true if the connection has carried bytes.
    pub const fn has_bytes(self) -> bool {
        self.last() != 0
    }

    /// Counts a call of the program that begins to execute in the kernel. Returns `None` if the
    /// library has decided whether the move pays, or if the count is at its maximum. In both cases,
    /// the library makes the call for the program.
    pub const fn with_call(self) -> Option<Self> {
        if self.has_ended() || self.0 >> CALLS_AT & CALLS_MAX == CALLS_MAX {
            return None;
        }
        Some(Self(self.0 + (1 << CALLS_AT)))
    }

    /// Counts the return of a call from the kernel, and the bytes that the call transferred.
    #[must_use]
    pub fn without_call(self, direction: Option<Direction>, bytes: u64) -> Self {
        let less = Self(self.0.saturating_sub(u64::from(self.has_calls()) << CALLS_AT));
        match direction {
            Some(direction) if bytes > 0 => less.with_bytes(direction, bytes),
            _ => less,
        }
    }

    fn with_bytes(self, direction: Direction, bytes: u64) -> Self {
        let last = match direction {
            Direction::Received => 1,
            Direction::Sent => 2,
        };
        let is_change = !matches!(self.last(), 0) && self.last() != last;
        let bytes = (self.bytes() + bytes.min(LASTING_BYTES)).min(LASTING_BYTES);
        let changes = (self.changes() + u64::from(is_change)).min(LASTING_CHANGES);
        let kept = self.0 & (ENDED | CALLS_MAX << CALLS_AT);
        Self(kept | last << LAST_AT | changes << CHANGES_AT | bytes << BYTES_AT)
    }

    /// Returns this trial (the traffic of a connection so far) for a forked child. No thread of the
    /// child is in the kernel, so the number of calls is 0.
    #[must_use]
    pub const fn of_child(self) -> Self {
        Self(self.0 & !(CALLS_MAX << CALLS_AT))
    }

    /// Ends the trial.
    #[must_use]
    pub const fn ended(self) -> Self {
        Self(self.0 | ENDED)
    }

    //= sockets-protocol.md: move.3
    /// Ends the trial if the connection should begin to move now. Two conditions must hold: the
    /// connection has lasted long enough, and none of its calls is in the kernel. `lasted_ns`
    /// returns the age of the connection in nanoseconds. This method calls `lasted_ns` only if the
    /// result depends on the age.
    pub fn begun(self, lasted_ns: impl FnOnce() -> u64) -> Option<Self> {
        let may = !self.has_ended() && !self.has_calls();
        (may && self.pays(lasted_ns)).then(|| self.ended())
    }

    //= sockets-protocol.md: move.1
    fn pays(self, lasted_ns: impl FnOnce() -> u64) -> bool {
        self.changes() >= LASTING_CHANGES
            || (self.bytes() >= LASTING_BYTES && lasted_ns() >= LASTING_NS)
    }

    const fn has_calls(self) -> bool {
        self.0 >> CALLS_AT & CALLS_MAX != 0
    }

    const fn bytes(self) -> u64 {
        self.0 >> BYTES_AT & BYTES_MASK
    }

    const fn changes(self) -> u64 {
        self.0 >> CHANGES_AT & CHANGES_MASK
    }

    const fn last(self) -> u64 {
        self.0 >> LAST_AT & LAST_MASK
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial")
            .field("bytes", &self.bytes())
            .field("changes", &self.changes())
            .field("calls", &(self.0 >> CALLS_AT & CALLS_MAX))
            .field("has_ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

/// Number of bytes, in both directions together, after which a move pays if the connection is
/// [`LASTING_NS`] old. TCP transfers these bytes in about the time that a move takes.
const LASTING_BYTES: u64 = 64 << 10;

/// Age in nanoseconds after which a connection with [`LASTING_BYTES`] moves: a hundred times the
/// duration of a move.
const LASTING_NS: u64 = 100_000_000;

/// Number of changes of direction after which a connection moves at any age: 25 requests with their
/// responses.
const LASTING_CHANGES: u64 = 50;

const BYTES_AT: u32 = 0;
const BYTES_MASK: u64 = (1 << 17) - 1;
const CHANGES_AT: u32 = 17;
const CHANGES_MASK: u64 = (1 << 6) - 1;
const LAST_AT: u32 = 23;
const LAST_MASK: u64 = 3;
const CALLS_AT: u32 = 32;
const CALLS_MAX: u64 = (1 << 31) - 1;
const ENDED: u64 = 1 << 63;

const _: () = assert!(LASTING_BYTES <= BYTES_MASK && LASTING_CHANGES <= CHANGES_MASK);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_three_words_for_moving_are_parsed() {
        for (text, moving) in [
            ("always", Moving::Always),
            (" when-it-pays ", Moving::WhenItPays),
            ("never", Moving::Never),
        ] {
            assert_eq!(text.parse(), Ok(moving));
        }
        assert_eq!("often".parse::<Moving>(), Err(MovingError));
        assert_eq!(Moving::default(), Moving::WhenItPays);
    }

    #[test]
    fn only_shared_memory_several_links_and_polling_count_as_gains() {
        let one_host = [("127.0.0.1", "127.0.0.2"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1")];
        let two_hosts = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
        let all = |pairs: &[(&str, &str)], gains: Gains| -> Vec<bool> {
            let ip = |text: &str| text.parse().unwrap();
            pairs.iter().map(|(local, peer)| gains.are_had(ip(local), ip(peer))).collect()
        };
        let nothing = Gains::default();
        let memory = Gains { shares_memory: true, ..nothing };
        let links = Gains { has_several_links: true, ..nothing };
        let polling = Gains { polls: true, ..nothing };
        for (gains, on_one, on_two) in [
            (nothing, false, false),
            (memory, true, false),
            (links, true, true),
            (polling, true, true),
        ] {
            assert_eq!(all(&one_host, gains), [on_one; 3], "{gains:?}");
            assert_eq!(all(&two_hosts, gains), [on_two; 2], "{gains:?}");
        }
        let mapped =
            memory.are_had("::ffff:10.0.0.1".parse().unwrap(), "10.0.0.1".parse().unwrap());
        assert!(mapped);
    }

    /// Returns the trial of a connection after these transfers.
    fn after(transfers: &[(Direction, u64)]) -> Trial {
        transfers.iter().fold(Trial::default(), |trial, &(direction, bytes)| {
            let trial = trial.with_call().expect("the trial goes on");
            trial.without_call(Some(direction), bytes)
        })
    }

    fn begins(trial: Trial, lasted_ns: u64) -> bool {
        trial.begun(|| lasted_ns).is_some()
    }

    //= sockets-protocol.md: move.1
    #[test]
    fn a_move_pays_off_after_bytes_and_time_or_after_changes_of_direction() {
        use Direction::{Received, Sent};
        const MS: u64 = 1_000_000;
        let request = [(Sent, 100), (Received, 300)];
        let many: Vec<_> = request.iter().copied().cycle().take(51).collect();
        for (what, transfers, lasted_ns, pays) in [
            ("nothing", &[][..], 1000 * MS, false),
            ("one request", &request[..], 1000 * MS, false),
            ("a short file", &[(Received, 10 << 20)], 99 * MS, false),
            ("a long file", &[(Received, 64 << 10)], 100 * MS, true),
            ("both directions together", &[(Received, 32 << 10), (Sent, 32 << 10)], 100 * MS, true),
            ("few bytes for long", &[(Received, 65_535)], 10_000 * MS, false),
            ("49 changes", &many[..50], 0, false),
            ("50 changes", &many[..51], 0, true),
            ("small writes one way", &[(Sent, 1); 1000], 99 * MS, false),
        ] {
            assert_eq!(begins(after(transfers), lasted_ns), pays, "{what}");
        }
    }

    //= sockets-protocol.md: move.3
    #[test]
    fn no_move_begins_while_a_call_is_in_the_kernel() {
        let lasting = after(&[(Direction::Sent, LASTING_BYTES)]);
        let in_call = lasting.with_call().expect("the trial goes on");
        assert!(!begins(in_call, u64::MAX));
        // This call transferred no bytes: it only waited, or it failed.
        let back = in_call.without_call(None, 1000);
        assert_eq!(back, lasting);
        let begun = back.begun(|| u64::MAX).expect("it has lasted");
        assert!(begun.has_ended() && begun.with_call().is_none() && !begins(begun, u64::MAX));
        assert_eq!(in_call.of_child(), lasting, "the child has none of the parent's calls");
        assert!(Trial::ENDED.with_call().is_none());
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Enter,
        Leave(Option<Direction>, u64),
        Begin(u64),
        End,
    }

    fn step() -> impl Strategy<Value = Step> {
        let direction =
            prop_oneof![Just(None), Just(Some(Direction::Received)), Just(Some(Direction::Sent))];
        prop_oneof![
            4 => Just(Step::Enter),
            4 => (direction, any::<u64>().prop_map(|bytes| bytes >> (bytes % 64)))
                .prop_map(|(direction, bytes)| Step::Leave(direction, bytes)),
            1 => (0..2 * LASTING_NS).prop_map(Step::Begin),
            1 => Just(Step::End),
        ]
    }

    proptest! {
        /// Checks any order of calls. The library decides about the move at most once. It decides
        /// that the move pays only if no call is in the kernel, and only after the connection has
        /// lasted long enough. The counts of bytes and of changes of direction are correct up to
        /// their limits.
        #[test]
        fn a_move_is_decided_once(steps in prop::collection::vec(step(), 0..400)) {
            let (mut trial, mut calls, mut decisions) = (Trial::default(), 0_u32, 0);
            let (mut bytes, mut changes, mut last) = (0_u64, 0_u64, None);
            for step in steps {
                match step {
                    Step::Enter => if let Some(next) = trial.with_call() {
                        prop_assert_eq!(decisions, 0);
                        (trial, calls) = (next, calls + 1);
                    },
                    Step::Leave(..) if calls == 0 => {}
                    Step::Leave(direction, count) => {
                        (trial, calls) = (trial.without_call(direction, count), calls - 1);
                        if let Some(direction) = direction.filter(|_| count > 0) {
                            bytes = bytes.saturating_add(count);
                            changes += u64::from(last.is_some_and(|last| last != direction));
                            last = Some(direction);
                        }
                    }
                    Step::Begin(lasted_ns) => {
                        let pays = changes >= LASTING_CHANGES || (bytes >= LASTING_BYTES && lasted_ns >= LASTING_NS);
                        let next = trial.begun(|| lasted_ns);
                        prop_assert_eq!(next.is_some(), pays && calls == 0 && decisions == 0);
                        if let Some(next) = next {
                            (trial, decisions) = (next, decisions + 1);
                        }
                    }
                    Step::End => {
                        decisions += u32::from(!trial.has_ended());
                        trial = trial.ended();
                    }
                }
                prop_assert!(decisions <= 1);
                prop_assert_eq!(trial.has_ended(), decisions == 1);
                prop_assert_eq!(trial.has_calls(), calls > 0);
                prop_assert_eq!(trial.bytes(), bytes.min(LASTING_BYTES));
                prop_assert_eq!(trial.changes(), changes.min(LASTING_CHANGES));
                prop_assert_eq!(Trial::of_word(trial.word()), trial);
            }
        }
    }
}
