//! Routes of packets. Every topology has tables of next links. Fabrics whose packets hold several
//! links at the same time use whole paths with lanes.

mod paths;

use std::collections::{BTreeMap, VecDeque};

use super::statistics::mix;
use super::topology::Topology;

pub use paths::{Hop, LaneChoice, Paths};

/// Rule by which routes through a network are computed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Routing {
    /// All shortest paths. Parallel links and paths of equal length are all candidates (ECMP).
    Shortest,
    /// A single tree with the switch `root` as its root, as bridges build it. Cables parallel to a
    /// cable of the tree belong to the same trunk and remain candidates.
    SpanningTree {
        /// The number of the switch at the root of the tree, counted from 0.
        root: u32,
    },
    /// Dimension order: all steps along the first dimension of a grid, then all steps along the
    /// next.
    DimensionOrder {
        /// Whether routes start with the last dimension.
        is_reversed: bool,
    },
}

/// Direction of a route on a ring if both directions take the same number of steps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ties {
    /// Routes from even positions on the ring go up, and routes from odd positions go down.
    ByPosition,
    /// Always up.
    Up,
    /// Always down.
    Down,
}

/// Rule by which a packet chooses among candidate links.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Choice {
    /// A hash of source and destination chooses, so the packets of a flow stay in order.
    PerFlow,
    /// The number of the source chooses.
    PerSource,
    /// Adaptive: the packet takes the candidate that becomes free first. If several become free at
    /// the same time, it takes the first of these.
    LeastLoaded,
    /// Packet spraying: each packet chooses at random.
    Spray,
    /// Frames of a flow in close succession take the same link. After a gap, the flow takes the
    /// link that becomes free first.
    Flowlet {
        /// Minimum pause between two frames of the flow after which the flow can take another link,
        /// in picoseconds.
        gap_ps: u64,
    },
    /// UGAL: each packet takes the shortest route, on the link that becomes free first, or a detour
    /// over a random switch. The packet takes the route with the smaller product of backlog and
    /// hops.
    Ugal,
}

impl Choice {
    /// Returns which of `count` candidates a flow takes at a switch, from 0. Must not be used for
    /// choices that depend on load. All fabrics use this function, so that the same flows share
    /// links in every fabric.
    #[inline]
    pub(super) const fn place(self, flow: u32, switch: u32, count: usize) -> usize {
        if let Self::PerSource = self {
            return flow as usize % count;
        }
        // The hash includes the switch. Otherwise all switches would make the same choice.
        let hash = mix(flow as u64, switch as u64) >> 32;
        ((hash * count as u64) >> 32) as usize
    }

    /// Returns the number of the flow to which packets from `source` to `destination` belong. The
    /// number is a hash of both hosts, or it is `source`.
    #[inline]
    pub(super) const fn flow(self, source: u32, destination: u32, salt: u64) -> u32 {
        match self {
            Self::PerSource => source,
            _ => flow(source, destination, salt),
        }
    }
}

/// Returns the number of the flow to which packets from `source` to `destination` belong: a hash of
/// both hosts. The hash processes source and destination one after the other. Therefore the pairs
/// (1, 2) and (2, 1) are different flows. An exclusive or of the two numbers would not distinguish
/// such pairs. Another salt changes all flows.
#[inline]
pub(super) const fn flow(source: u32, destination: u32, salt: u64) -> u32 {
    mix(mix(source as u64, FLOW ^ salt), destination as u64) as u32
}

/// Returns the salt for hashes of flows in runs with this seed. Workloads use the seed itself, so
/// the random numbers of routes and workloads are independent.
pub const fn salt(seed: u64) -> u64 {
    mix(mix(seed, SALT), SALT)
}

/// This number is larger than any node number, so that the hashes of flows differ from other
/// hashes.
const FLOW: u64 = 1 << 40;
const SALT: u64 = 1 << 41;

