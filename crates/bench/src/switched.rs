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
    /// Time a frame needs from the switch to the host besides that, in microseconds.
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

    /// The arguments of `tc` that make port `port` such a link, for frames of an interface with this
    /// MTU: one call each.
    pub(crate) fn discipline(&self, port: &str, mtu: u32) -> Vec<Vec<String>> {
        let frame_bytes = u64::from(mtu) + ETHERNET_HEADER_BYTES;
        let burst_bytes =
            (self.rate / 8 * BURST_US / 1_000_000).max(frame_bytes * BURST_FRAMES_MIN);
        let queue_bytes = frame_bytes * QUEUE_FRAMES;
        let words = |text: String| text.split(' ').map(str::to_string).collect();
        let limiter =
            format!("handle 2: tbf rate {}bit burst {burst_bytes} limit {queue_bytes}", self.rate);
        if self.delay_us == 0 && self.loss_percent == 0.0 {
            return vec![words(format!("qdisc add dev {port} root {limiter}"))];
        }
        // What the delay holds is under way, not queued.
        let held = self.rate / 8 * u64::from(self.delay_us) / 1_000_000 / MIN_FRAME_BYTES + 1000;
        vec![
            words(format!(
                "qdisc add dev {port} root handle 1: netem delay {}us loss {}% limit {held}",
                self.delay_us, self.loss_percent
            )),
            words(format!("qdisc add dev {port} parent 1: {limiter}")),
        ]
    }
}

/// Frames a port of a switch holds: of the size of an unmanaged switch of the paper's time, which has
/// 256 to 512 KiB for all its ports.
const QUEUE_FRAMES: u64 = 200;

/// How long a port may send faster than its rate after a pause, in microseconds. Less, and a
/// processor that is late by a timer loses rate for good.
const BURST_US: u64 = 250;
const BURST_FRAMES_MIN: u64 = 4;
const ETHERNET_HEADER_BYTES: u64 = 14;
/// Smallest frame of Ethernet without checksum.
const MIN_FRAME_BYTES: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(shape: LinkShape) -> Vec<String> {
        shape.discipline("port", 1500).iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn a_plain_link_is_one_token_bucket() {
        assert_eq!(
            joined(LinkShape::of_rate(1_000_000_000)),
            ["qdisc add dev port root handle 2: tbf rate 1000000000bit burst 31250 limit 302800"]
        );
    }

    #[test]
    fn delay_and_loss_come_before_the_queue() {
        let shape = LinkShape { delay_us: 2000, loss_percent: 1.0, ..LinkShape::of_rate(1 << 30) };
        let calls = joined(shape);
        assert!(calls[0].contains("root handle 1: netem delay 2000us loss 1% limit"), "{calls:?}");
        assert!(calls[1].contains("parent 1: handle 2: tbf"), "{calls:?}");
    }
}
