//! The traffic that hosts have sent, by protocol. The device sends UDP datagrams. A program that
//! does not use the device and falls back to TCP sends TCP segments.

use std::ops::{Add, Sub};
use std::process::Command;

/// Numbers of datagrams and segments that all programs of one or several hosts have sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    /// UDP datagrams sent. A batch that the kernel gets by one system call counts as one datagram.
    pub(super) datagrams: u64,
    /// TCP segments sent.
    pub(super) segments: u64,
}

impl Traffic {
    /// Returns the traffic that a network namespace has sent, or zeros if the kernel's counters
    /// cannot be read.
    pub(super) fn of(namespace: &str) -> Self {
        let words = ["netns", "exec", namespace, "cat", "/proc/net/snmp"];
        let output = Command::new("ip").args(words).output();
        output.map_or_else(
            |_| Self::default(),
            |output| Self::parse(&String::from_utf8_lossy(&output.stdout)),
        )
    }

    /// Returns whether this number of datagrams is enough for `bytes` bytes and `messages`
    /// messages, each of which waited for the message before it. If the number is too small,
    /// another transport carried some of the messages.
    pub(super) const fn can_have_carried(&self, bytes: u64, messages: u64) -> bool {
        self.datagrams.saturating_mul(DATAGRAM_BYTES_MAX) >= bytes && self.datagrams >= messages
    }

    /// Parses `/proc/net/snmp`. For each protocol, this file has a line with names and a line with
    /// numbers.
    fn parse(text: &str) -> Self {
        let counter = |protocol: &str, name: &str| -> Option<u64> {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol));
            let (names, numbers) = (lines.next()?, lines.next()?);
            let at = names.split_whitespace().position(|word| word == name)?;
            numbers.split_whitespace().nth(at)?.parse().ok()
        };
        Self {
            datagrams: counter("Udp:", "OutDatagrams").unwrap_or(0),
            segments: counter("Tcp:", "OutSegs").unwrap_or(0),
        }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            datagrams: self.datagrams + other.datagrams,
            segments: self.segments + other.segments,
        }
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            datagrams: self.datagrams.saturating_sub(before.datagrams),
            segments: self.segments.saturating_sub(before.segments),
        }
    }
}

/// Highest number of bytes that the kernel accepts in one UDP datagram.
const DATAGRAM_BYTES_MAX: u64 = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "Tcp: InSegs OutSegs\nTcp: 3 40\nUdp: InDatagrams OutDatagrams\nUdp: 5 600\n";
        let traffic = Traffic::parse(text);
        assert_eq!(traffic, Traffic { datagrams: 600, segments: 40 });
        let sent = traffic + traffic - Traffic::parse("");
        assert_eq!(sent, Traffic { datagrams: 1200, segments: 80 });
    }

    #[test]
    fn traffic_beyond_the_capacity_of_the_datagrams_is_detected() {
        let traffic = Traffic { datagrams: 10, segments: 124 };
        assert!(traffic.can_have_carried(10 * 65_535, 10));
        assert!(!traffic.can_have_carried(10 * 65_535 + 1, 0) && !traffic.can_have_carried(0, 11));
        assert!(Traffic::default().can_have_carried(0, 0));
    }
}
