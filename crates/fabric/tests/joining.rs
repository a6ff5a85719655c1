//! Links of both ends find each other, whatever reaches what (protocol.md §7.4).

use delivery::{Instant, LinkId, LinkState};
use fabric::host::{
    Congestion, ConnectionHandle, HostEngine, HostEvent, RequestHandle, Scheduling, Tuning,
};
use fabric::{
    Application, EdgeHost, Faults, LinkModel, Network, PortId, Random, Segment, World,
    port_address,
};
use wire_edge::PeerAddr;

/// The address of an interface of a host: Ethernet says nothing about segments.
fn ethernet(host: u8, link: u8) -> PeerAddr {
    let mut bytes = [0; 20];
    bytes[0] = 1;
    bytes[4..10].copy_from_slice(&[2, 0, 0, 0x9e ^ host, host, link]);
    PeerAddr(bytes)
}

/// Accepts whatever is asked for, and remembers the connections.
#[derive(Default)]
struct Accepting {
    connections: Vec<(usize, ConnectionHandle)>,
    closed: usize,
}

impl Application<EdgeHost> for Accepting {
    fn on_wake(&mut self, _world: &mut World<EdgeHost>, _token: u64) {}

    fn on_event(&mut self, world: &mut World<EdgeHost>, host: usize, event: HostEvent) {
        let now = world.now();
        match event {
            HostEvent::Requested { request: RequestHandle(number), .. } => {
                world.engine_mut(host).accept(now, RequestHandle(number)).expect("it waits");
            }
            HostEvent::Established(connection) => self.connections.push((host, connection)),
            HostEvent::Closed(..) => self.closed += 1,
        }
    }

    fn on_turn(&mut self, _world: &mut World<EdgeHost>, _host: usize) {}
}

/// Two hosts with a link on each of some segments.
struct Hosts {
    world: World<EdgeHost>,
    application: Accepting,
}

impl Hosts {
    /// `segments`: for each host, the segment of each link; `address` names the ports.
    fn new(segments: [&[usize]; 2], address: fn(u8, u8) -> PeerAddr) -> Self {
        let mut world = World::new(1, 16);
        let most = segments.iter().flat_map(|host| host.iter()).max().copied().unwrap_or(0);
        for _ in 0..=most {
            world.network.add_segment(Segment::Direct);
        }
        for (host, links) in segments.iter().enumerate() {
            let ports: Vec<PortId> = links
                .iter()
                .enumerate()
                .map(|(link, &segment)| {
                    let model = LinkModel::ethernet(1_000_000_000, 5_000);
                    world.network.add_port(segment, address(host as u8, link as u8), model)
                })
                .collect();
            world.add_host(EdgeHost::new(&tuning(host as u8)), &ports);
            let now = world.now();
            world.engine_mut(host).listen(now);
        }
        Self { world, application: Accepting::default() }
    }

    /// Connects by everything that may lead to the peer.
    fn connect(&mut self) {
        let peers = self.addresses(1);
        let links: Vec<(LinkId, PeerAddr)> = self
            .addresses(0)
            .into_iter()
            .enumerate()
            .map(|(link, address)| (LinkId(link as u8), address))
            .collect();
        let paths = engine::rank_pairs(&links, &peers);
        let now = self.world.now();
        self.world.engine_mut(0).connect(now, &paths, &[]).expect("it may connect");
    }

    fn addresses(&self, host: usize) -> Vec<PeerAddr> {
        let network: &Network = &self.world.network;
        self.world.ports(host).iter().map(|&port| network.caps(port).local).collect()
    }

    fn run_for(&mut self, ns: u64) {
        let until = self.world.now().after_ns(ns);
        self.world.run_until(until, &mut self.application).expect("time goes on");
    }

    /// Runs until both ends have exactly these pairs of links, all of them up.
    fn expect_pairs(&mut self, within_ns: u64, expected: &[(u8, u8)]) {
        let deadline = self.world.now().after_ns(within_ns);
        loop {
            let found = [self.pairs(0), self.pairs(1)];
            if found.iter().all(|pairs| pairs.as_deref() == Some(expected)) {
                return;
            }
            assert!(self.world.now() < deadline, "{found:?} instead of {expected:?}");
            self.run_for(1_000_000);
        }
    }

