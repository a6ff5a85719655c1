//! The nodes of a network and the cables between them. All fabric models use the same topologies.

mod builders;
mod edge_list;
mod graph;

use std::sync::Arc;

pub use edge_list::parse_edge_list;
pub use graph::{Cable, CableSettings, GraphError};

/// The hosts, switches and cables of a network.
///
/// Hosts are numbered from 0; the numbers of switches follow those of hosts. A cable consists of
/// two links, one in each direction. The numbers of these links are 2k and 2k + 1, so `link ^ 1` is
/// the opposite direction. The links that leave a node are its ports, in the order in which they
/// were added.
#[derive(Clone, Debug)]
pub struct Topology {
    name: String,
    hosts: u32,
    switches: u32,
    links: Vec<Link>,
    /// For each node, the start of its links in `outgoing`. One more entry at the end of the list
    /// marks the end of the last node's links.
    outgoing_starts: Vec<u32>,
    outgoing: Vec<u32>,
    grid: Option<Grid>,
    /// Names of the nodes; `None` if nodes have only numbers.
    names: Option<Arc<[String]>>,
    /// Settings of each cable; empty if no cable has its own settings.
    settings: Arc<[CableSettings]>,
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Link {
    /// Node that sends on the link.
    pub from: u32,
    /// Node that receives on the link.
    pub to: u32,
    /// Kind of the cable.
    pub kind: LinkKind,
    /// Index among parallel cables; 0 for a single cable.
    pub lane: u8,
}

/// Kind of a cable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkKind {
    /// A cable between a host and a switch.
    Host,
    /// A cable between two switches.
    Switch {
        /// Dimension of the grid along which the cable leads; 0 if there is no grid.
        dimension: u8,
        /// Whether the cable connects the last position of a ring with the first.
        is_wrap: bool,
    },
}

/// The arrangement of switches in a grid or torus. The coordinates of switch n are the digits of n
/// in mixed radix: the size of each dimension is the radix of its digit. The first dimension varies
/// fastest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grid {
    /// Number of positions along each dimension.
    pub sizes: Vec<u32>,
    /// Whether the two ends of each dimension are connected.
    pub is_torus: bool,
}

/// Why a topology cannot be built.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A size is out of range.
    #[error("topology {name}: {what} is {value}, but must be from {least} to {most}")]
    Size {
        /// Name of the topology.
        name: String,
        /// Name of the size.
        what: &'static str,
        /// Value requested.
        value: u64,
        /// Smallest valid value.
        least: u64,
        /// Largest valid value.
        most: u64,
    },
    /// A size must be even, but is odd.
    #[error("topology {name}: {what} is {value}, but must be even, such as {below} or {above}")]
    Odd {
        /// Name of the topology.
        name: String,
        /// Name of the size.
        what: &'static str,
        /// Value requested.
        value: u32,
        /// The next smaller valid value.
        below: u32,
        /// The next larger valid value.
        above: u32,
    },
    /// A node cannot reach another node.
    #[error("topology {name} is not connected: no path from {from} to {to}; add a cable")]
    NotConnected {
        /// Name of the topology.
        name: String,
        /// Node from which `to` cannot be reached.
        from: String,
        /// Node that cannot be reached.
        to: String,
    },
    /// Names and cables do not form a network.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A line in a file of cables is invalid.
    #[error(
        "{file}:{line}: {what}; a line is `A B [COUNT]`, where h0, h1, … are hosts and s0, s1, … switches"
    )]
    EdgeList {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Description of the mistake in the line.
        what: String,
    },
    /// A host has no cable, or more than one.
    #[error("topology {name}: host h{host} has {cables} cables; each host has exactly one")]
    HostCables {
        /// Name of the topology.
        name: String,
        /// Number of the host.
        host: u32,
        /// Number of cables of the host.
        cables: usize,
    },
}

impl Topology {
    /// Returns the name of the topology, which includes its sizes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of hosts.
    pub const fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Returns the number of switches.
    pub const fn switches(&self) -> u32 {
        self.switches
    }

    /// Returns the number of nodes.
    pub const fn nodes(&self) -> u32 {
        self.hosts + self.switches
    }

    /// Returns all links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the links that leave `node`, in the order of its ports.
    pub fn outgoing(&self, node: u32) -> &[u32] {
        let start = self.outgoing_starts[node as usize] as usize;
        &self.outgoing[start..self.outgoing_starts[node as usize + 1] as usize]
    }

    /// Returns whether the node is a host.
    pub const fn is_host(&self, node: u32) -> bool {
        node < self.hosts
    }

