//! Builds common topologies.

use super::{Builder, Grid, LinkKind, Topology, TopologyError};

impl Topology {
    /// Builds one switch with `hosts` hosts.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn star(hosts: u32) -> Result<Self, TopologyError> {
        Self::leaf_spine(1, hosts, 0, 0).map(|topology| topology.renamed(format!("star {hosts}")))
    }

    /// Builds a chain of switches with `hosts` hosts each and `trunks` cables between neighbours.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn cascade(switches: u32, hosts: u32, trunks: u32) -> Result<Self, TopologyError> {
        let name = format!("cascade {switches}x{hosts}, {trunks} trunks");
        require(&name, "trunks", trunks.into(), 1, LANES_MAX)?;
        let mut builder =
            Builder::new(name, u64::from(switches) * u64::from(hosts), switches.into())?;
        builder.attach_evenly(hosts, 0..switches);
        for switch in 1..switches {
            builder.join(switch - 1, switch, trunks);
        }
        builder.build()
    }

    /// Builds `leaves` leaf switches with `hosts` hosts each, and `spines` spine switches. Each
    /// leaf has `trunks` cables to each spine. The leaves have the lowest switch numbers.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn leaf_spine(
        leaves: u32,
        hosts: u32,
        spines: u32,
        trunks: u32,
    ) -> Result<Self, TopologyError> {
        let name = format!("leaf-spine {leaves}x{hosts}, {spines} spines, {trunks} trunks");
        if leaves > 1 {
            require(&name, "trunks", trunks.into(), 1, LANES_MAX)?;
        }
        let switches = u64::from(leaves) + u64::from(spines);
        let mut builder = Builder::new(name, u64::from(leaves) * u64::from(hosts), switches)?;
        builder.attach_evenly(hosts, 0..leaves);
        for leaf in 0..leaves {
            for spine in 0..spines {
                builder.join(leaf, leaves + spine, trunks);
            }
        }
        builder.build()
    }

    /// Builds a three-level fat tree of switches with `radix` ports. The tree has `radix`³ / 4
    /// hosts. The switches are numbered in this order: edge, aggregation, core.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn fat_tree(radix: u32) -> Result<Self, TopologyError> {
        let name = format!("fat tree {radix}");
        require(&name, "radix", radix.into(), 2, 128)?;
        let half = radix / 2;
        if !radix.is_multiple_of(2) {
            let (below, above) = (radix - 1, radix + 1);
            return Err(TopologyError::Odd { name, what: "radix", value: radix, below, above });
        }
        let (edges, cores) = (radix * half, half * half);
        let hosts = u64::from(edges) * u64::from(half);
        let mut builder = Builder::new(name, hosts, u64::from(2 * edges + cores))?;
        builder.attach_evenly(half, 0..edges);
        for pod in 0..radix {
            for (edge, above) in product(half, half) {
                builder.join(pod * half + edge, edges + pod * half + above, 1);
            }
        }
        for pod in 0..radix {
            for (above, port) in product(half, half) {
                builder.join(edges + pod * half + above, 2 * edges + above * half + port, 1);
            }
        }
        builder.build()
    }

    /// Builds a torus of switches with `hosts` hosts each and `lanes` parallel cables between
    /// neighbours. In a dimension with two positions, one set of these cables connects the two
    /// switches.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn torus(sizes: &[u32], hosts: u32, lanes: u32) -> Result<Self, TopologyError> {
        Self::grid_of(sizes, hosts, lanes, true)
    }

    /// Builds a mesh: a torus without the cables from the last position to the first.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn mesh(sizes: &[u32], hosts: u32, lanes: u32) -> Result<Self, TopologyError> {
        Self::grid_of(sizes, hosts, lanes, false)
    }

    /// Builds a `HyperX`, in which two switches are connected if they differ in exactly one
    /// coordinate.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn hyperx(sizes: &[u32], hosts: u32, lanes: u32) -> Result<Self, TopologyError> {
        let name = format!("HyperX {}, {hosts} hosts each", times(sizes));
        let (mut builder, grid) = grid_builder(name, sizes, hosts, lanes, false)?;
        for switch in 0..builder.switches {
            for (dimension, &size) in sizes.iter().enumerate() {
                let mut at = grid.coordinates(switch);
                for other in at[dimension] + 1..size {
                    at[dimension] = other;
                    let kind = LinkKind::Switch { dimension: dimension as u8, is_wrap: false };
                    builder.join_along(switch, grid.switch_at(&at), lanes, kind);
                }
            }
        }
        // The topology has no grid, because `Grid` describes only tori and meshes. In a `HyperX`,
        // all positions of a dimension are adjacent.
        builder.build()
    }

    /// Builds a dragonfly. Each group has `switches` switches, which are all connected to each
    /// other. Each switch has `hosts` hosts and `global` cables to other groups. There are
    /// `switches * global + 1` groups, so that each group has one cable to each other group.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn dragonfly(switches: u32, hosts: u32, global: u32) -> Result<Self, TopologyError> {
        let name = format!("dragonfly {switches}x{hosts}, {global} global");
        require(&name, "global cables of a switch", global.into(), 1, LANES_MAX)?;
        require(&name, "switches of a group", switches.into(), 1, 1 << 10)?;
        let groups = switches * global + 1;
        let all = u64::from(groups) * u64::from(switches);
        let mut builder = Builder::new(name, all * u64::from(hosts), all)?;
        builder.attach_evenly(hosts, 0..groups * switches);
        for group in 0..groups {
            for (a, b) in product(switches, switches).filter(|(a, b)| a < b) {
                builder.join(group * switches + a, group * switches + b, 1);
            }
        }
        // Each group has switches × global ports to other groups. Port p of group g leads to group
        // g + p + 1. In that group, the cable ends at the port that leads to group g.
        for (group, port) in product(groups, switches * global) {
            let other = (group + port + 1) % groups;
            let back = switches * global - 1 - port;
            if group < other {
                let (from, to) = (port / global, back / global);
                let kind = LinkKind::Switch { dimension: 1, is_wrap: false };
                builder.join_along(group * switches + from, other * switches + to, 1, kind);
            }
        }
        builder.build()
    }

    pub(super) fn renamed(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    fn grid_of(
        sizes: &[u32],
        hosts: u32,
        lanes: u32,
        is_torus: bool,
    ) -> Result<Self, TopologyError> {
        let kind = if is_torus { "torus" } else { "mesh" };
        let name = format!("{kind} {}, {hosts} hosts each, {lanes} lanes", times(sizes));
        let (mut builder, grid) = grid_builder(name, sizes, hosts, lanes, is_torus)?;
        for switch in 0..builder.switches {
            let at = grid.coordinates(switch);
            for (dimension, &size) in sizes.iter().enumerate() {
                let mut next = at.clone();
                next[dimension] = (at[dimension] + 1) % size;
                let is_wrap = next[dimension] == 0;
                if size == 1 || is_wrap && (!is_torus || size == 2) {
                    continue;
                }
                let kind = LinkKind::Switch { dimension: dimension as u8, is_wrap };
                builder.join_along(switch, grid.switch_at(&next), lanes, kind);
            }
        }
        builder.grid = Some(grid);
        builder.build()
    }
}

