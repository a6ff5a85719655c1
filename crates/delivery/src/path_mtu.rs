//! Finds the largest frame that reaches the peer over one link.

use crate::time::Instant;

/// Finds the largest frame that reaches the peer over one link (RFC 8899, adapted).
///
/// The search starts at a size that may be used without a probe, and sends padded probes. The first
/// probe has the largest size that the link allows. On a local network this size usually passes, so
/// one probe is enough. If the probe is lost, the search tries sizes in common use, smallest first.
/// After that, the search halves the remaining interval until the gain is not worth another probe.
///
/// After three lost probes of a size, this size counts as too large. A lost probe is not a sign of
/// congestion. After ten minutes, the search tries all sizes above the current size again, because
/// paths change.
///
/// If large frames stop arriving, the size falls back to the size that may be used without a probe,
/// and the search restarts. This also happens while small frames still arrive.
#[derive(Clone, Debug)]
pub struct PathMtu {
    /// Largest size that is known to arrive, in bytes.
    current: u16,
    /// Frame size that may be used without a probe, in bytes; at most `current`.
    safe: u16,
    /// Largest size that the link can send and the peer accepts, in bytes; at least `current`.
    limit: u16,
    /// Smallest size that the search assumes to be too large, in bytes; above `current`, at most
    /// `limit + 1`.
    refused: u16,
    /// Whether the next probe should have the size just below `refused`.
    try_largest: bool,
    /// Size of the probe in flight, in bytes, and the time at which it was sent.
    outstanding: Option<(u16, Instant)>,
    /// Number of lost probes of the size that is being probed.
    losses: u8,
    /// Length of the current series of losses of large frames.
    large_losses: u8,
    /// Size of the smallest frame in this series, in bytes. When the peer acknowledges a frame of
    /// at least this size, the series ends.
    lost_bytes: u32,
    /// Time at which the latest loss of this series was recorded.
    lost_at: Instant,
    /// Earliest time of the next probe.
    not_before: Instant,
    /// Whether the search has tried all sizes. The next search begins at `not_before`.
    complete: bool,
}

crate::pack_fields!(PathMtu {
    current,
    safe,
    limit,
    refused,
    try_largest,
    outstanding,
    losses,
    large_losses,
    lost_bytes,
    lost_at,
    not_before,
    complete,
});

impl PathMtu {
    /// Creates the search. Frames of `safe` bytes may be used without a probe. `limit` is the
    /// largest size that the link can send and the peer accepts, in bytes. If `limit` is less than
    /// `safe`, it replaces `safe`.
    pub const fn new(safe: u16, limit: u16) -> Self {
        // Keep `limit` below the largest value of its type, so that `limit + 1` is a valid size.
        let limit = if limit < u16::MAX { limit } else { u16::MAX - 1 };
        let safe = if safe < limit { safe } else { limit };
        Self {
            current: safe,
            safe,
            limit,
            refused: limit + 1,
            try_largest: true,
            outstanding: None,
            losses: 0,
            large_losses: 0,
            lost_bytes: u32::MAX,
            lost_at: Instant(0),
            not_before: Instant(0),
            complete: false,
        }
    }

    /// Returns the size of a probe to send now, in bytes, if a probe is due. Call this at
    /// [`PathMtu::deadline`]. The caller must then report that the probe was acknowledged, lost or
    /// not sent.
    pub fn poll_probe(&mut self, now: Instant) -> Option<u16> {
        if let Some((size, sent_at)) = self.outstanding {
            if now < sent_at.after_ns(PROBE_TIMEOUT_NS) {
                return None;
            }
            self.on_probe_lost(size);
        }
        if now < self.not_before {
            return None;
        }
        if self.complete {
            self.restart(self.limit);
        }
        let Some(size) = self.next_size() else {
            self.complete = true;
            self.not_before = now.after_ns(RAISE_NS);
            return None;
        };
        self.outstanding = Some((size, now));
        Some(size)
    }

    /// Records that the last probe could not be sent. The probe becomes due again.
    pub const fn on_probe_unsent(&mut self) {
        self.outstanding = None;
    }

