//! The random configuration of a run, derived from a seed by swarm testing.
//!
//! The plan first decides for each kind of fault and operation whether the run has it at all, and
//! then chooses its rate. If every run had all kinds, some faults would stay hidden: those that
//! only a combination of few kinds causes.

use super::Options;
use super::classes::Classes;
use super::faulty::FaultyKind;
use super::queue_pairs::QueuePairs;
use crate::channel::{Corruption, Faults, Jitter, LinkModel, Overhead};
use crate::host::{Congestion, Scheduling};
use crate::network::port_address;
use crate::random::Random;
use wire_edge::PeerAddr;

/// The configuration of one run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) hosts: usize,
    /// The links. Each link is a segment on which every host has a port.
    pub(crate) links: Vec<LinkPlan>,
    /// Pairs of hosts that have a connection. The first host of a pair requests it.
    pub(crate) pairs: Vec<(usize, usize)>,
    pub(crate) faults: Faults,
    /// Whether hosts get corrupted frames. If so, data may be wrong, but no engine may crash.
    pub(crate) lenient: bool,
    /// Duration of the faults, in nanoseconds.
    pub(crate) safety_ns: u64,
    /// The disasters, each with its time in nanoseconds.
    pub(crate) disasters: Vec<(u64, Disaster)>,
    pub(crate) engine: EnginePlan,
    pub(crate) traffic: TrafficPlan,
    /// Wiring of a soak, which is a run of hours in which links disappear and return; `None` for
    /// other runs. In a soak, hosts have their links in different orders, and the addresses do not
    /// show the segment.
    pub(crate) churn: Option<Wiring>,
    /// Classes of scenario in addition to this plan.
    pub(crate) classes: Classes,
    /// Settings of queue pairs; `None` if connections are not queue pairs.
    pub(crate) queue_pairs: Option<QueuePairs>,
}

/// Assigns the links of hosts to segments.
#[derive(Clone, Debug)]
pub(crate) struct Wiring {
    /// For each host, the segment of each of its links.
    pub(crate) segments: Vec<Vec<usize>>,
    /// Whether links have Ethernet addresses instead of IP addresses.
    pub(crate) ethernet: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkPlan {
    pub(crate) model: LinkModel,
    pub(crate) switched: bool,
}

/// Settings that all engines of a run have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnginePlan {
    pub(crate) congestion: Congestion,
    pub(crate) scheduling: Scheduling,
    pub(crate) operation_window: u32,
    pub(crate) order_pool_bytes: u32,
    pub(crate) read_depth: u16,
    pub(crate) ack_delay_max_ns: u32,
    pub(crate) pool_divisor: u32,
    /// Whether connections are requested over a single link. If so, the ends must find the other
    /// links.
    pub(crate) asks_on_one_link: bool,
}

/// The traffic of the applications.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrafficPlan {
    /// Number of operations for each side of each connection.
    pub(crate) operations: u32,
    /// Weights with which write, read, fetch-and-add, compare-and-swap and send are chosen.
    pub(crate) weights: [u32; 7],
    pub(crate) length_bytes_max: u32,
    pub(crate) target_bytes: u32,
    /// The following probabilities are in parts per million.
    pub(crate) strict_ppm: u32,
    pub(crate) fence_before_ppm: u32,
    pub(crate) fence_after_ppm: u32,
    pub(crate) immediate_ppm: u32,
    pub(crate) unsignalled_ppm: u32,
    pub(crate) retarget_ppm: u32,
    pub(crate) rogue_ppm: u32,
    /// Maximum number of outstanding operations.
    pub(crate) depth: u32,
    /// Maximum number of receives that are posted in advance.
    pub(crate) receives: u32,
    /// Maximum time between two polls of an application, in nanoseconds.
    pub(crate) sleep_ns_max: u64,
}

