//! Whole paths with lanes, for fabrics whose packets hold several links at the same time.

use super::super::topology::{Grid, Link, LinkKind, Topology};
use super::{ENTRIES_MAX, LanePolicy, RouteTable, RoutingError, too_large};

/// Rule by which the lane of a hop is chosen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LaneChoice {
    /// Exactly this lane.
    Fixed(u8),
    /// Any lane.
    Any,
    /// The lane of the previous hop.
    Same,
    /// A random lane for each packet if the fabric divides lanes into classes; any lane if it does
    /// not.
    Drawn,
}

/// One hop of a path, between two switches.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// The link of lane 0. If lanes are virtual channels, this is the link of all lanes.
    pub link: u32,
    /// If lanes are cables, the start of the links of lanes 1 and higher in [`Paths::links`].
    links_start: u32,
    links_count: u8,
    /// Rule by which the lane is chosen.
    pub lane: LaneChoice,
}

/// The path from each switch with hosts to every other switch with hosts.
#[derive(Clone, Debug)]
pub struct Paths {
    host_columns: Vec<u32>,
    columns: usize,
    starts: Vec<u32>,
    hops: Vec<Hop>,
    links: Vec<u32>,
    hops_max: usize,
}

impl Paths {
    /// Computes the paths, with lanes, from a routing table. If lanes are virtual channels,
    /// `channels` is their number. If lanes are cables, `channels` must be 1.
    ///
    /// # Errors
    /// Returns [`RoutingError`]; each variant names one cause.
    pub fn new(
        topology: &Topology,
        table: &RouteTable,
        policy: LanePolicy,
        channels: usize,
    ) -> Result<Self, RoutingError> {
        let mut switches = vec![(0, 0); table.columns];
        for host in 0..topology.hosts() {
            let column = table.host_columns[host as usize];
            switches[column as usize] = (topology.host_switch(host), host);
        }
        let mut paths = Self {
            host_columns: table.host_columns.clone(),
            columns: table.columns,
            starts: vec![0],
            hops: Vec::new(),
            links: table.sets.clone(),
            hops_max: 0,
        };
        for &(from, _) in &switches {
            for &(to, host) in &switches {
                let start = paths.hops.len();
                paths.walk(topology, table, (from, to), host)?;
                if policy != LanePolicy::Free {
                    let hops = paths.hops.get_mut(start..).unwrap_or_default();
                    dateline(topology, hops, policy, channels)?;
                }
                paths.hops_max = paths.hops_max.max(paths.hops.len() - start);
                if paths.hops.len() > ENTRIES_MAX {
                    return Err(too_large(topology, "hops of paths"));
                }
                paths.starts.push(paths.hops.len() as u32);
            }
        }
        Ok(paths)
    }

    /// Returns the hops between the switches of two hosts, as a range of indices for
    /// [`Paths::hop`]: its start and its end.
    #[inline]
    pub fn between(&self, source: u32, destination: u32) -> (u32, u32) {
        let row = self.host_columns[source as usize] as usize * self.columns;
        let at = row + self.host_columns[destination as usize] as usize;
        (self.starts[at], self.starts[at + 1])
    }

    /// Returns the hop at an index.
    #[inline]
    pub fn hop(&self, place: u32) -> &Hop {
        &self.hops[place as usize]
    }

    /// Returns the cables of a hop, in the order of lanes.
    #[inline]
    pub fn links(&self, hop: &Hop) -> &[u32] {
        let start = hop.links_start as usize;
        &self.links[start..start + usize::from(hop.links_count)]
    }

    /// Returns the number of hops of the longest path.
    pub const fn hops_max(&self) -> usize {
        self.hops_max
    }

    /// Returns all paths, each as a list of hops.
    pub fn iter(&self) -> impl Iterator<Item = &[Hop]> {
        self.starts.windows(2).map(|ends| &self.hops[ends[0] as usize..ends[1] as usize])
    }

    fn walk(
        &mut self,
        topology: &Topology,
        table: &RouteTable,
        (from, to): (u32, u32),
        host: u32,
    ) -> Result<(), RoutingError> {
        let mut at = from;
        let mut steps = 0;
        while at != to {
            let span = table.span(table.rows[at as usize], table.host_columns[host as usize]);
            let links = table.candidates(at, host);
            let next =
                links.first().map(|&link| topology.links()[link as usize].to - topology.hosts());
            let no_route = || RoutingError::NoRoute { from, to, topology: topology.name().into() };
            let next = next.filter(|_| steps < topology.switches()).ok_or_else(no_route)?;
            // Candidates that lead to another switch are not lanes of this hop, so they are
            // skipped.
            let lanes = links
                .iter()
                .take_while(|&&link| topology.links()[link as usize].to - topology.hosts() == next);
            self.hops.push(Hop {
                link: links[0],
                links_start: span >> 8,
                links_count: lanes.count() as u8,
                lane: LaneChoice::Any,
            });
            at = next;
            steps += 1;
        }
        Ok(())
    }
}

