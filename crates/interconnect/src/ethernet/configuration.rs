//! Settings of an Ethernet.

use super::super::routing::Choice;
use super::super::simulation::Message;
use super::homa::HomaConfiguration;
use super::transport::TransportConfiguration;

/// Settings of an Ethernet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EthernetConfiguration {
    /// Rate of the links to hosts, in bits per second.
    pub host_rate_bps: u64,
    /// Rate of the links between switches, in bits per second.
    pub trunk_rate_bps: u64,
    /// Largest payload of a frame, in bytes.
    pub mtu_bytes: u32,
    /// Smallest payload of a frame, in bytes. Shorter payloads are padded.
    pub payload_min_bytes: u32,
    /// Bytes that a frame adds to its payload on the wire: preamble, header, check sequence.
    pub overhead_bytes: u32,
    /// Gap between frames: minimum idle time of the link after each frame, in bytes.
    pub gap_bytes: u32,
    /// Propagation delay of each link, in picoseconds.
    pub propagation_ps: u64,
    /// Latency of an idle switch, in picoseconds. The latency ends with the first bit of the frame
    /// at the output. If the switch stores and forwards, the latency starts with the last bit of
    /// the frame at the input. If the switch cuts through, the latency starts with the last bit of
    /// the header.
    pub latency_ps: u64,
    /// Minimum interval at which the engine of a switch handles frames from hosts, in picoseconds;
    /// 0 means no limit. The interval does not depend on the lengths of frames. An idle engine adds
    /// no latency.
    pub host_frame_interval_ps: u64,
    /// Buffer of each output port, in bytes; 0 means no limit. The buffer holds the waiting frames
    /// and the frame being sent, each with its length on the wire without the gap. If a frame does
    /// not fit in the buffer at the end of the switch's latency, the switch drops the frame.
    /// Lossless classes have another limit.
    pub buffer_bytes: u64,
    /// Maximum random delay of a frame at each switch, in percent of its serialisation time on the
    /// slowest link; 0 means no delay. Each frame gets a new random delay. Without such delays,
    /// hosts that send at equal rates stay synchronised, and the same hosts lose frames every time.
    pub jitter_percent: u32,
    /// When a switch starts to forward a frame.
    pub forwarding: Forwarding,
    /// How a frame chooses among equal routes.
    pub choice: Choice,
    /// Salt of the hashes of flows ([`salt`](super::super::routing::salt)).
    pub salt: u64,
    /// Network cards of the hosts.
    pub nic: NicConfiguration,
    /// Shared buffers, marks, priorities and pauses. All are off by default.
    pub queues: QueueConfiguration,
    /// Transport of the hosts. Hosts without a transport send all frames of a message immediately
    /// and do not retransmit. A transport requires exactly one rail.
    pub transport: Option<TransportConfiguration>,
    /// The receiver-driven transport Homa, which replaces `transport`. Homa requires exactly one
    /// rail and sets the classes of frames.
    pub homa: Option<HomaConfiguration>,
}

/// When a switch starts to forward a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Forwarding {
    /// When the whole frame has arrived.
    StoreAndForward,
    /// When the first `header_bytes` bytes of the frame have arrived.
    CutThrough {
        /// Number of bytes that the switch needs to choose the output port, including the preamble.
        header_bytes: u32,
    },
}

/// The network card of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NicConfiguration {
    /// Number of ports, each to a separate copy of the network; 1 to [`RAILS_MAX`].
    pub rails: u32,
    /// How messages are distributed over the ports.
    pub striping: Striping,
    /// Rate at which the card fetches frames from memory, in bits per second, for all ports
    /// together; 0 means no limit.
    pub rate_bps: u64,
    /// Minimum time between two frames, in picoseconds, for all ports together; 0 means no limit.
    pub frame_interval_ps: u64,
}

/// How a card distributes messages over its ports. The card uses the ports one after the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Striping {
    /// All frames of a message use one port; the next message uses the next port.
    PerMessage,
    /// Each frame uses the next port.
    PerPacket,
}

