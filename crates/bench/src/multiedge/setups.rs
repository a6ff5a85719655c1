//! The set-ups, and the paper's figures for them.

use serde::{Deserialize, Serialize};

use crate::testbed::LinkShape;
use crate::transport::Test;

/// Links and order of one set-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SetUp {
    /// The paper's name, or one in its manner.
    pub name: &'static str,
    /// Its links.
    pub links: &'static [LinkShape],
    /// Operations are delivered in order, as the paper's 2L-1G does with all frames.
    pub is_strict: bool,
    /// MTU, unless another one is asked for, in bytes.
    pub mtu: u32,
    /// Measured when nothing is asked for; others are measured where they are named.
    pub is_default: bool,
    /// Kernel TCP is measured, too.
    pub with_tcp: bool,
}

impl SetUp {
    const fn relaxed(name: &'static str, links: &'static [LinkShape]) -> Self {
        Self { name, links, is_strict: false, mtu: 1500, is_default: true, with_tcp: false }
    }

    /// The set-up called `name`.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        SET_UPS.iter().find(|set_up| set_up.name == name)
    }

    /// Sum of the rates of its links, in bits per second; nothing if one has no limit.
    pub fn bits_per_second(&self) -> Option<u64> {
        self.links.iter().map(|link| link.bits_per_second).sum()
    }
}

/// Every set-up, in the order in which they are measured and shown.
pub const SET_UPS: &[SetUp] = &[
    SetUp { is_default: false, ..SetUp::relaxed("direct", &[LinkShape::DIRECT]) },
    SetUp::relaxed("1L-1G", &[GIGABIT]),
    SetUp { is_strict: true, ..SetUp::relaxed("2L-1G", &[GIGABIT, GIGABIT]) },
    SetUp::relaxed("2Lu-1G", &[GIGABIT, GIGABIT]),
    SetUp::relaxed("1L-10G", &[TEN_GIGABIT]),
    SetUp { mtu: 9000, ..SetUp::relaxed("1L-10G-jumbo", &[TEN_GIGABIT]) },
    SetUp::relaxed("4L-2.5G", &[LinkShape::of_rate(2_500_000_000); 4]),
    SetUp::relaxed("1G+100M", &[GIGABIT, LinkShape::of_rate(100_000_000)]),
    SetUp::relaxed("10G+1G", &[TEN_GIGABIT, GIGABIT]),
    SetUp::relaxed("1G/20us+1G/2ms", &[delayed(20), delayed(2000)]),
    SetUp::relaxed("2L-10G", &[TEN_GIGABIT, TEN_GIGABIT]),
    SetUp { with_tcp: true, ..SetUp::relaxed("1L-1G-wire", &[lossy(0.0)]) },
    SetUp { with_tcp: true, ..SetUp::relaxed("1L-1G-loss1", &[lossy(1.0)]) },
    SetUp { with_tcp: true, ..SetUp::relaxed("1L-1G-loss5", &[lossy(5.0)]) },
];

/// What the paper says of a set-up and test. `None`: nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PaperFigures {
    /// Largest throughput, in payload bytes per second of both directions together.
    pub bytes_per_second: Option<f64>,
    /// That, divided by the rate of the links.
    pub share_of_links: Option<f64>,
    /// Smallest latency, in nanoseconds.
    pub latency_ns: Option<f64>,
    /// Host overhead to initiate an operation, in nanoseconds.
    pub initiate_ns: Option<f64>,
    /// CPU time of the protocol at a host, at most, in per cent of one CPU (a host has two).
    pub protocol_cpu_percent: Option<f64>,
    /// Frames out of order, at most, in per cent.
    pub out_of_order_percent: Option<f64>,
    /// Explicit acknowledgements and retransmissions, at most, in per cent.
    pub extra_frame_percent: Option<f64>,
}

/// The paper's figures: S. Karlsson, S. Passas, G. Kotsis, A. Bilas, "`MultiEdge`: An Edge-based
/// Communication Subsystem for Scalable Commodity Servers", IPDPS 2007, figures 2 and 3 and their
/// discussion: Opteron 244 at 1.8 GHz, Tigon3 1 GbE and Myricom 10 GbE, MTU 1500.
pub fn paper(set_up: &str, test: Test) -> Option<PaperFigures> {
    let both = if test == Test::TwoWay { 2.0 } else { 1.0 };
    let share = |bytes_per_second: f64, link: f64| PaperFigures {
        bytes_per_second: Some(bytes_per_second),
        share_of_links: Some(bytes_per_second / link),
        initiate_ns: (test != Test::PingPong).then_some(2000.0),
        extra_frame_percent: Some(5.5),
        ..PaperFigures::default()
    };
    let gigabit = |links: f64| PaperFigures {
        protocol_cpu_percent: match test {
            Test::PingPong => Some(35.0),
            Test::OneWay => Some(30.0),
            Test::TwoWay => Some(140.0),
            _ => None,
        },
        out_of_order_percent: Some(if links > 1.0 { 50.0 } else { 0.0 }),
        ..share(120e6 * links * both, 125e6 * links * both)
    };
    match (set_up, test) {
        (_, Test::OperationRate | Test::ConnectionSetup | Test::ManyConnections) => None,
        ("1L-1G", _) => Some(gigabit(1.0)),
        ("2L-1G" | "2Lu-1G", _) => Some(gigabit(2.0)),
        ("1L-10G", Test::PingPong) => Some(PaperFigures {
            latency_ns: Some(30_000.0),
            protocol_cpu_percent: Some(75.0),
            ..share(710e6, 1250e6)
        }),
        ("1L-10G", Test::OneWay) => {
            Some(PaperFigures { protocol_cpu_percent: Some(95.0), ..share(1100e6, 1250e6) })
        }
        ("1L-10G", Test::TwoWay) => {
            Some(PaperFigures { protocol_cpu_percent: Some(170.0), ..share(1500e6, 2500e6) })
        }
        _ => None,
    }
}

const GIGABIT: LinkShape = LinkShape::of_rate(1_000_000_000);
const TEN_GIGABIT: LinkShape = LinkShape::of_rate(10_000_000_000);

const fn delayed(delay_us: u32) -> LinkShape {
    LinkShape { delay_us, ..GIGABIT }
}

const fn lossy(loss_percent: f64) -> LinkShape {
    LinkShape { loss_percent, has_trunk: true, ..GIGABIT }
}

/// Message sizes, from a word to where the paper's figure 2 ends.
pub const SIZES: [u64; 8] = [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Message sizes of a quick run.
pub const SIZES_QUICK: [u64; 3] = [8, 64 << 10, 1 << 20];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_ups_have_different_names_and_rates_that_add_up() {
        let mut names: Vec<_> = SET_UPS.iter().map(|set_up| set_up.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SET_UPS.len());
        assert_eq!(SetUp::by_name("10G+1G").unwrap().bits_per_second(), Some(11_000_000_000));
        assert_eq!(SetUp::by_name("direct").unwrap().bits_per_second(), None);
    }

    #[test]
    fn the_papers_shares_are_those_of_its_text() {
        let share = |set_up, test| paper(set_up, test).unwrap().share_of_links.unwrap();
        assert!((share("1L-10G", Test::OneWay) - 0.88).abs() < 1e-9);
        assert!((share("1L-10G", Test::TwoWay) - 0.60).abs() < 1e-9);
        assert!((share("2L-1G", Test::TwoWay) - 0.96).abs() < 1e-9);
        assert_eq!(paper("4L-2.5G", Test::OneWay), None);
    }
}