/// Rule for the parallel lanes (cables or virtual channels) that a packet may use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LanePolicy {
    /// If the path crosses the wrap of a dimension, packets use lane 0 before the wrap and lane 1
    /// after it. In a dimension whose wrap the path does not cross, packets choose any lane and
    /// keep this lane for the dimension. Under this rule, packets cannot wait for each other in a
    /// circle.
    Dateline,
    /// In each dimension, packets use lane 1 if the path crosses the wrap, and lane 0 if it does not
    /// (`dim_order` of `BookSim2`). Most packets use lane 0.
    Partition,
    /// Like `Partition`, but with two datelines (`dim_order_bal` of `BookSim2`). Packets use lane 1
    /// if the path crosses the wrap. Packets use lane 0 if the path crosses the middle of the ring,
    /// opposite to the wrap. All other packets use a random lane.
    Balanced,
    /// Packets use any lane on each hop. On a torus, they can wait for each other in a circle.
    Free,
}

/// Why routes cannot be computed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// Dimension order was requested for a topology that is not a grid.
    #[error("dimension-order routing needs a torus or mesh; {topology} is neither")]
    NoGrid {
        /// Name of the topology.
        topology: String,
    },
    /// The requested root of the tree does not exist.
    #[error("the root of the spanning tree is switch {root}, but {topology} has {switches}")]
    NoRoot {
        /// Root requested.
        root: u32,
        /// Number of switches.
        switches: u32,
        /// Name of the topology.
        topology: String,
    },
    /// Two switches with hosts are not connected.
    #[error("no route from switch s{from} to switch s{to} of {topology}")]
    NoRoute {
        /// A switch with hosts.
        from: u32,
        /// A switch with hosts that cannot be reached from `from`.
        to: u32,
        /// Name of the topology.
        topology: String,
    },
    /// A link has fewer lanes than the rule needs.
    #[error("the dateline rule needs 2 lanes between switches, but {link} has {lanes}")]
    TooFewLanes {
        /// Number of lanes.
        lanes: usize,
        /// Name of the link.
        link: String,
    },
    /// The topology has too many parallel candidates or too many entries for the tables.
    #[error("{topology} is too large for tables: {what}")]
    TooLarge {
        /// Name of the topology.
        topology: String,
        /// Description of the part that is too large.
        what: &'static str,
    },
}

/// For each switch and each destination, the links that lead to the destination.
///
/// A destination is a switch with hosts, because all hosts of a switch share the route. Equal sets
/// of links are stored once. Equal rows are stored once too. In a fat tree, all core switches share
/// a row, and the upper switches of a pod share a row. All switches with hosts share one row,
/// because a switch finds its own hosts without its row. The rows of a fat tree with 8192 hosts
/// take 34 KiB.
#[derive(Clone, Debug)]
pub struct RouteTable {
    /// For each host, the column of its switch.
    host_columns: Vec<u32>,
    /// For each host, the link from its switch to the host.
    host_links: Vec<u32>,
    columns: usize,
    rows: Vec<Row>,
    /// Indices of spans, by row and column. The indices count from the first span of the switch.
    entries: Vec<u16>,
    /// Spans: each contains the start of a set in `sets`, and the size of the set in the low byte.
    spans: Vec<u32>,
    sets: Vec<u32>,
}

/// Table row of a switch.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Column of the switch itself; [`NO_COLUMN`] if the switch has no hosts.
    column: u32,
    /// Start of the row in `entries`.
    entries: u32,
    /// Start of the switch's spans in `spans`.
    spans: u32,
}

impl RouteTable {
    /// Computes the routing table of a topology.
    ///
    /// # Errors
    /// Returns [`RoutingError`]; each variant names one cause.
    pub fn new(topology: &Topology, routing: Routing) -> Result<Self, RoutingError> {
        Self::with_ties(topology, routing, Ties::ByPosition)
    }

