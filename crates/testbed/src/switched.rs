//! Links with a switch in the middle. Each switch has its own namespace. Its ports have the rate,
//! the queue, the delay and the loss of a real switch.
//!
//! The shapers are at the ports of the switch. A shaper at a host would not limit `AF_XDP` and
//! other sockets that bypass the queueing discipline, but a real link limits all traffic.

use serde::{Deserialize, Serialize};

/// The properties of one link, equal in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkShape {
    /// Bits per second of Ethernet frames without preamble, checksum and gap.
    pub rate: u64,
    /// Additional delay of a frame, in microseconds. The receiving host adds the delay after the
    /// frame has arrived, because not every kernel has a queueing discipline that delays frames.
    #[serde(default)]
    pub delay_us: u32,
    /// Percentage of frames that are dropped at random.
    #[serde(default)]
    pub loss_percent: f64,
}

impl LinkShape {
    /// Returns a link of `rate` bits per second, without delay or loss.
    pub const fn of_rate(rate: u64) -> Self {
        Self { rate, delay_us: 0, loss_percent: 0.0 }
    }

    /// Returns the number of bytes that a port may send at once after a pause, for frames of an
    /// interface with this MTU.
    pub fn burst_bytes(&self, mtu: u32) -> u64 {
        (self.rate / 8 * BURST_US / 1_000_000).max(frame_bytes(mtu) * BURST_FRAMES_MIN)
    }

    /// Returns the arguments of `tc` that shape port `port` like this link, for frames of an
    /// interface with this MTU.
    pub(crate) fn discipline(&self, port: &str, mtu: u32) -> Vec<String> {
        let (burst_bytes, queue_bytes) = (self.burst_bytes(mtu), queue_bytes(mtu));
        let text = format!(
            "qdisc add dev {port} root tbf rate {}bit burst {burst_bytes} limit {queue_bytes}",
            self.rate
        );
        text.split(' ').map(str::to_string).collect()
    }

    /// Returns the arguments of `tc` for a filter that forwards frames from `port` to `other`. The
    /// filter does not match a frame that is to be lost, because unmatched frames are dropped.
    ///
    /// A bridge would take 3.7 instead of 2.6 µs per frame (docs/performance-notes.md, note 32).
    /// The difference is more than all other work of the kernel for the frame.
    pub(crate) fn forwarding(&self, port: &str, other: &str) -> Vec<String> {
        let lost = (self.loss_percent / 100.0 * 2_f64.powi(32)).round() as u32;
        let filter =
            if lost == 0 { vec!["u32", "match", "u32", "0", "0"] } else { vec!["bpf", "bytecode"] };
        // This BPF program loads a random number of 32 bits. If the number is below the threshold,
        // the frame does not match.
        let program = format!("4,32 0 0 4294963256,53 1 0 {lost},6 0 0 0,6 0 0 4294967295");
        let program = (lost > 0).then_some(program.as_str());
        let action = ["action", "mirred", "egress", "redirect", "dev", other];
        let add = filter_at("add", port);
        let words = add.iter().chain(&filter).copied().chain(program).chain(action);
        words.map(str::to_string).collect()
    }
}

/// Returns the arguments of `tc` that apply `action` (`add`, `delete`) to the filter at `port`.
pub(crate) fn filter_at<'a>(action: &'a str, port: &'a str) -> [&'a str; 9] {
    ["filter", action, "dev", port, "ingress", "protocol", "all", "pref", "1"]
}

/// Returns the number of bytes that a port queues before it drops frames, for an interface with
/// this MTU.
pub const fn queue_bytes(mtu: u32) -> u64 {
    frame_bytes(mtu) * QUEUE_FRAMES
}

const fn frame_bytes(mtu: u32) -> u64 {
    mtu as u64 + ETHERNET_HEADER_BYTES
}

/// Number of frames that a port queues. When the paper was written, unmanaged switches had 256 to
/// 512 KiB for all ports.
const QUEUE_FRAMES: u64 = 200;

/// Burst of a port after a pause, in microseconds at the port's rate. If the burst were shorter,
/// the link would lose throughput whenever a processor handles the shaper's timer late.
const BURST_US: u64 = 250;
const BURST_FRAMES_MIN: u64 = 4;

/// Bytes that a shaper counts in addition to the packet.
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
    fn frames_to_be_dropped_match_no_filter() {
        let all = LinkShape::of_rate(1).forwarding("a", "b").join(" ");
        assert_eq!(
            all,
            "filter add dev a ingress protocol all pref 1 u32 match u32 0 0 \
             action mirred egress redirect dev b"
        );
        let half = LinkShape { loss_percent: 50.0, ..LinkShape::of_rate(1) }.forwarding("a", "b");
        assert!(half.iter().any(|word| word.contains(",53 1 0 2147483648,")), "{half:?}");
    }
}
