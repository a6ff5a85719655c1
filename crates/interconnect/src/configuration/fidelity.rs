//! Simulates a cluster and its program at several fidelities: packets, LogGP, fluids.
//!
//! The coarse models take their parameters from two measurements of the fine model on the idle
//! network. In the first measurement, a token visits all hosts in a random order, once with one
//! byte and once with many bytes. In the second, one host sends a burst to another. If the results
//! of the models then differ, the cause is an effect that the coarse models omit, not their
//! parameters.

use super::super::ethernet::EthernetConfiguration;
use super::super::fluid::FluidConfiguration;
use super::super::loggp::LogGpConfiguration;
use super::super::routing::Choice;
use super::super::simulation::{HostCosts, Limits, Outcome};
use super::super::topology::CableSettings;
use super::super::workload::{Actions, Received, Workload};
use super::{Configuration, ConfigurationError, FabricConfiguration};
use crate::Random;

/// Level of detail at which a network is simulated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fidelity {
    /// The configured fabric, which simulates each packet, worm or flit.
    Packet,
    /// LogGP: latency, gaps and time per byte, without a network.
    LogGp,
    /// Fluid model: messages divide the rates of links max-min fairly.
    Fluid,
}

impl Fidelity {
    /// All fidelities, from fine to coarse.
    pub const ALL: [Self; 3] = [Self::Packet, Self::LogGp, Self::Fluid];

    /// Returns the name of the fidelity in commands.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::LogGp => "loggp",
            Self::Fluid => "fluid",
        }
    }
}

/// Characteristics of an idle network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleNetwork {
    /// Mean latency of one byte between two hosts, in picoseconds.
    pub latency_ps: f64,
    /// Latency of each further byte, in picoseconds.
    pub byte_ps: f64,
    /// Time between one-byte messages that one host sends to another, in picoseconds.
    pub gap_ps: f64,
    /// Mean number of links between two hosts.
    pub links: f64,
}

impl Configuration {
    /// Measures the network without other load.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn idle_network(&self) -> Result<IdleNetwork, ConfigurationError> {
        // Coarse models have no acknowledgements and no windows, so this measurement has none
        // either. Acknowledgements would increase the number of crossed links, and windows would
        // delay frames.
        let fabric = match self.fabric {
            FabricConfiguration::Ethernet(ethernet) => {
                FabricConfiguration::Ethernet(EthernetConfiguration {
                    transport: None,
                    homa: None,
                    jitter_percent: 0,
                    ..ethernet
                })
            }
            other => other,
        };
        let idle = Self {
            fabric,
            costs: HostCosts::default(),
            limits: Limits { warmup_ps: 0, ..self.limits },
            ..self.clone()
        };
        let hosts = self.topology.hosts();
        let tour = |bytes| idle.run_workload(Tour::new(hosts, bytes), hosts);
        let (short, long) = (tour(1)?, tour(LONG_BYTES)?);
        let burst = |messages| {
            let burst = Burst { messages, to: hosts - 1 };
            idle.run_workload(burst, hosts)
        };
        let (one, many) = (burst(1)?, burst(BURST)?);
        let mean_ps = |outcome: &Outcome| outcome.latency.mean_us() * 1e6;
        Ok(IdleNetwork {
            latency_ps: mean_ps(&short),
            byte_ps: (mean_ps(&long) - mean_ps(&short)) / f64::from(LONG_BYTES - 1),
            gap_ps: (many.completed_ps - one.completed_ps) as f64 / f64::from(BURST - 1),
            links: short.hops as f64 / short.delivered.max(1) as f64,
        })
    }

    /// Returns this configuration at another fidelity, with the parameters of `idle`. If the
    /// configured fabric is already the coarse model that `fidelity` names, its settings do not
    /// change.
    #[must_use]
    pub fn at_fidelity(&self, fidelity: Fidelity, idle: &IdleNetwork) -> Self {
        let mut topology = self.topology.clone();
        let fabric = match (fidelity, self.fabric.rates()) {
            (Fidelity::LogGp, _) if !matches!(self.fabric, FabricConfiguration::LogGp(_)) => {
                FabricConfiguration::LogGp(LogGpConfiguration {
                    latency_ps: idle.latency_ps.round() as u64,
                    gap_ps: idle.gap_ps.round() as u64,
                    byte_ps: idle.byte_ps.round() as u64,
                    // Network cards receive packets independently of the processor.
                    holds_receiver: false,
                })
            }
            (Fidelity::Fluid, Some(rates))
                if !matches!(self.fabric, FabricConfiguration::Fluid(_)) =>
            {
                // Rate of payload: the rate of the link minus the rate that headers use.
                let payload_bps = 8e12 / idle.byte_ps.max(1e-3);
                let links = 0..topology.links().len() as u32;
                let slowest_bps = links.map(|link| rates.of(&topology, link)).min();
                let slowest_bps = slowest_bps.unwrap_or(rates.host_bps) as f64;
                let share = (payload_bps / slowest_bps).min(1.0);
                let scaled = |rate_bps: u64| (rate_bps as f64 * share).round().max(1.0) as u64;
                topology = topology.with_cable_settings(|cable| CableSettings {
                    rate_bps: cable.rate_bps.map(scaled),
                    ..CableSettings::default()
                });
                FabricConfiguration::Fluid(FluidConfiguration {
                    host_rate_bps: scaled(rates.host_bps),
                    trunk_rate_bps: scaled(rates.trunk_bps),
                    link_latency_ps: (idle.latency_ps / idle.links.max(1.0)).round() as u64,
                    choice: match self.fabric {
                        FabricConfiguration::Ethernet(ethernet) => ethernet.choice,
                        _ => Choice::PerFlow,
                    },
                    salt: 0,
                })
            }
            _ => self.fabric,
        };
        Self { topology, fabric, ..self.clone() }
    }
}

