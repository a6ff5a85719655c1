//! Values that the papers print for the same measurements on their machines. The systems are TCP
//! offload engines (TOE) and host-based stacks on 10-Gigabit Ethernet, and sockets over the
//! user-level protocols of the year 2005. Machines have changed since 2005, so only ratios can be
//! compared. Absolute values only show the order of contenders. The numbers are from
//! `papers/convergence2005.toml`.

use papers::printed;

use super::Test;

/// A printed value of the papers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value {
    /// The test.
    pub test: Test,
    /// The measured system.
    pub name: &'static str,
    /// How programs waited for messages.
    pub mode: Mode,
    /// The value, in microseconds or in 10^9 bits per second.
    pub value: f64,
    /// The value of the operating system's TCP stack on the same machine, if the paper prints it.
    pub host_stack: Option<f64>,
}

/// A way for programs to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The program sleeps.
    Event,
    /// The program polls.
    Polling,
}

impl Value {
    /// Returns the value divided by that of the operating system's TCP stack; `None` if the paper
    /// does not print the latter.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.value / self.host_stack?)
    }
}

/// Returns all values. Latencies are one-way latencies of one byte. Throughputs are the highest
/// values printed. The list has no connection time of SDP, because the paper prints no number and
/// says only that connecting took milliseconds.
pub fn values() -> Vec<Value> {
    let mut values = Vec::new();
    for (id, test, mode, name) in NAMES {
        let Some(printed_value) = printed::value(&format!("convergence2005/{id}")) else {
            continue;
        };
        let Some(value) = printed_value.value else { continue };
        values.push(Value { test, name, mode, value, host_stack: printed_value.to });
        if let Some(value) = printed_value.to {
            values.push(Value { test, name: HOST_STACK, mode, value, host_stack: None });
        }
    }
    values
}

/// The name of the operating system's TCP stack in the data file. The papers compare a TOE with
/// this stack.
const HOST_STACK: &str = "host's own stack";

/// Identifiers in the data file, with test, mode and system.
const NAMES: [(&str, Test, Mode, &str); 14] = [
    ("3.latency", Test::Latency, Mode::Event, "TOE, back to back"),
    ("7.event-gm", Test::Latency, Mode::Event, "GM/Myrinet"),
    ("7.event-toe", Test::Latency, Mode::Event, "TOE/10GigE"),
    ("7.event-mx", Test::Latency, Mode::Event, "MX/Myrinet"),
    ("7.event-ib", Test::Latency, Mode::Event, "SDP/InfiniBand"),
    ("7.polling-mx", Test::Latency, Mode::Polling, "MX/Myrinet"),
    ("7.polling-gm", Test::Latency, Mode::Polling, "GM/Myrinet"),
    ("7.polling-ib", Test::Latency, Mode::Polling, "SDP/InfiniBand"),
    ("3.throughput", Test::Throughput, Mode::Event, "TOE, back to back"),
    ("7.rate-toe", Test::Throughput, Mode::Event, "TOE/10GigE"),
    ("7.rate-ib", Test::Throughput, Mode::Event, "SDP/InfiniBand"),
    ("7.rate-myrinet", Test::Throughput, Mode::Event, "Myrinet"),
    ("5.streams", Test::MultiStream, Mode::Event, "TOE, back to back"),
    ("13.toe", Test::Connection, Mode::Event, "TOE/10GigE"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_in_the_data() {
        // Three entries also have a value of the operating system's TCP stack.
        assert_eq!(values().len(), NAMES.len() + 3);
    }

    #[test]
    fn only_the_toe_is_shown_next_to_the_stack_of_its_host() {
        let values = values();
        let ratios = || values.iter().filter(|value| value.ratio().is_some());
        assert!(ratios().all(|value| value.name == "TOE, back to back"));
        let latency = ratios().find(|value| value.test == Test::Latency).and_then(Value::ratio);
        assert!((latency.unwrap() - 0.858).abs() < 0.001);
    }
}
