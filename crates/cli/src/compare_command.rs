//! `ethernot sim compare`: simulates a program at several fidelities.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use interconnect::configuration::{Configuration, Fidelity, IdleNetwork, Watch};
use interconnect::records::{NEVER_PS, RecordLimits, Records};
use interconnect::simulation::InTurns;
use serde_json::{Value, json};

use crate::Failure;
use crate::output::print;
use crate::run_command::read;

/// Simulate a cluster at several fidelities, and report where they differ.
///
/// `packet` is the fabric of the configuration. `loggp` has latencies and gaps, but no network.
/// `fluid` divides the rate of each link fairly among messages. The command measures the parameters
/// of `loggp` and `fluid` by runs of `packet` on an idle network. So differences between the
/// results come only from effects that these two models omit: queues, sizes of packets, routes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim compare cluster.toml\n  \
    ethernot sim compare cluster.toml --fidelity packet,loggp --json")]
pub(crate) struct Arguments {
    /// The configuration; `-` for standard input
    configuration: PathBuf,
    /// Fidelities: packet, loggp, fluid; the first is compared with each of the others
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_fidelity,
          default_value = "packet,loggp,fluid")]
    fidelity: Vec<Fidelity>,
    /// Highest number of messages to compare
    #[arg(long, value_name = "N", default_value_t = RecordLimits::default().messages)]
    record_limit: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The results at one fidelity.
struct Run {
    fidelity: Fidelity,
    completed_us: f64,
    seconds: f64,
    left_out: u64,
    /// Latencies by sender, receiver, and the position of the message among the messages of this
    /// pair, in the order of posting.
    messages: BTreeMap<(u32, u32, u32), Latency>,
}

#[derive(Clone, Copy)]
struct Latency {
    bytes: u32,
    us: f64,
}

/// Mean latencies of a group of messages at all fidelities, in microseconds.
struct Group {
    name: String,
    messages: usize,
    means_us: Vec<f64>,
    p99_us: Vec<f64>,
}

impl Group {
    /// Returns the difference between the mean latency at the fidelity with index `at` and the mean
    /// latency at the first fidelity, in percent of the latter.
    fn difference(&self, at: usize) -> f64 {
        match (self.means_us.first(), self.means_us.get(at)) {
            (Some(first), Some(other)) if *first > 0.0 => (other / first - 1.0) * 100.0,
            _ => 0.0,
        }
    }

