//! The receiving half of one link of one connection: records which packets arrived, detects
//! duplicates, and decides when to acknowledge (protocol.md §6.1, §6.2).

use wire_edge::{ACK_BLOCK_WORDS_MAX, AckBlock, AckDelay, LinkIndex, PacketNumber};

use crate::time::Instant;

/// Whether a packet elicits an acknowledgement: its receiver must acknowledge it
/// (`docs/protocol.md`, 1.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Eliciting {
    /// The packet elicits an acknowledgement.
    Yes,
    /// The packet elicits an acknowledgement, and more packets of its operation follow. If the
    /// sender wants an acknowledgement soon, it sets `ack_now` on one of the packets.
    Midway,
    /// The packet does not elicit an acknowledgement. Acknowledgements are such packets. If they
    /// elicited acknowledgements, two idle ends would exchange acknowledgements for ever.
    No,
}

impl Eliciting {
    /// Treats the packet as the last one of its operation.
    #[must_use]
    pub const fn as_last(self) -> Self {
        match self {
            Self::Yes | Self::Midway => Self::Yes,
            Self::No => Self::No,
        }
    }
}

/// The relation of a received packet number to the numbers received before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// The packet arrived for the first time.
    New {
        /// The full packet number.
        packet: PacketNumber,
        /// Whether a packet with a larger number arrived on this link before this packet.
        out_of_order: bool,
    },
    /// The packet has already arrived.
    Duplicate,
    /// The number is so far below the largest number that the receiver no longer knows whether the
    /// packet has arrived.
    TooOld,
    /// The number is larger than a peer that obeys its window can have reached, or it is below 0.
    Implausible,
}

/// The rules for when to send acknowledgements.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AckPolicy {
    /// Number of packets that elicit an acknowledgement, after which an acknowledgement is due at
    /// once; 1 to 128.
    pub frames_per_ack: u16,
    /// Longest time in nanoseconds that an acknowledgement waits after the last packet of an
    /// operation. If more packets arrive in this time, the acknowledgement covers them too. If this
    /// end sends data in this time, a data frame may carry the acknowledgement.
    pub ack_delay_ns: u32,
    /// Longest time in nanoseconds that an acknowledgement waits if more packets of the operation
    /// follow.
    pub midway_delay_ns: u32,
}

crate::setters!(AckPolicy { frames_per_ack: u16, ack_delay_ns: u32, midway_delay_ns: u32 });

crate::pack_fields!(AckPolicy { frames_per_ack, ack_delay_ns, midway_delay_ns });

impl AckPolicy {
    //= protocol.md: ack.7
    /// Returns the delay that this end announces to the peer as `ack_delay_max_ns`, in nanoseconds.
    pub fn delay_max_ns(&self) -> u32 {
        self.ack_delay_ns.max(self.midway_delay_ns)
    }
}

impl Default for AckPolicy {
    fn default() -> Self {
        Self { frames_per_ack: 128, ack_delay_ns: 25_000, midway_delay_ns: 1_000_000 }
    }
}

/// Records which packets of one link arrived, and when an acknowledgement is due.
///
/// Instead of the usual list of ranges, this is a ring of [`REPLAY_WINDOW_PACKETS`] bits, indexed
/// by packet number. Every function accesses one bit, or at worst each of the 16 words once, and a
/// peer cannot make the ring grow. `run_start` and `below_start` record runs that begin below the
/// window, so that `run` in an acknowledgement is exact.
///
/// Only packets that the engine has accepted may be acknowledged. Therefore call
/// [`ReceivedPackets::classify`] first. If the packet is new, place or hold its content, and only
/// then call [`ReceivedPackets::observe`].
#[derive(Clone, Debug)]
pub struct ReceivedPackets {
    /// Bit `n % 1024` shows whether packet n arrived, for n in `bottom..next`. If packet n does not
    /// exist yet, the bit is 0.
    window: [u64; WORDS],
    /// One more than the largest number that arrived; 0 before the first packet.
    next: u64,
    /// Every packet in `run_start..next` arrived. Packet `run_start - 1` did not arrive, or does
    /// not exist.
    run_start: u64,
    /// Every packet in `below_start..bottom` arrived. This value is at most `bottom`.
    below_start: u64,
    /// Lowest number that arrived since the last block was written; `u64::MAX` if no packet
    /// arrived.
    unreported: u64,
    /// Time at which the packet with the largest number arrived.
    largest_received_at: Instant,
    /// Time at which an acknowledgement becomes due; `NEVER` if this end has no packet to report.
    due_at: Instant,
    /// Number of packets that elicit an acknowledgement and arrived after this end wrote the last
    /// block.
    pending: u16,
    /// Number of new packets with a congestion mark, modulo 2^16.
    marked: u16,
    /// Time at which the first of the pending packets arrived.
    pending_since: Instant,
    /// Whether a gap in the packet numbers was found since the last block was written.
    gap_unreported: bool,
    /// Whether more packets of the same operation follow the last packet that elicited an
    /// acknowledgement.
    midway: bool,
    /// Whether a packet with `ack_now` arrived since the last block was written.
    asked: bool,
    /// The value set by [`ReceivedPackets::set_lossless`].
    is_lossless: bool,
    policy: AckPolicy,
}