/// A disaster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Disaster {
    /// For some time, no frame leaves this port.
    Cut { host: usize, link: usize, for_ns: u64 },
    /// For some time, no frame leaves any port of a host.
    Isolate { host: usize, for_ns: u64 },
    /// For some time, a link of a host is down. The host gets a report.
    LinkDown { host: usize, link: usize, for_ns: u64 },
    /// For some time, a host does not run.
    Pause { host: usize, for_ns: u64 },
    /// A host loses all its state.
    Restart { host: usize },
    /// From now on, this port drops frames longer than `frame_bytes_max`.
    FrameLimit { host: usize, link: usize, frame_bytes_max: u16 },
    /// The rate of a port changes, in bits per second.
    Rate { host: usize, link: usize, rate: u64 },
    /// For some time, a link is removed from the connections of a host.
    RemovePath { host: usize, link: usize, for_ns: u64 },
    /// For some time, an interface does not exist. It can come back with another address.
    Detach { host: usize, link: usize, for_ns: u64, is_renumbered: bool },
    /// The carrier of a link is lost and comes back several times.
    Flap { host: usize, link: usize, times: u8, for_ns: u64 },
    /// The maximum frame length of a link changes. The host gets a report.
    FrameStep { host: usize, link: usize, frame_bytes_max: u16 },
    /// The propagation delay of a link changes.
    Delay { host: usize, link: usize, propagation_ns: u64 },
    /// For some time, many frames are lost.
    Loss { host: usize, link: usize, loss_ppm: u32, for_ns: u64 },
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Random::stream(seed, PLAN_STREAM);
        let hosts = random.pick(&[2, 2, 2, 3, 4]);
        let links: Vec<LinkPlan> =
            (0..random.pick(&[1, 1, 2, 2, 3, 4])).map(|_| draw_link(&mut random)).collect();
        let lenient = random.chance_ppm(50_000);
        let safety_ns = random.pick(&[2, 5, 10, 20, 50]) * 1_000_000;
        let faults = draw_faults(&mut random, lenient);
        let (safety_ns, disasters) = draw_disasters(&mut random, safety_ns, hosts, links.len());
        let traffic = draw_traffic(&mut random, hosts);
        let mut pairs = vec![(0, 1)];
        for second in 2..hosts {
            let first = random.below(second as u64) as usize;
            pairs.push(if random.chance_ppm(500_000) { (first, second) } else { (second, first) });
        }
        if random.chance_ppm(250_000) {
            pairs.push((1, 0));
        }
        let engine = EnginePlan {
            congestion: random.pick(&[
                Congestion::Fixed { window_bytes: 64 << 10 },
                Congestion::Aimd,
                Congestion::Aimd,
                Congestion::Delay,
            ]),
            scheduling: random.pick(&[
                Scheduling::EarliestDelivery,
                Scheduling::EarliestDelivery,
                Scheduling::RoundRobin,
            ]),
            operation_window: random.pick(&[1, 2, 4, 16, 64, 256]),
            order_pool_bytes: random.pick(&[2 << 10, 8 << 10, 64 << 10, 256 << 10]),
            read_depth: random.pick(&[1, 2, 16]),
            ack_delay_max_ns: random.pick(&[0, 25_000, 100_000]),
            pool_divisor: random.pick(&[1, 1, 1, 4, 16]),
            asks_on_one_link: random.chance_ppm(250_000),
        };
        Self {
            hosts,
            links,
            pairs,
            faults,
            lenient,
            safety_ns,
            disasters,
            engine,
            traffic,
            churn: None,
            classes: Classes::default(),
            queue_pairs: None,
        }
    }

    /// Derives the configuration of a seed with these options.
    pub(crate) fn of_seed(seed: u64, options: &Options) -> Self {
        let mut plan = Self::draw(seed);
        if options.classes {
            Classes::draw(seed, &mut plan);
        }
        if options.queue_pairs {
            plan.queue_pairs = Some(QueuePairs::draw(seed, &mut plan));
        }
        draw_offloads(seed, &mut plan.links);
        draw_patches(seed, &mut plan);
        plan
    }

    /// Derives the configuration of a soak: hours in which links disappear and come back while
    /// hosts send little.
    pub(crate) fn draw_churn(seed: u64) -> Self {
        let mut plan = Self::draw(seed);
        let mut random = Random::stream(seed, CHURN_STREAM);
        let links = random.pick(&[2, 2, 3, 3, 4]);
        plan.links = (0..links).map(|_| draw_link(&mut random)).collect();
        draw_offloads(seed, &mut plan.links);
        plan.hosts = random.pick(&[2, 3, 3, 4]);
        plan.pairs = (1..plan.hosts)
            .map(|second| {
                let first = random.below(second as u64) as usize;
                if random.chance_ppm(500_000) { (first, second) } else { (second, first) }
            })
            .collect();
        plan.lenient = false;
        plan.faults = Faults::default();
        plan.disasters.clear();
        plan.traffic.operations = random.pick(&[5, 20, 60]);
        plan.traffic.rogue_ppm = 0;
        plan.traffic.length_bytes_max = plan.traffic.length_bytes_max.min(65_536);
        let segments = (0..plan.hosts).map(|_| {
            let mut order: Vec<usize> = (0..links).collect();
            for last in (1..links).rev() {
                order.swap(last, random.below(last as u64 + 1) as usize);
            }
            order
        });
        let segments = segments.collect();
        plan.churn = Some(Wiring { segments, ethernet: random.chance_ppm(700_000) });
        plan
    }

    /// Returns the address of a host's link.
    pub(crate) fn address(&self, host: usize, link: usize) -> PeerAddr {
        if self.classes.shares_memory {
            return PeerAddr::shared_memory(1, (host as u64) << 8 | link as u64);
        }
        port_address(host as u8, link as u8)
    }

    /// Returns the segment of a host's link.
    pub(crate) fn segment(&self, host: usize, link: usize) -> usize {
        self.churn.as_ref().map_or(link, |wiring| wiring.segments[host][link])
    }

    /// Returns the link that a host has on a segment.
    pub(crate) fn link_on(&self, host: usize, segment: usize) -> usize {
        (0..self.links.len()).find(|&link| self.segment(host, link) == segment).unwrap_or(segment)
    }
}

