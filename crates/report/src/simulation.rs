//! A page about a simulated run: durations, busy links, and the causes of the completion time.

use std::fmt::Write;

use crate::chart::ChartError;
use crate::curve::{self, Curve};
use crate::format::{scaled, time_ns};
use crate::page::{document, escaped};

/// A simulated run. All times are in microseconds of simulated time.
#[derive(Debug, Clone, Default)]
pub struct Simulation {
    /// Name of the network.
    pub title: String,
    /// Figures to show at the top of the page.
    pub facts: Vec<Fact>,
    /// Problems of the run, as sentences.
    pub findings: Vec<String>,
    /// Cumulative distribution of latencies: each latency has the fraction of messages that took at
    /// most this long.
    pub latencies_us: Vec<(f64, f64)>,
    /// Cumulative distribution of completion times: each time has the fraction of hosts that had
    /// received their last message at this time.
    pub completions_us: Vec<(f64, f64)>,
    /// Number of messages in flight over time.
    pub backlog: Vec<(f64, f64)>,
    /// SVG of the topology, with links coloured by their load.
    pub heat_map: String,
    /// The colours of the heat map from idle to always busy, as CSS.
    pub heat_scale: [String; 5],
    /// The busiest links, busiest first.
    pub links: Vec<LinkRow>,
    /// The causes of the completion time, if known.
    pub path: Option<Path>,
    /// The configuration, as TOML.
    pub configuration: String,
    /// Version of the simulator.
    pub version: String,
}

/// A named figure.
#[derive(Debug, Clone)]
pub struct Fact {
    /// The name of the figure.
    pub name: String,
    /// The value with its unit.
    pub value: String,
}

/// A link.
#[derive(Debug, Clone)]
pub struct LinkRow {
    /// The name, such as `s0->s4`.
    pub name: String,
    /// Rate in bits per second; 0 if the model has no rates.
    pub rate_bps: u64,
    /// Number of packets that crossed the link.
    pub packets: u64,
    /// Number of bytes that crossed the link.
    pub bytes: u64,
    /// Fraction of the run during which the link was busy, from 0 to 1.
    pub busy_share: f64,
    /// Colour of `busy_share` in the heat map, as CSS.
    pub busy_colour: String,
    /// Mean wait of a packet, in microseconds.
    pub wait_mean_us: f64,
    /// Longest wait of a packet, in microseconds.
    pub wait_max_us: f64,
    /// Bytes that the link sends during the longest wait. This is the longest queue; 0 if the model
    /// has no rates.
    pub queue_max_bytes: f64,
    /// Time of the longest wait, in microseconds.
    pub wait_max_at_us: f64,
}

/// The critical path of the run: the parts of the completion time.
#[derive(Debug, Clone)]
pub struct Path {
    /// A sentence about the main cause.
    pub verdict: String,
    /// The completion time.
    pub completed_us: f64,
    /// Number of messages on the path.
    pub messages: u64,
    /// The parts by cause, longest first.
    pub causes: Vec<Cause>,
    /// The parts by link. The link with the longest waits is first.
    pub links: Vec<LinkOnPath>,
}

/// A part of the completion time with one cause.
#[derive(Debug, Clone)]
pub struct Cause {
    /// The name of the cause.
    pub name: String,
    /// Index of the cause's colour in the style sheet. A cause has the same colour on all pages.
    pub colour: usize,
    /// Length of the part.
    pub us: f64,
}

/// The part of the completion time spent at one link.
#[derive(Debug, Clone)]
pub struct LinkOnPath {
    /// The name of the link.
    pub name: String,
    /// Length of the part.
    pub us: f64,
    /// The part of this time that was spent waiting.
    pub wait_us: f64,
}

/// Makes a self-contained HTML page of the run.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn simulation_page(run: &Simulation) -> Result<String, ChartError> {
    let title = "Ethernot simulation";
    let mut body = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p></header>\n<div class=\"facts\">",
        escaped(&run.title)
    );
    for Fact { name, value } in &run.facts {
        let (name, value) = (escaped(name), escaped(value));
        let _ = writeln!(body, "<div><b>{value}</b><span>{name}</span></div>");
    }
    body.push_str("</div>\n");
    for finding in &run.findings {
        let _ = writeln!(body, "<p class=\"finding\">{}</p>", escaped(finding));
    }
    path_section(&mut body, run);
    curves(&mut body, run)?;
    heat_section(&mut body, run);
    links_section(&mut body, run);
    let _ = writeln!(
        body,
        "<section><h2>configuration</h2><details><summary>all settings, including the \
         defaults</summary><pre>{}</pre></details></section>\n<footer>All times are simulated. \
         busy: share of the run in which the link carried frames, without the gaps between frames. \
         longest wait: waiting time of the packet that waited longest for the link. queue at most: \
         number of bytes that the link sends during the longest wait.<br>ethernot {}</footer>",
        escaped(&run.configuration),
        escaped(&run.version)
    );
    Ok(document(&format!("{title}: {}", run.title), OWN_STYLE, &body))
}

