//! The receiving half of one link of one connection: which packets arrived, which are duplicates,
//! and when to acknowledge them (protocol.md §6.1, §6.2).

use wire_edge::{ACK_BLOCK_WORDS_MAX, AckBlock, AckDelay, LinkIndex, PacketNumber};

use crate::Instant;

/// Whether a packet asks for an acknowledgement (`docs/protocol.md`, 1.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Eliciting {
    /// The packet asks for an acknowledgement.
    Yes,
    /// The packet asks for an acknowledgement, and more packets of its operation follow. The sender
    /// sets `ack_now` on one of those when it wants an acknowledgement soon.
    Midway,
    /// The packet asks for none: if acknowledgements were acknowledged, two idle ends would
    /// exchange them forever.
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

/// How a received packet number compares with the numbers received before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// The packet arrived for the first time.
    New {
        /// The full packet number.
        packet: PacketNumber,
        /// Whether a packet of the link with a larger number arrived before it.
        out_of_order: bool,
    },
    /// The packet arrived before.
    Duplicate,
    /// Too far below the largest number: the receiver no longer remembers whether it arrived.
    TooOld,
    /// Further ahead than a peer that keeps to its window can be, or below number 0.
    Implausible,
}

/// When to send acknowledgements.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AckPolicy {
    /// Packets that ask for an acknowledgement until one is due at once, 1 to 128.
    pub frames_per_ack: u16,
    /// Longest time that an acknowledgement waits for more packets or for a data frame to ride on,
    /// in nanoseconds, after the last packet of an operation.
    pub ack_delay_ns: u32,
    /// Longest wait of an acknowledgement while more packets of the operation follow, in
    /// nanoseconds.
    pub midway_delay_ns: u32,
}

crate::setters!(AckPolicy { frames_per_ack: u16, ack_delay_ns: u32, midway_delay_ns: u32 });

crate::pack_fields!(AckPolicy { frames_per_ack, ack_delay_ns, midway_delay_ns });

impl AckPolicy {
    //= protocol.md: ack.7
    /// Returns the delay announced to the peer as `ack_delay_max_ns`, in nanoseconds.
    pub fn delay_max_ns(&self) -> u32 {
        self.ack_delay_ns.max(self.midway_delay_ns)
    }
}

impl Default for AckPolicy {
    fn default() -> Self {
        Self { frames_per_ack: 128, ack_delay_ns: 25_000, midway_delay_ns: 1_000_000 }
    }
}

/// Which packets of one link arrived, and when an acknowledgement is due.
///
/// A ring of [`REPLAY_WINDOW_PACKETS`] bits, indexed by packet number, replaces the usual list of
/// ranges. Every operation touches one bit, or at worst each of the 16 words once, and a peer
/// cannot make the ring grow. `run_start` and `below_start` remember runs that reach below the
/// window, so that `run` in an acknowledgement is exact.
///
/// An acknowledged packet is one that the engine has accepted. Call [`ReceivedPackets::classify`]
/// first, and [`ReceivedPackets::observe`] only once the content of a new packet is placed or held.
#[derive(Clone, Debug)]
pub struct ReceivedPackets {
    /// Bit `n % 1024` says whether packet n arrived, for n in `bottom..next`. Bits of numbers that
    /// do not exist yet are 0.
    window: [u64; WORDS],
    /// One more than the largest number that arrived; 0 before the first packet.
    next: u64,
    /// Every packet in `run_start..next` arrived. Packet `run_start - 1` did not, or is no number.
    run_start: u64,
    /// Every packet in `below_start..bottom` arrived; at most `bottom`.
    below_start: u64,
    /// Lowest number that arrived since the last block was written; `u64::MAX` if there is none.
    unreported: u64,
    /// When the packet with the largest number arrived.
    largest_received_at: Instant,
    /// When an acknowledgement becomes due; `NEVER` if none is owed.
    due_at: Instant,
    /// Packets since the last block was written that ask for an acknowledgement.
    pending: u16,
    /// New packets with a congestion mark, modulo 2^16.
    marked: u16,
    /// When the first of the pending packets arrived.
    pending_since: Instant,
    /// Whether a gap was found since the last block was written.
    gap_unreported: bool,
    /// Whether more packets of its operation follow the last packet that asked for an
    /// acknowledgement.
    midway: bool,
    /// Whether a packet with `ack_now` arrived since the last block was written.
    asked: bool,
    /// See [`ReceivedPackets::set_lossless`].
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
    /// Creates the state before the first packet; the peer numbers packets from 0.
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

