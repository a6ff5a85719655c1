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
    /// Silence after each frame, in bytes.
    pub gap_bytes: u32,
    /// Propagation delay of each link, in picoseconds.
    pub propagation_ps: u64,
    /// Latency of an idle switch, in picoseconds: from the last bit of a frame (when cutting
    /// through, of its header) at the input to the frame's first bit at the output.
    pub latency_ps: u64,
    /// Minimum time between two frames from hosts in the engine of a switch, in picoseconds; 0 for
    /// no limit. Limits the rate and does not add latency.
    pub host_frame_interval_ps: u64,
    /// Buffer of each output, in bytes; 0 for no limit. It contains the waiting frames and the one
    /// being sent, with their length on the wire without gaps. It is checked when a frame has
    /// passed the latency of its switch; a frame that does not fit is lost. Lossless classes have
    /// another limit.
    pub buffer_bytes: u64,
    /// Maximum random delay of a frame at each switch, in percent of its serialisation time on the
    /// slowest link; 0 for none. The delay is drawn for each frame. Without it, hosts that send at
    /// equal rates keep their phases, and always the same hosts lose frames.
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
    /// Transport of the hosts. Without a transport, hosts send everything at once and do not
    /// retransmit. Needs one rail.
    pub transport: Option<TransportConfiguration>,
    /// Receiver-driven transport, instead of `transport`. Needs one rail, and sets the classes of
    /// frames.
    pub homa: Option<HomaConfiguration>,
}

/// When a switch starts to forward a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Forwarding {
    /// When the whole frame has arrived.
    StoreAndForward,
    /// When this many bytes of the frame have arrived.
    CutThrough {
        /// Number of bytes that determine the output, preamble included.
        header_bytes: u32,
    },
}

/// The network card of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NicConfiguration {
    /// Number of ports, each to its own copy of the network; 1 to [`RAILS_MAX`].
    pub rails: u32,
    /// Distribution of messages over the ports.
    pub striping: Striping,
    /// Rate at which the card fetches frames from memory, for all ports together, in bits per
    /// second; 0 for no limit.
    pub rate_bps: u64,
    /// Minimum time between two frames of all ports together, in picoseconds; 0 for no limit.
    pub frame_interval_ps: u64,
}

/// Distribution of messages over the ports of a card, in turn.
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
    /// Buffer of a switch that its ports share, in bytes; 0 for no limit.
    pub shared_bytes: u64,
    /// Maximum length of a queue relative to the free part of the shared buffer, in percent (the α
    /// of dynamic thresholds).
    pub alpha_percent: u32,
    /// Queue length of an output above which frames can be marked (ECN), in bytes.
    pub ecn_min_bytes: u64,
    /// Queue length above which all frames are marked, in bytes; 0 for no marks. Equal to
    /// `ecn_min_bytes`: a step.
    pub ecn_max_bytes: u64,
    /// Share of frames marked just below `ecn_max_bytes`, in percent. The share rises linearly from
    /// `ecn_min_bytes`.
    pub ecn_max_percent: u32,
    /// Number of priority classes, 1 to 8. Class 0 is always served first.
    pub classes: u8,
    /// How the class of a message is determined.
    pub class_by: ClassBy,
    /// Classes whose frames are paused at the sender instead of dropped (PFC): bit n for class n.
    pub lossless: u8,
    /// A sender is paused when a switch stores this many bytes of one class from it, or as many as
    /// the dynamic threshold permits.
    pub pause_bytes: u64,
    /// The sender may resume when at most this many bytes are left.
    pub resume_bytes: u64,
    /// Buffer for frames that arrive after a pause was sent, per port and class, in bytes. 0
    /// computes it from the length of the cables and the largest frame.
    pub headroom_bytes: u64,
}

/// How the class of a message is determined, among n classes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClassBy {
    /// The tag of the message modulo n.
    Tag,
    /// The number of its source modulo n.
    Source,
    /// The class that its workload sets, modulo n.
    Workload,
    /// 0 up to `small_bytes`, then one more for each doubling, up to n − 1.
    Size {
        /// The longest message of class 0, in bytes.
        small_bytes: u32,
    },
}

impl EthernetConfiguration {
    /// Returns an Ethernet with this rate, in bits per second, usual sizes, unlimited queues, and
    /// switches without latency.
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

    /// Returns whether hosts retransmit lost frames.
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
/// More ports than any card has. All links of the largest networks times this number still fit into
/// the places of events.
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