    /// Computes the table as [`RouteTable::new`] does. `ties` decides the direction of dimension
    /// order if both directions take the same number of steps.
    ///
    /// # Errors
    /// Returns [`RoutingError`]; each variant names one cause.
    pub fn with_ties(
        topology: &Topology,
        routing: Routing,
        ties: Ties,
    ) -> Result<Self, RoutingError> {
        let mut column_switches = Vec::new();
        let mut column_of = vec![NO_COLUMN; topology.switches() as usize];
        let mut table = Self {
            host_columns: Vec::new(),
            host_links: Vec::new(),
            columns: 0,
            rows: Vec::new(),
            entries: Vec::new(),
            spans: Vec::new(),
            sets: Vec::new(),
        };
        for host in 0..topology.hosts() {
            let switch = topology.host_switch(host);
            let column = &mut column_of[switch as usize];
            if *column == NO_COLUMN {
                *column = column_switches.len() as u32;
                column_switches.push(switch);
            }
            table.host_columns.push(*column);
            table.host_links.push(topology.host_link(host) ^ 1);
        }
        table.columns = column_switches.len();
        let switches = topology.switches() as usize;
        if switches * table.columns > ENTRIES_MAX {
            return Err(too_large(topology, "pairs of switches"));
        }
        let mut entries = vec![0; switches * table.columns];
        let ways = Ways::new(topology, routing, ties)?;
        let mut known = BTreeMap::new();
        let mut spans = vec![Vec::new(); switches];
        for (column, &destination) in column_switches.iter().enumerate() {
            for (switch, links) in ways.to(destination)?.into_iter().enumerate() {
                if links.is_empty() {
                    continue;
                }
                let span = table.set_of(topology, &mut known, links)?;
                let own = &mut spans[switch];
                let place = own.iter().position(|other| *other == span).unwrap_or(own.len());
                if place == own.len() {
                    own.push(span);
                }
                let place = u16::try_from(place).map_err(|_| too_large(topology, "routes"))?;
                entries[switch * table.columns + column] = place;
            }
        }
        table.share_rows(entries, &column_of, &spans);
        Ok(table)
    }

    /// Stores equal rows only once. A switch with hosts never reads its own column, so the value in
    /// that column does not matter for the comparison.
    fn share_rows(&mut self, mut entries: Vec<u16>, column_of: &[u32], spans: &[Vec<u32>]) {
        let mut known: BTreeMap<&[u16], u32> = BTreeMap::new();
        let rows = entries.chunks_mut(self.columns.max(1));
        for ((row, &column), own) in rows.zip(column_of).zip(spans) {
            if column != NO_COLUMN {
                let other = if column == 0 { 1 } else { column - 1 };
                row[column as usize] = row.get(other as usize).copied().unwrap_or_default();
            }
            let row: &[u16] = row;
            let next = self.entries.len() as u32;
            let start = *known.entry(row).or_insert(next);
            if start == next {
                self.entries.extend_from_slice(row);
            }
            self.rows.push(Row { column, entries: start, spans: self.spans.len() as u32 });
            self.spans.extend(own);
        }
    }

    /// Returns the links from `switch` towards `host`; there is at least one link. If the host is
    /// attached to this switch, returns the link to the host. Switches are numbered from 0.
    #[inline]
    pub fn candidates(&self, switch: u32, host: u32) -> &[u32] {
        let row = self.rows[switch as usize];
        let column = self.host_columns[host as usize];
        if column == row.column {
            return &self.host_links[host as usize..=host as usize];
        }
        let (start, count) = split_span(self.span(row, column));
        &self.sets[start..start + count]
    }

    #[inline]
    fn span(&self, row: Row, column: u32) -> u32 {
        let entry = self.entries[(row.entries + column) as usize];
        self.spans[row.spans as usize + usize::from(entry)]
    }

    /// Returns whether a host is attached to this switch.
    #[inline]
    pub fn is_local(&self, switch: u32, host: u32) -> bool {
        self.rows[switch as usize].column == self.host_columns[host as usize]
    }

    /// Returns whether two hosts are attached to the same switch.
    #[inline]
    pub fn is_same_switch(&self, a: u32, b: u32) -> bool {
        self.host_columns[a as usize] == self.host_columns[b as usize]
    }

    /// Returns the link to a host from its switch.
    #[inline]
    pub fn host_link(&self, host: u32) -> u32 {
        self.host_links[host as usize]
    }

    /// Returns, for each of `links` links, whether any packet between two hosts can take the link.
    pub fn used_links(&self, links: usize) -> Vec<bool> {
        let mut used = vec![false; links];
        for &link in self.sets.iter().chain(&self.host_links) {
            if let Some(used) = used.get_mut(link as usize) {
                *used = true;
            }
        }
        for &link in &self.host_links {
            if let Some(used) = used.get_mut((link ^ 1) as usize) {
                *used = true;
            }
        }
        used
    }

