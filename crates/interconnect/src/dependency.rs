//! Checks before a run whether the routes allow packets to wait for each other in a circle.
//!
//! If a packet holds one channel and requests another, the first channel depends on the second. If
//! these dependencies contain no circle, no deadlock can happen (Dally and Seitz). If they contain
//! a circle, a deadlock is possible.

use std::collections::BTreeSet;

use super::routing::{Hop, LaneChoice, Paths};
use super::topology::Topology;

/// Finds a circle of dependencies. Returns its channels in order: a packet that holds one channel
/// can request the next. A channel is a link with a lane. Returns `None` if there is no circle.
/// `channels` is the number of virtual channels of a link, or 1 if lanes are parallel cables.
pub fn circle(topology: &Topology, paths: &Paths, channels: usize) -> Option<Vec<String>> {
    let mut edges = BTreeSet::new();
    for path in paths.iter() {
        for pair in path.windows(2) {
            let [from, to] = pair else { continue };
            for held in lanes(paths, from, channels) {
                for asked in lanes(paths, to, channels) {
                    if to.lane != LaneChoice::Same || held.1 == asked.1 {
                        edges.insert((held, asked));
                    }
                }
            }
        }
    }
    let edges: Vec<(Channel, Channel)> = edges.into_iter().collect();
    let circle = find(&edges)?;
    let name = |(link, lane): &Channel| format!("{}, lane {lane}", topology.link_name(*link));
    Some(circle.iter().map(name).collect())
}

/// A link and one of its lanes. A lane is a class of virtual channels, or the index of a cable.
pub(super) type Channel = (u32, u8);

fn lanes(paths: &Paths, hop: &Hop, channels: usize) -> Vec<Channel> {
    let cables = paths.links(hop);
    let all: Vec<Channel> = if channels > 1 {
        // The rule for lanes divides the virtual channels into two classes.
        vec![(hop.link, 0), (hop.link, 1)]
    } else {
        (0..).zip(cables).map(|(lane, &link)| (link, lane)).collect()
    };
    match hop.lane {
        LaneChoice::Fixed(lane) => all.into_iter().filter(|channel| channel.1 == lane).collect(),
        LaneChoice::Any | LaneChoice::Same | LaneChoice::Drawn => all,
    }
}

/// Finds a circle in a sorted list of edges, by depth-first search without recursion.
pub(super) fn find(edges: &[(Channel, Channel)]) -> Option<Vec<Channel>> {
    let after = |channel: Channel| {
        let start = edges.partition_point(|(from, _)| *from < channel);
        edges.get(start..).unwrap_or_default().iter().take_while(move |(from, _)| *from == channel)
    };
    let mut done = BTreeSet::new();
    for &(root, _) in edges {
        let mut way = vec![(root, after(root))];
        let mut on_way = BTreeSet::from([root]);
        while let Some((channel, rest)) = way.last_mut() {
            let channel = *channel;
            if done.contains(&channel) {
                on_way.remove(&channel);
                way.pop();
            } else if let Some(&(_, next)) = rest.next() {
                if let Some(start) = way.iter().position(|(before, _)| *before == next)
                    && on_way.contains(&next)
                {
                    return Some(way.drain(start..).map(|(channel, _)| channel).collect());
                }
                on_way.insert(next);
                way.push((next, after(next)));
            } else {
                done.insert(channel);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::routing::{LanePolicy, RouteTable, Routing};
    use super::*;

    fn check(topology: &Topology, policy: LanePolicy, channels: usize) -> Option<Vec<String>> {
        let routing = match topology.grid() {
            Some(_) => Routing::DimensionOrder { is_reversed: false },
            None => Routing::Shortest,
        };
        let table = RouteTable::new(topology, routing).expect("there are routes");
        let paths = Paths::new(topology, &table, policy, channels).expect("there are paths");
        circle(topology, &paths, channels)
    }

    #[test]
    fn free_lanes_on_a_torus_have_a_dependency_cycle_and_datelines_have_none() {
        let cables = Topology::torus(&[8, 4], 1, 2).expect("a torus");
        assert!(check(&cables, LanePolicy::Free, 1).is_some_and(|circle| circle.len() >= 3));
        assert_eq!(check(&cables, LanePolicy::Dateline, 1), None);
        let channels = Topology::torus(&[8, 4], 1, 1).expect("a torus");
        assert!(check(&channels, LanePolicy::Free, 2).is_some());
        assert_eq!(check(&channels, LanePolicy::Dateline, 2), None);
    }

    #[test]
    fn meshes_and_trees_have_no_dependency_cycle() {
        let mesh = Topology::mesh(&[4, 4], 1, 1).expect("a mesh");
        assert_eq!(check(&mesh, LanePolicy::Free, 1), None);
        let tree = Topology::fat_tree(4).expect("a fat tree");
        assert_eq!(check(&tree, LanePolicy::Free, 1), None);
    }
}