/// Adds the completion time as one bar that is divided by cause.
fn path_section(body: &mut String, run: &Simulation) {
    let Some(path) = &run.path else { return };
    let percent = |us: f64| us / path.completed_us.max(f64::MIN_POSITIVE) * 100.0;
    let messages = match path.messages {
        1 => "one message".to_owned(),
        count => format!("{count} messages, one after the other"),
    };
    let _ = writeln!(
        body,
        "<section><h2>causes of the completion time</h2><p>The critical path, {messages}: \
         {}.</p>\n<div class=\"bar\">",
        escaped(&path.verdict)
    );
    for cause in &path.causes {
        let share = percent(cause.us);
        let _ = write!(
            body,
            "<span style=\"width:{share:.3}%;background:var(--series-{})\" title=\"{}: {share:.1} \
             %\"></span>",
            cause.colour,
            escaped(&cause.name)
        );
    }
    body.push_str("</div>\n<ul class=\"legend\">");
    for cause in &path.causes {
        let _ = write!(
            body,
            "<li><span style=\"background:var(--series-{})\"></span>{} <b>{:.1} %</b> ({})</li>",
            cause.colour,
            escaped(&cause.name),
            percent(cause.us),
            time(cause.us)
        );
    }
    body.push_str("</ul>\n");
    // Links without waits did not delay the run.
    let waits = || path.links.iter().filter(|link| link.wait_us > 0.0);
    if waits().next().is_some() {
        body.push_str(
            "<div class=\"wide narrow\"><table class=\"plain\"><thead><tr><th>link on the path</th>\
             <th>waits for it</th><th>%</th><th>with sending</th></tr></thead><tbody>\n",
        );
        for link in waits().take(PATH_LINKS_SHOWN) {
            let _ = writeln!(
                body,
                "<tr><td>{}</td><td>{}</td><td>{:.1}</td><td>{}</td></tr>",
                escaped(&link.name),
                time(link.wait_us),
                percent(link.wait_us),
                time(link.us)
            );
        }
        body.push_str("</tbody></table></div>\n");
    }
    body.push_str("</section>\n");
}

fn curves(body: &mut String, run: &Simulation) -> Result<(), ChartError> {
    let (latencies, latency_unit) = fitted(&run.latencies_us);
    let (completions, completion_unit) = fitted(&run.completions_us);
    let (backlog, backlog_unit) = fitted(&run.backlog);
    let curves = [
        Curve {
            title: "Latency of messages",
            x_axis: &format!("latency ({latency_unit})"),
            y_axis: "share of messages",
            colour: 0,
            points: &latencies,
            is_logarithmic: true,
            has_steps: true,
        },
        Curve {
            title: "Hosts that had received their last message",
            x_axis: &format!("time ({completion_unit})"),
            y_axis: "share of hosts",
            colour: 0,
            points: &completions,
            is_logarithmic: false,
            has_steps: true,
        },
        Curve {
            title: "Messages in flight",
            x_axis: &format!("time ({backlog_unit})"),
            y_axis: "messages",
            colour: 0,
            points: &backlog,
            is_logarithmic: false,
            has_steps: false,
        },
    ];
    body.push_str("<section><h2>messages</h2><div class=\"charts three\">\n");
    for curve in &curves {
        if let Some(svg) = curve::draw(curve)? {
            let _ =
                writeln!(body, "<figure><figcaption>{}</figcaption>{svg}</figure>", curve.title);
        }
    }
    body.push_str("</div></section>\n");
    Ok(())
}

fn heat_section(body: &mut String, run: &Simulation) {
    body.push_str(
        "<section><h2>links</h2><p>A cable has the colour of its busier direction. A box has the \
         colour of the busiest cable of its hosts.</p><div class=\"scale\"><span>0 %</span><i \
         style=\"background:linear-gradient(90deg",
    );
    for colour in &run.heat_scale {
        let _ = write!(body, ",{}", escaped(colour));
    }
    let _ = writeln!(
        body,
        "\"></i><span>100 % busy</span></div><figure class=\"map\">{}</figure></section>",
        run.heat_map
    );
}

fn links_section(body: &mut String, run: &Simulation) {
    if run.links.is_empty() {
        return;
    }
    body.push_str(
        "<section><h2>busiest links</h2><div class=\"wide\"><table class=\"plain\"><thead><tr>\
         <th>link</th><th>rate</th><th>busy</th><th>packets</th><th>carried</th><th>mean wait</th>\
         <th>longest wait</th><th>queue at most</th><th>at</th></tr></thead><tbody>\n",
    );
    for link in &run.links {
        let rate = match link.rate_bps {
            0 => "–".to_string(),
            rate => scaled(rate as f64, "b/s"),
        };
        let percent = link.busy_share * 100.0;
        let bar = link.busy_share * BAR_REM;
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td>{rate}</td><td class=\"busy\"><i style=\"width:{bar:.2}rem;background:{}\"></i>\
             {percent:.1} %</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&link.name),
            escaped(&link.busy_colour),
            link.packets,
            scaled(link.bytes as f64, "B"),
            time(link.wait_mean_us),
            time(link.wait_max_us),
            scaled(link.queue_max_bytes, "B"),
            time(link.wait_max_at_us)
        );
    }
    body.push_str("</tbody></table></div></section>\n");
}