    /// Returns the memory that the table uses, in bytes.
    pub fn bytes(&self) -> usize {
        let words = self.host_columns.len() + self.host_links.len();
        size_of::<u32>() * (words + self.spans.len() + self.sets.len())
            + size_of::<Row>() * self.rows.len()
            + size_of::<u16>() * self.entries.len()
    }

    fn set_of(
        &mut self,
        topology: &Topology,
        known: &mut BTreeMap<Vec<u32>, u32>,
        links: Vec<u32>,
    ) -> Result<u32, RoutingError> {
        if let Some(entry) = known.get(&links) {
            return Ok(*entry);
        }
        if links.len() > 0xff || self.sets.len() >= 1 << 24 {
            return Err(too_large(topology, "parallel links"));
        }
        let entry = (self.sets.len() as u32) << 8 | links.len() as u32;
        self.sets.extend(&links);
        known.insert(links, entry);
        Ok(entry)
    }
}

/// Splits a span into the start of its set and the size of the set.
#[inline]
const fn split_span(span: u32) -> (usize, usize) {
    ((span >> 8) as usize, (span & 0xff) as usize)
}

fn too_large(topology: &Topology, what: &'static str) -> RoutingError {
    RoutingError::TooLarge { topology: topology.name().to_owned(), what }
}

/// Computes the links towards a switch.
struct Ways<'a> {
    topology: &'a Topology,
    routing: Routing,
    ties: Ties,
    /// For a spanning tree, the parent of each switch. The root is its own parent.
    parents: Vec<u32>,
}

impl<'a> Ways<'a> {
    fn new(topology: &'a Topology, routing: Routing, ties: Ties) -> Result<Self, RoutingError> {
        let mut ways = Self { topology, routing, ties, parents: Vec::new() };
        match routing {
            Routing::DimensionOrder { .. } if topology.grid().is_none() => {
                return Err(RoutingError::NoGrid { topology: topology.name().to_owned() });
            }
            Routing::Shortest | Routing::DimensionOrder { .. } => {}
            Routing::SpanningTree { root } if root >= topology.switches() => {
                let (switches, topology) = (topology.switches(), topology.name().to_owned());
                return Err(RoutingError::NoRoot { root, switches, topology });
            }
            Routing::SpanningTree { root } => ways.parents = ways.tree(root),
        }
        Ok(ways)
    }

    /// Returns, for each switch, the links from the switch towards `destination`. The list of
    /// `destination` itself is empty.
    fn to(&self, destination: u32) -> Result<Vec<Vec<u32>>, RoutingError> {
        let switches = self.topology.switches();
        if let Routing::DimensionOrder { is_reversed } = self.routing {
            let links = (0..switches).map(|from| self.step(from, destination, is_reversed));
            return Ok(links.collect());
        }
        let distances = self.distances(destination);
        (0..switches)
            .map(|switch| {
                let own = distances[switch as usize];
                let no_route = || RoutingError::NoRoute {
                    from: switch,
                    to: destination,
                    topology: self.topology.name().to_owned(),
                };
                let own = own.ok_or_else(no_route)?;
                let leads_closer = |neighbour: u32| {
                    distances[neighbour as usize].is_some_and(|other| other + 1 == own)
                };
                let closer = self.neighbours(switch).filter(|(to, _)| leads_closer(*to));
                Ok(closer.map(|(_, link)| link).collect())
            })
            .collect()
    }

    /// Returns the number of steps from each switch to `destination`; `None` if there is no route.
    fn distances(&self, destination: u32) -> Vec<Option<u32>> {
        let mut distances = vec![None; self.topology.switches() as usize];
        distances[destination as usize] = Some(0);
        let mut open = VecDeque::from([destination]);
        while let Some(switch) = open.pop_front() {
            let next = distances[switch as usize].map(|distance: u32| distance + 1);
            for (neighbour, _) in self.neighbours(switch) {
                let distance = &mut distances[neighbour as usize];
                if distance.is_none() {
                    *distance = next;
                    open.push_back(neighbour);
                }
            }
        }
        distances
    }

