//! What an Ethernet is made of.

use super::super::routing::Choice;
use super::super::simulation::Message;
use super::homa::HomaConfiguration;
use super::transport::TransportConfiguration;

/// What an Ethernet is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EthernetConfiguration {
    /// Rate of the links to hosts, in bits per second.
    pub host_rate_bps: u64,
    /// Rate of the links between switches, in bits per second.
    pub trunk_rate_bps: u64,
    /// Largest payload of a frame, in bytes.
    pub mtu_bytes: u32,
    /// Smallest payload of a frame; shorter ones are padded.
    pub payload_min_bytes: u32,
    /// What a frame adds to its payload on the wire: preamble, header, check sequence.
    pub overhead_bytes: u32,
    /// Silence after each frame, in bytes.
    pub gap_bytes: u32,
    /// Propagation on each link, in picoseconds.
    pub propagation_ps: u64,
    /// From the last bit of a frame in (the header, cutting through) to its first bit out of an
    /// idle switch, in picoseconds.
    pub latency_ps: u64,
    /// Least time between two frames from hosts that the engine of a switch forwards, in
    /// picoseconds; 0 for no limit. A rate, not a latency.
    pub host_frame_interval_ps: u64,
    /// Most at each output, in bytes: frames that wait and the one being sent, as long as they are on the
    /// wire, without gaps, when a frame comes out of the latency of its switch. One that finds no room
    /// beside them is lost. 0 for no limit. Lossless classes have another limit.
    pub buffer_bytes: u64,
    /// Most that a frame is late at each switch that it reaches, in percent of what its serialisation takes
    /// on the slowest link; how late is drawn for each frame. Without it, hosts that send at the same rate
    /// keep their phase, and the same ones lose frames always. 0 for none.
    pub jitter_percent: u32,
    /// When a switch begins to send a frame on.
    pub forwarding: Forwarding,
    /// Which of equal ways a frame takes.
    pub choice: Choice,
    /// Has flows hashed otherwise ([`salt`](super::super::routing::salt)).
    pub salt: u64,
    /// Cards of the hosts.
    pub nic: NicConfiguration,
    /// Shared buffers, marks, priorities and pauses; none of it by default.
    pub queues: QueueConfiguration,
    /// What hosts do about losses and marks: without it they send everything at once, and nothing
    /// again. Needs one rail.
    pub transport: Option<TransportConfiguration>,
    /// A transport that receivers drive, in the place of the other. Needs one rail, and gives frames
    /// their classes.
    pub homa: Option<HomaConfiguration>,
}

/// When a switch begins to send a frame on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Forwarding {
    /// When it has all of it.
    StoreAndForward,
    /// When it has so many bytes of it.
    CutThrough {
        /// Bytes that decide where it goes, preamble included.
        header_bytes: u32,
    },
}

/// The network card of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NicConfiguration {
    /// Ports, each to a network of its own like the others; 1 to [`RAILS_MAX`].
    pub rails: u32,
    /// How messages are spread over the ports.
    pub striping: Striping,
    /// Rate at which the card fetches frames from memory for all its ports together, in bits per
    /// second; 0 for no limit.
    pub rate_bps: u64,
    /// Least time between two frames of all ports together, in picoseconds; 0 for no limit.
    pub frame_interval_ps: u64,
}

/// How messages are spread over the ports of a card, in turns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Striping {
    /// All frames of a message leave by one port.
    PerMessage,
    /// Each frame by the next port.
    PerPacket,
}

/// What needs queues that exist: 0 turns each of these off.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueConfiguration {
    /// Buffer of a switch that its ports share, in bytes; 0 for as much as is wanted.
    pub shared_bytes: u64,
    /// A queue may take this part of what of the shared buffer is free, in percent (the α of dynamic
    /// thresholds).
    pub alpha_percent: u32,
    /// Queue of an output above which frames may be marked (ECN), in bytes.
    pub ecn_min_bytes: u64,
    /// Queue above which all are marked, in bytes; 0 for no marks. The same as the least: a step.
    pub ecn_max_bytes: u64,
    /// Share of frames marked where the slope between the two ends, in percent.
    pub ecn_max_percent: u32,
    /// Priority classes, 1 to 8; class 0 is always served first.
    pub classes: u8,
    /// Which class a message has.
    pub class_by: ClassBy,
    /// Classes whose frames are not dropped but held back at the sender (PFC), bit n for class n.
    pub lossless: u8,
    /// A sender is paused when so many bytes of one class from it are in a switch, or as many as the
    /// dynamic threshold allows.
    pub pause_bytes: u64,
    /// It may go on when no more than this is left.
    pub resume_bytes: u64,
    /// Room for what arrives after a pause was sent, for each port and class, in bytes; 0 for what
    /// the length of the cables and the largest frame make necessary.
    pub headroom_bytes: u64,
}

