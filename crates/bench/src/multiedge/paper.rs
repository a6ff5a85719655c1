//! Measured values of the paper: Karlsson, Passas, Kotsis, Bilas, "MultiEdge: An Edge-based
//! Communication Subsystem for Scalable Commodity Servers", IPDPS 2007. Dual Opteron 244 (1.8 GHz),
//! Linux 2.6.12, Tigon3 (1 Gb/s) and Myricom (10 Gb/s) adapters. The numbers are from
//! `papers/multiedge2007.toml`.

use papers::printed;

use crate::transport::Test;

/// The values that the paper prints for a test in one of its set-ups.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Paper {
    /// Name of the set-up.
    pub setup: &'static str,
    /// The test.
    pub test: Test,
    /// Largest throughput in 10^6 bytes per second, both directions together.
    pub megabytes_per_second: Option<f64>,
    /// Smallest latency, in microseconds.
    pub latency_us: Option<f64>,
    /// Largest protocol CPU time, in percent of one processor, 200 at most.
    pub protocol_cpu_percent: Option<f64>,
}

/// Returns the time that the paper prints for posting an operation, in nanoseconds.
pub fn post_ns() -> f64 {
    number("2.post").unwrap_or(f64::NAN) * 1000.0
}

/// Returns the largest percentage of frames that arrived out of order in the paper's tests over
/// several links.
pub fn out_of_order_percent() -> f64 {
    let value = printed::value(&format!("{KEY}/2.order"));
    value.and_then(|value| value.value_max).unwrap_or(f64::NAN)
}

/// Returns the largest percentage of extra frames (explicit acknowledgements and retransmissions)
/// that the paper prints for its micro-benchmarks.
pub fn extra_frame_percent() -> f64 {
    number("2.extra").unwrap_or(f64::NAN)
}

/// Returns the lowest and the highest percentage of frames that cause an interrupt, over the
/// paper's applications.
pub fn interrupt_percent() -> [f64; 2] {
    let value = printed::value(&format!("{KEY}/5.interrupts-1"));
    let range = value.and_then(|value| Some([value.value?, value.value_max?]));
    range.unwrap_or([f64::NAN; 2])
}

/// Returns the paper's values for this test in this set-up, if the paper prints any. For
/// `Test::TwoWay` over 1 Gb/s links, the returned values contain no throughput. There the paper is
/// ambiguous: it gives one throughput "in all tests", but defines two-way throughput as the sum of
/// both directions.
pub fn figures(setup: &str, test: Test) -> Option<Paper> {
    let (name, link) = match setup {
        "1L-1G" => ("1L-1G", 1),
        "2L-1G" => ("2L-1G", 1),
        "2Lu-1G" => ("2Lu-1G", 1),
        "1L-10G" => ("1L-10G", 10),
        _ => return None,
    };
    let cpu = |which: &str| number(&format!("2.cpu-{link}-{which}"));
    let (rate, protocol_cpu_percent) = match (test, link, name) {
        (Test::PingPong, 1, _) => (None, cpu("ping")),
        (Test::OneWay, 1, "1L-1G") => (Some("2.rate-1"), cpu("one")),
        (Test::OneWay, 1, _) => (Some("2.rate-2"), cpu("one")),
        (Test::TwoWay, 1, _) => (None, cpu("two")),
        (Test::PingPong, ..) => (Some("2.rate-10-ping"), cpu("ping")),
        (Test::OneWay, ..) => (Some("2.rate-10"), cpu("one")),
        (Test::TwoWay, ..) => (Some("2.rate-10-two"), cpu("two")),
        _ => return None,
    };
    let has_latency = link == 10 && test == Test::PingPong;
    Some(Paper {
        setup: name,
        test,
        megabytes_per_second: rate.and_then(number),
        latency_us: has_latency.then(|| number("2.latency")).flatten(),
        protocol_cpu_percent,
    })
}

fn number(name: &str) -> Option<f64> {
    printed::value(&format!("{KEY}/{name}"))?.value
}

/// Identifier of the paper in the data files.
const KEY: &str = "multiedge2007";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_has_every_figure_except_two_way_at_a_gigabit() {
        for setup in ["1L-1G", "2L-1G", "2Lu-1G", "1L-10G"] {
            for test in [Test::PingPong, Test::OneWay, Test::TwoWay] {
                let paper = figures(setup, test).unwrap();
                assert!(paper.protocol_cpu_percent.is_some(), "{setup}");
                let has_rate = setup == "1L-10G" || test == Test::OneWay;
                assert_eq!(paper.megabytes_per_second.is_some(), has_rate, "{setup}");
            }
        }
        let figures = [post_ns(), out_of_order_percent(), extra_frame_percent()];
        assert!(figures.iter().chain(&interrupt_percent()).all(|value| value.is_finite()));
    }
}