    /// Returns the neighbours of a switch over usable links, each with its link.
    fn neighbours(&self, switch: u32) -> impl Iterator<Item = (u32, u32)> {
        let hosts = self.topology.hosts();
        let outgoing = self.topology.outgoing(hosts + switch).iter();
        outgoing.filter_map(move |&link| {
            let to = self.topology.links()[link as usize].to.checked_sub(hosts)?;
            let in_tree =
                |parents: &[u32]| parents[to as usize] == switch || parents[switch as usize] == to;
            (self.parents.is_empty() || in_tree(&self.parents)).then_some((to, link))
        })
    }

    fn tree(&self, root: u32) -> Vec<u32> {
        let mut parents = vec![u32::MAX; self.topology.switches() as usize];
        parents[root as usize] = root;
        let mut open = VecDeque::from([root]);
        while let Some(switch) = open.pop_front() {
            for (neighbour, _) in self.neighbours(switch) {
                if parents[neighbour as usize] == u32::MAX {
                    parents[neighbour as usize] = switch;
                    open.push_back(neighbour);
                }
            }
        }
        parents
    }

    /// Returns the links of the next hop in dimension order, one for each lane.
    fn step(&self, from: u32, to: u32, is_reversed: bool) -> Vec<u32> {
        let Some(grid) = self.topology.grid() else { return Vec::new() };
        let (at, goal) = (grid.coordinates(from), grid.coordinates(to));
        let mut dimensions: Vec<usize> = (0..at.len()).collect();
        if is_reversed {
            dimensions.reverse();
        }
        let Some(dimension) = dimensions.into_iter().find(|&d| at[d] != goal[d]) else {
            return Vec::new();
        };
        let size = grid.sizes[dimension];
        let up = (goal[dimension] + size - at[dimension]) % size;
        let is_up = match (grid.is_torus, (2 * up).cmp(&size)) {
            (false, _) => goal[dimension] > at[dimension],
            (true, std::cmp::Ordering::Less) => true,
            // Both directions take the same number of steps. Routes from even positions go up, and
            // routes from odd positions go down. Half of these routes therefore use each direction.
            (true, std::cmp::Ordering::Equal) => match self.ties {
                Ties::ByPosition => at[dimension].is_multiple_of(2),
                Ties::Up => true,
                Ties::Down => false,
            },
            (true, std::cmp::Ordering::Greater) => false,
        };
        let mut next = at;
        next[dimension] = (next[dimension] + if is_up { 1 } else { size - 1 }) % size;
        let next = grid.switch_at(&next);
        self.neighbours(from).filter(|(to, _)| *to == next).map(|(_, link)| link).collect()
    }
}