/// Sets the lanes of the hops of a path, according to a dateline rule.
fn dateline(
    topology: &Topology,
    hops: &mut [Hop],
    policy: LanePolicy,
    channels: usize,
) -> Result<(), RoutingError> {
    let along = |hop: &Hop| match topology.links()[hop.link as usize].kind {
        LinkKind::Switch { dimension, is_wrap } => (dimension, is_wrap),
        LinkKind::Host => (0, false),
    };
    let Some(grid) = topology.grid().filter(|grid| grid.is_torus) else { return Ok(()) };
    for segment in hops.chunk_by_mut(|a, b| along(a).0 == along(b).0) {
        let wrap = segment.iter().position(|hop| along(hop).1);
        if wrap.is_none() && policy != LanePolicy::Partition {
            let is_across =
                policy == LanePolicy::Balanced && crosses_middle(topology, grid, segment);
            let first = if is_across { LaneChoice::Fixed(0) } else { unbound(policy) };
            let rest = if is_across { LaneChoice::Fixed(0) } else { LaneChoice::Same };
            segment.iter_mut().skip(1).for_each(|hop| hop.lane = rest);
            segment.iter_mut().take(1).for_each(|hop| hop.lane = first);
            continue;
        }
        for (index, hop) in segment.iter_mut().enumerate() {
            let lanes = channels.max(usize::from(hop.links_count));
            if lanes < 2 {
                let link = topology.link_name(hop.link);
                return Err(RoutingError::TooFewLanes { lanes, link });
            }
            let is_second = match policy {
                LanePolicy::Partition | LanePolicy::Balanced => wrap.is_some(),
                LanePolicy::Dateline | LanePolicy::Free => wrap.is_some_and(|wrap| index >= wrap),
            };
            hop.lane = LaneChoice::Fixed(u8::from(is_second));
        }
    }
    Ok(())
}

/// Returns the rule for the first hop of packets that cross no dateline.
const fn unbound(policy: LanePolicy) -> LaneChoice {
    match policy {
        LanePolicy::Balanced => LaneChoice::Drawn,
        _ => LaneChoice::Any,
    }
}

/// Returns whether steps along one dimension cross the middle of the ring, opposite to its wrap.
fn crosses_middle(topology: &Topology, grid: &Grid, segment: &[Hop]) -> bool {
    segment.iter().any(|hop| {
        let Link { from, to, kind, .. } = topology.links()[hop.link as usize];
        let LinkKind::Switch { dimension, .. } = kind else { return false };
        let dimension = usize::from(dimension);
        let at = |node: u32| grid.coordinates(node - topology.hosts())[dimension];
        let middle = (grid.sizes[dimension] - 1) / 2;
        (at(from) <= middle) != (at(to) <= middle)
    })
}

#[cfg(test)]
mod tests {
    use super::super::Routing;
    use super::*;

    #[test]
    fn dateline_changes_lanes_at_the_wrap_only() {
        let torus = Topology::torus(&[8, 4], 1, 2).expect("a torus");
        let routes = table(&torus);
        let paths = Paths::new(&torus, &routes, LanePolicy::Dateline, 1).expect("paths");
        let lanes = |from, to| {
            let (start, end) = paths.between(from, to);
            (start..end).map(|place| paths.hop(place).lane).collect::<Vec<_>>()
        };
        assert_eq!(lanes(0, 3), [LaneChoice::Any, LaneChoice::Same, LaneChoice::Same]);
        let wrapped = [0, 1, 1].map(LaneChoice::Fixed);
        assert_eq!(lanes(6, 8 + 1), [wrapped.as_slice(), &[LaneChoice::Any]].concat());
        let single = Topology::torus(&[8], 1, 1).expect("a ring");
        let routes = table(&single);
        let refused = Paths::new(&single, &routes, LanePolicy::Dateline, 1).expect_err("one lane");
        assert!(matches!(refused, RoutingError::TooFewLanes { lanes: 1, .. }));
        assert!(Paths::new(&single, &routes, LanePolicy::Dateline, 2).is_ok());
    }

    fn table(topology: &Topology) -> RouteTable {
        let routing = Routing::DimensionOrder { is_reversed: false };
        RouteTable::new(topology, routing).expect("there are routes")
    }
}
