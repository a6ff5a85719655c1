//! A network that models messages as fluids. There are no packets; messages divide the rate of a
//! link max-min fairly. This model is fast for long messages.
//!
//! Whenever messages start or end, progressive filling computes all rates again. It raises the
//! rates of all messages together until a link is full. The messages that cross this link then keep
//! their rates, and the other rates rise further. Messages that start or end at the same time cause
//! only one computation. A computation takes time in proportion to messages × links, which is
//! acceptable for hundreds of concurrent messages.

use super::routing::{Choice, RouteTable};
use super::simulation::{Context, Fabric, Stuck};
use super::topology::{Link, LinkKind, Topology};
use super::wheel::Event;

/// Rates and latencies of the model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FluidConfiguration {
    /// Rate of the links to hosts, in bits per second. A cable can have its own rate.
    pub host_rate_bps: u64,
    /// Rate of the links between switches, in bits per second.
    pub trunk_rate_bps: u64,
    /// Latency of each link, from the last bit sent to the last bit received, in picoseconds.
    pub link_latency_ps: u64,
    /// How a message chooses among equal routes. For a choice that depends on load, the model uses
    /// a hash instead.
    pub choice: Choice,
    /// Salt of the hashes of flows ([`salt`](super::routing::salt)).
    pub salt: u64,
}

/// A network that carries messages as fluids.
#[derive(Debug)]
pub struct Fluid {
    configuration: FluidConfiguration,
    hosts: u32,
    routes: RouteTable,
    /// The node at the receiving end of each link.
    ends: Vec<u32>,
    /// Rate of each link, in bits per picosecond.
    capacities: Vec<f64>,
    flows: Vec<Flow>,
    now_ps: u64,
    /// Number of the event for the next end of a message. Events with other numbers are outdated.
    generation: u32,
    /// Whether messages have started since the last computation of the rates. A later event at the
    /// same time computes the rates once for all these messages.
    is_stale: bool,
    finished: u64,
}

#[derive(Clone, Debug)]
struct Flow {
    message: u32,
    links: Vec<u32>,
    remaining_bits: f64,
    /// Rate in bits per picosecond.
    rate: f64,
}

impl Fluid {
    /// Creates a fluid model of a network with this topology. If there are several equal routes
    /// between two hosts, all messages from one of these hosts to the other use the same route.
    pub fn new(topology: &Topology, routes: RouteTable, configuration: FluidConfiguration) -> Self {
        let links = || (0..).zip(topology.links());
        let capacity = |(number, link): (u32, &Link)| {
            let rate_bps = match link.kind {
                LinkKind::Host => configuration.host_rate_bps,
                LinkKind::Switch { .. } => configuration.trunk_rate_bps,
            };
            topology.cable_settings(number).rate_bps.unwrap_or(rate_bps) as f64 * 1e-12
        };
        Self {
            configuration,
            hosts: topology.hosts(),
            routes,
            ends: topology.links().iter().map(|link| link.to).collect(),
            capacities: links().map(capacity).collect(),
            flows: Vec::new(),
            now_ps: 0,
            generation: 0,
            is_stale: false,
            finished: 0,
        }
    }

    fn path(&self, source: u32, destination: u32) -> Vec<u32> {
        let FluidConfiguration { choice, salt, .. } = self.configuration;
        let flow = choice.flow(source, destination, salt);
        let mut links = vec![self.routes.host_link(source) ^ 1];
        let mut at = self.ends[links[0] as usize];
        while at != destination {
            let switch = at - self.hosts;
            let candidates = self.routes.candidates(switch, destination);
            let link = candidates[choice.place(flow, switch, candidates.len())];
            links.push(link);
            at = self.ends[link as usize];
        }
        links
    }

    /// Advances all messages to `now_ps`, at their current rates.
    fn advance(&mut self, now_ps: u64) {
        let passed_ps = (now_ps - self.now_ps) as f64;
        for flow in &mut self.flows {
            flow.remaining_bits -= flow.rate * passed_ps;
        }
        self.now_ps = now_ps;
    }