/// Which class a message has, of n.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClassBy {
    /// Its tag modulo n.
    Tag,
    /// The number of its sender modulo n.
    Source,
    /// What its workload says, modulo n.
    Workload,
    /// 0 up to so many bytes, then one more for each doubling, up to n − 1.
    Size {
        /// The longest message of class 0, in bytes.
        small_bytes: u32,
    },
}

impl EthernetConfiguration {
    /// Returns Ethernet of a rate, in bits per second, with usual sizes, unlimited queues and no latency of
    /// switches.
    pub const fn with_rate(rate_bps: u64) -> Self {
        Self {
            host_rate_bps: rate_bps,
            trunk_rate_bps: rate_bps,
            mtu_bytes: 1500,
            payload_min_bytes: 46,
            overhead_bytes: 26,
            gap_bytes: 12,
            propagation_ps: 0,
            latency_ps: 0,
            host_frame_interval_ps: 0,
            buffer_bytes: 0,
            jitter_percent: 0,
            forwarding: Forwarding::StoreAndForward,
            choice: Choice::PerFlow,
            salt: 0,
            nic: NicConfiguration::SINGLE,
            queues: QueueConfiguration::NONE,
            transport: None,
            homa: None,
        }
    }

    /// Whether hosts retransmit what is lost.
    pub const fn has_transport(&self) -> bool {
        self.transport.is_some() || self.homa.is_some()
    }

    /// Returns the largest frame on the wire without the gap, in bytes.
    pub const fn frame_bytes_max(&self) -> u32 {
        let payload = if self.mtu_bytes > self.payload_min_bytes {
            self.mtu_bytes
        } else {
            self.payload_min_bytes
        };
        payload + self.overhead_bytes
    }

    /// Returns the smallest frame on the wire without the gap, in bytes.
    pub const fn frame_bytes_min(&self) -> u32 {
        self.payload_min_bytes + self.overhead_bytes
    }
}

impl NicConfiguration {
    /// One port, as fast as its link.
    pub const SINGLE: Self =
        Self { rails: 1, striping: Striping::PerMessage, rate_bps: 0, frame_interval_ps: 0 };
}

impl QueueConfiguration {
    /// One class, no marks, no pauses, no shared buffer.
    pub const NONE: Self = Self {
        shared_bytes: 0,
        alpha_percent: 100,
        ecn_min_bytes: 0,
        ecn_max_bytes: 0,
        ecn_max_percent: 100,
        classes: 1,
        class_by: ClassBy::Tag,
        lossless: 0,
        pause_bytes: 0,
        resume_bytes: 0,
        headroom_bytes: 0,
    };

    /// Whether queues must exist for it.
    pub const fn is_needed(&self) -> bool {
        self.shared_bytes > 0 || self.ecn_max_bytes > 0 || self.classes > 1 || self.lossless != 0
    }

    /// Returns the class of a message, below the number of classes.
    pub const fn class_of(&self, message: &Message) -> u8 {
        let Message { source, tag, bytes, origin, .. } = *message;
        let classes = if self.classes == 0 { 1 } else { self.classes };
        match self.class_by {
            ClassBy::Tag => (tag % classes as u32) as u8,
            ClassBy::Source => (source % classes as u32) as u8,
            ClassBy::Workload => origin.class % classes,
            ClassBy::Size { small_bytes } => {
                let small = if small_bytes == 0 { 1 } else { small_bytes };
                let units = bytes.div_ceil(small);
                let above = if units <= 1 { 0 } else { (units - 1).ilog2() + 1 };
                if above < classes as u32 { above as u8 } else { classes - 1 }
            }
        }
    }
}

/// Priority classes of the standard (IEEE 802.1Q).
pub const CLASSES_MAX: u8 = 8;
/// More ports than any card has; all links of the largest networks times these still fit into the
/// places of events.
pub const RAILS_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::super::super::workload::Origin;
    use super::*;

    #[test]
    fn classes_by_size_double() {
        let class_by = ClassBy::Size { small_bytes: 1_000 };
        let queues = QueueConfiguration { classes: 4, class_by, ..QueueConfiguration::NONE };
        let message = Message {
            posted_ps: 0,
            source: 0,
            destination: 1,
            bytes: 0,
            tag: 0,
            remaining: 0,
            is_marked: false,
            origin: Origin::default(),
        };
        let classes = [0, 1, 1_000, 1_001, 2_000, 2_001, 4_000, 4_001, u32::MAX]
            .map(|bytes| queues.class_of(&Message { bytes, ..message }));
        assert_eq!(classes, [0, 0, 0, 1, 1, 2, 2, 3, 3]);
    }
}
