//! Computes the bisection bandwidth of a network.

use std::collections::VecDeque;

use super::super::topology::{LinkKind, Topology};

/// The bandwidth between the two halves of the hosts, for the weakest of the tried halvings.
#[derive(Clone, Debug, PartialEq)]
pub struct Bisection {
    /// Maximum flow, in bits per second in one direction.
    pub bits_per_second: u64,
    /// Description of the halving, for a sentence.
    pub halving: String,
    /// Number of halvings tried. Trying all halvings would take too long.
    pub tried: usize,
}

/// Rates of the links, in bits per second.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkRates {
    /// Rate of links between hosts and switches.
    pub host_bps: u64,
    /// Rate of links between switches.
    pub trunk_bps: u64,
}

impl LinkRates {
    /// Returns the rate of a link, in bits per second. A rate set for its cable takes precedence.
    pub fn of(&self, topology: &Topology, link: u32) -> u64 {
        let of_kind = match topology.link(link).map(|link| link.kind) {
            Some(LinkKind::Host) => self.host_bps,
            _ => self.trunk_bps,
        };
        let link = link.checked_rem(topology.links().len() as u32).unwrap_or_default();
        topology.cable_settings(link).rate_bps.unwrap_or(of_kind)
    }
}

impl Bisection {
    /// Computes the bisection over the links for which `is_used` returns true. Links can be unused,
    /// for example because bridges block them. Divides the hosts in several ways: by their numbers,
    /// across each dimension of a grid, and around several switches. For each halving, computes the
    /// maximum flow exactly.
    pub fn new(topology: &Topology, rates: LinkRates, is_used: impl Fn(u32) -> bool) -> Self {
        let trunks = Trunks::new(topology, rates, is_used);
        let halvings = halvings(topology);
        let tried = halvings.len();
        let flows = halvings.into_iter().map(|(halving, half)| {
            let bits_per_second = trunks.flow_bps(topology, rates, &half);
            Self { bits_per_second, halving, tried }
        });
        let least = flows.min_by_key(|bisection| bisection.bits_per_second);
        least.unwrap_or(Self { bits_per_second: 0, halving: "of nothing".to_owned(), tried: 0 })
    }
}

/// Returns halvings of the hosts. Each entry has a name and, for each host, whether the host is in
/// the first half.
fn halvings(topology: &Topology) -> Vec<(String, Vec<bool>)> {
    let hosts = topology.hosts();
    let numbered = (0..hosts).map(|host| host < hosts / 2).collect();
    let mut halvings = vec![(format!("h0 to h{} | the rest", (hosts / 2).max(1) - 1), numbered)];
    if let Some(grid) = topology.grid() {
        for (dimension, &size) in grid.sizes.iter().enumerate() {
            let is_first = |host: u32| {
                let at = grid.coordinates(topology.host_switch(host));
                at.get(dimension).is_some_and(|at| *at < size / 2)
            };
            let half: Vec<bool> = (0..hosts).map(is_first).collect();
            let first = half.iter().filter(|is_first| **is_first).count();
            if first * 2 == half.len() {
                halvings.push((format!("across dimension {dimension}"), half));
            }
        }
    }
    let switches = topology.switches();
    let step = switches.div_ceil(STARTS_MAX).max(1);
    for start in (0..switches).step_by(step as usize) {
        halvings.push((format!("around s{start}"), around(topology, start)));
    }
    halvings
}

/// Returns the half of the hosts that is nearest to the switch `start`.
fn around(topology: &Topology, start: u32) -> Vec<bool> {
    let hosts = topology.hosts();
    let mut half = vec![false; hosts as usize];
    let mut left = hosts / 2;
    let mut is_seen = vec![false; topology.switches() as usize];
    let mut open = VecDeque::from([start]);
    if let Some(seen) = is_seen.get_mut(start as usize) {
        *seen = true;
    }
    while let Some(switch) = open.pop_front() {
        for &link in topology.outgoing(hosts + switch) {
            let Some(to) = topology.links().get(link as usize).map(|link| link.to) else {
                continue;
            };
            if let Some(host) = half.get_mut(to as usize) {
                if left > 0 {
                    *host = true;
                    left -= 1;
                }
            } else if let Some(seen) = is_seen.get_mut((to - hosts) as usize)
                && !std::mem::replace(seen, true)
            {
                open.push_back(to - hosts);
            }
        }
    }
    half
}

/// Switches, and the total rate of the cables between every two of them.
struct Trunks {
    switches: usize,
    /// Source, destination, rate.
    rates: Vec<(u32, u32, u64)>,
}

impl Trunks {
    fn new(topology: &Topology, of_links: LinkRates, is_used: impl Fn(u32) -> bool) -> Self {
        let hosts = topology.hosts();
        let mut rates: Vec<(u32, u32, u64)> = (0..)
            .zip(topology.links())
            .filter(|(_, link)| matches!(link.kind, LinkKind::Switch { .. }))
            .filter(|(number, _)| is_used(*number))
            .map(|(number, link)| {
                (link.from - hosts, link.to - hosts, of_links.of(topology, number))
            })
            .collect();
        rates.sort_unstable();
        rates.dedup_by(|next, kept| {
            let is_parallel = (next.0, next.1) == (kept.0, kept.1);
            if is_parallel {
                kept.2 = kept.2.saturating_add(next.2);
            }
            is_parallel
        });
        Self { switches: topology.switches() as usize, rates }
    }