    //= protocol.md: size.2
    /// Records that a probe of this size, in bytes, reached the peer.
    pub fn on_probe_acked(&mut self, size: u16) {
        if self.outstanding.is_some_and(|(outstanding, _)| outstanding == size) {
            self.outstanding = None;
        }
        if size > self.current && size < self.refused {
            self.current = size;
            self.losses = 0;
        }
    }

    /// Records that a probe of this size, in bytes, was lost.
    pub fn on_probe_lost(&mut self, size: u16) {
        let Some((_, sent_at)) = self.outstanding.take_if(|(outstanding, _)| *outstanding == size)
        else {
            return;
        };
        self.not_before = sent_at.after_ns(PROBE_SPACING_NS);
        self.losses += 1;
        if self.losses >= PROBES_PER_SIZE && size > self.current {
            self.refused = size;
            self.try_largest = false;
            self.losses = 0;
        }
    }

    //= protocol.md: report.3
    /// Records a report of the network or the driver that frames above `limit` bytes do not pass.
    /// Ignores limits below 256 bytes, because every path must carry frames of 256 bytes.
    pub fn on_frame_too_big(&mut self, limit: u16) {
        if limit < FRAME_BYTES_MIN || limit >= self.refused - 1 {
            return;
        }
        self.current = self.current.min(limit);
        self.safe = self.safe.min(limit);
        self.restart(limit);
    }

    //= protocol.md: report.3
    /// Records an unproven claim that frames above `limit` bytes do not pass. A probe is due at
    /// once. Until the peer answers the probe, frames have at most `limit` bytes, or
    /// [`PathMtu::safe`] bytes if that is larger.
    pub fn on_doubt(&mut self, limit: u16) {
        if limit < self.current && self.safe < self.current {
            self.current = limit.max(self.safe);
            self.restart(self.limit);
        }
    }

    /// Sets the largest frame that the link can send and the peer accepts, in bytes. A smaller
    /// limit applies at once. A larger limit has an effect only after a probe of a larger size.
    pub fn set_limit(&mut self, limit: u16) {
        let limit = limit.clamp(FRAME_BYTES_MIN, u16::MAX - 1);
        self.on_frame_too_big(limit);
        if limit > self.limit {
            self.restart(limit);
        }
        self.limit = limit;
    }

    //= protocol.md: size.2
    /// Records that a frame of at least `bytes` bytes was lost while the peer acknowledged later
    /// frames. The round trip of the link is `rtt_ns` nanoseconds. Returns whether the size fell
    /// back. In this case the caller must cut queued data into frames again.
    ///
    /// If several frames are lost within one round trip, they count as one loss, because they may
    /// belong to one burst of losses.
    pub fn on_frame_lost(&mut self, now: Instant, rtt_ns: u64, bytes: u32) -> bool {
        let is_burst = self.large_losses > 0 && now < self.lost_at.after_ns(rtt_ns);
        if bytes <= u32::from(self.safe) || is_burst {
            return false;
        }
        self.count_loss(now, bytes)
    }

