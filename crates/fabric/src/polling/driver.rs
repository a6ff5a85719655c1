//! The driver of a simulated host's links: takes the frames that the engine sends, and passes them
//! to the wires.

use delivery::{Instant, LinkId};

use super::Costs;
use super::machine::{CALL_FRAMES, PS_PER_NS};
use crate::channel::{Admission, Channel, LinkModel};

/// Passes the frames of one run of the engine to the wires.
///
/// Without segmentation offload, each frame is a packet. With it, consecutive frames of equal size
/// and a shorter last one are one packet, as with UDP segmentation in the kernel. The cost of such
/// a packet depends little on the number of frames. A shaper delays and releases the packet as a
/// whole, by one timer.
pub(super) struct Driver<'a> {
    costs: &'a Costs,
    wires: &'a mut [Channel],
    /// Frames that the driver has taken but not passed on: the packet that may still grow.
    packet: Packet,
    sent: Sent,
}

/// What a driver has done.
#[derive(Default)]
pub(super) struct Sent {
    /// Time at which the processor is free again, in picoseconds.
    pub(super) free_ps: u64,
    /// Number of frames that found a full queue.
    pub(super) queue_full: u64,
    /// Times at which timers of shapers fire, in picoseconds.
    pub(super) timers_ps: Vec<u64>,
    /// Each frame that the wires carry, with the time at which it arrives.
    pub(super) frames: Vec<(Instant, LinkId, Vec<u8>)>,
}

#[derive(Default)]
struct Packet {
    link: LinkId,
    frames: Vec<Vec<u8>>,
    bytes: usize,
}

impl Packet {
    /// Returns whether a frame of `bytes` bytes can be the next frame of this packet.
    fn has_room(&self, link: LinkId, bytes: usize) -> bool {
        let (Some(first), Some(last)) = (self.frames.first(), self.frames.last()) else {
            return false;
        };
        link == self.link
            && last.len() == first.len()
            && bytes <= first.len()
            && self.bytes + bytes <= PACKET_BYTES_MAX
    }
}

impl<'a> Driver<'a> {
    /// Creates a driver. The processor is free at `free_ps` picoseconds.
    pub(super) fn new(costs: &'a Costs, wires: &'a mut [Channel], free_ps: u64) -> Self {
        let sent = Sent { free_ps, ..Sent::default() };
        Self { costs, wires, packet: Packet::default(), sent }
    }

    /// Takes a frame, which is number `place` in its batch. If `reaches` is false, the frame does
    /// not reach the peer, but still takes processor time.
    pub(super) fn take(&mut self, link: LinkId, place: usize, pieces: &[&[u8]], reaches: bool) {
        let bytes = pieces.concat();
        let Some(wire) = self.wires.get(usize::from(link.0)) else { return };
        let (offloads, frame_bytes_max) = (wire.model.offloads, wire.model.frame_bytes_max);
        let is_segment = offloads && place > 0 && self.packet.has_room(link, bytes.len());
        if !is_segment {
            self.pass();
        }
        let Costs { host, call_ps, gather_ps, spread_ps, segment_ps, .. } = self.costs;
        let mut cost_ps = spread_ps * (self.wires.len() as u64).saturating_sub(1)
            + host.frame_send_ps_per_byte * bytes.len() as u64;
        if is_segment {
            cost_ps += segment_ps;
        } else {
            let is_gathered = pieces.iter().skip(1).any(|piece| !piece.is_empty());
            cost_ps += host.frame_send_ps + if is_gathered { *gather_ps } else { 0 };
            if place.is_multiple_of(CALL_FRAMES) {
                cost_ps += call_ps;
            }
        }
        self.sent.free_ps += cost_ps;
        if !reaches || bytes.len() > usize::from(frame_bytes_max) {
            if !is_segment {
                self.sent.free_ps += self.costs.return_ps;
            }
            return;
        }
        self.packet.link = link;
        self.packet.bytes += bytes.len();
        self.packet.frames.push(bytes);
        if !offloads {
            self.pass();
        }
    }

    /// Passes the last packet on. Returns what the driver has done.
    pub(super) fn finish(mut self) -> Sent {
        self.pass();
        self.sent
    }

    /// Passes the packet to its wire. A shaper cuts a packet that is longer than its burst into
    /// frames. A transmitter sends frame by frame.
    fn pass(&mut self) {
        let Packet { link, frames, .. } = core::mem::take(&mut self.packet);
        let Some(wire) = self.wires.get(usize::from(link.0)).filter(|_| !frames.is_empty()) else {
            return;
        };
        let LinkModel { bucket, rate, overhead, .. } = wire.model;
        let seen_ps = self.sent.free_ps;
        self.sent.free_ps += self.costs.return_ps;
        let burst_bytes =
            bucket.map_or(0, |bucket| bucket.burst_ns.saturating_mul(rate) / 8_000_000_000);
        let bytes = |frame: &Vec<u8>| overhead.wire_bytes(frame.len());
        let all_bytes: u32 = frames.iter().map(bytes).sum();
        if u64::from(all_bytes) <= burst_bytes {
            self.admit(link, seen_ps, all_bytes, frames);
        } else {
            for frame in frames {
                self.admit(link, seen_ps, bytes(&frame), vec![frame]);
            }
        }
    }