    /// Returns the maximum flow from the hosts of one half to the hosts of the other half, in bits
    /// per second.
    fn flow_bps(&self, topology: &Topology, of_links: LinkRates, half: &[bool]) -> u64 {
        let (source, sink) = (self.switches, self.switches + 1);
        let mut ends = vec![[0_u64; 2]; self.switches];
        for (host, is_first) in (0..).zip(half) {
            if let Some(rates) = ends.get_mut(topology.host_switch(host) as usize) {
                let rate = &mut rates[usize::from(!*is_first)];
                let host_bps = of_links.of(topology, topology.host_link(host));
                *rate = rate.saturating_add(host_bps);
            }
        }
        let mut flow = Flow::new(self.switches + 2);
        for &(from, to, rate) in &self.rates {
            flow.join(from as usize, to as usize, rate);
        }
        for (switch, [from_hosts, to_hosts]) in ends.into_iter().enumerate() {
            flow.join(source, switch, from_hosts);
            flow.join(switch, sink, to_hosts);
        }
        flow.greatest(source, sink)
    }
}

/// Computes a maximum flow by blocking flows in layers (Dinic's algorithm).
struct Flow {
    /// Edges that leave each node. An edge and its reverse have the numbers 2k and 2k + 1.
    outgoing: Vec<Vec<usize>>,
    to: Vec<usize>,
    left: Vec<u64>,
    layers: Vec<u32>,
    next: Vec<usize>,
}

impl Flow {
    fn new(nodes: usize) -> Self {
        Self {
            outgoing: vec![Vec::new(); nodes],
            to: Vec::new(),
            left: Vec::new(),
            layers: vec![0; nodes],
            next: vec![0; nodes],
        }
    }

    fn join(&mut self, from: usize, to: usize, capacity: u64) {
        if capacity == 0 {
            return;
        }
        self.outgoing[from].push(self.to.len());
        self.outgoing[to].push(self.to.len() + 1);
        self.to.extend([to, from]);
        self.left.extend([capacity, 0]);
    }

    fn greatest(&mut self, source: usize, sink: usize) -> u64 {
        let mut total = 0_u64;
        while self.layer(source, sink) {
            self.next.fill(0);
            while let Some(more) = self.augment(source, sink) {
                total = total.saturating_add(more);
            }
        }
        total
    }

    /// Computes each node's distance from the source, along edges with capacity left. Returns
    /// whether there is a path to the sink.
    fn layer(&mut self, source: usize, sink: usize) -> bool {
        self.layers.fill(UNREACHED);
        self.layers[source] = 0;
        let mut open = VecDeque::from([source]);
        while let Some(node) = open.pop_front() {
            for &edge in &self.outgoing[node] {
                let to = self.to[edge];
                if self.left[edge] > 0 && self.layers[to] == UNREACHED {
                    self.layers[to] = self.layers[node] + 1;
                    open.push_back(to);
                }
            }
        }
        self.layers[sink] != UNREACHED
    }

    /// Sends as much flow as possible along one path through the layers, and returns the added
    /// flow. Returns `None` if no path is left. If no path leads from a node to the sink, later
    /// calls skip this node.
    fn augment(&mut self, source: usize, sink: usize) -> Option<u64> {
        let mut path: Vec<usize> = Vec::new();
        let mut node = source;
        while node != sink {
            let edge = self.outgoing[node].get(self.next[node]).copied();
            match edge {
                Some(edge)
                    if self.left[edge] > 0
                        && self.layers[self.to[edge]] == self.layers[node] + 1 =>
                {
                    path.push(edge);
                    node = self.to[edge];
                }
                Some(_) => self.next[node] += 1,
                None => {
                    node = self.to[path.pop()? ^ 1];
                    self.next[node] += 1;
                }
            }
        }
        let room = path.iter().map(|&edge| self.left[edge]).min()?;
        for edge in path {
            self.left[edge] -= room;
            self.left[edge ^ 1] = self.left[edge ^ 1].saturating_add(room);
        }
        Some(room)
    }
}

/// Maximum number of halvings around switches. The chosen switches have evenly spaced numbers.
const STARTS_MAX: u32 = 16;
const UNREACHED: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: LinkRates = LinkRates { host_bps: 10, trunk_bps: 10 };

    fn bisection(topology: Result<Topology, super::super::super::topology::TopologyError>) -> u64 {
        Bisection::new(&topology.expect("a topology"), RATES, |_| true).bits_per_second
    }

    #[test]
    fn known_bisections_are_computed() {
        assert_eq!(bisection(Topology::star(8)), 4 * 10);
        // A fat tree has full bisection: every host can send at its full rate.
        assert_eq!(bisection(Topology::fat_tree(4)), 8 * 10);
        // Each of the two leaves has two trunks to the only spine.
        assert_eq!(bisection(Topology::leaf_spine(2, 8, 1, 2)), 2 * 10);
        // The halving cuts a torus at two places across its longer side, and a mesh at one.
        assert_eq!(bisection(Topology::torus(&[8, 4], 4, 1)), 2 * 4 * 10);
        assert_eq!(bisection(Topology::mesh(&[8, 4], 4, 1)), 4 * 10);
        assert_eq!(bisection(Topology::torus(&[8, 4], 8, 2)), 2 * 4 * 2 * 10);
        // The bisection bandwidth of a chain of switches is the rate of its trunk.
        assert_eq!(bisection(Topology::cascade(4, 8, 1)), 10);
    }

    #[test]
    fn unused_links_carry_nothing() {
        let topology = Topology::leaf_spine(2, 8, 2, 1).expect("a leaf-spine");
        let whole = Bisection::new(&topology, RATES, |_| true).bits_per_second;
        let spine = topology.hosts() + 2;
        let is_used = |link: u32| {
            let link = topology.links()[link as usize];
            link.from != spine && link.to != spine
        };
        assert_eq!((whole, Bisection::new(&topology, RATES, is_used).bits_per_second), (20, 10));
    }
}