/// Formats a time in microseconds in a suitable unit.
fn time(us: f64) -> String {
    if us > 0.0 { time_ns(us * 1e3) } else { "0".to_string() }
}

/// Returns the points, with times converted to a unit that suits the longest time. Also returns the
/// unit.
fn fitted(points: &[(f64, f64)]) -> (Vec<(f64, f64)>, &'static str) {
    let most = points.iter().map(|point| point.0).fold(0.0, f64::max);
    let (divisor, unit) = match most {
        us if us >= 2e6 => (1e6, "s"),
        us if us >= 2e3 => (1e3, "ms"),
        us if us >= 2.0 || us == 0.0 => (1.0, "µs"),
        _ => (1e-3, "ns"),
    };
    (points.iter().map(|point| (point.0 / divisor, point.1)).collect(), unit)
}

const PATH_LINKS_SHOWN: usize = 8;
/// Width of the bar of a link that is always busy, in `rem`. The bar must fit into its column.
const BAR_REM: f64 = 4.5;
const OWN_STYLE: &str = include_str!("simulation.css");

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Simulation {
        Simulation {
            title: "<b>torus</b>".to_string(),
            facts: vec![Fact { name: "completed".into(), value: "12 µs".into() }],
            findings: vec!["SATURATED: s0->s1".into()],
            latencies_us: vec![(1.0, 0.5), (100.0, 1.0)],
            heat_map: "<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>".into(),
            path: Some(Path {
                verdict: "it waits".into(),
                completed_us: 10.0,
                messages: 2,
                causes: vec![Cause { name: "computation".into(), colour: 2, us: 7.5 }],
                links: vec![LinkOnPath { name: "s0->s1".into(), us: 2.5, wait_us: 1.0 }],
            }),
            links: vec![LinkRow {
                name: "s0->s1".into(),
                rate_bps: 1_000_000_000,
                packets: 3,
                bytes: 4_500_000,
                busy_share: 0.5,
                busy_colour: "#f0c040".into(),
                wait_mean_us: 0.1,
                wait_max_us: 0.5,
                queue_max_bytes: 62.5,
                wait_max_at_us: 3.0,
            }],
            ..Simulation::default()
        }
    }

    #[test]
    fn the_page_is_self_contained_and_shows_its_input() {
        let page = simulation_page(&run()).unwrap();
        for reference in ["src=", "href=", "url(", "@import", "<script", "http:"] {
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(reference), "{reference}");
        }
        for part in ["75.0 %", "&lt;b&gt;torus", "SATURATED: s0-&gt;s1", "50.0 %", "1.00 Gb/s"] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<b>torus"));
    }

    #[test]
    fn a_colour_has_one_meaning_on_the_whole_page() {
        let mut later = run();
        let causes = &mut later.path.as_mut().unwrap().causes;
        causes.insert(0, Cause { name: "waits for links".into(), colour: 3, us: 2.0 });
        for page in [simulation_page(&run()).unwrap(), simulation_page(&later).unwrap()] {
            assert!(page.contains("var(--series-2)\"></span>computation"), "{page}");
        }
        let page = simulation_page(&run()).unwrap();
        // The bar has the colour of the heat map.
        assert!(page.contains("rem;background:#f0c040\"></i>50.0 %"));
        let body = page.split("</style>").nth(1).unwrap();
        assert!(
            !body.contains("series-3"),
            "the page shows a cause although no packet waited long"
        );
    }

    #[test]
    fn times_and_lengths_have_units_that_fit() {
        let page = simulation_page(&run()).unwrap();
        for part in ["4.50 MB", "62.5 B", "100 ns", "500 ns", "3.00 µs", "(7.50 µs)"] {
            assert!(page.contains(part), "{part}");
        }
        let long: Vec<(f64, f64)> = vec![(1.0, 0.5), (50_000.0, 1.0)];
        assert_eq!(fitted(&long), (vec![(0.001, 0.5), (50.0, 1.0)], "ms"));
        assert_eq!(fitted(&[(0.5, 1.0)]), (vec![(500.0, 1.0)], "ns"));
        assert_eq!(fitted(&[]).1, "µs");
    }

    #[test]
    fn links_without_waits_are_not_listed_on_the_path() {
        let mut punctual = run();
        punctual.path.as_mut().unwrap().links[0].wait_us = 0.0;
        assert!(simulation_page(&run()).unwrap().contains("link on the path"));
        assert!(!simulation_page(&punctual).unwrap().contains("link on the path"));
    }

    #[test]
    fn an_empty_run_has_a_page() {
        let page = simulation_page(&Simulation::default()).unwrap();
        assert!(page.ends_with("</html>\n") && !page.contains("NaN"));
    }
}