/// Settings of features that need stored queues. 0 turns a feature off.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueConfiguration {
    /// Buffer that all ports of a switch share, in bytes; 0 means no limit.
    pub shared_bytes: u64,
    /// Maximum length of a queue relative to the free part of the shared buffer, in percent (the α
    /// of dynamic thresholds).
    pub alpha_percent: u32,
    /// Queue length of an output port above which the switch can mark frames (ECN), in bytes.
    pub ecn_min_bytes: u64,
    /// Queue length above which the switch marks all frames, in bytes; 0 means no marks. If this
    /// equals `ecn_min_bytes`, the switch marks no frames below this length and all frames above
    /// it.
    pub ecn_max_bytes: u64,
    /// Probability of a mark if the queue is just shorter than `ecn_max_bytes`, in percent. Between
    /// `ecn_min_bytes` and `ecn_max_bytes`, the probability rises linearly from 0.
    pub ecn_max_percent: u32,
    /// Number of priority classes, 1 to 8. Class 0 is always served first.
    pub classes: u8,
    /// How the class of a message is determined.
    pub class_by: ClassBy,
    /// Bit mask of lossless classes, bit n for class n. For these classes, the switch pauses the
    /// sender instead of dropping frames (PFC).
    pub lossless: u8,
    /// Limit of stored bytes of one class from one sender. Above this limit, the switch pauses the
    /// sender. The dynamic threshold can pause the sender earlier.
    pub pause_bytes: u64,
    /// Limit of stored bytes of one class from one sender. At or below this limit, a paused sender
    /// may resume.
    pub resume_bytes: u64,
    /// Buffer per port and class for frames that arrive after the switch has sent a pause, in
    /// bytes. If this is 0, it is computed from the length of the cables and the largest frame.
    pub headroom_bytes: u64,
}

/// How the class of a message is determined, among n classes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClassBy {
    /// The tag of the message modulo n.
    Tag,
    /// The number of the message's source modulo n.
    Source,
    /// The class that the message's workload sets, modulo n.
    Workload,
    /// Class 0 for messages of up to `small_bytes`. Each doubling of the length increases the class
    /// by 1, up to n − 1.
    Size {
        /// Length of the longest message of class 0, in bytes.
        small_bytes: u32,
    },
}

impl EthernetConfiguration {
    /// Returns an Ethernet with this rate, in bits per second. Frames have the usual sizes, queues
    /// are unlimited, and switches have no latency.
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

    /// Returns whether the hosts retransmit lost frames.
    pub const fn has_transport(&self) -> bool {
        self.transport.is_some() || self.homa.is_some()
    }

    /// Returns the length of the largest frame on the wire, without the gap, in bytes.
    pub const fn frame_bytes_max(&self) -> u32 {
        let payload = if self.mtu_bytes > self.payload_min_bytes {
            self.mtu_bytes
        } else {
            self.payload_min_bytes
        };
        payload + self.overhead_bytes
    }

    /// Returns the length of the smallest frame on the wire, without the gap, in bytes.
    pub const fn frame_bytes_min(&self) -> u32 {
        self.payload_min_bytes + self.overhead_bytes
    }
}

impl NicConfiguration {
    /// A card with one port that is as fast as its link.
    pub const SINGLE: Self =
        Self { rails: 1, striping: Striping::PerMessage, rate_bps: 0, frame_interval_ps: 0 };
}

impl QueueConfiguration {
    /// Settings with one class and without marks, pauses and shared buffer.
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

    /// Returns whether the settings need stored queues.
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

/// Number of priority classes in the standard (IEEE 802.1Q).
pub const CLASSES_MAX: u8 = 8;
/// Maximum number of rails. No card has more than 8 ports. With 8 rails, the numbers of all links
/// of the largest networks still fit in `Event::place`.
pub const RAILS_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::super::super::workload::Origin;
    use super::*;

    #[test]
    fn size_classes_double() {
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
