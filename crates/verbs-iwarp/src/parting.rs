//! What follows the last byte of a stream: the end of this side, and then that of the peer.

use delivery::Instant;
use iwarp::PeerKind;

/// A stream that has written its last byte.
///
/// What the peer still sends is read and forgotten until it ends its side or the time has come. If
/// the socket were closed with unread bytes, the kernel would reset the connection, and the peer
/// could lose what was sent last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parting {
    /// When this side is to end. `None` if it has.
    end_at: Option<Instant>,
    until: Instant,
}

impl Parting {
    /// Begins the end of a connection. `heard_at` is the time when the last bytes of the peer
    /// arrived.
    ///
    /// The end of this side waits for [`QUIET_NS`] after these bytes, unless the peer is a stream of
    /// this project. siw reports its last message as failed if the end arrives before the sending
    /// thread has seen that TCP has the message.
    pub(crate) fn new(peer: PeerKind, heard_at: Instant, now: Instant) -> Self {
        let end_at = match peer {
            PeerKind::Ethernot => now,
            PeerKind::Siw | PeerKind::Unknown => heard_at.after_ns(QUIET_NS).max(now),
        };
        Self { end_at: Some(end_at), until: now.after_ns(PARTING_NS) }
    }

    /// Begins the end of a connection that has no socket, or none that is connected.
    pub(crate) const fn unconnected(now: Instant) -> Self {
        Self { end_at: None, until: now }
    }

    /// Returns the time of the next step.
    pub(crate) fn due(&self) -> Instant {
        self.end_at.unwrap_or(self.until)
    }

    /// Returns whether this side is to end now, because it is time, or because the peer has ended
    /// its side. Returns true once.
    pub(crate) fn takes_end(&mut self, now: Instant, has_ended: bool) -> bool {
        self.end_at.take_if(|at| *at <= now || has_ended).is_some()
    }

    /// Returns whether the socket is to be closed although the peer has not ended its side.
    pub(crate) fn has_ended(&self, now: Instant) -> bool {
        self.until <= now
    }
}

/// Time between the last bytes of a peer of unknown kind and the end of this side, in nanoseconds.
/// siw needs some microseconds on an idle host, and more if its thread is not scheduled.
const QUIET_NS: u64 = 10_000_000;

/// Time for which a stream waits until the peer ends its side, too, in nanoseconds.
const PARTING_NS: u64 = 2_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const HEARD: Instant = Instant(7_000_000_000);

    /// Returns how long after the last bytes of the peer this side ends, in nanoseconds, if the
    /// stream has written its last byte this long after them.
    fn ends_after(peer: PeerKind, written_ns: u64) -> u64 {
        let mut parting = Parting::new(peer, HEARD, HEARD.after_ns(written_ns));
        let end = parting.due();
        assert!(!parting.takes_end(Instant(end.0 - 1), false));
        assert!(parting.takes_end(end, false));
        assert!(!parting.takes_end(end, false));
        end.since_ns(HEARD)
    }

    #[test]
    fn this_side_ends_ten_milliseconds_after_the_last_bytes_of_a_peer_of_another_kind() {
        for peer in [PeerKind::Siw, PeerKind::Unknown] {
            assert_eq!(ends_after(peer, 0), 10_000_000);
            assert_eq!(ends_after(peer, 9_999_999), 10_000_000);
            assert_eq!(ends_after(peer, 10_000_001), 10_000_001);
        }
    }

    #[test]
    fn this_side_ends_at_once_if_the_peer_is_of_the_own_kind() {
        assert_eq!(ends_after(PeerKind::Ethernot, 0), 0);
        assert_eq!(ends_after(PeerKind::Ethernot, 5), 5);
    }

    #[test]
    fn this_side_ends_at_once_if_the_peer_has_ended_its_side() {
        let mut parting = Parting::new(PeerKind::Siw, HEARD, HEARD);
        assert!(parting.takes_end(HEARD, true));
        assert!(!parting.takes_end(HEARD, true));
    }

    #[test]
    fn the_socket_is_closed_two_seconds_after_the_last_byte_at_the_latest() {
        let mut parting = Parting::new(PeerKind::Unknown, HEARD, HEARD);
        let until = HEARD.after_ns(2_000_000_000);
        assert!(parting.takes_end(parting.due(), false));
        assert_eq!(parting.due(), until);
        assert!(!parting.has_ended(Instant(until.0 - 1)) && parting.has_ended(until));
    }

    #[test]
    fn a_connection_that_was_never_there_ends_at_once() {
        let mut parting = Parting::unconnected(HEARD);
        assert!(parting.has_ended(HEARD) && !parting.takes_end(HEARD, true));
        assert_eq!(parting.due(), HEARD);
    }

    /// Speeds of the peer's host in quarters of that of a calibrated host.
    const SPEEDS: [u64; 5] = [1, 2, 4, 8, 16];

    /// Time slice of another thread on a busy host, in nanoseconds. It is the same on all hosts.
    const SLICE_NS: u64 = 3_000_000;

    /// Returns in how many of some tries siw reports its last message as failed, although this side
    /// has it: the end of this side arrives before siw's thread has returned from sending.
    ///
    /// This takes the thread 20 µs on a calibrated host, and up to two time slices more if the host
    /// is busy. The message arrives as soon as siw begins to send it.
    fn failures(peer: PeerKind) -> usize {
        let mut failures = 0;
        for quarters in SPEEDS {
            for slices in 0..=2 {
                for (wire_ns, turn_ns) in [(500, 2_000), (500, 200_000), (20_000, 2_000)] {
                    let heard = HEARD.after_ns(wire_ns);
                    let end = Parting::new(peer, heard, heard.after_ns(turn_ns)).due();
                    let returned = HEARD.after_ns(20_000 * 4 / quarters + slices * SLICE_NS);
                    failures += usize::from(end.after_ns(wire_ns) < returned);
                }
            }
        }
        failures
    }

    #[test]
    fn the_wait_keeps_siw_from_reporting_its_last_message_as_failed() {
        assert_eq!(failures(PeerKind::Siw), 0);
        let without = failures(PeerKind::Ethernot);
        assert!(without > 25, "the end at once fails in {without} of 45 tries only");
    }
}
