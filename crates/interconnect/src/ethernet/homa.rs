//! Homa, a receiver-driven transport: Montazeri, Li, Alizadeh, Ousterhout, "Homa: a receiver-driven
//! low-latency transport protocol using network priorities", SIGCOMM 2018.
//!
//! A sender transmits the first bytes of a message at once, as many as fit in a round trip. It
//! transmits the rest when the receiver grants it. A receiver grants the messages with the fewest
//! bytes left. It grants several at a time, because a sender may be busy with another receiver.
//! Switches serve the frames of short messages first. The receiver requests retransmissions. If all
//! frames of a message were lost, the sender retransmits the first one after a timeout. There are
//! no connections.
//!
//! This model counts whole frames where the paper counts bytes. All orders depend on hosts and
//! numbers of messages, not on indices of tables, so that a divided network has the same result.

mod hosts;
mod incoming;
mod outgoing;

use std::collections::{BTreeMap, BTreeSet};

use super::transport::TransportCounts;
use incoming::Receiver;
use outgoing::Sender;

/// Parameters of Homa.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HomaConfiguration {
    /// `RTTbytes`: number of bytes of a message that need no grant, and the maximum of granted
    /// bytes in flight per message. 1 or more.
    pub rtt_bytes: u32,
    /// Maximum number of messages that a receiver grants at a time, 1 or more.
    pub overcommitment: u32,
    /// Number of classes for frames that need no grant, from the first class; 1 or more. Granted
    /// frames use the other classes. With a single class, all frames use it.
    pub unscheduled_classes: u8,
    /// Maximum length of messages in each of these classes but the last, in bytes.
    pub cutoff_bytes: [u32; CUTOFFS_MAX],
    /// Share of the grants for the oldest message of a receiver, in percent.
    pub oldest_percent: u32,
    /// Payload of grants and other control packets. Their frames are as long as data frames with
    /// this payload.
    pub ack_bytes: u32,
    /// Time without a frame of a message after which the receiver requests retransmissions, in
    /// picoseconds. Doubles with each timeout in a row.
    pub timeout_ps: u64,
    /// Frames lost at random, per million.
    pub loss_ppm: u32,
}

/// Number of cutoffs between the maximum number of classes.
pub const CUTOFFS_MAX: usize = super::CLASSES_MAX as usize - 1;

/// Identifies a message at one of its hosts: the other host, and the number of the message from the
/// source to the destination.
type Key = (u32, u32);

/// Homa header of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// Source and destination of the message.
    source: u32,
    destination: u32,
    /// Number of the message from this source to this destination.
    number: u32,
    /// Number of the data frame, or of the first missing frame.
    frame: u32,
    /// In a data frame, the number of frames of the message. In other packets, frames before this
    /// one are granted.
    until: u32,
    /// Number of the transmission, per message and direction.
    transmission: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Data,
    /// Grants further frames, in this class.
    Grant {
        class: u8,
    },
    /// Requests `frames` frames from the first missing one on.
    Resend {
        frames: u32,
    },
    /// The message is complete.
    Done,
}

const _: () = assert!(size_of::<Packet>() <= 32);

/// The transport of all hosts of a network, or of one part of it.
#[derive(Clone, Debug)]
pub(super) struct Homa {
    configuration: HomaConfiguration,
    /// Maximum number of frames that need no grant, and number of classes.
    rtt_frames: u32,
    classes: u8,
    hosts: Vec<HomaHost>,
    /// Number of messages so far from each source to each destination.
    numbers: BTreeMap<(u32, u32), u32>,
    /// Homa header of each frame.
    packets: Vec<Packet>,
    counts: TransportCounts,
}

/// Messages that a host sends and receives.
#[derive(Clone, Debug)]
struct HomaHost {
    sender: Sender,
    receiver: Receiver,
    /// Times at which deadlines of messages are checked, never later than the deadline: time,
    /// whether this host sends the message, message.
    timers: BTreeSet<(u64, bool, Key)>,
    /// Time of the event for the first timer; [`u64::MAX`] if none is scheduled.
    timer_ps: u64,
    /// Time of the event that sends the next data frame; [`u64::MAX`] if none is scheduled.
    pull_ps: u64,
}

impl Homa {
    pub(super) fn new(
        configuration: HomaConfiguration,
        (hosts, classes): (u32, u8),
        mtu_bytes: u32,
    ) -> Self {
        let rtt_frames = configuration.rtt_bytes.div_ceil(mtu_bytes.max(1)).max(1);
        let host = HomaHost {
            sender: Sender::default(),
            receiver: Receiver::new(&configuration, rtt_frames, classes.max(1)),
            timers: BTreeSet::new(),
            timer_ps: u64::MAX,
            pull_ps: u64::MAX,
        };
        Self {
            configuration,
            rtt_frames,
            classes: classes.max(1),
            hosts: vec![host; hosts as usize],
            numbers: BTreeMap::new(),
            packets: Vec::new(),
            counts: TransportCounts::of_receivers(),
        }
    }

    /// Returns the counters.
    pub(super) const fn counts(&self) -> &TransportCounts {
        &self.counts
    }

    /// Adds the counters of another part.
    pub(super) fn merge(&mut self, part: &Self) {
        self.counts.merge(&part.counts);
    }

    /// Returns the Homa header of a frame.
    pub(super) fn packet(&self, frame: u32) -> Packet {
        self.packets[frame as usize]
    }

    /// Stores the Homa header of a frame.
    pub(super) fn set_packet(&mut self, frame: u32, packet: Packet) {
        if self.packets.len() <= frame as usize {
            self.packets.resize(frame as usize + 1, packet);
        }
        self.packets[frame as usize] = packet;
    }

    /// Returns the class of frames that need no grant, for a message of `bytes` bytes.
    fn unscheduled_class(&self, bytes: u32) -> u8 {
        let HomaConfiguration { unscheduled_classes, cutoff_bytes, .. } = self.configuration;
        let last = unscheduled_classes.clamp(1, self.classes) - 1;
        let cutoffs = cutoff_bytes.iter().take(last.into());
        cutoffs.filter(|&&most| bytes > most).count() as u8
    }

    /// Returns the timeout of a message after `backoff` timeouts in a row, in picoseconds.
    const fn timeout_ps(&self, backoff: u32) -> u64 {
        let shift = if backoff > BACKOFF_MAX { BACKOFF_MAX } else { backoff };
        self.configuration.timeout_ps << shift
    }
}

/// Maximum number of doublings: a timeout of a second becomes about an hour.
const BACKOFF_MAX: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    /// With frames of 1000 bytes, three frames need no grant, and they have two classes.
    pub(super) const CONFIGURATION: HomaConfiguration = HomaConfiguration {
        rtt_bytes: 2_500,
        overcommitment: 2,
        unscheduled_classes: 2,
        cutoff_bytes: [1_000, 0, 0, 0, 0, 0, 0],
        oldest_percent: 0,
        ack_bytes: 40,
        timeout_ps: 1_000,
        loss_ppm: 0,
    };

    #[test]
    fn classes_of_messages_are_those_of_cutoffs() {
        let class =
            |classes, bytes| Homa::new(CONFIGURATION, (2, classes), 1_000).unscheduled_class(bytes);
        assert_eq!(
            [class(4, 0), class(4, 1_000), class(4, 1_001), class(4, u32::MAX)],
            [0, 0, 1, 1]
        );
        assert_eq!([class(1, 0), class(1, u32::MAX)], [0, 0]);
    }
}