    fn largest_difference(&self) -> f64 {
        (1..self.means_us.len()).map(|at| self.difference(at).abs()).fold(0.0, f64::max)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let configuration = read(&arguments.configuration)?;
    if arguments.fidelity.len() < 2 {
        return Err("too few fidelities: name at least two, such as --fidelity packet,loggp".into());
    }
    let kind = configuration.fabric.name();
    if !matches!(kind, "ethernet" | "wormhole" | "flit") {
        return Err(format!(
            "{}: fabric {kind} has no packets to compare with; set [fabric] kind to ethernet, \
             wormhole or flit",
            arguments.configuration.display()
        )
        .into());
    }
    if configuration.edge.is_some() {
        return Err(format!(
            "{}: hosts with the real engine cannot be compared, because the coarse models have no \
             such hosts; set kind = \"model\" in [host], or run both configurations and compare \
             their manifests",
            arguments.configuration.display()
        )
        .into());
    }
    let idle = configuration.idle_network()?;
    let runs: Result<Vec<Run>, Failure> = arguments
        .fidelity
        .iter()
        .map(|&fidelity| {
            run_at(&configuration.at_fidelity(fidelity, &idle), fidelity, arguments.record_limit)
        })
        .collect();
    let runs = runs?;
    let sizes = by(&runs, |_, latency| size_class(latency.bytes));
    let flows = by(&runs, |ends, _| ((ends.0, ends.1), format!("h{} to h{}", ends.0, ends.1)));
    let text = if arguments.json {
        format!("{:#}\n", to_json(&configuration, &idle, &runs, &sizes, &flows))
    } else {
        to_text(&configuration, &idle, &runs, &sizes, &flows)
    };
    print(&text)
}

fn run_at(
    configuration: &Configuration,
    fidelity: Fidelity,
    record_limit: usize,
) -> Result<Run, Failure> {
    // Measures the duration of a run without recording, because ordinary runs do not record.
    let start = Instant::now();
    configuration.run().map_err(|error| format!("{}: {error}", fidelity.name()))?;
    let seconds = start.elapsed().as_secs_f64();
    let limits = RecordLimits { messages: record_limit, crossings: 0 };
    let watch = Watch { records: Some(limits), ..Watch::default() };
    let outcome = configuration.run_watched(&InTurns, watch)?;
    let records = outcome.records.as_deref();
    Ok(Run {
        fidelity,
        completed_us: outcome.completed_ps as f64 * 1e-6,
        seconds,
        left_out: records.map_or(0, |records| records.left_out.messages),
        messages: records.map(messages).unwrap_or_default(),
    })
}

/// Returns latencies by sender, receiver, and position among the messages of this pair.
fn messages(records: &Records) -> BTreeMap<(u32, u32, u32), Latency> {
    let mut counts: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut messages = BTreeMap::new();
    for message in &records.messages {
        let count = counts.entry((message.source, message.destination)).or_default();
        if message.delivered_ps != NEVER_PS {
            let us = (message.delivered_ps - message.posted_ps) as f64 * 1e-6;
            let latency = Latency { bytes: message.bytes, us };
            messages.insert((message.source, message.destination, *count), latency);
        }
        *count += 1;
    }
    messages
}

/// Returns the messages that exist at all fidelities, divided into groups. `group_of` returns the
/// key and the name of a message's group. The groups are sorted by key.
fn by<K: Ord>(runs: &[Run], group_of: impl Fn((u32, u32), Latency) -> (K, String)) -> Vec<Group> {
    let Some(first) = runs.first() else { return Vec::new() };
    let mut groups: BTreeMap<K, (String, Vec<Vec<f64>>)> = BTreeMap::new();
    for (key, latency) in &first.messages {
        let found: Option<Vec<f64>> =
            runs.iter().map(|run| run.messages.get(key).map(|latency| latency.us)).collect();
        let Some(latencies) = found else { continue };
        let (group, name) = group_of((key.0, key.1), *latency);
        let (_, columns) =
            groups.entry(group).or_insert_with(|| (name, vec![Vec::new(); runs.len()]));
        for (column, latency) in columns.iter_mut().zip(latencies) {
            column.push(latency);
        }
    }
    groups
        .into_values()
        .map(|(name, mut columns)| Group {
            name,
            messages: columns.first().map_or(0, Vec::len),
            means_us: columns.iter().map(|c| c.iter().sum::<f64>() / c.len() as f64).collect(),
            p99_us: columns.iter_mut().map(|column| quantile(column, 0.99)).collect(),
        })
        .collect()
}

fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Returns the number and the name of the class of a size. All sizes from one power of two to the
/// next are one class, so that random sizes form few groups.
fn size_class(bytes: u32) -> (u32, String) {
    let class = bytes.max(1).ilog2();
    (class, format!("{} to {} B", 1_u64 << class, (2_u64 << class) - 1))
}

/// Writing to a `String` cannot fail, so the results of `writeln!` are ignored.
fn to_text(
    configuration: &Configuration,
    idle: &IdleNetwork,
    runs: &[Run],
    sizes: &[Group],
    flows: &[Group],
) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}, {}\nidle network: L {:.3} us, g {:.3} us, G {:.4} ns/B ({:.2} Gb/s), {:.2} links in the \
         mean",
        configuration.topology.name(),
        configuration.fabric.name(),
        idle.latency_ps * 1e-6,
        idle.gap_ps * 1e-6,
        idle.byte_ps * 1e-3,
        8e3 / idle.byte_ps,
        idle.links
    );
    let first_us = runs.first().map_or(0.0, |run| run.completed_us);
    let _ = writeln!(
        text,
        "\n{:10} {:>16} {:>10} {:>12}",
        "fidelity", "completed us", "differs", "took"
    );
    for run in runs {
        let _ = writeln!(
            text,
            "{:10} {:>16.3} {:>+9.1}% {:>10.4} s",
            run.fidelity.name(),
            run.completed_us,
            (run.completed_us / first_us.max(f64::MIN_POSITIVE) - 1.0) * 100.0,
            run.seconds
        );
        if run.left_out > 0 {
            let _ = writeln!(
                text,
                "  {} messages were not compared; raise --record-limit to compare them",
                run.left_out
            );
        }
    }
    let _ = writeln!(text, "\nlatency by message size, mean (99 %) in us");
    table(&mut text, runs, sizes.iter());
    let mut worst: Vec<&Group> = flows.iter().collect();
    worst.sort_by(|a, b| b.largest_difference().total_cmp(&a.largest_difference()));
    let _ = writeln!(text, "\nflows with the largest differences, of {} flows", flows.len());
    table(&mut text, runs, worst.into_iter().take(FLOWS_SHOWN));
    text
}