    /// Records that the peer acknowledged no frame for the length of a probe timeout, while frames
    /// larger than [`PathMtu::safe`] were in flight. Returns whether the size fell back. In this
    /// case the caller must cut queued data into frames again.
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        self.count_loss(now, u32::from(self.safe) + 1)
    }

    /// Records that frames were acknowledged. The largest of these frames had at least `bytes`
    /// bytes.
    #[inline]
    pub const fn on_frames_acked(&mut self, bytes: u32) {
        if bytes >= self.lost_bytes {
            self.end_losses();
        }
    }

    fn count_loss(&mut self, now: Instant, bytes: u32) -> bool {
        if self.current == self.safe {
            return false;
        }
        self.large_losses += 1;
        self.lost_bytes = self.lost_bytes.min(bytes);
        self.lost_at = now;
        if self.large_losses < LARGE_LOSSES_MAX {
            return false;
        }
        let suspected = self.current;
        self.current = self.safe;
        self.restart(suspected);
        true
    }

    const fn end_losses(&mut self) {
        self.large_losses = 0;
        self.lost_bytes = u32::MAX;
    }

    /// Returns the largest frame that may currently be sent, in bytes.
    pub const fn current(&self) -> u16 {
        self.current
    }

    /// Returns the frame size that may be used without a path-MTU probe, in bytes. Frames that the
    /// sender sends as probes after a timeout should not be larger.
    pub const fn safe(&self) -> u16 {
        self.safe
    }

    /// Returns the time at which to call [`PathMtu::poll_probe`]. A time in the past means now.
    pub const fn deadline(&self) -> Instant {
        match self.outstanding {
            Some((_, sent_at)) => sent_at.after_ns(PROBE_TIMEOUT_NS),
            None => self.not_before,
        }
    }

    /// Restarts the search for sizes above the current size. The first probe has the size
    /// `largest`, which is also the largest size that the search tries.
    const fn restart(&mut self, largest: u16) {
        self.refused = largest + 1;
        self.try_largest = true;
        self.outstanding = None;
        self.losses = 0;
        self.end_losses();
        self.not_before = Instant(0);
        self.complete = false;
    }

    /// Returns the size to probe next, or `None` if the size is known precisely enough.
    fn next_size(&self) -> Option<u16> {
        let open = self.current + 1..self.refused;
        if open.is_empty() {
            return None;
        }
        if self.try_largest {
            return Some(self.refused - 1);
        }
        let usual = USUAL_SIZES.iter().copied().find(|size| open.contains(size));
        let halfway = self.current + (self.refused - self.current) / 2;
        usual.or_else(|| (self.refused - self.current > PRECISION_BYTES).then_some(halfway))
    }
}

/// Frame sizes that fill a packet of a common MTU, ascending. The MTUs 1500 and 9000 appear three
/// times: whole for raw Ethernet, minus 48 bytes for IPv6 and UDP headers, and minus 28 bytes for
/// IPv4 and UDP headers. Packets of 1200 and 1280 bytes pass on every IPv6 path. Frames of 1420
/// bytes fit into common tunnels. Frames of 4052 bytes with their headers fit into pages of 4 KiB.
const USUAL_SIZES: [u16; 10] = [1200, 1280, 1420, 1452, 1472, 1500, 4052, 8952, 8972, 9000];

/// Largest possible growth of the frame size, in bytes, for which the search sends no further
/// probe: about 1 % of 1500 bytes.
const PRECISION_BYTES: u16 = 16;

/// Number of lost probes after which a size counts as too large (RFC 8899, 5.1.2: `MAX_PROBES`).
const PROBES_PER_SIZE: u8 = 3;

/// Pause after a lost probe in nanoseconds. Because of the pause, one burst of losses does not hit
/// all three probes of a size.
const PROBE_SPACING_NS: u64 = 5_000_000;

/// Nanoseconds after which an unanswered probe counts as lost.
const PROBE_TIMEOUT_NS: u64 = 1_000_000_000;

/// Nanoseconds after which a finished search is repeated (RFC 8899, 5.1.1: `PMTU_RAISE_TIMER`).
const RAISE_NS: u64 = 600_000_000_000;

/// Number of consecutive losses after which the size falls back. A timeout counts as a loss. Any
/// other loss counts if it is at least a round trip after the previous loss.
const LARGE_LOSSES_MAX: u8 = 3;