/// A workload in which a token visits all hosts in a random order, without delays.
struct Tour {
    bytes: u32,
    /// For each host, the host that gets the token next.
    next: Vec<u32>,
    left: u32,
}

impl Tour {
    fn new(hosts: u32, bytes: u32) -> Self {
        let mut order: Vec<u32> = (0..hosts).collect();
        let mut random = Random::new(TOUR_SEED);
        for place in (1..order.len()).rev() {
            order.swap(place, random.below(place as u64 + 1) as usize);
        }
        let mut next = vec![0; order.len()];
        for (place, &host) in order.iter().enumerate() {
            next[host as usize] = order[(place + 1) % order.len()];
        }
        Self { bytes, next, left: hosts.min(VISITS_MAX) }
    }

    fn go_on(&mut self, rank: u32, actions: &mut Actions) {
        if self.left > 0 {
            self.left -= 1;
            actions.send(self.next[rank as usize], self.bytes, 0);
        }
    }
}

impl Workload for Tour {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if rank == 0 {
            self.go_on(rank, actions);
        }
    }

    fn on_wake(&mut self, _rank: u32, _tag: u32, _actions: &mut Actions) {}

    fn on_received(&mut self, rank: u32, _received: Received, actions: &mut Actions) {
        self.go_on(rank, actions);
    }

    fn is_finished(&self) -> bool {
        self.left == 0
    }
}

/// A workload in which the first host posts one-byte messages, all at the same time.
struct Burst {
    messages: u32,
    to: u32,
}

impl Workload for Burst {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if rank == 0 {
            (0..self.messages).for_each(|tag| actions.send(self.to, 1, tag));
        }
    }

    fn on_wake(&mut self, _rank: u32, _tag: u32, _actions: &mut Actions) {}

    fn on_received(&mut self, _rank: u32, _received: Received, _actions: &mut Actions) {}

    fn is_finished(&self) -> bool {
        true
    }
}

/// Length of a long message. It has so many packets that one packet more or less hardly changes the
/// time per byte.
const LONG_BYTES: u32 = 1 << 16;
const BURST: u32 = 64;
/// Maximum number of visits of the token; enough pairs of hosts for a good mean.
const VISITS_MAX: u32 = 512;
const TOUR_SEED: u64 = 0x70_75_72;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_idle_network_matches_its_settings() {
        let text = "[topology]\nhosts = 9\n[fabric]\nkind = \"loggp\"\nlatency_ps = 5000\ngap_ps = \
                    700\nbyte_ps = 80\n";
        let idle = Configuration::parse("a.toml", text).expect("it is valid").idle_network();
        let idle = idle.expect("it ends");
        assert!(
            (idle.latency_ps - 5000.0).abs() < 1.0 && (idle.gap_ps - 700.0).abs() < 1.0,
            "{idle:?}"
        );
        assert!((idle.byte_ps - 80.0).abs() < 1e-6, "{idle:?}");

        let text = "[topology]\nhosts = 9\n[fabric]\nlatency_ps = 0\npropagation_ps = 1000\n";
        let idle = Configuration::parse("a.toml", text).expect("it is valid").idle_network();
        let idle = idle.expect("it ends");
        // The message crosses two links. On each link, it takes 1 ns plus the time of 72 bytes at
        // 10 Gb/s.
        assert!((idle.latency_ps - 2.0 * (72.0 * 800.0 + 1000.0)).abs() < 1.0, "{idle:?}");
        assert!((idle.gap_ps - (72.0 + 12.0) * 800.0).abs() < 1.0, "{idle:?}");
        assert!((idle.links - 2.0).abs() < 1e-9);
        // A frame of 1500 bytes occupies the link for 1538 bytes. The measured time per byte
        // differs a little from this rate. The reasons are that the last of the 44 frames is partly
        // filled, and that the switch stores the first frame before it forwards the frame.
        assert!((idle.byte_ps / (800.0 * 1538.0 / 1500.0) - 1.0).abs() < 0.05, "{idle:?}");
    }

    #[test]
    fn the_idle_network_is_the_same_with_a_transport() {
        let idle = |host: &str| {
            let text = format!("[topology]\nhosts = 9\n[host]\n{host}");
            let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
            configuration.idle_network().expect("it ends")
        };
        assert_eq!(idle("transport = \"go_back_n\"\nwindow_frames = 1\n"), idle(""));
    }

    /// Without other load, all models predict the same times.
    #[test]
    fn without_contention_the_models_agree() {
        for fabric in ["ethernet", "wormhole", "flit"] {
            let text = format!(
                "[topology]\nkind = \"torus\"\nsizes = [4]\nlanes = 2\n[fabric]\nkind = \
                 \"{fabric}\"\n[workload]\nkind = \"token_pass\"\nbytes = 40000\n"
            );
            let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
            let idle = configuration.idle_network().expect("it ends");
            let time = |fidelity| {
                let outcome = configuration.at_fidelity(fidelity, &idle).run().expect("it ends");
                outcome.completed_ps as f64
            };
            let exact = time(Fidelity::Packet);
            for fidelity in [Fidelity::LogGp, Fidelity::Fluid] {
                let error = (time(fidelity) / exact - 1.0).abs();
                assert!(error < 0.06, "{fabric} {fidelity:?}: {error}");
            }
        }
    }
}