const _: () = assert!(size_of::<ReceivedPackets>() <= 256);

crate::pack_fields!(ReceivedPackets {
    window,
    next,
    run_start,
    below_start,
    unreported,
    largest_received_at,
    due_at,
    pending,
    marked,
    pending_since,
    gap_unreported,
    midway,
    asked,
    is_lossless,
    policy,
});

impl ReceivedPackets {
    /// Creates the state before the first packet. The peer must number packets from 0.
    pub fn new(policy: AckPolicy) -> Self {
        let frames_per_ack = policy.frames_per_ack.clamp(1, FRAMES_PER_ACK_MAX);
        Self {
            window: [0; WORDS],
            next: 0,
            run_start: 0,
            below_start: 0,
            unreported: u64::MAX,
            largest_received_at: Instant::default(),
            due_at: Instant::NEVER,
            pending: 0,
            marked: 0,
            pending_since: Instant::default(),
            gap_unreported: false,
            midway: false,
            asked: false,
            is_lossless: false,
            policy: AckPolicy { frames_per_ack, ..policy },
        }
    }

    /// Treats all packets before `first` as received long ago. Meant for tests in which numbers
    /// wrap around. Call this before any packet arrives. The peer must also start at `first`.
    ///
    /// # Panics
    /// Panics if `first` is neither 0 nor above [`REPLAY_WINDOW_PACKETS`].
    pub fn begin_at(&mut self, first: u64) {
        if let Some(before) = first.checked_sub(1) {
            assert!(before >= REPLAY_WINDOW_PACKETS, "the window begins above 0");
            self.next = first;
            self.run_start = before;
            self.below_start = first - REPLAY_WINDOW_PACKETS;
            self.window[word_of(before)] |= bit_of(before);
        }
    }

    /// Sets whether the link loses no frames, like a link over shared memory. On such a link,
    /// acknowledgements may wait longer.
    pub const fn set_lossless(&mut self, is_lossless: bool) {
        self.is_lossless = is_lossless;
    }

    //= protocol.md: receive.8, ack.2, ack.4, ack.5
    /// Records the packet whose number has the low 32 bits `packet_wire`. Returns how this number
    /// compares with earlier numbers.
    ///
    /// `received_at` is the time at which the driver received the packet. If the packet elicits an
    /// acknowledgement, the acknowledgement of this link becomes due:
    /// * at once if the packet carries a congestion mark, is a duplicate, or arrives late;
    /// * at once if there is a gap in the packet numbers that no acknowledgement has reported;
    /// * if the packet carries `ack_now`: at once if more packets of its operation follow, and
    ///   after 8 µs if none follows;
    /// * at once if this is the last of [`AckPolicy::frames_per_ack`] packets;
    /// * otherwise after [`AckPolicy::midway_delay_ns`] if more packets of the operation follow,
    ///   and after [`AckPolicy::ack_delay_ns`] if none follows.
    ///
    /// An implausible packet changes no state.
    pub fn observe(
        &mut self,
        now: Instant,
        received_at: Instant,
        packet_wire: u32,
        congestion_experienced: bool,
        eliciting: Eliciting,
        ack_now: bool,
    ) -> Arrival {
        let arrival = self.classify(packet_wire);
        let mut at_once = congestion_experienced;
        match arrival {
            Arrival::New { packet, out_of_order } => {
                if out_of_order {
                    self.insert_late(packet.0);
                } else {
                    self.insert_largest(packet.0, received_at);
                }
                self.unreported = self.unreported.min(packet.0);
                self.marked = self.marked.wrapping_add(u16::from(congestion_experienced));
                at_once |= out_of_order;
            }
            Arrival::Duplicate | Arrival::TooOld => at_once = true,
            Arrival::Implausible => return arrival,
        }
        if eliciting != Eliciting::No {
            if self.pending == 0 {
                self.pending_since = now;
            }
            self.pending = self.pending.saturating_add(1);
            self.midway = eliciting == Eliciting::Midway;
            self.asked |= ack_now;
            at_once |= self.gap_unreported
                || self.pending >= self.policy.frames_per_ack
                || ack_now && self.midway;
            self.schedule(now, at_once, ack_now);
        }
        arrival
    }

