//! Builds arbitrary graphs: hosts and switches with names, and cables with their own settings.

use std::collections::BTreeMap;

use super::super::nearest::nearest;
use super::builders::LANES_MAX;
use super::{Builder, Topology, TopologyError};

/// Parallel cables between a host and a switch, or between two switches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cable {
    /// Names of the two nodes that the cables connect.
    pub ends: [String; 2],
    /// Settings of these cables that differ from the settings of the fabric.
    pub settings: CableSettings,
    /// Number of parallel cables, 1 or more; must be 1 if one end is a host.
    pub count: u32,
}

/// Settings of a cable, for both directions. If a setting is `None`, the setting of the fabric
/// applies.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CableSettings {
    /// Rate, in bits per second.
    pub rate_bps: Option<u64>,
    /// Propagation delay, in picoseconds.
    pub propagation_ps: Option<u64>,
    /// Maximum length of the queue at the switch port that sends on the cable, in bytes; 0 means no
    /// limit.
    pub buffer_bytes: Option<u64>,
}

/// Why hosts, switches and cables do not form a network. Cables are counted from 1.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The name of a node is invalid, so results could not show it.
    #[error(
        "invalid name of a node `{name}`; use 1 to {NAME_MAX} letters, digits, `_`, `.` and `-`, \
         and begin with a letter"
    )]
    Name {
        /// The invalid name.
        name: String,
    },
    /// Two nodes have the same name.
    #[error("two nodes have the name `{name}`; rename one of them")]
    Twice {
        /// The name that occurs twice.
        name: String,
    },
    /// A cable ends at a name that no node has.
    #[error("cable {cable} ends at `{end}`, which is neither a host nor a switch; {remedy}")]
    UnknownEnd {
        /// Number of the cable.
        cable: usize,
        /// Name of the end.
        end: String,
        /// Text that suggests a node with a similar name, or another remedy.
        remedy: String,
    },
    /// A cable connects a switch with itself.
    #[error("cable {cable} connects `{end}` with itself; name another switch")]
    Loop {
        /// Number of the cable.
        cable: usize,
        /// Name of the switch.
        end: String,
    },
    /// A cable connects two hosts.
    #[error("cable {cable} connects the hosts `{}` and `{}`; put a switch between them", .ends[0], .ends[1])]
    BetweenHosts {
        /// Number of the cable.
        cable: usize,
        /// Names of the hosts.
        ends: [String; 2],
    },
    /// A host has more than one cable.
    #[error(
        "cable {cable} is a second cable at host `{host}`; remove it, because a host has one cable \
         (rails in [fabric] gives each host several ports)"
    )]
    SecondCable {
        /// Number of the cable.
        cable: usize,
        /// Name of the host.
        host: String,
    },
    /// A host has no cable.
    #[error("host `{host}` has no cable; connect it to a switch")]
    NoCable {
        /// Name of the host.
        host: String,
    },
    /// Two switches have too many parallel cables.
    #[error("cable {cable} is one of more than {LANES_MAX} parallel cables between `{}` and `{}`; \
             remove some", .ends[0], .ends[1])]
    Parallel {
        /// Number of the cable.
        cable: usize,
        /// Names of the switches.
        ends: [String; 2],
    },
}

impl GraphError {
    /// Returns the number of the invalid cable, from 1; `None` if the error does not concern a
    /// cable.
    pub const fn cable(&self) -> Option<usize> {
        match self {
            Self::UnknownEnd { cable, .. }
            | Self::Loop { cable, .. }
            | Self::BetweenHosts { cable, .. }
            | Self::SecondCable { cable, .. }
            | Self::Parallel { cable, .. } => Some(*cable),
            Self::Name { .. } | Self::Twice { .. } | Self::NoCable { .. } => None,
        }
    }
}

