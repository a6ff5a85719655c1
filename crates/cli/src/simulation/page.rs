//! Prepares the page about a run.

use interconnect::configuration::{Configuration, Slowdowns};
use interconnect::drawing;
use interconnect::records::{NEVER_PS, Records, StepKind};
use interconnect::simulation::Outcome;
use report::simulation::{Cause, Fact, LinkOnPath, LinkRow, Path, Simulation, simulation_page};

use super::Finished;
use super::diagnosis::{self, saturation, us, verdict};
use crate::Failure;

/// Returns the page about a recorded run.
pub(super) fn page(
    configuration: &Configuration,
    finished: &Finished,
    records: &Records,
) -> Result<String, Failure> {
    let topology = &configuration.topology;
    let Finished { outcome, seconds, .. } = finished;
    // Rails are parallel networks with equal topologies. With several rails, the page shows for
    // each link the highest load that the link has on any rail.
    let mut heat = vec![0.0_f64; topology.links().len()];
    for (link, record) in records.links.iter().enumerate() {
        if let Some(most) = link.checked_rem(heat.len()).and_then(|at| heat.get_mut(at)) {
            *most = most.max(records.busy_share(record));
        }
    }
    let mut latencies: Vec<u64> = records
        .messages
        .iter()
        .filter(|message| message.delivered_ps != NEVER_PS)
        .map(|message| message.delivered_ps - message.posted_ps)
        .collect();
    let simulation = Simulation {
        title: title(configuration),
        facts: facts(outcome, finished.slowdowns.as_ref(), *seconds),
        findings: findings(configuration, outcome, records),
        latencies_us: distribution(&mut latencies),
        completions_us: distribution(&mut completions(records)),
        backlog: backlog(records),
        heat_map: drawing::draw_heat(topology, &heat, "of the time busy"),
        heat_scale: [0.0, 0.25, 0.5, 0.75, 1.0].map(drawing::heat_colour),
        links: links(configuration, records),
        path: records.critical_path().ok().map(|path| Path {
            verdict: verdict(&path, topology).replace(" us", " µs"),
            completed_us: us(path.completed_ps),
            messages: path.messages,
            causes: path
                .by_kind()
                .into_iter()
                .map(|(kind, share)| Cause {
                    name: kind.name().to_owned(),
                    colour: colour(kind),
                    us: us(share.total_ps),
                })
                .collect(),
            links: path
                .by_link()
                .into_iter()
                .take(LINKS_SHOWN)
                .map(|(link, share)| LinkOnPath {
                    name: topology.link_name(link),
                    us: us(share.total_ps),
                    wait_us: us(share.wait_ps),
                })
                .collect(),
        }),
        configuration: configuration.effective.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    Ok(simulation_page(&simulation)?)
}

/// Describes the run in one line.
fn title(configuration: &Configuration) -> String {
    let network = format!("{}, {}", configuration.topology.name(), configuration.fabric.name());
    match configuration.edge.as_ref().map(|edge| edge.rails) {
        None => network,
        Some(1) => format!("{network}, hosts with the real engine"),
        Some(rails) => format!("{network}, {rails} rails, hosts with the real engine"),
    }
}

/// Returns the colour index of a cause.
const fn colour(kind: StepKind) -> usize {
    match kind {
        StepKind::Serialisation | StepKind::Network => 0,
        StepKind::Engine => 1,
        StepKind::Compute => 2,
        StepKind::LinkWait => 3,
        StepKind::Send => 4,
        StepKind::Latency => 5,
        StepKind::ProcessorWait => 6,
        StepKind::Timer => 7,
        StepKind::Receive => 8,
    }
}

/// Formats a time in a suitable unit. On a page, the unit can be written with the sign µ.
fn fitted_time(us: f64) -> String {
    diagnosis::fitted_time(us).replace("us", "µs")
}

fn facts(outcome: &Outcome, slowdowns: Option<&Slowdowns>, seconds: f64) -> Vec<Fact> {
    let fact = |name: &str, value: String| Fact { name: name.to_owned(), value };
    let quantile = |share| fitted_time(outcome.histogram.quantile_us(share));
    let rate = outcome.delivered_bytes as f64 * 8e3 / outcome.completed_ps.max(1) as f64;
    let mut facts = vec![
        fact("completed", fitted_time(us(outcome.completed_ps))),
        fact("messages", outcome.delivered.to_string()),
        fact("delivered", format!("{rate:.2} Gb/s")),
        fact("latency, median", quantile(0.5)),
        fact("99 %", quantile(0.99)),
        fact("largest", fitted_time(outcome.latency.max_us())),
        fact("packets lost", outcome.dropped.to_string()),
    ];
    if let Some(slowdowns) = slowdowns.filter(|slowdowns| slowdowns.count() > 0) {
        let quantile = |share| format!("{:.2} ×", slowdowns.quantile(share));
        facts.push(fact("slowdown, median", quantile(0.5)));
        facts.push(fact("slowdown, 99 %", quantile(0.99)));
    }
    if let Some(counts) = &outcome.engines {
        facts.push(fact("frames sent", counts.frames_sent.to_string()));
        facts.push(fact("retransmitted", counts.links().retransmissions.to_string()));
    }
    if let Some(counts) = &outcome.transport {
        let throughput = counts.throughput_bps(outcome.completed_ps) / 1e9;
        facts.push(fact("sent, including retransmissions", format!("{throughput:.2} Gb/s")));
        facts.push(fact("data frames", counts.data_frames.to_string()));
        facts.push(fact("retransmitted", counts.retransmitted_frames.to_string()));
        facts.push(fact("timeouts", counts.timeouts.to_string()));
        if counts.is_receiver_driven {
            facts.push(fact("grants", counts.grants.to_string()));
            facts.push(fact("requests to retransmit", counts.resends.to_string()));
        } else {
            facts.push(fact("window, mean", format!("{:.2} frames", counts.window_frames())));
            facts.push(fact("round trip, mean", fitted_time(counts.round_trip_ps() / 1e6)));
            facts.push(fact("marked", format!("{:.2} %", counts.marked_percent())));
        }
        if let Some(rate_bps) = counts.rate_bps() {
            let rate = format!("{:.2} Gb/s", rate_bps / 1e9);
            facts.push(fact("rate of a connection, mean", rate));
            facts.push(fact("notifications of congestion", counts.notifications.to_string()));
        }
    }
    facts.push(fact("simulated in", format!("{seconds:.2} s")));
    facts
}

fn findings(configuration: &Configuration, outcome: &Outcome, records: &Records) -> Vec<String> {
    let mut findings = saturation(outcome, &configuration.topology);
    if outcome.dropped > 0 {
        let repair = match (&outcome.engines, outcome.transport) {
            (Some(_), _) => ", and the engines retransmitted them",
            (_, Some(_)) => ", and the transport of the hosts retransmitted them",
            _ => ", which were not retransmitted",
        };
        findings.push(format!(
            "{} packets were lost in full queues or at links that were down{repair}",
            outcome.dropped
        ));
    }
    let left_out = records.left_out;
    if left_out.messages + left_out.crossings > 0 {
        findings.push(format!(
            "{} messages and {} crossings of links were not recorded, so the curves of messages \
             and the critical path do not contain them; raise --record-limit",
            left_out.messages, left_out.crossings
        ));
    }
    findings
}

/// Returns the highest number of messages in flight in each of several equal intervals.
fn backlog(records: &Records) -> Vec<(f64, f64)> {
    let mut changes: Vec<(u64, bool)> = Vec::with_capacity(records.messages.len() * 2);
    for message in records.messages.iter().filter(|message| message.delivered_ps != NEVER_PS) {
        changes.extend([(message.posted_ps, true), (message.delivered_ps, false)]);
    }
    // At equal times, sorts ends before starts. Without this, two messages would count as
    // overlapping if one begins when the other ends.
    changes.sort_unstable();
    let end_ps = changes.last().map_or(0, |change| change.0);
    let part_ps = end_ps.div_ceil(POINTS as u64).max(1);
    let mut points: Vec<(f64, f64)> =
        (0..=end_ps / part_ps).map(|part| (us(part * part_ps), 0.0)).collect();
    let (mut messages, mut drawn) = (0_u32, 0);
    for (at_ps, is_posted) in changes {
        let part = (at_ps / part_ps) as usize;
        for passed in points.iter_mut().take(part + 1).skip(drawn) {
            passed.1 = passed.1.max(f64::from(messages));
        }
        drawn = part;
        messages = if is_posted { messages + 1 } else { messages - 1 };
        if let Some(point) = points.get_mut(part) {
            point.1 = point.1.max(f64::from(messages));
        }
    }
    points
}

/// Returns the time at which each host received its last message.
fn completions(records: &Records) -> Vec<u64> {
    let mut last: Vec<u64> = Vec::new();
    for message in records.messages.iter().filter(|message| message.received_ps != NEVER_PS) {
        let host = message.destination as usize;
        if last.len() <= host {
            last.resize(host + 1, 0);
        }
        last[host] = last[host].max(message.received_ps);
    }
    last.retain(|time_ps| *time_ps > 0);
    last
}

/// Returns the cumulative distribution of times in microseconds, with at most some hundred points.
fn distribution(times_ps: &mut [u64]) -> Vec<(f64, f64)> {
    times_ps.sort_unstable();
    let count = times_ps.len();
    let point = |place: usize| {
        let time_ps = times_ps.get(place).copied().unwrap_or_default();
        (us(time_ps), (place + 1) as f64 / count as f64)
    };
    let mut points: Vec<(f64, f64)> =
        (0..POINTS.min(count)).map(|index| point(index * count / POINTS.min(count))).collect();
    if count > 0 {
        points.push(point(count - 1));
    }
    points
}

/// Returns the busiest links.
fn links(configuration: &Configuration, records: &Records) -> Vec<LinkRow> {
    let mut order: Vec<usize> =
        (0..records.links.len()).filter(|&link| records.links[link].packets > 0).collect();
    order.sort_by_key(|&link| {
        let record = &records.links[link];
        (std::cmp::Reverse((record.busy_ps, record.wait_max_ps)), link)
    });
    let rates = configuration.fabric.rates();
    order
        .into_iter()
        .take(LINKS_SHOWN)
        .map(|link| {
            let record = &records.links[link];
            let rate_bps = rates.map_or(0, |r| r.of(&configuration.topology, link as u32));
            LinkRow {
                name: configuration.topology.link_name(link as u32),
                rate_bps,
                packets: record.packets,
                bytes: record.bytes,
                busy_share: records.busy_share(record),
                busy_colour: drawing::heat_colour(records.busy_share(record)),
                wait_mean_us: record.wait_mean_ps() * 1e-6,
                wait_max_us: us(record.wait_max_ps),
                queue_max_bytes: record.wait_max_ps as f64 * rate_bps as f64 / 8e12,
                wait_max_at_us: us(record.wait_max_at_ps),
            }
        })
        .collect()
}

const LINKS_SHOWN: usize = 20;
const POINTS: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_ends_at_one() {
        let mut times: Vec<u64> = (1..=10_000).rev().map(|time| time * 1_000_000).collect();
        let points = distribution(&mut times);
        assert!(points.len() <= POINTS + 1);
        assert_eq!(points.last(), Some(&(10_000.0, 1.0)));
        assert!(points.is_sorted());
        assert_eq!(distribution(&mut []), Vec::new());
        assert_eq!(distribution(&mut [2_000_000]), vec![(2.0, 1.0), (2.0, 1.0)]);
    }
}