    /// Returns the link on which the host sends.
    pub fn host_link(&self, host: u32) -> u32 {
        self.outgoing(host)[0]
    }

    /// Returns the switch of a host, counted from 0.
    pub fn host_switch(&self, host: u32) -> u32 {
        self.links[self.host_link(host) as usize].to - self.hosts
    }

    /// Returns the grid of the switches; `None` if they do not form a grid.
    pub const fn grid(&self) -> Option<&Grid> {
        self.grid.as_ref()
    }

    /// Returns the name of a node. If nodes have no names, host 3 is `h3` and switch 0 is `s0`.
    pub fn node_name(&self, node: u32) -> String {
        node_name(self.names.as_deref(), self.hosts, node)
    }

    /// Returns the node with this [name](Self::node_name).
    pub fn node_named(&self, name: &str) -> Option<u32> {
        if let Some(names) = &self.names {
            let found = names.iter().position(|known| known == name)?;
            return Some(found as u32);
        }
        let number = |kind| name.strip_prefix(kind).and_then(|text: &str| text.parse::<u32>().ok());
        match (number('h'), number('s')) {
            (Some(host), _) if host < self.hosts => Some(host),
            (_, Some(switch)) if switch < self.switches => Some(self.hosts + switch),
            _ => None,
        }
    }

    /// Returns the names of all nodes; `None` if nodes have only numbers.
    pub(super) const fn names(&self) -> Option<&Arc<[String]>> {
        self.names.as_ref()
    }

    /// Returns the settings of the cable to which a link belongs.
    pub fn cable_settings(&self, link: u32) -> CableSettings {
        self.settings.get(link as usize / 2).copied().unwrap_or_default()
    }

    /// Returns whether any cable has its own settings.
    pub fn has_cable_settings(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Returns the topology with other cable settings. For each cable that has its own settings,
    /// `change` gets the settings and returns the new ones.
    #[must_use]
    pub fn with_cable_settings(&self, change: impl Fn(CableSettings) -> CableSettings) -> Self {
        let settings = self.settings.iter().copied().map(change).collect();
        Self { settings, ..self.clone() }
    }

    /// Returns the name of a link, such as `s1->s2`. The second of two parallel cables is called
    /// `s1->s2#1`. With several rails, link numbers continue from one rail to the next, and the
    /// name starts with the rail: `rail 1 s1->s2`.
    pub fn link_name(&self, link: u32) -> String {
        let count = self.links.len() as u32;
        let Link { from, to, lane, .. } = self.links[(link % count) as usize];
        let lane = if lane > 0 { format!("#{lane}") } else { String::new() };
        let name = format!("{}->{}{lane}", self.node_name(from), self.node_name(to));
        match link / count {
            0 => name,
            rail => format!("rail {rail} {name}"),
        }
    }

    /// Returns a link of the topology. With several rails, link numbers continue from one rail to
    /// the next.
    pub fn link(&self, link: u32) -> Option<&Link> {
        self.links.get((link as usize).checked_rem(self.links.len())?)
    }

    /// Returns the largest number of ports in use at a switch.
    pub fn switch_ports_max(&self) -> usize {
        (self.hosts..self.nodes()).map(|node| self.outgoing(node).len()).max().unwrap_or(0)
    }

    /// Checks that each host has one cable, and that each node can reach all other nodes.
    fn check(self) -> Result<Self, TopologyError> {
        for host in 0..self.hosts {
            let cables = self.outgoing(host).len();
            if cables != 1 {
                return Err(TopologyError::HostCables { name: self.name, host, cables });
            }
        }
        let mut reached = vec![false; self.nodes() as usize];
        let mut open = vec![0];
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut reached[node as usize], true) {
                open.extend(self.outgoing(node).iter().map(|&link| self.links[link as usize].to));
            }
        }
        match reached.iter().position(|reached| !reached) {
            None => Ok(self),
            Some(to) => Err(TopologyError::NotConnected {
                from: self.node_name(0),
                to: self.node_name(to as u32),
                name: self.name,
            }),
        }
    }
}

impl Grid {
    /// Returns the coordinates of a switch.
    pub fn coordinates(&self, switch: u32) -> Vec<u32> {
        let mut rest = switch;
        self.sizes
            .iter()
            .map(|size| {
                let coordinate = rest % size;
                rest /= size;
                coordinate
            })
            .collect()
    }

    /// Returns the switch at these coordinates.
    pub fn switch_at(&self, coordinates: &[u32]) -> u32 {
        self.sizes.iter().zip(coordinates).rev().fold(0, |switch, (size, at)| switch * size + at)
    }
}

