//! Ends with different settings. Each host has several services, several protection domains, and
//! one completion queue for all connections.

use super::plan::{EnginePlan, Plan};
use super::run::Run;
use crate::host::{Congestion, HostEngine, Scheduling, Shape};
use crate::network::PortId;
use crate::random::Random;
use crate::world::World;

/// Differences between hosts and between their connections.
#[derive(Clone, Debug)]
pub(crate) struct Unlike {
    /// For each host, the settings of its engine, and whether the engine follows the rules of
    /// `MultiEdge`.
    pub(crate) engines: Vec<(EnginePlan, bool)>,
    /// For each host, the maximum frame length of all its links, in bytes.
    pub(crate) frame_bytes_max: Vec<u16>,
    /// Number of services of each host. Each service has its own protection domain. The pairs are
    /// distributed over the services.
    pub(crate) places: u32,
    /// Whether all connections of a host report to one completion queue.
    pub(crate) shares_queue: bool,
}

impl Unlike {
    pub(super) fn draw(random: &mut Random, plan: &mut Plan) -> Self {
        let places = random.pick(&[1, 2, 3]);
        if places > 1 {
            // All connections share the counters, so the counters must be in one domain. With
            // several domains, the run therefore uses no counters.
            plan.traffic.weights[2] = 0;
            plan.traffic.weights[0] += 1;
            plan.pairs.push((1, 0));
            if random.chance_ppm(400_000) {
                plan.traffic.rogue_ppm = plan.traffic.rogue_ppm.max(20_000);
            }
        }
        let engines = (0..plan.hosts).map(|_| {
            let engine = EnginePlan {
                congestion: random.pick(&[
                    Congestion::Fixed { window_bytes: 64 << 10 },
                    Congestion::Aimd,
                    Congestion::Delay,
                ]),
                scheduling: random.pick(&[Scheduling::EarliestDelivery, Scheduling::RoundRobin]),
                operation_window: random.pick(&[1, 4, 64, 256]),
                order_pool_bytes: random.pick(&[2 << 10, 8 << 10, 256 << 10]),
                read_depth: random.pick(&[1, 2, 16]),
                ack_delay_max_ns: random.pick(&[0, 25_000, 1_000_000]),
                pool_divisor: random.pick(&[1, 4, 16]),
                ..plan.engine
            };
            (engine, random.chance_ppm(250_000))
        });
        let engines = engines.collect();
        let frame_bytes_max =
            (0..plan.hosts).map(|_| random.pick(&[1_232, 1_472, 1_472, 4_000, 8_972])).collect();
        Self { engines, frame_bytes_max, places, shares_queue: random.chance_ppm(500_000) }
    }

    pub(super) const fn shape(&self, is_multiedge: bool, shape: Shape) -> Shape {
        let Self { places, shares_queue, .. } = *self;
        Shape { places, shares_queue, is_multiedge, ..shape }
    }
}

/// Maximum number of packets in flight on a link. The number is small, so that the checks notice
/// leaks early. It must be at least 256.
const PACKETS_MAX: u16 = 256;

impl<E: HostEngine> Run<'_, E> {
    /// Returns the settings and the shape of a host's engine.
    pub(super) fn engine_plan(&self, host: usize) -> (EnginePlan, Shape) {
        let (mut plan, mut shape) = (self.plan.engine, Shape::default());
        if let Some(unlike) = &self.plan.classes.unlike {
            let own = unlike.engines.get(host).copied();
            let (own, is_multiedge) = own.unwrap_or((plan, false));
            (plan, shape) = (own, unlike.shape(is_multiedge, shape));
        }
        if let Some(faulty) = self.plan.classes.faulty {
            shape.packets_max = PACKETS_MAX;
            if faulty.host == host {
                // The peers of the faulty host must have a record for each operation that the
                // faulty host can have outstanding.
                plan.pool_divisor = 1;
            }
        }
        if let Some(wrap) = self.plan.classes.wrap {
            shape = wrap.shape(shape);
        }
        shape.doubts_one_in = self.plan.classes.doubts_one_in.unwrap_or(0);
        (plan, self.paired(shape))
    }

    /// Returns the maximum frame length of a host's link, in bytes.
    pub(super) fn frame_bytes_max(&self, host: usize, link: usize) -> u16 {
        let unlike = self.plan.classes.unlike.as_ref();
        let own = unlike.and_then(|unlike| unlike.frame_bytes_max.get(host).copied());
        own.unwrap_or(self.plan.links[link].model.frame_bytes_max)
    }

    /// Makes a host's links carry frames of the lengths in its settings, in both directions.
    pub(super) fn fit_port(&self, world: &mut World<E>, host: usize, port: PortId) {
        let unlike = self.plan.classes.unlike.as_ref();
        if let Some(&bytes) = unlike.and_then(|unlike| unlike.frame_bytes_max.get(host)) {
            world.network.set_frame_bytes_max(port, bytes);
            world.network.set_accepted_bytes_max(port, bytes);
        }
    }

    /// Returns the service that a pair uses, which determines the protection domain.
    pub(super) fn place(&self, pair: usize) -> u32 {
        let places = self.plan.classes.unlike.as_ref().map_or(1, |unlike| unlike.places.max(1));
        pair as u32 % places
    }

    /// Chooses a random region of a host that `side` of a pair must not access with the region's
    /// key. Either the region is in another domain, or its key belongs to another connection's
    /// window.
    pub(super) fn forbidden(&mut self, pair: usize, side: usize) -> Option<crate::host::Region> {
        let host = self.pairs[pair].hosts[1 - side];
        let place = self.place(pair);
        let others: Vec<_> = (0..self.pairs.len())
            .filter(|&other| self.place(other) != place)
            .flat_map(|other| self.pairs[other].ends.iter().flatten())
            .filter(|end| end.host == host && end.life == self.hosts[host].life)
            .map(|end| end.target)
            .chain(self.wrong_windows(pair, side))
            .collect();
        (!others.is_empty() && self.chance.chance_ppm(500_000)).then(|| self.chance.pick(&others))
    }
}