    //= protocol.md: ack.6, ack.7
    /// Updates the time at which the acknowledgement is due, after the arrival of a packet that
    /// elicits an acknowledgement.
    fn schedule(&mut self, now: Instant, at_once: bool, ack_now: bool) {
        if at_once {
            self.due_at = self.due_at.min(now);
        } else if ack_now {
            self.due_at = self.due_at.min(now.after_ns(ANSWER_NS));
        } else if !self.midway {
            self.due_at = self.due_at.min(now.after_ns(u64::from(self.policy.ack_delay_ns)));
        } else if self.due_at > now && !self.asked {
            // More packets of this operation follow, and their acknowledgement also reports all
            // earlier packets. Therefore the acknowledgement may wait longer, even if the last
            // packet of an earlier operation had made it due sooner.
            self.due_at = self.pending_since.after_ns(u64::from(self.policy.midway_delay_ns));
        }
    }

    //= protocol.md: ack.1, ack.3
    /// Returns the block that acknowledges all packets received so far on `link`. After this call,
    /// this end has no packet left to report. Returns `None` if no packet has arrived yet.
    ///
    /// If a frame has room for the block, the caller may call this before the acknowledgement is
    /// due.
    pub fn write_block(&mut self, now: Instant, link: LinkIndex) -> Option<AckBlock> {
        let largest = self.largest()?;
        let run = (self.next - self.run_start).min(RUN_MAX);
        let mut block = AckBlock {
            link,
            marked: self.marked,
            delay: AckDelay::from_ns(now.since_ns(self.largest_received_at)),
            run: run as u16,
            largest: largest.truncate(),
            words: 0,
            bitmap: [0; ACK_BLOCK_WORDS_MAX],
        };
        if run < RUN_MAX && self.run_start >= 2 {
            block.words = self.fill_bitmap(self.run_start - 2, &mut block.bitmap);
        }
        self.pending = 0;
        self.asked = false;
        self.due_at = Instant::NEVER;
        self.gap_unreported = false;
        self.unreported = u64::MAX;
        Some(block)
    }

    //= protocol.md: packet.2, packet.3
    /// Returns the value that [`ReceivedPackets::observe`] would return for this packet now.
    pub fn classify(&self, packet_wire: u32) -> Arrival {
        let expected = self.next.saturating_sub(1);
        // The signed distance distinguishes numbers below 0 from numbers far ahead.
        let distance = i64::from(packet_wire.wrapping_sub(expected as u32).cast_signed());
        let Some(number) = expected.checked_add_signed(distance) else {
            return Arrival::Implausible;
        };
        let packet = PacketNumber(number);
        if number >= self.next {
            if number - self.next > JUMP_PACKETS_MAX {
                return Arrival::Implausible;
            }
            Arrival::New { packet, out_of_order: false }
        } else if number < self.bottom() {
            Arrival::TooOld
        } else if self.holds(number) {
            Arrival::Duplicate
        } else {
            Arrival::New { packet, out_of_order: true }
        }
    }

    /// Returns whether an acknowledgement must be sent now.
    pub fn acknowledgement_due(&self, now: Instant) -> bool {
        self.due_at <= now
    }

    /// Returns the time at which an acknowledgement must be sent, or [`Instant::NEVER`] if this end
    /// has no packet to report.
    pub const fn deadline(&self) -> Instant {
        self.due_at
    }

    /// Returns whether a data frame with room should carry the acknowledgement. If there are
    /// packets that this end has to report, the result is true in each of these cases:
    ///
    /// * The acknowledgement is due.
    /// * No more packets of the operation follow.
    /// * The sender asked for the acknowledgement.
    /// * The acknowledgement covers so many packets that it is worth its bytes.
    ///
    /// On a link that loses no frames, the second and the third case count only if the
    /// acknowledgement is due within half of [`AckPolicy::ack_delay_ns`].
    #[inline]
    pub fn acknowledgement_rides(&self, now: Instant) -> bool {
        if self.pending == 0 {
            return false;
        }
        let half_ns = u64::from(self.policy.ack_delay_ns / 2);
        let waits = self.is_lossless && self.due_at > now.after_ns(half_ns);
        !(self.midway && !self.asked || waits) || self.pending >= RIDE_PACKETS || self.due_at <= now
    }

