//! Draws topologies as SVG.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::topology::{LinkKind, Topology};

/// Draws a topology as SVG. Switches are boxes that show their number of hosts. Cables are lines;
/// the line is wider if there are several parallel cables. Grids are drawn as grids. Other
/// topologies are drawn in layers above the hosts.
pub fn draw(topology: &Topology) -> String {
    draw_with(topology, None)
}

/// Draws a topology as [`draw`] does, as a heat map. `heat` has the heat of each link, from 0 to 1;
/// `what` describes the heat. A line has the colour of its hottest cable. The box of a switch has
/// the colour of the hottest cable to its hosts.
pub fn draw_heat(topology: &Topology, heat: &[f64], what: &str) -> String {
    draw_with(topology, Some(&Heat { links: heat, what }))
}

/// Returns the colour of a heat as `#rrggbb`. From 0 to 1, colours are pale blue, yellow, red, dark
/// red.
pub fn heat_colour(heat: f64) -> String {
    let place = heat.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let below = (place as usize).min(SCALE.len() - 2);
    let share = place - below as f64;
    let mix = |channel: usize| {
        let (a, b) = (SCALE[below][channel], SCALE[below + 1][channel]);
        (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

struct Heat<'a> {
    links: &'a [f64],
    what: &'a str,
}

impl Heat<'_> {
    /// Returns the heat of the hottest link of these cables. Each cable has a link for each
    /// direction.
    fn of(&self, cables: impl IntoIterator<Item = u32>) -> f64 {
        let links = cables.into_iter().flat_map(|cable| [2 * cable, 2 * cable + 1]);
        let heats = links.filter_map(|link| self.links.get(link as usize));
        heats.copied().fold(0.0, f64::max)
    }
}

fn draw_with(topology: &Topology, heat: Option<&Heat>) -> String {
    let places = places(topology);
    let width = places.iter().map(|place| place.0).fold(0.0, f64::max) + 2.0 * MARGIN;
    let height = places.iter().map(|place| place.1).fold(0.0, f64::max) + 2.0 * MARGIN + TITLE;
    let title = format!(
        "{}: {} hosts, {} switch{}, {} cables",
        topology.name(),
        topology.hosts(),
        topology.switches(),
        if topology.switches() == 1 { "" } else { "es" },
        topology.links().len() / 2,
    );
    let title_width = title.chars().count() as f64 * LETTER + 2.0 * MARGIN;
    let widened = width.max(title_width).max(if heat.is_some() { WIDTH_MIN } else { 0.0 });
    let (left, width) = (MARGIN + (widened - width) / 2.0, widened);
    let mut svg = String::new();
    // Writing to a `String` cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"currentColor\">\n<title>{name}</title>\n\
         <text x=\"{MARGIN}\" y=\"20\" font-size=\"14\">{title}</text>\n",
        name = escaped(topology.name()),
        title = escaped(&title),
    );
    let at = |switch: u32| {
        let (x, y) = places.get(switch as usize).copied().unwrap_or_default();
        (x + left, y + MARGIN + TITLE)
    };
    for ((from, to), bundle) in bundles(topology) {
        cable(&mut svg, (from, at(from)), (to, at(to)), &bundle, heat);
    }
    let mut hosts = vec![Vec::new(); topology.switches() as usize];
    for host in 0..topology.hosts() {
        if let Some(cables) = hosts.get_mut(topology.host_switch(host) as usize) {
            cables.push(topology.host_link(host) / 2);
        }
    }
    for (switch, cables) in (0..).zip(&hosts) {
        node(&mut svg, switch, at(switch), cables, heat);
    }
    svg.push_str("</svg>\n");
    svg
}

fn cable(
    svg: &mut String,
    (from, (x1, y1)): (u32, (f64, f64)),
    (to, (x2, y2)): (u32, (f64, f64)),
    bundle: &Bundle,
    heat: Option<&Heat>,
) {
    let count = bundle.cables.len();
    // Cables that close a ring are drawn bent. A straight line would lie behind the cables between
    // neighbours.
    let bend = if bundle.is_wrap { BEND } else { 0.0 };
    let (middle_x, middle_y) = (f64::midpoint(x1, x2) + bend, f64::midpoint(y1, y2) - bend);
    let mut thickness = (0.8 * (count as f64).sqrt()).min(5.0);
    let (stroke, note) = match heat {
        None if bundle.is_wrap => ("#c08030".to_owned(), String::new()),
        None => ("#7088a0".to_owned(), String::new()),
        Some(heat) => {
            thickness += 1.2;
            let hottest = heat.of(bundle.cables.iter().copied());
            let note = format!(", {:.1} % {}", hottest * 100.0, escaped(heat.what));
            (heat_colour(hottest), note)
        }
    };
    let _ = writeln!(
        svg,
        "<path d=\"M{x1:.1} {y1:.1}Q{middle_x:.1} {middle_y:.1} {x2:.1} {y2:.1}\" fill=\"none\" \
         stroke=\"{stroke}\" stroke-width=\"{thickness:.1}\"><title>s{from} - s{to}, {count} \
         cables{note}</title></path>"
    );
}

