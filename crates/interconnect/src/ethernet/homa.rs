//! Homa, a transport that receivers drive: Montazeri, Li, Alizadeh, Ousterhout, "Homa: a receiver-driven
//! low-latency transport protocol using network priorities", SIGCOMM 2018.
//!
//! A sender sends the first bytes of a message at once, as many as a round trip has room for, and the rest
//! when its receiver grants it. A receiver grants to the messages that have the fewest bytes left, to several at
//! a time, as some senders are busy with others. Priorities of frames put short messages first at the
//! switches. What is lost is asked for again by the receiver; if it has not heard of a message at all, the
//! sender sends its first frame again. There is no connection: each message is on its own.
//!
//! Frames count where the paper counts bytes. Nothing that decides depends on how a network is divided.

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
    /// What a sender sends of a message without a grant, and what is granted and not there: what a
    /// cable of a host carries in a round trip (`RTTbytes`), 1 or more.
    pub rtt_bytes: u32,
    /// Messages that a receiver grants to at a time, 1 or more.
    pub overcommitment: u32,
    /// Classes of what needs no grant, those that are served first; 1 or more. The others are for what is
    /// granted; with a single class all has it.
    pub unscheduled_classes: u8,
    /// The longest message of each of these classes but the last.
    pub cutoff_bytes: [u32; CUTOFFS_MAX],
    /// Share of grants to the message that a receiver has known for the longest time, in percent.
    pub oldest_percent: u32,
    /// Payload of grants and the like; a frame of it is as long as one of data with so much.
    pub ack_bytes: u32,
    /// Time without news of what was granted after which it is asked for again, in picoseconds; twice as
    /// much each further time.
    pub timeout_ps: u64,
    /// Frames lost at random, of a million.
    pub loss_ppm: u32,
}

/// Cutoffs between as many classes as there can be.
pub const CUTOFFS_MAX: usize = super::CLASSES_MAX as usize - 1;

/// A message: the host at the other end, and its number among those from that host or to it.
type Key = (u32, u32);

/// What a frame carries for Homa.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// Hosts of the message.
    source: u32,
    destination: u32,
    /// Number of the message among those of its source and destination.
    number: u32,
    /// Number of the data frame, or of the first that is missing.
    frame: u32,
    /// Of data, the frames of its message; else those before this one are granted.
    until: u32,
    /// Which of the transmissions of its message and direction it is.
    transmission: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Data,
    /// More frames may be sent, in this class.
    Grant {
        class: u8,
    },
    /// So many frames are missing.
    Resend {
        frames: u32,
    },
    /// All of the message is there.
    Done,
}

const _: () = assert!(size_of::<Packet>() <= 32);

/// The transport of all hosts of a network, or of a part of it.
#[derive(Clone, Debug)]
pub(super) struct Homa {
    configuration: HomaConfiguration,
    /// Frames that need no grant at most, and classes of all.
    rtt_frames: u32,
    classes: u8,
    hosts: Vec<Host>,
    /// Messages of each pair of hosts so far.
    numbers: BTreeMap<(u32, u32), u32>,
    /// Of each frame.
    packets: Vec<Packet>,
    counts: TransportCounts,
}

/// What a host has to do with messages.
#[derive(Clone, Debug)]
struct Host {
    sender: Sender,
    receiver: Receiver,
    /// When messages are looked at: not later than their deadline. The other end and its number, and
    /// whether this host sends.
    timers: BTreeSet<(u64, bool, Key)>,
    /// When that is scheduled; [`u64::MAX`] if it is not.
    timer_ps: u64,
    /// When it will look for something to send; [`u64::MAX`] if that is not scheduled.
    pull_ps: u64,
}

impl Homa {
    pub(super) fn new(
        configuration: HomaConfiguration,
        (hosts, classes): (u32, u8),
        mtu_bytes: u32,
    ) -> Self {
        let rtt_frames = configuration.rtt_bytes.div_ceil(mtu_bytes.max(1)).max(1);
        let host = Host {
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

    /// What was counted.
    pub(super) const fn counts(&self) -> &TransportCounts {
        &self.counts
    }

    /// Takes over what another part counted.
    pub(super) fn merge(&mut self, part: &Self) {
        self.counts.merge(&part.counts);
    }

    /// What a frame carries.
    pub(super) fn packet(&self, frame: u32) -> Packet {
        self.packets[frame as usize]
    }

    /// Notes what a frame carries.
    pub(super) fn set_packet(&mut self, frame: u32, packet: Packet) {
        if self.packets.len() <= frame as usize {
            self.packets.resize(frame as usize + 1, packet);
        }
        self.packets[frame as usize] = packet;
    }

    /// The class of what a message of so many bytes sends without a grant.
    fn unscheduled_class(&self, bytes: u32) -> u8 {
        let HomaConfiguration { unscheduled_classes, cutoff_bytes, .. } = self.configuration;
        let last = unscheduled_classes.clamp(1, self.classes) - 1;
        let cutoffs = cutoff_bytes.iter().take(last.into());
        cutoffs.filter(|&&most| bytes > most).count() as u8
    }

    /// The time until a message that had `backoff` timeouts in a row is looked at again.
    const fn timeout_ps(&self, backoff: u32) -> u64 {
        let shift = if backoff > BACKOFF_MAX { BACKOFF_MAX } else { backoff };
        self.configuration.timeout_ps << shift
    }
}

/// A timeout of a second, so often doubled, is an hour.
const BACKOFF_MAX: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of 1000 bytes, three of which need no grant, two classes of four for them.
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