fn draw_link(random: &mut Random) -> LinkPlan {
    let model = LinkModel {
        bucket: None,
        rate: random.pick(&[10_000_000_000, 1_000_000_000, 1_000_000_000, 100_000_000]),
        overhead: random.pick(&[Overhead::UDP, Overhead::ETHERNET]),
        propagation_ns: random.pick(&[1_000, 5_000, 50_000, 500_000]),
        jitter: random.pick(&[
            Jitter::Constant,
            Jitter::Uniform { most_ns: 20_000 },
            Jitter::Exponential { mean_ns: 10_000 },
        ]),
        queue_bytes: random.pick(&[16 << 10, 64 << 10, 1 << 20]),
        mark_bytes: random.pick(&[None, Some(8 << 10)]),
        driver_bytes: random.pick(&[None, None, Some(8 << 10)]),
        frame_bytes_max: random.pick(&[1_472, 1_472, 1_232, 8_972]),
        reports_too_big: random.chance_ppm(500_000),
        reports_rate: true,
        offloads: false,
    };
    LinkPlan { model, switched: random.chance_ppm(300_000) }
}

/// Makes about half of the links report segmentation offload, as UDP drivers do. Uses a separate
/// random stream, so that the other parts of a seed's plan do not change.
fn draw_offloads(seed: u64, links: &mut [LinkPlan]) {
    let mut random = Random::stream(seed, OFFLOADS_STREAM);
    for link in links {
        link.model.offloads = random.chance_ppm(500_000);
    }
}

/// Adds patches and swaps to half of the plans. Uses a separate random stream, like
/// [`draw_offloads`]. Queue pairs have neither, and a host that withholds operations posts only
/// writes.
fn draw_patches(seed: u64, plan: &mut Plan) {
    let withholds = plan.classes.faulty.is_some_and(|faulty| faulty.kind == FaultyKind::Withholds);
    if plan.queue_pairs.is_some() || withholds {
        return;
    }
    let mut random = Random::stream(seed, PATCHES_STREAM);
    if random.chance_ppm(500_000) {
        plan.traffic.weights[5] = random.pick(&[1, 2, 5, 10]);
        plan.traffic.weights[6] = random.pick(&[0, 1, 2]);
    }
}

fn draw_faults(random: &mut Random, lenient: bool) -> Faults {
    let mut rate =
        |choices: &[u32]| if random.chance_ppm(500_000) { random.pick(choices) } else { 0 };
    let (loss_ppm, burst) = (rate(&[1_000, 10_000, 50_000, 150_000]), rate(&[2, 8]));
    // A burst multiplies the loss, so the probability of a burst is limited. The total loss is at
    // most 16 %.
    let loss_ppm = if burst > 1 { loss_ppm.min(20_000) } else { loss_ppm };
    let duplicate_ppm = rate(&[1_000, 50_000, 200_000]);
    let reorder_ppm = rate(&[1_000, 50_000, 200_000]);
    let corrupt_ppm = if lenient { 20_000 } else { rate(&[1_000, 20_000]) };
    let replay_ppm = rate(&[1_000, 50_000]);
    Faults {
        loss_ppm,
        loss_burst_frames: burst.max(1),
        duplicate_ppm,
        reorder_ppm,
        late_ns_max: random.pick(&[10_000, 200_000, 5_000_000]),
        corrupt_ppm,
        corruption: if lenient { Corruption::Delivered } else { Corruption::Dropped },
        replay_ppm,
        cut: false,
    }
}