fn node(
    svg: &mut String,
    switch: u32,
    (x, y): (f64, f64),
    host_cables: &[u32],
    heat: Option<&Heat>,
) {
    let label = match host_cables.len() {
        0 => String::new(),
        count => format!("{count} h"),
    };
    let (fill, ink, note) = match heat {
        None if host_cables.is_empty() => ("#e8ecf0".to_owned(), INK, String::new()),
        None => ("#d0e8d0".to_owned(), INK, String::new()),
        Some(_) if host_cables.is_empty() => ("#f1f3f6".to_owned(), INK, String::new()),
        Some(heat) => {
            let hottest = heat.of(host_cables.iter().copied());
            let ink = if hottest > 0.6 { "#ffffff" } else { INK };
            let note = format!(
                "<title>s{switch}, hottest cable of its hosts {:.1} % {}</title>",
                hottest * 100.0,
                escaped(heat.what)
            );
            (heat_colour(hottest), ink, note)
        }
    };
    let _ = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{BOX}\" height=\"{BOX}\" rx=\"4\" fill=\"{fill}\" \
         stroke=\"#405060\">{note}</rect><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" \
         fill=\"{ink}\">s{switch}</text><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" \
         fill=\"{ink}\">{label}</text>",
        x - BOX / 2.0,
        y - BOX / 2.0,
        y - 1.0,
        y + 11.0,
    );
}

/// Returns the position of each switch in the drawing.
fn places(topology: &Topology) -> Vec<(f64, f64)> {
    if let Some(grid) = topology.grid() {
        let place = |switch| {
            let at = grid.coordinates(switch);
            let along = |dimension: usize| f64::from(at.get(dimension).copied().unwrap_or(0));
            let width = grid.sizes.first().copied().unwrap_or(1);
            // The first two dimensions form a plane. A grid with more dimensions is drawn as
            // several such planes, side by side.
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

/// Returns the number of links from each switch to the nearest switch with hosts.
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

/// Parallel cables between two switches.
#[derive(Default)]
struct Bundle {
    /// Numbers of the cables. The number of a cable is the number of either of its links, divided
    /// by two.
    cables: Vec<u32>,
    is_wrap: bool,
}

/// Returns the cables between each two switches that are connected directly.
fn bundles(topology: &Topology) -> BTreeMap<(u32, u32), Bundle> {
    let mut bundles: BTreeMap<(u32, u32), Bundle> = BTreeMap::new();
    for (cable, link) in (0..).zip(topology.links().iter().step_by(2)) {
        let LinkKind::Switch { is_wrap, .. } = link.kind else { continue };
        let ends = (link.from - topology.hosts(), link.to - topology.hosts());
        let bundle = bundles.entry(ends).or_default();
        bundle.is_wrap |= is_wrap;
        bundle.cables.push(cable);
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
/// Average width of a character of the title, rounded up.
const LETTER: f64 = 8.5;
const BEND: f64 = 22.0;
/// Minimum width of the drawing. Without this minimum, small networks would be enlarged to fill a
/// page.
const WIDTH_MIN: f64 = 720.0;
const INK: &str = "#1d2330";
/// Colours from cold to hot.
const SCALE: [[u8; 3]; 5] =
    [[200, 214, 229], [143, 190, 201], [242, 193, 78], [222, 94, 60], [122, 20, 48]];

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

    #[test]
    fn the_title_fits_into_the_drawing() {
        for topology in [Topology::star(2), Topology::cascade(2, 1, 1), Topology::fat_tree(4)] {
            let topology = topology.expect("a topology");
            let svg = draw(&topology);
            let width = svg.split("viewBox=\"0 0 ").nth(1).and_then(|rest| rest.split(' ').next());
            let width: f64 = width.and_then(|width| width.parse().ok()).expect("a width");
            let title = svg.split("font-size=\"14\">").nth(1).expect("a title");
            let title = title.split('<').next().expect("its text");
            // Most characters of a sans-serif font are narrower than 0.6 times their height.
            assert!(width >= MARGIN + title.len() as f64 * 0.6 * 14.0, "{title}: {width}");
        }
    }

    #[test]
    fn a_bundle_has_the_colour_of_its_hottest_link() {
        let topology = Topology::leaf_spine(2, 2, 1, 2).expect("a leaf-spine");
        let mut heat = vec![0.0; topology.links().len()];
        heat[9] = 1.0;
        let svg = draw_heat(&topology, &heat, "busy");
        assert_eq!(svg.matches("100.0 % busy").count(), 1, "{svg}");
        assert_eq!(svg.matches(&heat_colour(1.0)).count(), 1);
        assert_eq!((heat_colour(0.0), heat_colour(9.0)), ("#c8d6e5".into(), "#7a1430".into()));
    }
}