impl Topology {
    /// Creates a topology from hosts, switches and cables. Hosts are numbered first, then switches.
    /// Each host must have one cable, and each node must be able to reach all other nodes.
    ///
    /// # Errors
    /// Returns [`TopologyError`]; each variant names one cause.
    pub fn graph(
        hosts: &[String],
        switches: &[String],
        cables: &[Cable],
    ) -> Result<Self, TopologyError> {
        let all: u64 = cables.iter().map(|cable| u64::from(cable.count)).sum();
        let (hosts_count, switches_count) = (hosts.len() as u64, switches.len() as u64);
        let name = format!("graph {hosts_count} hosts, {switches_count} switches, {all} cables");
        let mut builder = Builder::new(name, hosts_count, switches_count)?;
        let names: Vec<String> = hosts.iter().chain(switches).cloned().collect();
        let nodes = numbered(&names)?;
        let mut joined = Joined { cables: vec![0; hosts.len()], lanes: BTreeMap::new() };
        for (number, cable) in (1..).zip(cables) {
            joined.add(&mut builder, &nodes, (number, cable))?;
        }
        if let Some(host) = joined.cables.iter().position(|&cables| cables == 0) {
            return Err(GraphError::NoCable { host: names[host].clone() }.into());
        }
        if cables.iter().any(|cable| cable.settings != CableSettings::default()) {
            let settings = cables
                .iter()
                .flat_map(|cable| std::iter::repeat_n(cable.settings, cable.count as usize));
            builder.settings = settings.collect();
        }
        builder.names = Some(names);
        builder.build()
    }
}

/// Returns the number of each node, by its name.
fn numbered(names: &[String]) -> Result<BTreeMap<&str, u32>, GraphError> {
    let mut nodes = BTreeMap::new();
    for (node, name) in (0..).zip(names) {
        let is_part = |letter: u8| letter.is_ascii_alphanumeric() || b"_.-".contains(&letter);
        let is_begun = name.starts_with(|letter: char| letter.is_ascii_alphabetic());
        if !is_begun || name.len() > NAME_MAX || !name.bytes().all(is_part) {
            return Err(GraphError::Name { name: name.clone() });
        }
        if nodes.insert(name.as_str(), node).is_some() {
            return Err(GraphError::Twice { name: name.clone() });
        }
    }
    Ok(nodes)
}

/// The cables added so far. Checks of further cables need them.
struct Joined {
    /// Number of cables of each host.
    cables: Vec<u32>,
    /// For each two switches, the number of parallel cables between them. The key contains the
    /// lower switch number first.
    lanes: BTreeMap<[u32; 2], u32>,
}

impl Joined {
    fn add(
        &mut self,
        builder: &mut Builder,
        nodes: &BTreeMap<&str, u32>,
        (number, cable): (usize, &Cable),
    ) -> Result<(), GraphError> {
        let hosts = builder.hosts;
        let is_host = |end: &str| nodes.get(end).is_some_and(|&node| node < hosts);
        let node = |end: usize| {
            let (end, other) = (&cable.ends[end], &cable.ends[1 - end]);
            nodes.get(end.as_str()).copied().ok_or_else(|| {
                // A host can be connected only to a switch. If one end of a cable is a host, only
                // switches are therefore suggested for the other end.
                let fits = |&name: &&str| !is_host(other) || !is_host(name);
                let names: Vec<&str> = nodes.keys().copied().filter(fits).collect();
                let remedy = match nearest(end, &names) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => "add it to hosts or to switches".to_owned(),
                };
                GraphError::UnknownEnd { cable: number, end: end.clone(), remedy }
            })
        };
        let (a, b) = (node(0)?, node(1)?);
        let ends = || cable.ends.clone();
        match (a < hosts, b < hosts) {
            (true, true) => Err(GraphError::BetweenHosts { cable: number, ends: ends() }),
            (false, false) if a == b => {
                Err(GraphError::Loop { cable: number, end: cable.ends[0].clone() })
            }
            (false, false) => {
                let lanes = self.lanes.entry([a.min(b), a.max(b)]).or_default();
                let first = *lanes;
                *lanes = first.saturating_add(cable.count);
                if u64::from(*lanes) > LANES_MAX {
                    return Err(GraphError::Parallel { cable: number, ends: ends() });
                }
                builder.join_from(a - hosts, b - hosts, first..first + cable.count);
                Ok(())
            }
            (is_first, _) => {
                let (host, switch) = if is_first { (a, b) } else { (b, a) };
                let cables = &mut self.cables[host as usize];
                *cables = cables.saturating_add(cable.count);
                if *cables > 1 {
                    let host = cable.ends[usize::from(!is_first)].clone();
                    return Err(GraphError::SecondCable { cable: number, host });
                }
                builder.attach(host, switch - hosts);
                Ok(())
            }
        }
    }
}

