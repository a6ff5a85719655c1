//! Links with a switch in the middle, in a namespace of its own, whose ports have the rate, the
//! queue, the delay and the loss of a real one.
//!
//! What shapes is at the ports of the switch, not at the hosts: `AF_XDP` and sockets that bypass the
//! queueing discipline would pass by one at the host, and a real link is shaped by neither.

use serde::{Deserialize, Serialize};

/// What one link is like, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkShape {
    /// Bits per second of Ethernet frames without preamble, checksum and gap.
    pub rate: u64,
    /// Time a frame needs besides that, in microseconds. The hosts hold frames for so long after
    /// they came: no kernel can be relied on to have a discipline that delays.
    #[serde(default)]
    pub delay_us: u32,
    /// Share of frames lost at random, in per cent.
    #[serde(default)]
    pub loss_percent: f64,
}

impl LinkShape {
    /// A link of `rate` bits per second, without delay or loss.
    pub const fn of_rate(rate: u64) -> Self {
        Self { rate, delay_us: 0, loss_percent: 0.0 }
    }

    /// What a port may send at once after a pause, in bytes, for frames of an interface with this MTU.
    pub fn burst_bytes(&self, mtu: u32) -> u64 {
        (self.rate / 8 * BURST_US / 1_000_000).max(frame_bytes(mtu) * BURST_FRAMES_MIN)
    }

    /// The arguments of `tc` that make port `port` such a link, for frames of an interface with this
    /// MTU.
    pub(crate) fn discipline(&self, port: &str, mtu: u32) -> Vec<String> {
        let (burst_bytes, queue_bytes) = (self.burst_bytes(mtu), queue_bytes(mtu));
        let text = format!(
            "qdisc add dev {port} root tbf rate {}bit burst {burst_bytes} limit {queue_bytes}",
            self.rate
        );
        text.split(' ').map(str::to_string).collect()
    }

    /// The rule of `nft` that loses frames as this link does where they come in; none if it loses
    /// none.
    pub(crate) fn loss_rule(&self) -> Option<String> {
        let per_million = (self.loss_percent * 1e4).round() as u32;
        (per_million > 0).then(|| format!("numgen random mod 1000000 < {per_million} drop"))
    }
}

/// What a port holds before it drops, in bytes, for frames of an interface with this MTU.
pub const fn queue_bytes(mtu: u32) -> u64 {
    frame_bytes(mtu) * QUEUE_FRAMES
}

const fn frame_bytes(mtu: u32) -> u64 {
    mtu as u64 + ETHERNET_HEADER_BYTES
}

/// Frames a port of a switch holds: of the size of an unmanaged switch of the paper's time, which has
/// 256 to 512 KiB for all its ports.
const QUEUE_FRAMES: u64 = 200;

/// How long a port may send faster than its rate after a pause, in microseconds. Less, and a
/// processor that is late by a timer loses rate for good.
const BURST_US: u64 = 250;
const BURST_FRAMES_MIN: u64 = 4;

/// What a shaper counts besides the packet, in bytes.
pub const ETHERNET_HEADER_BYTES: u64 = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_one_token_bucket() {
        assert_eq!(
            LinkShape::of_rate(1_000_000_000).discipline("port", 1500).join(" "),
            "qdisc add dev port root tbf rate 1000000000bit burst 31250 limit 302800"
        );
    }

    #[test]
    fn loss_is_counted_in_millionths() {
        let shape = LinkShape { loss_percent: 1.0, ..LinkShape::of_rate(1 << 30) };
        assert_eq!(shape.loss_rule().as_deref(), Some("numgen random mod 1000000 < 10000 drop"));
        assert_eq!(LinkShape::of_rate(1).loss_rule(), None);
    }
}