fn table<'a>(text: &mut String, runs: &[Run], groups: impl Iterator<Item = &'a Group>) {
    let _ = write!(text, "{:22} {:>9}", "", "messages");
    for (at, run) in runs.iter().enumerate() {
        let _ =
            write!(text, " {:>20}{}", run.fidelity.name(), if at > 0 { "  differs" } else { "" });
    }
    text.push('\n');
    for group in groups {
        let _ = write!(text, "{:22} {:>9}", group.name, group.messages);
        for (at, (mean, p99)) in group.means_us.iter().zip(&group.p99_us).enumerate() {
            let _ = write!(text, " {:>20}", format!("{mean:.2} ({p99:.2})"));
            if at > 0 {
                let _ = write!(text, " {:>+7.1}%", group.difference(at));
            }
        }
        text.push('\n');
    }
}

fn to_json(
    configuration: &Configuration,
    idle: &IdleNetwork,
    runs: &[Run],
    sizes: &[Group],
    flows: &[Group],
) -> Value {
    let groups = |groups: &[Group]| {
        let groups = groups.iter().map(|group| {
            json!({
                "name": group.name,
                "messages": group.messages,
                "mean_us": group.means_us,
                "p99_us": group.p99_us,
                "difference_percent": (0..group.means_us.len())
                    .map(|at| group.difference(at)).collect::<Vec<_>>(),
            })
        });
        groups.collect::<Vec<_>>()
    };
    json!({
        "topology": configuration.topology.name(),
        "fabric": configuration.fabric.name(),
        "idle_network": {
            "latency_us": idle.latency_ps * 1e-6,
            "gap_us": idle.gap_ps * 1e-6,
            "byte_ns": idle.byte_ps * 1e-3,
            "links": idle.links,
        },
        "fidelities": runs.iter().map(|run| json!({
            "fidelity": run.fidelity.name(),
            "completed_us": run.completed_us,
            "seconds": run.seconds,
            "messages_left_out": run.left_out,
        })).collect::<Vec<_>>(),
        "sizes": groups(sizes),
        "flows": groups(flows),
    })
}

fn parse_fidelity(text: &str) -> Result<Fidelity, String> {
    let found = Fidelity::ALL.into_iter().find(|fidelity| fidelity.name() == text);
    found.ok_or_else(|| "unknown fidelity: known fidelities are packet, loggp and fluid".to_owned())
}

const FLOWS_SHOWN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_compare_the_same_messages() {
        let run = |fidelity, us: [f64; 3]| Run {
            fidelity,
            completed_us: 9.0,
            seconds: 0.1,
            left_out: 0,
            messages: us
                .into_iter()
                .zip(0..)
                .map(|(us, number)| ((0, 1, number), Latency { bytes: 100, us }))
                .collect(),
        };
        let mut runs =
            vec![run(Fidelity::Packet, [1.0, 2.0, 3.0]), run(Fidelity::LogGp, [2.0, 2.0, 5.0])];
        runs[1].messages.remove(&(0, 1, 1));
        let groups = by(&runs, |_, latency| size_class(latency.bytes));
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].messages, groups[0].name.as_str()), (2, "64 to 127 B"));
        assert!((groups[0].difference(1) - 75.0).abs() < 1e-9);
        assert!((groups[0].p99_us[1] - 5.0).abs() < 1e-9);
    }
}
