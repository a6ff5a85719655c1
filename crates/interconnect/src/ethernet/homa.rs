//! Homa, a receiver-driven transport: Montazeri, Li, Alizadeh, Ousterhout, "Homa: a receiver-driven
//! low-latency transport protocol using network priorities", SIGCOMM 2018.
//!
//! A sender transmits the first bytes of a message immediately: as many bytes as fit in a round
//! trip. It transmits the other bytes when the receiver grants them. A receiver grants bytes of the
//! messages with the fewest remaining bytes. The receiver grants bytes of several messages at the
//! same time, because a sender may be busy with another receiver. Switches send the frames of short
//! messages first. The receiver requests retransmissions. If all frames of a message are lost, the
//! receiver does not know the message. After a timeout, the sender therefore retransmits the first
//! frame. There are no connections.
//!
//! The paper counts bytes; this model counts whole frames. Hosts order messages by hosts and
//! message numbers, never by indices of tables. A divided network therefore has the same result as
//! an undivided network.

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
    /// `RTTbytes`, 1 or more: number of bytes of a message that need no grant. Also the maximum
    /// number of granted bytes in flight per message.
    pub rtt_bytes: u32,
    /// Maximum number of messages for which a receiver grants frames at the same time, 1 or more.
    pub overcommitment: u32,
    /// Number of classes for frames that need no grant, counted from class 0; 1 or more. Granted
    /// frames use the classes after these. If there is only one class, all frames use it.
    pub unscheduled_classes: u8,
    /// For each class of `unscheduled_classes` except the last, the length of the longest message
    /// of the class, in bytes.
    pub cutoff_bytes: [u32; CUTOFFS_MAX],
    /// Percentage of the grants that a receiver reserves for its oldest message.
    pub oldest_percent: u32,
    /// Payload of grants and other control packets, in bytes. Their frames have the length of data
    /// frames with this payload.
    pub ack_bytes: u32,
    /// Time after the last frame of an incomplete message at which the receiver requests
    /// retransmissions, in picoseconds. Each consecutive timeout doubles this time.
    pub timeout_ps: u64,
    /// Random losses, in frames per million.
    pub loss_ppm: u32,
}

/// Number of cutoffs if all classes are used: one between each two neighbouring classes.
pub const CUTOFFS_MAX: usize = super::CLASSES_MAX as usize - 1;

/// Identifies a message at one of its two hosts. Contains the other host, and the number of the
/// message among all messages from its source to its destination.
type Key = (u32, u32);

/// Homa header of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// Source and destination of the message.
    source: u32,
    destination: u32,
    /// Number of the message among the messages from this source to this destination.
    number: u32,
    /// In a data frame, the number of the frame. In a request for retransmission, the first missing
    /// frame.
    frame: u32,
    /// In a data frame, the number of frames of the message. In other packets, the number of the
    /// first frame that the sender may not send yet.
    until: u32,
    /// Number of this transmission, counted per message and direction.
    transmission: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Data,
    /// Grants further frames. The sender must send these frames in the class `class`.
    Grant {
        class: u8,
    },
    /// Requests `frames` frames, starting with the first missing frame.
    Resend {
        frames: u32,
    },
    /// Reports that the message is complete.
    Done,
}

const _: () = assert!(size_of::<Packet>() <= 32);

/// The transport of all hosts of a network, or of all hosts in one part of a divided network.
#[derive(Clone, Debug)]
pub(super) struct Homa {
    configuration: HomaConfiguration,
    /// Maximum number of frames of a message that need no grant.
    rtt_frames: u32,
    classes: u8,
    hosts: Vec<HomaHost>,
    /// For each source and destination, the number of messages sent so far.
    numbers: BTreeMap<(u32, u32), u32>,
    /// Homa header of each frame.
    packets: Vec<Packet>,
    counts: TransportCounts,
}

/// The messages that a host sends and receives.
#[derive(Clone, Debug)]
struct HomaHost {
    sender: Sender,
    receiver: Receiver,
    /// Times at which the host checks messages for timeouts. The check of a message is never later
    /// than the time at which the message times out. Each entry has the time, whether this host is
    /// the sender of the message, and the message.
    timers: BTreeSet<(u64, bool, Key)>,
    /// Time of the scheduled check; [`u64::MAX`] if none is scheduled.
    timer_ps: u64,
    /// Time of the scheduled event that sends the next data frame; [`u64::MAX`] if none is
    /// scheduled.
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

    /// Adds the counters of another part of a divided network.
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

    /// Returns the timeout of a message after `backoff` consecutive timeouts, in picoseconds.
    const fn timeout_ps(&self, backoff: u32) -> u64 {
        let shift = if backoff > BACKOFF_MAX { BACKOFF_MAX } else { backoff };
        self.configuration.timeout_ps << shift
    }
}

/// Maximum number of doublings. With 12 doublings, a timeout of a second becomes about an hour.
const BACKOFF_MAX: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame has 1000 bytes of payload. Three frames of a message need no grant and use two
    /// classes.
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
    fn message_classes_follow_the_cutoffs() {
        let class =
            |classes, bytes| Homa::new(CONFIGURATION, (2, classes), 1_000).unscheduled_class(bytes);
        assert_eq!(
            [class(4, 0), class(4, 1_000), class(4, 1_001), class(4, u32::MAX)],
            [0, 0, 1, 1]
        );
        assert_eq!([class(1, 0), class(1, u32::MAX)], [0, 0]);
    }
}
