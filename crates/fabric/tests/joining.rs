//! Tests that the two ends find all links between them, whatever the topology (protocol.md §7.4).

use delivery::{LinkId, LinkState};
use fabric::host::{
    Action, Congestion, ConnectionHandle, Flags, HostEngine, HostEvent, Operation, RequestHandle,
    Scheduling, Tuning,
};
use fabric::{
    Application, EdgeHost, Faults, LinkModel, Network, PortId, Random, Segment, World, port_address,
};
use wire_edge::PeerAddr;

/// Returns the address of a host's interface. An Ethernet address does not show the segment.
fn ethernet(host: u8, link: u8) -> PeerAddr {
    let mut bytes = [0; 20];
    bytes[0] = 1;
    bytes[4..10].copy_from_slice(&[2, 0, 0, 0x9e ^ host, host, link]);
    PeerAddr(bytes)
}

/// Accepts every request, and records the connections.
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

/// Two hosts. Each has one link on each of its segments.
struct Hosts {
    world: World<EdgeHost>,
    application: Accepting,
}

impl Hosts {
    /// Creates two hosts. `segments` contains for each host the segments of its links. `address`
    /// returns the address of a port.
    fn new(segments: [&[usize]; 2], address: fn(u8, u8) -> PeerAddr) -> Self {
        Self::with_rates(segments, address, |_| 1_000_000_000, true)
    }