impl Builder {
    fn attach_evenly(&mut self, hosts: u32, switches: std::ops::Range<u32>) {
        let mut host = 0;
        for switch in switches {
            for _ in 0..hosts {
                self.attach(host, switch);
                host += 1;
            }
        }
    }
}

fn grid_builder(
    name: String,
    sizes: &[u32],
    hosts: u32,
    lanes: u32,
    is_torus: bool,
) -> Result<(Builder, Grid), TopologyError> {
    require(&name, "the number of dimensions", sizes.len() as u64, 1, 8)?;
    require(&name, "lanes", lanes.into(), 1, LANES_MAX)?;
    for &size in sizes {
        require(&name, "the size of a dimension", size.into(), 1, 1 << 16)?;
    }
    let switches = sizes.iter().fold(1_u64, |all, &size| all.saturating_mul(size.into()));
    let mut builder = Builder::new(name, switches.saturating_mul(hosts.into()), switches)?;
    builder.attach_evenly(hosts, 0..switches as u32);
    Ok((builder, Grid { sizes: sizes.to_vec(), is_torus }))
}

fn require(
    name: &str,
    what: &'static str,
    value: u64,
    least: u64,
    most: u64,
) -> Result<(), TopologyError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(TopologyError::Size { name: name.to_owned(), what, value, least, most })
}

fn product(a: u32, b: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..a).flat_map(move |first| (0..b).map(move |second| (first, second)))
}

fn times(sizes: &[u32]) -> String {
    sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}

/// Maximum number of lanes; a lane number is a `u8`. Large switches have at most 64 ports, so a
/// configuration with more parallel cables contains a mistake.
pub(super) const LANES_MAX: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fat_tree_has_its_sizes() {
        let tree = Topology::fat_tree(16).expect("a fat tree");
        assert_eq!((tree.hosts(), tree.switches()), (1024, 320));
        assert_eq!(tree.switch_ports_max(), 16);
        assert_eq!(tree.links().len(), 2 * 3 * 1024);
    }

    #[test]
    fn torus_has_its_cables() {
        let torus = Topology::torus(&[8, 4], 8, 2).expect("a torus");
        assert_eq!((torus.hosts(), torus.switches()), (256, 32));
        assert_eq!(torus.switch_ports_max(), 16);
        let small = Topology::torus(&[2, 2, 4], 16, 1).expect("a torus");
        assert_eq!(small.switch_ports_max(), 16 + 1 + 1 + 2);
    }

    #[test]
    fn dragonfly_connects_each_pair_of_groups_once() {
        let dragonfly = Topology::dragonfly(4, 2, 2).expect("a dragonfly");
        assert_eq!((dragonfly.switches(), dragonfly.hosts()), (36, 72));
        assert_eq!(dragonfly.switch_ports_max(), 2 + 3 + 2);
        let mut pairs: Vec<(u32, u32)> = dragonfly
            .links()
            .iter()
            .filter(|link| matches!(link.kind, LinkKind::Switch { dimension: 1, .. }))
            .map(|link| ((link.from - 72) / 4, (link.to - 72) / 4))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), 9 * 8);
    }

    #[test]
    fn invalid_network_sizes_are_refused() {
        assert!(Topology::star(0).is_err());
        assert!(Topology::fat_tree(5).is_err());
        assert!(Topology::torus(&[], 1, 1).is_err());
        assert!(Topology::torus(&[4, 0], 1, 1).is_err());
        assert!(Topology::leaf_spine(2, 4, 1, 0).is_err());
        let apart = Topology::leaf_spine(2, 4, 0, 1).expect_err("two leaves without a spine");
        assert!(matches!(apart, TopologyError::NotConnected { .. }), "{apart}");
        let huge = Topology::torus(&[60_000, 60_000], 1, 1).expect_err("too large");
        assert!(matches!(huge, TopologyError::Size { .. }), "{huge}");
    }

    #[test]
    fn hyperx_connects_all_switches_of_a_line() {
        let hyperx = Topology::hyperx(&[4, 3], 2, 1).expect("a HyperX");
        assert_eq!(hyperx.switch_ports_max(), 2 + 3 + 2);
        assert_eq!(Topology::mesh(&[3, 3], 1, 1).expect("a mesh").links().len(), 2 * (9 + 12));
    }
}
