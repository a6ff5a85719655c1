//! A drawing of a topology, as SVG.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::topology::{LinkKind, Topology};

/// A drawing of a topology: switches as boxes with the number of their hosts, cables as lines, as
/// thick as there are parallel ones. Grids are drawn as grids, others in layers above the hosts.
pub fn draw(topology: &Topology) -> String {
    let places = places(topology);
    let width = places.iter().map(|place| place.0).fold(0.0, f64::max) + 2.0 * MARGIN;
    let height = places.iter().map(|place| place.1).fold(0.0, f64::max) + 2.0 * MARGIN + TITLE;
    let mut svg = String::new();
    // Writing to a `String` cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<title>{name}</title>\n<text x=\"{MARGIN}\" \
         y=\"20\" font-size=\"14\">{name}: {} hosts, {} switches, {} cables</text>\n",
        topology.hosts(),
        topology.switches(),
        topology.links().len() / 2,
        name = escaped(topology.name()),
    );
    let at = |switch: u32| {
        let (x, y) = places.get(switch as usize).copied().unwrap_or_default();
        (x + MARGIN, y + MARGIN + TITLE)
    };
    for ((from, to), (count, is_wrap)) in bundles(topology) {
        let ((x1, y1), (x2, y2)) = (at(from), at(to));
        let stroke = if is_wrap { "#c08030" } else { "#7088a0" };
        // Wraps are bent, as straight ones would hide behind the cables between neighbours.
        let bend = if is_wrap { BEND } else { 0.0 };
        let (middle_x, middle_y) = (f64::midpoint(x1, x2) + bend, f64::midpoint(y1, y2) - bend);
        let thickness = (0.8 * f64::from(count).sqrt()).min(5.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{x1:.1} {y1:.1}Q{middle_x:.1} {middle_y:.1} {x2:.1} {y2:.1}\" fill=\"none\" \
             stroke=\"{stroke}\" stroke-width=\"{thickness:.1}\"><title>s{from} - s{to}, {count} \
             cables</title></path>"
        );
    }
    let mut hosts = vec![0_u32; topology.switches() as usize];
    for host in 0..topology.hosts() {
        if let Some(count) = hosts.get_mut(topology.host_switch(host) as usize) {
            *count += 1;
        }
    }
    for (switch, count) in (0..).zip(&hosts) {
        let (x, y) = at(switch);
        let (fill, label) = match count {
            0 => ("#e8ecf0", String::new()),
            count => ("#d0e8d0", format!("{count} h")),
        };
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{BOX}\" height=\"{BOX}\" rx=\"4\" fill=\"{fill}\" \
             stroke=\"#405060\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">s{switch}\
             </text><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#507050\">{label}\
             </text>",
            x - BOX / 2.0,
            y - BOX / 2.0,
            y - 1.0,
            y + 11.0,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Where each switch is drawn.
fn places(topology: &Topology) -> Vec<(f64, f64)> {
    if let Some(grid) = topology.grid() {
        let place = |switch| {
            let at = grid.coordinates(switch);
            let along = |dimension: usize| f64::from(at.get(dimension).copied().unwrap_or(0));
            let width = grid.sizes.first().copied().unwrap_or(1);
            // Further dimensions stand beside each other.
            let plane: f64 = (2..at.len()).map(along).fold(0.0, |sum, at| sum * 8.0 + at);
            let x = along(0) + plane * (f64::from(width) + 0.6);
            (x * STEP, along(1) * STEP)
        };
        return (0..topology.switches()).map(place).collect();
    }
    let layers = layers(topology);
    let top = layers.iter().copied().max().unwrap_or(0);
    let mut filled = vec![0_u32; top as usize + 1];
    let counts: Vec<u32> = (0..=top)
        .map(|layer| layers.iter().filter(|&&other| other == layer).count() as u32)
        .collect();
    let widest = counts.iter().copied().max().unwrap_or(1);
    let place = |&layer: &u32| {
        let (Some(count), Some(index)) =
            (counts.get(layer as usize), filled.get_mut(layer as usize))
        else {
            return (0.0, 0.0);
        };
        let x = (f64::from(*index) + 0.5) * f64::from(widest) / f64::from(*count) - 0.5;
        *index += 1;
        (x * STEP, f64::from(top - layer) * STEP * 1.6)
    };
    layers.iter().map(place).collect()
}

/// Steps of each switch from the nearest one with hosts.
fn layers(topology: &Topology) -> Vec<u32> {
    let hosts = topology.hosts();
    let mut layers = vec![u32::MAX; topology.switches() as usize];
    let mut open: Vec<u32> = (0..hosts).map(|host| topology.host_switch(host)).collect();
    let mut layer = 0;
    while !open.is_empty() {
        let mut next = Vec::new();
        for switch in open {
            let Some(own) = layers.get_mut(switch as usize).filter(|own| **own == u32::MAX) else {
                continue;
            };
            *own = layer;
            let links = topology.outgoing(hosts + switch).iter();
            let neighbours = links.filter_map(|&link| topology.links().get(link as usize));
            next.extend(neighbours.filter_map(|link| link.to.checked_sub(hosts)));
        }
        open = next;
        layer += 1;
    }
    layers
}

/// Pairs of switches with cables: how many, and whether they are wraps.
fn bundles(topology: &Topology) -> BTreeMap<(u32, u32), (u32, bool)> {
    let mut bundles = BTreeMap::new();
    for link in topology.links().iter().step_by(2) {
        let LinkKind::Switch { is_wrap, .. } = link.kind else { continue };
        let ends = (link.from - topology.hosts(), link.to - topology.hosts());
        let bundle = bundles.entry(ends).or_insert((0, is_wrap));
        bundle.0 += 1;
    }
    bundles
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const STEP: f64 = 64.0;
const BOX: f64 = 34.0;
const MARGIN: f64 = 40.0;
const TITLE: f64 = 20.0;
const BEND: f64 = 22.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_switch_and_bundle_is_drawn_once() {
        for topology in
            [Topology::torus(&[4, 3, 2], 2, 2), Topology::fat_tree(4), Topology::star(3)]
        {
            let topology = topology.expect("a topology");
            let svg = draw(&topology);
            assert_eq!(svg.matches("<rect").count(), topology.switches() as usize);
            assert_eq!(svg.matches("<path").count(), bundles(&topology).len());
            assert!(svg.ends_with("</svg>\n"));
        }
    }
}