fn draw_disasters(
    random: &mut Random,
    safety_ns: u64,
    hosts: usize,
    links: usize,
) -> (u64, Vec<(u64, Disaster)>) {
    let mut safety_ns = safety_ns;
    let mut disasters = Vec::new();
    let kinds = random.next_u64();
    for _ in 0..random.pick(&[0, 1, 2, 4, 8]) {
        let at_ns = random.below(safety_ns);
        let host = random.below(hosts as u64) as usize;
        let link = random.below(links as u64) as usize;
        let for_ns = random.pick(&[100_000, 1_000_000, 10_000_000, 100_000_000]);
        let kind = random.below(8);
        if kinds >> kind & 1 == 0 {
            continue;
        }
        disasters.push((
            at_ns,
            match kind {
                0 => Disaster::Cut { host, link, for_ns },
                1 => Disaster::Isolate { host, for_ns },
                2 => Disaster::LinkDown { host, link, for_ns },
                3 => Disaster::Pause { host, for_ns },
                4 => Disaster::Restart { host },
                5 => {
                    let frame_bytes_max = random.pick(&[1_232, 1_300, 1_472]);
                    Disaster::FrameLimit { host, link, frame_bytes_max }
                }
                6 => Disaster::RemovePath { host, link, for_ns },
                _ => Disaster::Rate { host, link, rate: random.pick(&[10_000_000, 1_000_000_000]) },
            },
        ));
    }
    if random.chance_ppm(50_000) {
        let host = random.below(hosts as u64) as usize;
        disasters
            .push((random.below(safety_ns), Disaster::Isolate { host, for_ns: LONG_OUTAGE_NS }));
        safety_ns += LONG_OUTAGE_NS;
    }
    disasters.sort_by_key(|&(at_ns, _)| at_ns);
    (safety_ns, disasters)
}

fn draw_traffic(random: &mut Random, hosts: usize) -> TrafficPlan {
    let mut weights = [0; 7];
    for weight in &mut weights[..5] {
        if random.chance_ppm(600_000) {
            *weight = random.pick(&[1, 2, 5]);
        }
    }
    weights[0] += u32::from(weights.iter().all(|&weight| weight == 0));
    let mut rate =
        |choices: &[u32]| if random.chance_ppm(500_000) { random.pick(choices) } else { 0 };
    let strict_ppm = rate(&[200_000, 500_000, 1_000_000, 1_000_000]);
    let fence_before_ppm = rate(&[20_000, 200_000, 1_000_000]);
    let fence_after_ppm = rate(&[20_000, 200_000]);
    let immediate_ppm = rate(&[100_000, 500_000]);
    let unsignalled_ppm = rate(&[100_000, 700_000]);
    let retarget_ppm = rate(&[20_000]);
    let rogue_ppm = if random.chance_ppm(100_000) { 20_000 } else { 0 };
    let operations = random.pick(&[10, 20, 40, 80, 200, 400]);
    TrafficPlan {
        operations: operations / (hosts as u32 - 1),
        weights,
        length_bytes_max: random.pick(&[64, 1_024, 8_192, 65_536, 262_144]),
        target_bytes: random.pick(&[512, 4_096, 32_768]),
        strict_ppm,
        fence_before_ppm,
        fence_after_ppm,
        immediate_ppm,
        unsignalled_ppm,
        retarget_ppm,
        rogue_ppm,
        depth: random.pick(&[1, 4, 16, 64]),
        receives: random.pick(&[1, 4, 16]),
        sleep_ns_max: random.pick(&[5_000, 50_000, 500_000, 3_000_000]),
    }
}

const PLAN_STREAM: u64 = 0x706c_616e;
const CHURN_STREAM: u64 = 0x6368_7572;
const OFFLOADS_STREAM: u64 = 0x6f66_666c;
const PATCHES_STREAM: u64 = 0x7061_7463;

/// An outage longer than the five seconds after which a silent peer is regarded as dead.
const LONG_OUTAGE_NS: u64 = 7_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_draw_equal_plans() {
        for seed in 0..50 {
            let (first, second) = (Plan::draw(seed), Plan::draw(seed));
            assert_eq!(format!("{first:?}"), format!("{second:?}"));
        }
    }

    #[test]
    fn seeds_cover_the_configurations() {
        let plans: Vec<Plan> = (0..500).map(Plan::draw).collect();
        let share = |test: &dyn Fn(&Plan) -> bool| plans.iter().filter(|plan| test(plan)).count();
        assert!(share(&|plan| plan.hosts > 2) > 100);
        assert!(share(&|plan| plan.links.len() > 1) > 200);
        assert!(share(&|plan| plan.lenient) > 5);
        assert!(share(&|plan| plan.disasters.is_empty()) > 100);
        assert!(share(&|plan| plan.safety_ns > LONG_OUTAGE_NS) > 5);
        assert!(share(&|plan| plan.traffic.strict_ppm == 1_000_000) > 50);
        assert!(share(&|plan| plan.faults.loss_ppm > 0) > 150);
    }
}