    /// Computes the rates of all messages by progressive filling.
    fn share(&mut self) {
        let mut left = self.capacities.clone();
        let mut users = vec![0_u32; left.len()];
        for flow in &mut self.flows {
            flow.rate = -1.0;
            for &link in &flow.links {
                users[link as usize] += 1;
            }
        }
        let mut open = self.flows.len();
        let mut used: Vec<usize> = (0..left.len()).filter(|&link| users[link] > 0).collect();
        while open > 0 {
            used.retain(|&link| users[link] > 0);
            let share = |link: usize| left[link] / f64::from(users[link]);
            let Some(tightest) =
                used.iter().copied().min_by(|&a, &b| share(a).total_cmp(&share(b)))
            else {
                break;
            };
            let rate = share(tightest);
            for flow in &mut self.flows {
                if flow.rate >= 0.0 || !flow.links.contains(&(tightest as u32)) {
                    continue;
                }
                flow.rate = rate;
                open -= 1;
                for &link in &flow.links {
                    left[link as usize] = (left[link as usize] - rate).max(0.0);
                    users[link as usize] -= 1;
                }
            }
        }
    }

    /// Computes the rates, and schedules the next end of a message.
    fn schedule_next(&mut self, context: &mut Context) {
        self.is_stale = false;
        self.share();
        self.generation = self.generation.wrapping_add(1);
        let ends = self.flows.iter().map(|flow| flow.remaining_bits / flow.rate);
        let first = ends.min_by(f64::total_cmp);
        if let Some(wait_ps) = first {
            let time_ps = self.now_ps + wait_ps.max(0.0).ceil() as u64;
            context.schedule(time_ps, NEXT_END, self.generation);
        }
    }
}

impl Fabric for Fluid {
    fn inject(&mut self, context: &mut Context, index: u32) {
        self.advance(context.wheel.now_ps());
        let message = *context.messages.get(index);
        let links = self.path(message.source, message.destination);
        let remaining_bits = f64::from(message.bytes) * 8.0;
        self.flows.push(Flow { message: index, links, remaining_bits, rate: 0.0 });
        if !std::mem::replace(&mut self.is_stale, true) {
            context.schedule(self.now_ps, BEGUN, 0);
        }
    }

    fn handle(&mut self, context: &mut Context, event: Event) {
        match event.place {
            DELIVERED => {
                context.deliver(event.subject);
                return;
            }
            BEGUN => {
                if self.is_stale {
                    self.advance(event.time_ps);
                    self.schedule_next(context);
                }
                return;
            }
            _ if event.subject != self.generation => return,
            _ => {}
        }
        self.advance(event.time_ps);
        let latency_ps = self.configuration.link_latency_ps;
        let mut ended = 0;
        self.flows.retain(|flow| {
            let has_ended = flow.remaining_bits <= ENDED_BITS;
            if has_ended {
                let time_ps = event.time_ps + latency_ps * flow.links.len() as u64;
                if let Some(recorder) = &mut context.recorder {
                    let message = *context.messages.get(flow.message);
                    let from_ps = recorder.handed_ps(flow.message).unwrap_or(message.posted_ps);
                    for &link in &flow.links {
                        let bits = f64::from(message.bytes) * 8.0;
                        let busy_ps = bits / self.capacities[link as usize];
                        recorder.on_carried(link, from_ps, busy_ps as u64, message.bytes);
                    }
                }
                context.schedule(time_ps, DELIVERED, flow.message);
                ended += 1;
            }
            !has_ended
        });
        self.finished += ended;
        self.schedule_next(context);
    }

    fn diagnose(&self, context: &Context) -> Stuck {
        Stuck::Silent { messages: context.messages.len() }
    }

    fn hops(&self) -> u64 {
        self.finished
    }

    fn slot_ps(&self) -> u64 {
        SLOT_PS
    }
}

const NEXT_END: u32 = 0;
const DELIVERED: u32 = 1;
/// Kind of the event that computes the rates after messages have started. This event is ordered
/// after all deliveries of the same time, because a rank that gets a message can send immediately.
const BEGUN: u32 = 2;
/// A message has ended when fewer than `ENDED_BITS` bits are left. Such a small number of bits is a
/// rounding error, because times are whole picoseconds, and a link of 8 Tb/s carries 8 bits in a
/// picosecond.
const ENDED_BITS: f64 = 1e-3;
/// Width of a slot of the event wheel. Slots are long, because events of this fabric are far apart.
const SLOT_PS: u64 = 1_000_000;