/// Column of a switch without hosts.
const NO_COLUMN: u32 = u32::MAX;
/// Maximum number of table entries, which take 128 MB. If a configuration needs a larger table, it
/// probably contains a mistake.
const ENTRIES_MAX: usize = 1 << 26;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_between_two_groups_of_hosts_use_all_routes() {
        for shift in [0, 8, 64] {
            let mut taken = [0_u32; 8];
            for source in 0..8 {
                for destination in 8..16 {
                    let flow = flow(source + shift, destination + shift, 0);
                    taken[Choice::PerFlow.place(flow, 100, 8)] += 1;
                }
            }
            assert!(taken.iter().all(|&flows| (1..=20).contains(&flows)), "{taken:?}");
        }
    }

    /// Compares the choices of flows with random choices. For 64 flows on 8 routes, the mean
    /// chi-square over many salts is 7 (7 degrees of freedom, variance 14). Over all salts, each
    /// flow takes each route equally often.
    #[test]
    fn flows_of_different_seeds_are_independent_balls_into_bins() {
        const SEEDS: u64 = 100;
        let mut sum = 0.0;
        let mut of_first = [0_u32; 8];
        for seed in 1..=SEEDS {
            let mut taken = [0_u32; 8];
            for source in 0..8 {
                for destination in 8..16 {
                    let flow = flow(source, destination, salt(seed));
                    let way = Choice::PerFlow.place(flow, 0, 8);
                    taken[way] += 1;
                    of_first[way] += u32::from((source, destination) == (0, 8));
                }
            }
            sum += taken.iter().map(|&flows| (f64::from(flows) - 8.0).powi(2) / 8.0).sum::<f64>();
        }
        let interval = 2.576 * (14.0 / SEEDS as f64).sqrt();
        let mean = sum / SEEDS as f64;
        println!("figure: balls into bins: {:.3}", (mean - 7.0).abs() / interval);
        assert!((mean - 7.0).abs() < interval, "{mean}");
        // With 7 degrees of freedom, 99 % of the chi-square values are below 18.48.
        let expected = SEEDS as f64 / 8.0;
        let square = |flows: &u32| (f64::from(*flows) - expected).powi(2) / expected;
        let sum: f64 = of_first.iter().map(square).sum();
        println!("figure: balls into bins: {:.3}", sum / 18.48);
        assert!(sum < 18.48, "{of_first:?}");
    }

    fn table(topology: &Topology, routing: Routing) -> RouteTable {
        RouteTable::new(topology, routing).expect("there are routes")
    }

    /// Returns the number of links that a packet crosses if it takes the first candidate at each
    /// switch.
    fn length(topology: &Topology, table: &RouteTable, from: u32, to: u32) -> u32 {
        let mut at = topology.links()[topology.host_link(from) as usize].to;
        let mut links = 1;
        while at != to {
            let link = table.candidates(at - topology.hosts(), to)[0];
            at = topology.links()[link as usize].to;
            links += 1;
        }
        links
    }

    #[test]
    fn shortest_paths_of_a_fat_tree_offer_all_uplinks() {
        let tree = Topology::fat_tree(8).expect("a fat tree");
        let routes = table(&tree, Routing::Shortest);
        assert_eq!(routes.candidates(0, 127).len(), 4);
        assert_eq!(routes.candidates(0, 0), [tree.host_link(0) ^ 1]);
        assert_eq!(length(&tree, &routes, 0, 1), 2);
        assert_eq!(length(&tree, &routes, 0, 4), 4);
        assert_eq!(length(&tree, &routes, 0, 127), 6);
    }

    #[test]
    fn equal_rows_are_kept_once() {
        let tree = Topology::fat_tree(8).expect("a fat tree");
        let routes = table(&tree, Routing::Shortest);
        // The table has one row for the switches with hosts, one for the upper switches of each
        // pod, and one for the core.
        assert_eq!(routes.entries.len(), (1 + 8 + 1) * routes.columns);
        let single = table(&Topology::star(3).expect("a star"), Routing::Shortest);
        assert!(single.is_local(0, 2));
        assert_eq!(single.candidates(0, 2).len(), 1);
    }

    #[test]
    fn spanning_tree_uses_one_spine_and_all_its_trunks() {
        let topology = Topology::leaf_spine(4, 4, 2, 3).expect("a leaf-spine");
        assert_eq!(table(&topology, Routing::Shortest).candidates(0, 15).len(), 6);
        let tree = table(&topology, Routing::SpanningTree { root: 5 });
        let links = tree.candidates(0, 15);
        assert_eq!(links.len(), 3);
        assert!(links.iter().all(|&link| topology.links()[link as usize].to == 16 + 5));
        assert!(RouteTable::new(&topology, Routing::SpanningTree { root: 6 }).is_err());
    }

    #[test]
    fn dimension_order_takes_the_shorter_direction() {
        let torus = Topology::torus(&[8, 4], 1, 2).expect("a torus");
        let routes = table(&torus, Routing::DimensionOrder { is_reversed: false });
        assert_eq!(length(&torus, &routes, 0, 7), 3);
        assert_eq!(length(&torus, &routes, 0, 8 * 3 + 6), 5);
        assert_eq!(routes.candidates(0, 7).len(), 2);
        let star = Topology::star(4).expect("a star");
        let refused = RouteTable::new(&star, Routing::DimensionOrder { is_reversed: false });
        assert!(matches!(refused, Err(RoutingError::NoGrid { .. })));
    }
}