    /// Treats all packets before `first` as received long ago, for tests in which numbers wrap
    /// around. Call it before any packet arrives; the peer must start at `first` as well.
    ///
    /// # Panics
    /// If `first` is neither 0 nor above [`REPLAY_WINDOW_PACKETS`].
    pub fn begin_at(&mut self, first: u64) {
        if let Some(before) = first.checked_sub(1) {
            assert!(before >= REPLAY_WINDOW_PACKETS, "the window begins above 0");
            self.next = first;
            self.run_start = before;
            self.below_start = first - REPLAY_WINDOW_PACKETS;
            self.window[word_of(before)] |= bit_of(before);
        }
    }

    /// Sets whether the link loses no frames, as links over shared memory do. On such a link
    /// acknowledgements may wait longer.
    pub const fn set_lossless(&mut self, is_lossless: bool) {
        self.is_lossless = is_lossless;
    }

    //= protocol.md: receive.8, ack.2, ack.4, ack.5
    /// Records the packet with `packet_wire` as the low 32 bits of its number, and returns how it
    /// compares with earlier ones.
    ///
    /// `received_at` is when the driver received the packet. If the packet asks for an
    /// acknowledgement, one becomes due
    /// * at once if the packet carries a congestion mark, is a duplicate or arrives late, or if a
    ///   gap was found that no acknowledgement has reported;
    /// * at once if it carries `ack_now` and more of its operation follows, and after 8 µs if none
    ///   follows;
    /// * with the last of [`AckPolicy::frames_per_ack`] packets;
    /// * otherwise after [`AckPolicy::ack_delay_ns`], or [`AckPolicy::midway_delay_ns`] while more
    ///   of the operation follows.
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
    /// Updates when the acknowledgement is due, after a packet that asks for one.
    fn schedule(&mut self, now: Instant, at_once: bool, ack_now: bool) {
        if at_once {
            self.due_at = self.due_at.min(now);
        } else if ack_now {
            self.due_at = self.due_at.min(now.after_ns(ANSWER_NS));
        } else if !self.midway {
            self.due_at = self.due_at.min(now.after_ns(u64::from(self.policy.ack_delay_ns)));
        } else if self.due_at > now && !self.asked {
            // The end of an earlier operation need not be reported soon, because more packets
            // follow.
            self.due_at = self.pending_since.after_ns(u64::from(self.policy.midway_delay_ns));
        }
    }

    //= protocol.md: ack.1, ack.3
    /// Returns the block that acknowledges all packets received so far on `link`, after which no
    /// acknowledgement is owed. Returns `None` if no packet has arrived yet.
    ///
    /// May be called before the acknowledgement is due, whenever a frame has room for the block.
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
    /// Returns what [`ReceivedPackets::observe`] would return for this packet now.
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

    /// Returns when an acknowledgement must be sent, or [`Instant::NEVER`] if none is owed.
    pub const fn deadline(&self) -> Instant {
        self.due_at
    }

    /// Returns whether a data frame with room should carry the acknowledgement: it is due, or no
    /// more of the operation follows, or one was asked for, or it covers so many packets that it is
    /// worth its bytes.
    ///
    /// On a link that loses no frames it waits until half of [`AckPolicy::ack_delay_ns`] has
    /// passed.
    #[inline]
    pub fn acknowledgement_rides(&self, now: Instant) -> bool {
        if self.pending == 0 {
            return false;
        }
        let half_ns = u64::from(self.policy.ack_delay_ns / 2);
        let waits = self.is_lossless && self.due_at > now.after_ns(half_ns);
        !(self.midway && !self.asked || waits) || self.pending >= RIDE_PACKETS || self.due_at <= now
    }

    /// Returns whether a frame that reports deliveries should acknowledge packets as well. On a
    /// link that loses no frames the answer is that of [`Self::acknowledgement_rides`]; on others
    /// every owed acknowledgement joins.
    #[inline]
    pub fn acknowledgement_joins(&self, now: Instant) -> bool {
        if self.is_lossless { self.acknowledgement_rides(now) } else { self.acknowledgement_owed() }
    }

    /// Returns whether an acknowledgement is owed that may wait while deliveries are reported at
    /// once.
    #[inline]
    pub const fn is_held_back(&self) -> bool {
        self.is_lossless && self.pending > 0
    }

    /// Returns whether an acknowledgement is owed that should be sent before the thread sleeps: the
    /// sender asked for it, or no more packets of the operation follow.
    pub const fn acknowledgement_is_last(&self) -> bool {
        self.pending > 0 && (self.asked || !self.midway)
    }

    /// Returns whether packets that ask for an acknowledgement arrived since the last block was
    /// written.
    pub const fn acknowledgement_owed(&self) -> bool {
        self.pending > 0
    }