    /// Creates two hosts like [`Hosts::new`]. `rate` returns the rate of the links on a segment, in
    /// bits per second. If `reports_rate` is true, links report their rate to their hosts.
    fn with_rates(
        segments: [&[usize]; 2],
        address: fn(u8, u8) -> PeerAddr,
        rate: fn(usize) -> u64,
        reports_rate: bool,
    ) -> Self {
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
                    let ethernet = LinkModel::ethernet(rate(segment), 5_000);
                    let model = LinkModel { reports_rate, ..ethernet };
                    world.network.add_port(segment, address(host as u8, link as u8), model)
                })
                .collect();
            world.add_host(EdgeHost::new(&tuning(host as u8)), &ports);
            let now = world.now();
            world.engine_mut(host).listen(now);
        }
        Self { world, application: Accepting::default() }
    }

    /// Connects over all links and addresses that may reach the peer.
    fn connect(&mut self) {
        self.connect_by(|_| true);
    }

    /// Connects over the pairs that `is_wanted` selects. A pair is a link and an address that may
    /// reach the peer.
    fn connect_by(&mut self, is_wanted: impl FnMut(&(LinkId, PeerAddr)) -> bool) {
        let peers = self.addresses(1);
        let links: Vec<(LinkId, PeerAddr)> = self
            .addresses(0)
            .into_iter()
            .enumerate()
            .map(|(link, address)| (LinkId(link as u8), address))
            .collect();
        let mut paths = engine::rank_pairs(&links, &peers);
        paths.retain(is_wanted);
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

    /// Runs until both ends have exactly these pairs of links and all these links are up.
    fn expect_pairs(&mut self, within_ns: u64, expected: &[(u8, u8)]) {
        let deadline = self.world.now().after_ns(within_ns);
        loop {
            let found = [self.pairs(0), self.pairs(1)];
            if found.iter().all(|pairs| pairs.as_deref() == Some(expected)) {
                return;
            }
            if self.world.now() >= deadline {
                self.print_links();
                panic!("{found:?} instead of {expected:?}");
            }
            self.run_for(1_000_000);
        }
    }

    /// Sets the rate of a link of both hosts, in bits per second.
    fn set_rate(&mut self, link: usize, rate: u64) {
        for host in 0..2 {
            let port = self.world.ports(host)[link];
            self.world.network.set_rate(port, rate);
        }
    }

    /// Writes `bytes` bytes from the first host to the second, `times` times one after another.
    /// Returns the mean time until a write is complete, in nanoseconds.
    fn write_ns(&mut self, bytes: u32, times: u64) -> u64 {
        let found = self.application.connections.iter().find(|(host, _)| *host == 0);
        let &(_, connection) = found.expect("the first host is connected");
        let source = self.world.engine_mut(0).register(bytes);
        let target = self.world.engine_mut(1).register(bytes);
        let operation = Operation {
            action: Action::Write,
            local: source,
            local_offset: 0,
            length_bytes: bytes,
            key: target.key,
            address: target.address,
            immediate: None,
            flags: Flags { signalled: true, ..Flags::default() },
            context: 1,
        };
        let began = self.world.now();
        for _ in 0..times {
            let now = self.world.now();
            self.world.engine_mut(0).post(now, connection, &operation).expect("there is room");
            while self.world.poll_completion(0, connection).is_none() {
                assert!(self.world.now().since_ns(now) < 1_000_000_000, "it completes");
                self.run_for(1_000);
            }
        }
        self.world.now().since_ns(began) / times
    }

    fn print_links(&self) {
        for &(host, connection) in &self.application.connections {
            let engine = self.world.engine(host);
            let info = engine.engine_handle(connection).and_then(|c| engine.engine().info(c));
            println!("host {host} at {:?}", self.world.now());
            for path in info.iter().flat_map(|info| &info.paths) {
                let (index, link, peer) = (path.index, path.link.0, path.peer);
                let challenges = path.counters.path_challenges_sent;
                println!(
                    "  {index}: {link} to {peer} is {:?}, {challenges} challenges, {} received",
                    path.state, path.counters.frames_received
                );
            }
        }
    }

    /// Returns the links of a host's connection. Each entry has a link of the first host and a link
    /// of the second host. Returns `None` if a link is not up.
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
        shape: fabric::host::Shape::default(),
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

//= protocol.md: challenge.3, join.1, join.3
#[test]
fn links_on_separate_segments_are_paired_in_any_order() {
    for first in PERMUTATIONS {
        for second in PERMUTATIONS {
            for address in [ethernet, port_address] {
                let segments: [&[usize]; 2] = [&first, &second];
                let mut hosts = Hosts::new(segments, address);
                hosts.connect();
                hosts.expect_pairs(1_000_000_000, &matching(segments));
                hosts.run_for(2_000_000_000);
                assert!(hosts.world.engine(0).is_idle(), "idle");
                assert!(hosts.world.engine(1).is_idle(), "idle");
            }
        }
    }
}

//= protocol.md: join.5
#[test]
fn links_are_paired_over_lossy_segments() {
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

//= protocol.md: join.4
#[test]
fn links_without_counterpart_cost_little() {
    // A single pair of links has a path; the other pairs have none.
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

//= protocol.md: join.6
#[test]
fn a_new_link_joins_the_connections_of_either_end() {
    for host in 0..2 {
        for late in 0..2 {
            let mut hosts = Hosts::new([&[0, 1], &[1, 0]], ethernet);
            hosts.world.detach_link(host, LinkId(late));
            hosts.connect_by(|pair| host == 1 || pair.0.0 != late);
            let missing = if host == 0 { late } else { 1 - late };
            hosts.expect_pairs(1_000_000_000, &[(1 - missing, missing)]);
            hosts.run_for(100_000_000);
            hosts.world.attach_link(host, LinkId(late));
            hosts.expect_pairs(500_000_000, &[(0, 1), (1, 0)]);
        }
    }
}

/// The hosts do not know the speed of a new link, so they must measure it with short messages.
/// Traffic of other hosts can delay the first frames on the link. This delay must not affect the
/// estimate for later frames.
#[test]
fn short_messages_use_a_faster_link_that_joins() {
    let first_rates = [1_000_000_000, 100_000_000, 10_000_000];
    for (first_rate, reports_rate) in
        first_rates.into_iter().flat_map(|rate| [(rate, true), (rate, false)])
    {
        let rate = |segment| if segment == 0 { 100_000_000 } else { 1_000_000_000 };
        let mut hosts = Hosts::with_rates([&[0, 1], &[0, 1]], ethernet, rate, reports_rate);
        hosts.world.detach_link(0, LinkId(1));
        hosts.connect_by(|pair| pair.0.0 == 0);
        hosts.expect_pairs(1_000_000_000, &[(0, 0)]);
        let alone_ns = hosts.write_ns(4096, 50);
        hosts.world.attach_link(0, LinkId(1));
        hosts.set_rate(1, first_rate);
        hosts.expect_pairs(500_000_000, &[(0, 0), (1, 1)]);
        hosts.run_for(10_000_000);
        hosts.set_rate(1, 1_000_000_000);
        hosts.write_ns(4096, 50);
        let both_ns = hosts.write_ns(4096, 50);
        assert!(
            both_ns < alone_ns / 4,
            "at first {first_rate} bit/s, reported: {reports_rate}: {both_ns} ns, and {alone_ns} over the slow link alone"
        );
    }
}

//= protocol.md: compare.4
#[test]
fn a_link_that_goes_and_returns_joins_again() {
    for host in 0..2 {
        let mut hosts = Hosts::new([&[0, 1, 2], &[1, 0, 2]], ethernet);
        hosts.connect();
        hosts.expect_pairs(1_000_000_000, &[(0, 1), (1, 0), (2, 2)]);
        for round in 0..6 {
            let link = round % 3;
            hosts.world.detach_link(host, LinkId(link));
            let gone = |pair: &(u8, u8)| if host == 0 { pair.0 != link } else { pair.1 != link };
            let rest: Vec<_> = [(0, 1), (1, 0), (2, 2)].into_iter().filter(gone).collect();
            hosts.expect_pairs(100_000_000, &rest);
            if round % 2 == 0 {
                // The address differs, as with another network card in the same slot.
                let port = hosts.world.ports(host)[usize::from(link)];
                hosts.world.network.set_address(port, ethernet(host as u8, 100 + round));
            }
            hosts.world.attach_link(host, LinkId(link));
            hosts.expect_pairs(3_000_000_000, &[(0, 1), (1, 0), (2, 2)]);
        }
        assert_eq!(hosts.application.closed, 0);
    }
}

#[test]
fn a_link_that_returns_with_another_address_is_used_again() {
    for host in 0..2 {
        for links in 1..3 {
            let segments = &[0, 1][..links];
            let mut hosts = Hosts::new([segments, segments], ethernet);
            hosts.connect();
            let all: Vec<_> = (0..links as u8).map(|link| (link, link)).collect();
            hosts.expect_pairs(1_000_000_000, &all);
            for round in 0..5 {
                let port = hosts.world.ports(host)[0];
                hosts.world.network.set_up(port, false);
                hosts.world.report_changes();
                hosts.run_for(u64::from(round) * 300_000_000);
                hosts.world.network.set_address(port, ethernet(host as u8, 100 + round));
                hosts.world.network.set_up(port, true);
                hosts.world.report_changes();
                hosts.expect_pairs(3_000_000_000, &all);
            }
            assert_eq!(hosts.application.closed, 0);
        }
    }
}

//= protocol.md: remove.3
#[test]
fn the_last_link_is_replaced_by_another() {
    for host in 0..2 {
        let mut hosts = Hosts::new([&[0, 0], &[0]], port_address);
        if host == 1 {
            hosts = Hosts::new([&[0], &[0, 0]], port_address);
        }
        hosts.world.detach_link(host, LinkId(1));
        hosts.connect_by(|pair| host == 1 || pair.0.0 == 0);
        hosts.expect_pairs(1_000_000_000, &[(0, 0)]);
        hosts.world.detach_link(host, LinkId(0));
        hosts.run_for(100_000_000);
        hosts.world.attach_link(host, LinkId(1));
        hosts.expect_pairs(1_000_000_000, &[if host == 0 { (1, 0) } else { (0, 1) }]);
        // The interface comes back before the engine has noticed that it was gone.
        hosts.world.attach_link(host, LinkId(0));
        hosts.world.detach_link(host, LinkId(1));
        hosts.expect_pairs(1_000_000_000, &[(0, 0)]);
        assert_eq!(hosts.application.closed, 0);
    }
}

//= protocol.md: remove.2
#[test]
fn a_link_removed_by_the_application_stays_removed() {
    for host in 0..2 {
        let mut hosts = Hosts::new([&[0, 1], &[0, 1]], ethernet);
        hosts.connect();
        hosts.expect_pairs(1_000_000_000, &[(0, 0), (1, 1)]);
        let (_, connection) = *hosts.application.connections.iter().find(|c| c.0 == host).unwrap();
        hosts.world.engine_mut(host).remove_path(connection, LinkId(1));
        hosts.run_for(100_000_000_000);
        hosts.expect_pairs(1, &[(0, 0)]);
        // After the carrier has flapped, the engine must not add the removed link again by itself.
        // If the application adds the link, the engine must use it.
        let port = hosts.world.ports(host)[1];
        hosts.world.network.set_up(port, false);
        hosts.world.network.set_up(port, true);
        hosts.world.report_changes();
        hosts.run_for(100_000_000_000);
        hosts.expect_pairs(1, &[(0, 0)]);
        let (now, peer) = (hosts.world.now(), ethernet(1 - host as u8, 1));
        hosts.world.engine_mut(host).add_path(now, connection, LinkId(1), peer);
        hosts.expect_pairs(1_000_000_000, &[(0, 0), (1, 1)]);
    }
}