/// Maximum length of a name. Longer names do not fit in tables of results.
const NAME_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::{LinkKind, Topology};
    use super::*;

    fn names(names: &str) -> Vec<String> {
        names.split_whitespace().map(ToOwned::to_owned).collect()
    }

    fn cable(ends: &str) -> Cable {
        let (a, b) = ends.split_once('=').expect("two ends");
        let settings = CableSettings::default();
        Cable { ends: [a.to_owned(), b.to_owned()], settings, count: 1 }
    }

    fn graph(hosts: &str, switches: &str, cables: &str) -> Result<Topology, TopologyError> {
        let cables: Vec<Cable> = cables.split_whitespace().map(cable).collect();
        Topology::graph(&names(hosts), &names(switches), &cables)
    }

    #[test]
    fn nodes_have_their_names_and_cables_their_order() {
        let topology = graph("a b", "left right", "a=left right=b left=right right=left");
        let topology = topology.expect("a graph");
        assert_eq!(topology.name(), "graph 2 hosts, 2 switches, 4 cables");
        assert_eq!((topology.hosts(), topology.switches()), (2, 2));
        let links: Vec<String> = (0..8).map(|link| topology.link_name(link)).collect();
        let expected = [
            "a->left",
            "left->a",
            "b->right",
            "right->b",
            "left->right",
            "right->left",
            "right->left#1",
            "left->right#1",
        ];
        assert_eq!(links, expected);
        assert_eq!(topology.links()[4].kind, LinkKind::Switch { dimension: 0, is_wrap: false });
        assert_eq!(topology.node_named("right"), Some(3));
        assert_eq!(topology.node_named("h0"), None);
        assert!(!topology.has_cable_settings());
    }

    #[test]
    fn cables_have_settings_in_both_directions() {
        let settings = CableSettings { rate_bps: Some(7), ..CableSettings::default() };
        let own = Cable { settings, count: 2, ..cable("s=t") };
        let cables = [cable("a=s"), own, cable("b=t")];
        let topology = Topology::graph(&names("a b"), &names("s t"), &cables).expect("a graph");
        let rates = (0..8).map(|link| topology.cable_settings(link).rate_bps);
        let expected = [None, None, Some(7), Some(7), Some(7), Some(7), None, None];
        assert_eq!(rates.collect::<Vec<_>>(), expected);
        assert!(topology.has_cable_settings());
    }

    #[test]
    fn errors_of_a_graph_have_a_remedy() {
        let cases = [
            (
                "a b",
                "rack",
                "a=rack b=rick",
                "cable 2 ends at `rick`, which is neither a host nor a \
              switch; did you mean `rack`?",
            ),
            (
                "a b",
                "rack",
                "a=rack b=elsewhere",
                "cable 2 ends at `elsewhere`, which is neither a \
              host nor a switch; add it to hosts or to switches",
            ),
            (
                "a b",
                "rack",
                "a=rack b=rack a=rack",
                "cable 3 is a second cable at host `a`; remove it, because a host has one cable \
                 (rails in [fabric] gives each host several ports)",
            ),
            ("a b", "rack", "a=rack", "host `b` has no cable; connect it to a switch"),
            (
                "a b",
                "rack",
                "a=b",
                "cable 1 connects the hosts `a` and `b`; put a switch between them",
            ),
            (
                "a b",
                "rack",
                "rack=rack",
                "cable 1 connects `rack` with itself; name another switch",
            ),
            ("a b", "a", "a=a", "two nodes have the name `a`; rename one of them"),
            (
                "a 4",
                "rack",
                "a=rack",
                "invalid name of a node `4`; use 1 to 64 letters, digits, `_`, `.` and `-`, and \
                 begin with a letter",
            ),
            (
                "a b",
                "s t",
                "a=s b=t",
                "topology graph 2 hosts, 2 switches, 2 cables is not connected: \
              no path from a to b; add a cable",
            ),
            (
                "a b",
                "s t",
                "a=s b=s",
                "topology graph 2 hosts, 2 switches, 2 cables is not connected: \
              no path from a to t; add a cable",
            ),
        ];
        for (hosts, switches, cables, expected) in cases {
            let error = graph(hosts, switches, cables).expect_err(expected).to_string();
            assert_eq!(error, expected);
        }
        let many = Cable { count: 65, ..cable("s=t") };
        let error = Topology::graph(&names("a b"), &names("s t"), &[many]).expect_err("too many");
        assert!(
            error.to_string().starts_with("cable 1 is one of more than 64 parallel cables"),
            "{error}"
        );
    }
}