/// Builds a topology from its cables.
struct Builder {
    name: String,
    hosts: u32,
    switches: u32,
    links: Vec<Link>,
    grid: Option<Grid>,
    names: Option<Vec<String>>,
    /// Settings of each cable; empty if no cable has its own settings.
    settings: Vec<CableSettings>,
}

impl Builder {
    fn new(name: String, hosts: u64, switches: u64) -> Result<Self, TopologyError> {
        let size = |what, value| TopologyError::Size {
            name: name.clone(),
            what,
            value,
            least: 1,
            most: NODES_MAX,
        };
        if hosts == 0 || hosts > NODES_MAX {
            return Err(size("the number of hosts", hosts));
        }
        if switches == 0 || switches > NODES_MAX {
            return Err(size("the number of switches", switches));
        }
        let (hosts, switches) = (hosts as u32, switches as u32);
        Ok(Self {
            name,
            hosts,
            switches,
            links: Vec::new(),
            grid: None,
            names: None,
            settings: Vec::new(),
        })
    }

    /// Adds a cable from a host to a switch.
    fn attach(&mut self, host: u32, switch: u32) {
        self.cable(host, self.hosts + switch, LinkKind::Host, 0);
    }

    /// Adds `lanes` parallel cables between two switches.
    fn join(&mut self, a: u32, b: u32, lanes: u32) {
        self.join_along(a, b, lanes, LinkKind::Switch { dimension: 0, is_wrap: false });
    }

    /// Adds parallel cables between two switches. `lanes` contains the indices of these cables
    /// among all parallel cables.
    fn join_from(&mut self, a: u32, b: u32, lanes: std::ops::Range<u32>) {
        let kind = LinkKind::Switch { dimension: 0, is_wrap: false };
        for lane in lanes {
            self.cable(self.hosts + a, self.hosts + b, kind, lane as u8);
        }
    }

    fn join_along(&mut self, a: u32, b: u32, lanes: u32, kind: LinkKind) {
        for lane in 0..lanes {
            self.cable(self.hosts + a, self.hosts + b, kind, lane as u8);
        }
    }

    fn cable(&mut self, a: u32, b: u32, kind: LinkKind, lane: u8) {
        self.links.push(Link { from: a, to: b, kind, lane });
        self.links.push(Link { from: b, to: a, kind, lane });
    }

    fn build(self) -> Result<Topology, TopologyError> {
        let nodes = (self.hosts + self.switches) as usize;
        let mut starts = vec![0_u32; nodes + 1];
        for link in &self.links {
            starts[link.from as usize + 1] += 1;
        }
        for node in 0..nodes {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut outgoing = vec![0; self.links.len()];
        for (index, link) in self.links.iter().enumerate() {
            let at = &mut next[link.from as usize];
            outgoing[*at as usize] = index as u32;
            *at += 1;
        }
        let Self { name, hosts, switches, links, grid, names, settings } = self;
        let (names, settings) = (names.map(Arc::from), settings.into());
        let topology = Topology {
            name,
            hosts,
            switches,
            links,
            outgoing_starts: starts,
            outgoing,
            grid,
            names,
            settings,
        };
        topology.check()
    }
}

/// Returns the name of a node.
pub(super) fn node_name(names: Option<&[String]>, hosts: u32, node: u32) -> String {
    match (names.and_then(|names| names.get(node as usize)), node.checked_sub(hosts)) {
        (Some(name), _) => name.clone(),
        (None, Some(switch)) => format!("s{switch}"),
        (None, None) => format!("h{node}"),
    }
}

/// Maximum number of nodes. A node or link number and flags share 29 bits of an event. A million
/// hosts with 16 cables each need far fewer bits.
const NODES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_map_back_to_their_switch() {
        let grid = Grid { sizes: vec![2, 3, 4], is_torus: true };
        for switch in 0..24 {
            assert_eq!(grid.switch_at(&grid.coordinates(switch)), switch);
        }
        assert_eq!(grid.coordinates(1), [1, 0, 0]);
    }

    #[test]
    fn a_link_and_its_reverse_link_are_adjacent() {
        let topology = Topology::fat_tree(4).expect("a fat tree");
        for (index, link) in topology.links().iter().enumerate() {
            let back = topology.links()[index ^ 1];
            assert_eq!((link.from, link.to), (back.to, back.from));
            assert!(topology.outgoing(link.from).contains(&(index as u32)));
        }
    }
}