    /// Adds frames, which together have `wire_bytes` bytes on the wire, to the queue of a wire.
    /// They leave and arrive together.
    fn admit(&mut self, link: LinkId, seen_ps: u64, wire_bytes: u32, frames: Vec<Vec<u8>>) {
        let Some(wire) = self.wires.get_mut(usize::from(link.0)) else { return };
        let timer_before_ps = wire.timer_ps();
        let admission = wire.admit(Instant(seen_ps.div_ceil(PS_PER_NS)), wire_bytes);
        if self.costs.timer_ps > 0 && wire.timer_ps() > timer_before_ps {
            self.sent.timers_ps.push(wire.timer_ps());
        }
        match admission {
            Admission::Full => self.sent.queue_full += frames.len() as u64,
            Admission::Queued { departs_at_ps, .. } => {
                for frame in frames {
                    let arrival = wire.arrival(departs_at_ps.max(seen_ps));
                    self.sent.frames.push((arrival, link, frame));
                }
            }
        }
    }
}

/// Maximum number of bytes in a segmented packet, as in UDP over IPv4.
const PACKET_BYTES_MAX: usize = 65_507;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::TokenBucket;
    use crate::costs::EdgeCosts;
    use crate::random::Random;

    fn costs() -> Costs {
        Costs {
            host: EdgeCosts { frame_send_ps: 3_000_000, ..EdgeCosts::default() },
            return_ps: 1_000_000,
            segment_ps: 100_000,
            timer_ps: 5_000_000,
            ..Costs::default()
        }
    }

    /// The bucket holds 10 000 bytes.
    const SHAPED: LinkModel = LinkModel {
        bucket: Some(TokenBucket { peak_rate: 100_000_000_000, burst_ns: 80_000, late_ns_max: 0 }),
        offloads: true,
        ..LinkModel::ethernet(1_000_000_000, 0)
    };

    /// Sends batches of frames of these sizes at time 0.
    fn send(model: LinkModel, batches: &[&[usize]]) -> Sent {
        let mut wires = [Channel::new(model, Random::new(1))];
        let costs = costs();
        let mut driver = Driver::new(&costs, &mut wires, 0);
        for batch in batches {
            for (place, &bytes) in batch.iter().enumerate() {
                driver.take(LinkId(0), place, &[&vec![0; bytes]], true);
            }
        }
        driver.finish()
    }

    fn arrivals(sent: &Sent) -> Vec<u64> {
        sent.frames.iter().map(|(arrival, ..)| arrival.0).collect()
    }

    #[test]
    fn equal_frames_and_a_shorter_one_are_one_packet() {
        let sent = send(SHAPED, &[&[1000, 1000, 1000, 400]]);
        assert_eq!(sent.free_ps, 3_000_000 + 3 * 100_000 + 1_000_000);
        let arrivals = arrivals(&sent);
        assert_eq!(arrivals.len(), 4);
        assert!(arrivals.iter().all(|arrival| *arrival == arrivals[0]), "{arrivals:?}");
    }

    #[test]
    fn a_packet_ends_at_a_longer_frame_after_a_shorter_one_and_with_its_batch() {
        for batches in
            [&[&[1000, 1001][..]][..], &[&[1000, 400, 400]], &[&[1000], &[1000]], &[&[1472; 46]]]
        {
            let frames: u64 = batches.iter().map(|batch| batch.len() as u64).sum();
            let free_ps = send(SHAPED, batches).free_ps;
            let packets = (free_ps - (frames * 100_000)) / 3_900_000;
            assert!(packets >= 2, "{batches:?}: {free_ps}");
        }
    }

    #[test]
    fn drivers_without_offload_send_each_frame_as_a_packet() {
        let plain = LinkModel { offloads: false, ..SHAPED };
        let sent = send(plain, &[&[1000, 1000, 1000]]);
        assert_eq!(sent.free_ps, 3 * (3_000_000 + 1_000_000));
    }

    #[test]
    fn a_shaper_delays_a_packet_by_one_timer_and_a_longer_one_frame_by_frame() {
        let batch = [1400; 6];
        assert_eq!(send(SHAPED, &[&batch]).timers_ps.len(), 0);
        assert_eq!(send(SHAPED, &[&batch, &batch]).timers_ps.len(), 1);
        let long = send(SHAPED, &[&batch, &[1400; 12]]);
        assert!(long.timers_ps.len() > 6, "{}", long.timers_ps.len());
    }

    #[test]
    fn a_transmitter_sends_the_frames_of_a_packet_one_after_the_other() {
        let exact = LinkModel { bucket: None, ..SHAPED };
        let arrivals = arrivals(&send(exact, &[&[1434, 1434, 1434]]));
        // Each frame takes 12 µs: 1434 bytes, and 66 of headers and gaps.
        assert_eq!([arrivals[1] - arrivals[0], arrivals[2] - arrivals[1]], [12_000; 2]);
    }

    #[test]
    fn frames_that_reach_no_peer_take_processor_time() {
        let mut wires = [Channel::new(SHAPED, Random::new(1))];
        let costs = costs();
        let mut driver = Driver::new(&costs, &mut wires, 0);
        driver.take(LinkId(0), 0, &[&[0; 1000]], false);
        driver.take(LinkId(0), 0, &[&[0; 2000]], true);
        let sent = driver.finish();
        assert_eq!((sent.free_ps, sent.frames.len()), (8_000_000, 0));
    }
}