    /// The links of a host's connection, as pairs of the first host's and the second host's; absent
    /// if one is not up.
    fn pairs(&self, host: usize) -> Option<Vec<(u8, u8)>> {
        let &(_, connection) = self.application.connections.iter().find(|(at, _)| *at == host)?;
        let engine = self.world.engine(host);
        let info = engine.engine().info(engine.engine_handle(connection)?)?;
        let peers = self.addresses(1 - host);
        let mut pairs = Vec::new();
        for path in &info.paths {
            let peer = peers.iter().position(|address| *address == path.peer)? as u8;
            pairs.push(if host == 0 { (path.link.0, peer) } else { (peer, path.link.0) });
            if path.state != LinkState::Up {
                return None;
            }
        }
        pairs.sort_unstable();
        Some(pairs)
    }
}

fn tuning(host: u8) -> Tuning {
    let mut entropy = [0; 32];
    Random::new(u64::from(host) + 5).fill(&mut entropy);
    Tuning {
        entropy,
        congestion: Congestion::Aimd,
        scheduling: Scheduling::EarliestDelivery,
        operation_window: 64,
        order_pool_bytes: 64 << 10,
        read_depth: 16,
        ack_delay_max_ns: 25_000,
        dead_peer_ns: 5_000_000_000,
        pool_divisor: 1,
    }
}

const PERMUTATIONS: [[usize; 3]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

fn matching(segments: [&[usize]; 2]) -> Vec<(u8, u8)> {
    let pair = |(link, segment): (usize, &usize)| {
        let peer = segments[1].iter().position(|other| other == segment)?;
        Some((link as u8, peer as u8))
    };
    segments[0].iter().enumerate().filter_map(pair).collect()
}

#[test]
fn links_on_separate_segments_find_each_other_in_whatever_order_they_are() {
    for first in PERMUTATIONS {
        for second in PERMUTATIONS {
            for address in [ethernet, port_address] {
                let segments: [&[usize]; 2] = [&first, &second];
                let mut hosts = Hosts::new(segments, address);
                hosts.connect();
                hosts.expect_pairs(1_000_000_000, &matching(segments));
                hosts.run_for(2_000_000_000);
                assert_eq!(hosts.world.engine(0).poll_timeout(), Instant::NEVER, "at rest");
                assert_eq!(hosts.world.engine(1).poll_timeout(), Instant::NEVER, "at rest");
            }
        }
    }
}

#[test]
fn links_find_each_other_over_ways_that_lose_frames() {
    for (seed, second) in PERMUTATIONS.iter().enumerate() {
        let segments: [&[usize]; 2] = [&[0, 1, 2], second];
        let mut hosts = Hosts::new(segments, ethernet);
        let loss_ppm = 200_000 + seed as u32 * 20_000;
        for port in 0..6 {
            let faults = Faults { loss_ppm, ..Faults::default() };
            hosts.world.network.set_faults(PortId(port), faults);
        }
        hosts.connect();
        hosts.expect_pairs(30_000_000_000, &matching(segments));
    }
}

#[test]
fn links_without_counterpart_cost_little() {
    // Two pairs of dead ends beside one way.
    let mut hosts = Hosts::new([&[0, 1, 2], &[3, 4, 0]], ethernet);
    hosts.connect();
    hosts.expect_pairs(2_000_000_000, &[(0, 2)]);
    let sent = |hosts: &Hosts| hosts.world.network.counters().sent;
    let before = sent(&hosts);
    hosts.run_for(10_000_000_000);
    let first = sent(&hosts) - before;
    assert!(first < 200, "{first} frames in 10 s");
    hosts.run_for(600_000_000_000);
    let before = sent(&hosts);
    hosts.run_for(600_000_000_000);
    let later = sent(&hosts) - before;
    assert!(later < 600, "{later} frames in 10 min");
}
