//! What frames are sent for.

use delivery::{LinkCounters, PacketClass};

/// What a frame is sent for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    /// Bytes of operations, or what stands for them.
    Data,
    /// An acknowledgement and nothing else.
    Acknowledge,
    /// To report something that the peer must know: repeated if it is lost.
    Report,
    /// To ask or to answer: the end that asks repeats that.
    Ask,
    /// To find out whether frames of this size arrive.
    ProbeMtu,
}

impl Purpose {
    /// What loss detection makes of such a packet.
    pub(crate) const fn class(self) -> PacketClass {
        match self {
            Self::Data | Self::Report => PacketClass::Data,
            Self::Acknowledge | Self::Ask => PacketClass::Unacknowledged,
            Self::ProbeMtu => PacketClass::MtuProbe,
        }
    }

    /// Which counter counts such frames.
    pub(crate) const fn counter(self, counters: &mut LinkCounters) -> &mut u64 {
        match self {
            Self::Data => &mut counters.data_frames_sent,
            Self::Acknowledge => &mut counters.explicit_acks_sent,
            Self::Report | Self::Ask => &mut counters.control_frames_sent,
            Self::ProbeMtu => &mut counters.mtu_probes_sent,
        }
    }
}