    /// Returns whether no acknowledgement is owed or due.
    pub fn is_at_rest(&self) -> bool {
        self.pending == 0 && self.due_at == Instant::NEVER
    }

    /// Returns the largest number that arrived.
    pub const fn largest(&self) -> Option<PacketNumber> {
        match self.next.checked_sub(1) {
            Some(number) => Some(PacketNumber(number)),
            None => None,
        }
    }

    /// Moves the window so that it ends with `number`, which is at least `next`.
    fn insert_largest(&mut self, number: u64, received_at: Instant) {
        if number > self.next {
            self.gap_unreported = true;
            self.run_start = number;
        }
        if number - self.next >= REPLAY_WINDOW_PACKETS {
            self.window = [0; WORDS];
            // The number just below the new window never arrived.
            self.below_start = number + 1 - REPLAY_WINDOW_PACKETS;
        } else {
            self.recycle(self.next, number);
        }
        self.next = number + 1;
        self.window[word_of(number)] |= bit_of(number);
        self.largest_received_at = received_at;
    }

    /// Records `number`, which lies in the window and did not arrive before.
    fn insert_late(&mut self, number: u64) {
        self.window[word_of(number)] |= bit_of(number);
        if number + 1 == self.run_start {
            self.run_start = self.start_of_run_ending_at(number);
        }
    }

    /// Clears the bits of the numbers `first..=last`, which are about to enter the window. Those
    /// bits belong to the numbers one window below, which leave it: updates `below_start` from them
    /// first.
    fn recycle(&mut self, first: u64, last: u64) {
        let mut number = first;
        while number <= last {
            let word_last = (number | 63).min(last);
            let mask = bits_between(number, word_last);
            let word = &mut self.window[word_of(number)];
            let missing = !*word & mask;
            *word &= !mask;
            // A word lies wholly above or wholly below the first window: 64 divides 1024.
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
        // The word may contain both ends of the window; its bits below `bottom` then belong to
        // newer numbers.
        if start <= bottom { self.below_start } else { start }
    }

    /// Writes the arrivals of `top` and below into `bitmap`, `top` first. Returns the number of
    /// words used.
    ///
    /// The words reach down to the lowest number that the peer may not know: late arrivals, and the
    /// [`REPORTED_PACKETS`] numbers below the largest. Several acknowledgements report the latter,
    /// so that one may be lost.
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

    /// Returns a word whose bit i says whether `top - i` arrived. Numbers below the window count as
    /// missing.
    fn word_down_from(&self, top: u64) -> u64 {
        // 2^64 is a multiple of the window, so numbers below 0 map to slots as well; the mask
        // removes them.
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

/// Returns the bits of the numbers `first..=last`, which share a word.
const fn bits_between(first: u64, last: u64) -> u64 {
    (u64::MAX << (first % 64)) & (u64::MAX >> (63 - last % 64))
}

/// Numbers below the largest whose arrival is remembered: 128 bytes for each link. Links keep
/// order, so a packet that arrives later than this was declared lost and retransmitted long ago.
pub const REPLAY_WINDOW_PACKETS: u64 = 1024;

/// Largest gap accepted. A peer can fill at most 2^32 bytes of receive buffer, so with frames of 4
/// KiB it is never further ahead. The value is far below the 2^31 at which numbers become
/// ambiguous.
pub const JUMP_PACKETS_MAX: u64 = 1 << 20;

/// Packets that justify the 24 bytes of an acknowledgement in a data frame: 1.5 bytes each.
const RIDE_PACKETS: u16 = 16;

/// How long an acknowledgement that was asked for waits for an answer of the application to ride
/// on, in nanoseconds. On two small processors a program that polls needs up to 6 µs to answer, and
/// a separate frame costs the two hosts as much.
const ANSWER_NS: u64 = 8_000;

/// Largest `frames_per_ack`: half of [`REPORTED_PACKETS`], so that every arrival is reported at
/// least twice.
const FRAMES_PER_ACK_MAX: u16 = 128;

/// Numbers below the largest that each acknowledgement reports. With one acknowledgement in 64
/// packets, four acknowledgements report each packet.
const REPORTED_PACKETS: u64 = 256;

/// Bitmap words written at most: enough for [`REPORTED_PACKETS`].
const WORDS_SENT_MAX: u64 = REPORTED_PACKETS / 64;

const _: () = assert!(WORDS_SENT_MAX <= ACK_BLOCK_WORDS_MAX as u64);

/// Largest run of a block: the field has 16 bits.
const RUN_MAX: u64 = u16::MAX as u64;

const WORDS: usize = (REPLAY_WINDOW_PACKETS / 64) as usize;

#[cfg(test)]
mod tests;
