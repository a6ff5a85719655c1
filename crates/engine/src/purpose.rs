//! The purposes of frames.

use delivery::{LinkCounters, PacketClass};

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    /// Content of operations.
    Data,
    /// An acknowledgement without other content.
    Acknowledge,
    /// A report that the peer must receive. If a report is lost, it is retransmitted.
    Report,
    /// A question or an answer. If the question or the answer is lost, the end that asks repeats
    /// its question.
    Ask,
    /// A probe that tests whether frames of this size arrive.
    ProbeMtu,
}

impl Purpose {
    /// Returns how loss detection treats a frame of this purpose.
    pub(crate) const fn class(self) -> PacketClass {
        match self {
            Self::Data | Self::Report => PacketClass::Data,
            Self::Acknowledge | Self::Ask => PacketClass::Unacknowledged,
            Self::ProbeMtu => PacketClass::MtuProbe,
        }
    }

    /// Returns the counter for frames of this purpose.
    pub(crate) const fn counter(self, counters: &mut LinkCounters) -> &mut u64 {
        match self {
            Self::Data => &mut counters.data_frames_sent,
            Self::Acknowledge => &mut counters.explicit_acks_sent,
            Self::Report | Self::Ask => &mut counters.control_frames_sent,
            Self::ProbeMtu => &mut counters.mtu_probes_sent,
        }
    }
}