    /// Returns whether a frame that reports deliveries should also acknowledge packets. On a link
    /// that loses no frames, returns the same as [`Self::acknowledgement_rides`]. On other links,
    /// returns true if there are packets that this end has to report.
    #[inline]
    pub fn acknowledgement_joins(&self, now: Instant) -> bool {
        if self.is_lossless { self.acknowledgement_rides(now) } else { self.acknowledgement_owed() }
    }

    /// Returns whether this end has packets to report on a link that loses no frames. On such a
    /// link, [`Self::acknowledgement_rides`] often makes an acknowledgement wait. But if this end
    /// has deliveries or credits to report, the next data frame should carry the acknowledgement,
    /// because every acknowledgement also reports deliveries and credits.
    #[inline]
    pub const fn is_held_back(&self) -> bool {
        self.is_lossless && self.pending > 0
    }

    /// Returns whether this end should send an acknowledgement before the thread sleeps. This is
    /// the case if two conditions hold. First, there are packets that this end has to report.
    /// Second, the sender asked for an acknowledgement, or no more packets of the operation follow.
    pub const fn acknowledgement_is_last(&self) -> bool {
        self.pending > 0 && (self.asked || !self.midway)
    }

    /// Returns whether there are packets that this end has to report: they elicit an
    /// acknowledgement, and no block has reported them yet.
    pub const fn acknowledgement_owed(&self) -> bool {
        self.pending > 0
    }

    /// Returns whether this end has no packet to report, and no acknowledgement is due.
    pub fn is_at_rest(&self) -> bool {
        self.pending == 0 && self.due_at == Instant::NEVER
    }

    /// Returns the largest number that arrived; `None` if no packet has arrived.
    pub const fn largest(&self) -> Option<PacketNumber> {
        match self.next.checked_sub(1) {
            Some(number) => Some(PacketNumber(number)),
            None => None,
        }
    }

    /// Moves the window so that `number` is the last number in it. `number` must be at least
    /// `next`.
    fn insert_largest(&mut self, number: u64, received_at: Instant) {
        if number > self.next {
            self.gap_unreported = true;
            self.run_start = number;
        }
        if number - self.next >= REPLAY_WINDOW_PACKETS {
            self.window = [0; WORDS];
            // The jump is longer than the window, so the number directly below the new window never
            // arrived.
            self.below_start = number + 1 - REPLAY_WINDOW_PACKETS;
        } else {
            self.recycle(self.next, number);
        }
        self.next = number + 1;
        self.window[word_of(number)] |= bit_of(number);
        self.largest_received_at = received_at;
    }

    /// Records `number`, which is in the window and did not arrive before.
    fn insert_late(&mut self, number: u64) {
        self.window[word_of(number)] |= bit_of(number);
        if number + 1 == self.run_start {
            self.run_start = self.start_of_run_ending_at(number);
        }
    }

    /// Clears the bits of the numbers `first..=last`, which are about to enter the window. These
    /// bits still belong to the numbers that are smaller by one window and now leave the window.
    /// Therefore this function first updates `below_start` from the bits.
    fn recycle(&mut self, first: u64, last: u64) {
        let mut number = first;
        while number <= last {
            let word_last = (number | 63).min(last);
            let mask = bits_between(number, word_last);
            let word = &mut self.window[word_of(number)];
            let missing = !*word & mask;
            *word &= !mask;
            // A word holds 64 numbers, and 64 divides 1024. Therefore the numbers of a word are
            // either all in the first window or all above it.
            if missing != 0 && number >= REPLAY_WINDOW_PACKETS {
                let highest_missing = (number & !63) + u64::from(missing.ilog2());
                self.below_start = highest_missing + 1 - REPLAY_WINDOW_PACKETS;
            }
            number = word_last + 1;
        }
        self.below_start = self.below_start.min((last + 1).saturating_sub(REPLAY_WINDOW_PACKETS));
    }

    fn start_of_run_ending_at(&self, last: u64) -> u64 {
        let bottom = self.bottom();
        let mut start = last + 1;
        while start > bottom {
            let number = start - 1;
            let bit = (number % 64) as u32;
            let ones = (self.window[word_of(number)] << (63 - bit)).leading_ones();
            start -= u64::from(ones);
            if ones <= bit {
                break;
            }
        }
        // The word may contain both ends of the window. In this case, its bits below `bottom`
        // belong to newer numbers.
        if start <= bottom { self.below_start } else { start }
    }

