//! What a host has sent, by protocol: datagrams are those of the device, and a program that falls back sends segments of TCP.

use std::ops::Sub;
use std::process::Command;

/// What all programs of a host have sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    /// Of UDP. Many that the kernel is given at once count once.
    pub(super) datagrams: u64,
    /// Of TCP.
    pub(super) segments: u64,
}

impl Traffic {
    /// What was sent in a network namespace; nothing if the kernel does not say.
    pub(super) fn of(namespace: &str) -> Self {
        let words = ["netns", "exec", namespace, "cat", "/proc/net/snmp"];
        let output = Command::new("ip").args(words).output();
        output.map_or_else(
            |_| Self::default(),
            |output| Self::parse(&String::from_utf8_lossy(&output.stdout)),
        )
    }

    /// Whether messages have gone by TCP: what launchers say to each other and ranks print is little.
    pub(super) fn is_of_tcp(&self) -> bool {
        self.segments > self.datagrams
    }

    /// Two lines for each protocol: names and numbers.
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

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            datagrams: self.datagrams.saturating_sub(before.datagrams),
            segments: self.segments.saturating_sub(before.segments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "Tcp: InSegs OutSegs\nTcp: 3 40\nUdp: InDatagrams OutDatagrams\nUdp: 5 600\n";
        let traffic = Traffic::parse(text);
        assert_eq!(traffic, Traffic { datagrams: 600, segments: 40 });
        assert!(!traffic.is_of_tcp());
        let over_tcp = Traffic { datagrams: 0, segments: 1 } - Traffic::parse("");
        assert!(over_tcp.is_of_tcp());
    }
}
