//! What the papers tell, in their texts, of the same measurements on their machines: TCP offload
//! engines (TOE) and host-based stacks on 10-Gigabit Ethernet, and sockets over the user-level
//! protocols of their time. Machines have changed since: ratios compare, absolute values show an order.

use super::Test;

/// A value of the papers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value {
    /// What was measured.
    pub test: Test,
    /// Whose value.
    pub name: &'static str,
    /// In which manner.
    pub mode: Mode,
    /// Microseconds, or 10^9 bits per second.
    pub value: f64,
    /// What the host's own stack had on the same machine, where that is told.
    pub host_stack: Option<f64>,
}

/// How a program waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It sleeps.
    Event,
    /// It polls.
    Polling,
}

impl Value {
    /// Divided by the host's own stack.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.value / self.host_stack?)
    }
}

const fn event(test: Test, name: &'static str, value: f64) -> Value {
    Value { test, name, mode: Mode::Event, value, host_stack: None }
}

const fn polling(name: &'static str, value: f64) -> Value {
    Value { test: Test::Latency, name, mode: Mode::Polling, value, host_stack: None }
}

/// All values. Latencies are of one byte, one way; throughputs the largest. Connecting with SDP took
/// milliseconds; no number is told.
pub const VALUES: [Value; 12] = [
    Value {
        test: Test::Latency,
        name: "TOE, back to back",
        mode: Mode::Event,
        value: 8.9,
        host_stack: Some(10.37),
    },
    event(Test::Latency, "GM/Myrinet", 11.33),
    event(Test::Latency, "TOE/10GigE", 14.3),
    event(Test::Latency, "MX/Myrinet", 14.47),
    event(Test::Latency, "SDP/InfiniBand", 24.4),
    polling("MX/Myrinet", 4.64),
    polling("GM/Myrinet", 6.68),
    polling("SDP/InfiniBand", 8.25),
    event(Test::Throughput, "TOE/10GigE", 6.4),
    event(Test::Throughput, "SDP/InfiniBand", 5.4),
    event(Test::Throughput, "Myrinet", 3.9),
    event(Test::Connection, "TOE/10GigE", 60.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_toe_is_told_beside_its_hosts_own_stack() {
        let ratios: Vec<_> = VALUES.iter().filter_map(Value::ratio).collect();
        assert_eq!(ratios.len(), 1);
        assert!((ratios[0] - 0.858).abs() < 0.001);
    }
}
