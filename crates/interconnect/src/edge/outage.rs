//! Cables and switches that fail and come back during a run.

use delivery::{LinkEvent, LinkId};

use super::super::simulation::Context;
use super::super::topology::Topology;
use super::host::{instant, link_caps};
use super::{CHANGE, EdgeConfiguration, EdgeFabric};

/// A period in which cables carry no frames.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outage {
    /// Number of the rail.
    pub rail: u8,
    /// Name of the part that fails. `s1` stands for all cables of switch 1, `h0` for all cables of
    /// host 0, and `s1-s4` for the cables between these two nodes.
    pub place: String,
    /// Start of the outage, in picoseconds.
    pub from_ps: u64,
    /// End of the outage, in picoseconds.
    pub until_ps: u64,
    /// Whether the failure is silent, so that hosts do not detect that their cable is down.
    pub is_silent: bool,
}

/// Why an outage is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OutageError {
    /// The rail does not exist.
    #[error("invalid rail {rail} of an outage: there are {rails} rails, counted from 0")]
    Rail {
        /// Number of the rail.
        rail: u8,
        /// Number of rails.
        rails: u8,
    },
    /// The node or cable does not exist.
    #[error(
        "invalid place `{place}` of an outage: {what}; names of hosts are h0, h1, …, and names of \
         switches are s0, s1, …"
    )]
    Place {
        /// Name of the node or cable.
        place: String,
        /// Description of the mistake in the name.
        what: String,
    },
}

/// The start or the end of an outage.
#[derive(Clone, Debug)]
pub(super) struct Change {
    at_ps: u64,
    rail: u8,
    is_up: bool,
    links: Vec<u32>,
    /// Hosts that detect the change.
    hosts: Vec<u32>,
}

/// Returns the changes (starts and ends) that the outages cause.
pub(super) fn changes(
    topology: &Topology,
    configuration: &EdgeConfiguration,
) -> Result<Vec<Change>, OutageError> {
    let mut changes = Vec::new();
    for outage in &configuration.outages {
        let Outage { rail, from_ps, until_ps, .. } = *outage;
        if rail >= configuration.rails {
            return Err(OutageError::Rail { rail, rails: configuration.rails });
        }
        let links = links_of(topology, &outage.place)?;
        let ends = links.iter().map(|&link| topology.links()[link as usize].from);
        let hosts: Vec<u32> =
            ends.filter(|&node| topology.is_host(node) && !outage.is_silent).collect();
        for (at_ps, is_up) in [(from_ps, false), (until_ps, true)] {
            changes.push(Change { at_ps, rail, is_up, links: links.clone(), hosts: hosts.clone() });
        }
    }
    Ok(changes)
}

/// Returns the links, in both directions, of the cables that a name denotes.
fn links_of(topology: &Topology, place: &str) -> Result<Vec<u32>, OutageError> {
    let wrong = |what: String| OutageError::Place { place: place.to_owned(), what };
    let node = |name: &str| {
        topology.node_named(name).ok_or_else(|| wrong(format!("there is no `{name}`")))
    };
    let (first, second) = match topology.node_named(place) {
        Some(node) => (node, None),
        None => match divided(topology, place) {
            Some((first, second)) => (first, Some(second)),
            None => match place.split_once('-') {
                Some((first, second)) => (node(first)?, Some(node(second)?)),
                None => (node(place)?, None),
            },
        },
    };
    let leads_there =
        |&&link: &&u32| second.is_none_or(|second| topology.links()[link as usize].to == second);
    let links = topology.outgoing(first).iter().filter(leads_there);
    let links: Vec<u32> = links.flat_map(|&link| [link, link ^ 1]).collect();
    if links.is_empty() {
        return Err(wrong("no cable connects the two".to_owned()));
    }
    Ok(links)
}

/// Splits a name `a-b` into its two nodes. The names of nodes can contain hyphens too, so this
/// function tries to split at each hyphen. Returns `None` if no split yields the names of two
/// nodes.
fn divided(topology: &Topology, place: &str) -> Option<(u32, u32)> {
    place.match_indices('-').find_map(|(at, _)| {
        let (first, second) = (place.get(..at)?, place.get(at + 1..)?);
        Some((topology.node_named(first)?, topology.node_named(second)?))
    })
}

impl EdgeFabric {
    /// Schedules the starts and ends of all outages. Only the first call has an effect.
    pub(super) fn schedule_outages(&mut self, context: &mut Context) {
        if std::mem::replace(&mut self.outages_are_scheduled, true) {
            return;
        }
        for (number, change) in self.outages.iter().enumerate() {
            context.schedule(change.at_ps, CHANGE | number as u32, 0);
        }
    }

    /// Starts or ends an outage.
    pub(super) fn change(&mut self, context: &mut Context, number: u32) {
        let Change { rail, is_up, links, hosts, .. } = self.outages[number as usize].clone();
        for link in links {
            self.rails[usize::from(rail)].set_link(link, is_up);
        }
        let now_ps = context.wheel.now_ps();
        for number in hosts {
            let event = if is_up {
                let rate_bps = self.hosts[number as usize].rate_bps;
                let caps =
                    link_caps((number, rail), &self.configuration, self.frame_bytes_max, rate_bps);
                LinkEvent::Changed(caps)
            } else {
                LinkEvent::Down
            };
            let host = &mut self.hosts[number as usize];
            host.engine.handle_link_event(instant(self.base_ns, now_ps), LinkId(rail), event);
            let at_ps = host.free_ps.max(now_ps);
            self.take_completions(context, number);
            self.schedule_turn(context, number, at_ps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::topology::{Cable, CableSettings};
    use super::*;

    #[test]
    fn outages_name_hosts_switches_and_cables() {
        let topology = Topology::leaf_spine(2, 2, 2, 1).expect("a leaf-spine");
        assert_eq!(links_of(&topology, "h3").map(|links| links.len()), Ok(2));
        assert_eq!(links_of(&topology, "s0").map(|links| links.len()), Ok(8));
        assert_eq!(links_of(&topology, "s0-s3").map(|links| links.len()), Ok(2));
        for wrong in ["h4", "s4", "x", "s0-s1", ""] {
            assert!(links_of(&topology, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn outages_use_the_names_of_a_graph() {
        let names = ["a", "b"].map(str::to_owned);
        let switches = ["top-1", "top-2"].map(str::to_owned);
        let cable = |ends: [&str; 2]| Cable {
            ends: ends.map(str::to_owned),
            settings: CableSettings::default(),
            count: 1,
        };
        let cables = [["a", "top-1"], ["b", "top-2"], ["top-1", "top-2"]].map(cable);
        let topology = Topology::graph(&names, &switches, &cables).expect("a graph");
        assert_eq!(links_of(&topology, "top-1"), Ok(vec![1, 0, 4, 5]));
        assert_eq!(links_of(&topology, "top-1-top-2"), Ok(vec![4, 5]));
        assert_eq!(links_of(&topology, "a-top-1"), Ok(vec![0, 1]));
        assert!(links_of(&topology, "top-3").is_err());
        assert!(links_of(&topology, "h0").is_err());
    }
}
