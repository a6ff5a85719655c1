//! What the paper measured: Karlsson, Passas, Kotsis, Bilas, "MultiEdge: An Edge-based Communication
//! Subsystem for Scalable Commodity Servers", IPDPS 2007. Dual Opteron 244 (1.8 GHz), Linux 2.6.12,
//! Tigon3 (1 Gb/s) and Myricom (10 Gb/s) adapters.

use crate::transport::Test;

/// What the paper says of a test in one of its set-ups, as figures where it gives any.
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
    /// Largest protocol CPU time, in per cent of one processor, 200 at most.
    pub protocol_cpu_percent: Option<f64>,
}

/// The figures, in the order of the paper.
pub const FIGURES: [Paper; 12] = [
    figure("1L-1G", Test::PingPong, None, None, Some(35.0)),
    figure("1L-1G", Test::OneWay, Some(120.0), None, Some(30.0)),
    figure("1L-1G", Test::TwoWay, Some(240.0), None, Some(140.0)),
    figure("2L-1G", Test::PingPong, None, None, Some(35.0)),
    figure("2L-1G", Test::OneWay, Some(240.0), None, Some(30.0)),
    figure("2L-1G", Test::TwoWay, Some(480.0), None, Some(140.0)),
    figure("2Lu-1G", Test::PingPong, None, None, Some(35.0)),
    figure("2Lu-1G", Test::OneWay, Some(240.0), None, Some(30.0)),
    figure("2Lu-1G", Test::TwoWay, Some(480.0), None, Some(140.0)),
    figure("1L-10G", Test::PingPong, Some(710.0), Some(30.0), Some(75.0)),
    figure("1L-10G", Test::OneWay, Some(1100.0), None, Some(95.0)),
    figure("1L-10G", Test::TwoWay, Some(1500.0), None, Some(170.0)),
];

/// Time to initiate an operation, in nanoseconds.
pub const POST_NS: f64 = 2000.0;

/// Largest share of frames out of order over several links, in per cent.
pub const OUT_OF_ORDER_PERCENT: f64 = 50.0;

/// Largest share of extra frames in these tests, in per cent.
pub const EXTRA_FRAME_PERCENT: f64 = 5.5;

/// What the paper says of this test in this set-up.
pub fn figures(setup: &str, test: Test) -> Option<&'static Paper> {
    FIGURES.iter().find(|paper| paper.setup == setup && paper.test == test)
}

const fn figure(
    setup: &'static str,
    test: Test,
    megabytes_per_second: Option<f64>,
    latency_us: Option<f64>,
    protocol_cpu_percent: Option<f64>,
) -> Paper {
    Paper { setup, test, megabytes_per_second, latency_us, protocol_cpu_percent }
}