    /// Writes into `bitmap` which of the numbers from `top` downwards arrived, `top` first. Returns
    /// the number of words used.
    ///
    /// The words report at least the [`REPORTED_PACKETS`] numbers below the largest. So several
    /// acknowledgements report each arrival, and the loss of one acknowledgement does no harm. If a
    /// late arrival below these numbers was not reported yet, the words reach down to it.
    fn fill_bitmap(&self, top: u64, bitmap: &mut [u64; ACK_BLOCK_WORDS_MAX]) -> u8 {
        let lowest = self.unreported.min(self.next.saturating_sub(REPORTED_PACKETS));
        let lowest = lowest.max(self.bottom());
        if top < lowest {
            return 0;
        }
        let wanted = (top - lowest) / 64 + 1;
        let mut used = 0;
        for (index, word) in bitmap.iter_mut().enumerate().take(wanted.min(WORDS_SENT_MAX) as usize)
        {
            *word = self.word_down_from(top - 64 * index as u64);
            if *word != 0 {
                used = index as u8 + 1;
            }
        }
        used
    }

    /// Returns a word whose bit i shows whether number `top - i` arrived. Numbers below the window
    /// count as missing.
    fn word_down_from(&self, top: u64) -> u64 {
        // If `top` is less than 63, `low` wraps around. The numbers from `low` to 2^64 - 1 then map
        // to bits of the window, because 2^64 is a multiple of the size of the window. The mask
        // clears these bits.
        let low = top.wrapping_sub(63);
        let shift = (low % 64) as u32;
        let mut word = self.window[word_of(low)] >> shift;
        if shift > 0 {
            word |= self.window[word_of(top)] << (64 - shift);
        }
        let in_window = top - self.bottom() + 1;
        let mask = if in_window >= 64 { u64::MAX } else { (1 << in_window) - 1 };
        word.reverse_bits() & mask
    }

    const fn holds(&self, number: u64) -> bool {
        self.window[word_of(number)] & bit_of(number) != 0
    }

    /// Returns the lowest number in the window.
    const fn bottom(&self) -> u64 {
        self.next.saturating_sub(REPLAY_WINDOW_PACKETS)
    }
}

impl Default for ReceivedPackets {
    fn default() -> Self {
        Self::new(AckPolicy::default())
    }
}

const fn word_of(number: u64) -> usize {
    (number / 64 % WORDS as u64) as usize
}

const fn bit_of(number: u64) -> u64 {
    1 << (number % 64)
}

/// Returns the bits of the numbers `first..=last`. These numbers must be in the same word.
const fn bits_between(first: u64, last: u64) -> u64 {
    (u64::MAX << (first % 64)) & (u64::MAX >> (63 - last % 64))
}

/// Number of packet numbers below the largest one for which the receiver remembers whether the
/// packet arrived. The memory is 128 bytes for each link. Links deliver frames in order. If a
/// packet is even further behind, its sender has long ago declared it lost and retransmitted its
/// content.
pub const REPLAY_WINDOW_PACKETS: u64 = 1024;

/// Largest distance by which a packet number may exceed the next expected number. A peer can have
/// at most 2^32 bytes in flight, because this is the largest size of a receive buffer. 2^32 bytes
/// fill 2^20 frames of 4 KiB. The value is far below 2^31, above which the 32 bits of a number
/// would be ambiguous.
pub const JUMP_PACKETS_MAX: u64 = 1 << 20;

/// Number of acknowledged packets from which on a data frame carries the acknowledgement. The 24
/// bytes of the acknowledgement are then 1.5 bytes for each packet.
const RIDE_PACKETS: u16 = 16;

/// Nanoseconds that a requested acknowledgement waits for the application to post an answer,
/// because the frame of the answer can carry the acknowledgement. On two small processors, a
/// polling program needs up to 6 µs to answer. A separate frame costs the two hosts about as much
/// time.
const ANSWER_NS: u64 = 8_000;

/// Largest `frames_per_ack`. It is half of [`REPORTED_PACKETS`], so that every arrival is reported
/// at least twice.
const FRAMES_PER_ACK_MAX: u16 = 128;

/// Number of packet numbers below the largest that each acknowledgement reports. If the receiver
/// sends one acknowledgement for 64 packets, four acknowledgements report each packet.
const REPORTED_PACKETS: u64 = 256;

/// Largest number of bitmap words in an acknowledgement. These words have bits for
/// [`REPORTED_PACKETS`] numbers.
const WORDS_SENT_MAX: u64 = REPORTED_PACKETS / 64;

const _: () = assert!(WORDS_SENT_MAX <= ACK_BLOCK_WORDS_MAX as u64);

/// Largest run of a block. The field has 16 bits.
const RUN_MAX: u64 = u16::MAX as u64;

const WORDS: usize = (REPLAY_WINDOW_PACKETS / 64) as usize;

#[cfg(test)]
mod tests;