/// The smallest `frame_bytes_max` that the protocol permits.
const FRAME_BYTES_MIN: u16 = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_probe_is_enough_if_the_link_reports_its_true_mtu() {
        let mut mtu = PathMtu::new(1200, 8972);
        assert_eq!(mtu.current(), 1200);
        assert_eq!(mtu.poll_probe(NOW), Some(8972));
        assert_eq!(mtu.poll_probe(NOW), None, "one probe at a time");
        mtu.on_probe_acked(8972);
        assert_eq!(mtu.current(), 8972);
        assert_eq!(mtu.poll_probe(NOW), None);
        assert_eq!(mtu.deadline(), NOW.after_ns(RAISE_NS));
    }

    #[test]
    fn a_larger_mtu_limit_is_probed_and_a_smaller_one_applies_at_once() {
        let mut mtu = PathMtu::new(1200, 1472);
        assert_eq!(mtu.poll_probe(NOW), Some(1472));
        mtu.on_probe_acked(1472);
        mtu.set_limit(8972);
        assert_eq!((mtu.current(), mtu.poll_probe(NOW)), (1472, Some(8972)));
        mtu.on_probe_acked(8972);
        mtu.set_limit(1400);
        assert_eq!(mtu.current(), 1400);
        mtu.set_limit(1400);
        assert_eq!(mtu.poll_probe(NOW), None, "nothing is larger");
    }

    #[test]
    fn common_mtu_sizes_are_found_exactly_with_few_probes() {
        for truth in USUAL_SIZES {
            let mut mtu = PathMtu::new(1200, 9000);
            let probes = search(&mut mtu, truth, |_| true);
            assert_eq!(mtu.current(), truth);
            assert!(probes <= 60, "{probes} probes for {truth}");
        }
    }

    #[test]
    fn a_size_that_needs_no_probe_is_not_probed() {
        let mut mtu = PathMtu::new(9000, 1500);
        assert_eq!((mtu.current(), mtu.poll_probe(NOW)), (1500, None));
        let mut mtu = PathMtu::new(u16::MAX, u16::MAX);
        assert_eq!((mtu.current(), mtu.poll_probe(NOW)), (u16::MAX - 1, None));
    }

    #[test]
    fn one_lost_probe_changes_nothing() {
        let mut mtu = PathMtu::new(1200, 1472);
        for _ in 0..2 {
            let size = mtu.poll_probe(mtu.deadline().max(NOW));
            assert_eq!(size, Some(1472));
            mtu.on_probe_lost(1472);
        }
        assert_eq!(mtu.poll_probe(mtu.deadline()), Some(1472));
        mtu.on_probe_acked(1472);
        assert_eq!(mtu.current(), 1472);
    }

    #[test]
    fn a_probe_without_a_report_is_lost_after_a_second() {
        let mut mtu = PathMtu::new(1200, 1472);
        mtu.poll_probe(NOW);
        assert_eq!(mtu.deadline(), NOW.after_ns(PROBE_TIMEOUT_NS));
        assert_eq!(mtu.poll_probe(mtu.deadline()), Some(1472));
    }

    //= protocol.md: report.3
    #[test]
    fn a_router_reported_mtu_is_accepted_down_to_the_minimum() {
        let mut mtu = PathMtu::new(1200, 9000);
        mtu.poll_probe(NOW);
        mtu.on_frame_too_big(1400);
        assert_eq!(mtu.poll_probe(NOW), Some(1400));
        mtu.on_probe_acked(1400);
        mtu.on_frame_too_big(1000);
        assert_eq!((mtu.current(), mtu.safe()), (1000, 1000));
        mtu.on_frame_too_big(255);
        mtu.on_frame_too_big(5000);
        mtu.on_frame_too_big(u16::MAX);
        assert_eq!((mtu.current(), mtu.poll_probe(NOW)), (1000, None));
    }

    #[test]
    fn losing_large_frames_reduces_the_mtu_and_restarts_the_search() {
        let mut mtu = PathMtu::new(1200, 8972);
        search(&mut mtu, 8972, |_| true);
        assert!(!mtu.on_timeout(NOW));
        assert!(!mtu.on_timeout(NOW));
        mtu.on_frames_acked(1201);
        assert!(!mtu.on_timeout(NOW));
        assert!(!mtu.on_timeout(NOW));
        mtu.on_frames_acked(1200);
        assert_eq!(mtu.current(), 8972);
        assert!(mtu.on_timeout(NOW));
        assert_eq!(mtu.current(), 1200);
        search(&mut mtu, 1472, |_| true);
        assert_eq!(mtu.current(), 1472);
    }

    #[test]
    fn losing_large_frames_among_delivered_small_ones_reduces_the_mtu() {
        const RTT_NS: u64 = 100_000;
        let mut mtu = PathMtu::new(1200, 8972);
        search(&mut mtu, 8972, |_| true);
        let mut now = NOW;
        for _ in 0..20 {
            // If a frame as large as the lost frames arrives, the series of losses ends. The loss
            // of a frame of a size that may be used without a probe does not count.
            for _ in 0..2 {
                assert!(!mtu.on_frame_lost(now, RTT_NS, 8900));
                assert!(!mtu.on_frame_lost(now.after_ns(RTT_NS - 1), RTT_NS, 8900), "one burst");
                assert!(!mtu.on_frame_lost(now.after_ns(RTT_NS), RTT_NS, 1200));
                now = now.after_ns(RTT_NS);
            }
            mtu.on_frames_acked(8900);
        }
        assert_eq!(mtu.current(), 8972);
        for lost in [8900, 8800, 8900] {
            mtu.on_frames_acked(4000);
            assert_eq!(mtu.on_frame_lost(now, RTT_NS, lost), mtu.current() == 1200);
            now = now.after_ns(RTT_NS);
        }
        assert_eq!(mtu.current(), 1200);
        assert!(!mtu.on_frame_lost(now, RTT_NS, 8900), "sent before");
        search(&mut mtu, 4052, |_| true);
        assert_eq!(mtu.current(), 4052);
    }

    #[test]
    fn a_larger_path_mtu_is_found_in_the_next_round() {
        let mut mtu = PathMtu::new(1200, 8972);
        search(&mut mtu, 1472, |_| true);
        assert_eq!(mtu.current(), 1472);
        search(&mut mtu, 8972, |_| true);
        assert_eq!(mtu.current(), 8972);
    }

    proptest! {
        //= protocol.md: size.2
        #[test]
        fn converges_to_the_true_size_under_loss(
            truth in 1200_u16..9500,
            limit in 1200_u16..9500,
            fates in prop::collection::vec(0_u8..10, 50..200),
            lost_of_ten in 0_u8..4,
        ) {
            let mut mtu = PathMtu::new(1200, limit);
            for _ in 0..20 {
                search(&mut mtu, truth, |probe| fates[probe % fates.len()] >= lost_of_ten);
            }
            // A repeating pattern of losses may hit every probe of one size, and the search then
            // takes this size for too large. Therefore no probe is lost in the last search.
            search(&mut mtu, truth, |_| true);
            let best = truth.min(limit);
            prop_assert!(mtu.current() <= best);
            prop_assert!(mtu.current() + PRECISION_BYTES >= best, "{} of {best}", mtu.current());
        }

        #[test]
        fn sizes_stay_ordered_whatever_is_reported(
            safe in 256_u16..,
            limit in 256_u16..,
            reports in prop::collection::vec((0_u8..6, any::<u16>(), any::<bool>()), 0..200),
        ) {
            let mut mtu = PathMtu::new(safe, limit);
            let mut now = NOW;
            let mut probe = 0;
            for (report, size, of_probe) in reports {
                let size = if of_probe { probe } else { size };
                match report {
                    0 => mtu.on_probe_acked(size),
                    1 => mtu.on_probe_lost(size),
                    2 => mtu.on_frame_too_big(size),
                    3 if of_probe => drop(mtu.on_timeout(now)),
                    3 => drop(mtu.on_frame_lost(now, 0, u32::from(size))),
                    _ => {
                        now = now.max(mtu.deadline());
                        if let Some(size) = mtu.poll_probe(now) {
                            prop_assert!(size > mtu.current() && size <= mtu.limit);
                            probe = size;
                        }
                    }
                }
                prop_assert!(mtu.safe <= mtu.current && mtu.current <= mtu.limit);
                prop_assert!(mtu.current < mtu.refused && mtu.refused <= mtu.limit + 1);
            }
        }
    }

    /// Runs one search to its end, and returns the number of probes. A probe arrives if it has at
    /// most `truth` bytes and `survives` returns true for the number of the probe.
    fn search(mtu: &mut PathMtu, truth: u16, mut survives: impl FnMut(usize) -> bool) -> usize {
        let mut now = mtu.deadline().max(NOW);
        let mut probes = 0;
        while let Some(size) = mtu.poll_probe(now) {
            probes += 1;
            assert!(probes < 1_000, "the search does not end");
            if size <= truth && survives(probes) {
                mtu.on_probe_acked(size);
            } else {
                mtu.on_probe_lost(size);
            }
            now = now.max(mtu.deadline());
        }
        probes
    }

    const NOW: Instant = Instant(7_000_000_000);
}
