//! Explains the completion time of a run.

use std::fmt::Write as _;

use interconnect::records::{CriticalPath, Records, StepKind};
use interconnect::simulation::Outcome;
use interconnect::topology::Topology;
use serde_json::{Value, json};

/// Writes the parts of the completion time, by cause and by link.
///
/// Writing to a `String` cannot fail, here and below.
pub(super) fn critical_path(text: &mut String, records: &Records, topology: &Topology) {
    let path = match records.critical_path() {
        Ok(path) => path,
        Err(error) => {
            let _ = writeln!(text, "{error} (--record-limit)");
            return;
        }
    };
    let _ = writeln!(
        text,
        "critical path: {} steps over {} messages, which took {:.3} us in all",
        path.steps.len(),
        path.messages,
        us(path.completed_ps)
    );
    for (kind, share) in path.by_kind() {
        let _ = writeln!(
            text,
            "  {:22} {:12.3} us {:5.1} %",
            kind.name(),
            us(share.total_ps),
            percent(share.total_ps, path.completed_ps)
        );
    }
    let _ = writeln!(text, "{}", verdict(&path, topology));
    for (link, share) in path.by_link().into_iter().take(LINKS_SHOWN) {
        let _ = writeln!(
            text,
            "  {:22} {:12.3} us, including {:.3} us of waiting",
            topology.link_name(link),
            us(share.total_ps),
            us(share.wait_ps)
        );
    }
}

/// Returns the main cause in a sentence.
pub(super) fn verdict(path: &CriticalPath, topology: &Topology) -> String {
    let first = path.by_kind().into_iter().next();
    let Some((kind, share)) = first else { return "nothing happened".to_owned() };
    let most = format!(
        "the largest part, {:.1} %, is {}",
        percent(share.total_ps, path.completed_ps),
        kind.name()
    );
    let links = path.by_link();
    match links.first() {
        Some((link, share)) if is_late(share.wait_ps, path) => format!(
            "{most}; the longest waits were for link {}: {} ({:.1} %)",
            topology.link_name(*link),
            fitted_time(us(share.wait_ps)),
            percent(share.wait_ps, path.completed_ps)
        ),
        Some((_, share)) if share.wait_ps > 0 => {
            let waits: u64 = links.iter().map(|(_, share)| share.wait_ps).sum();
            format!(
                "{most}; links caused little delay: waits for all links are {:.1} %",
                percent(waits, path.completed_ps)
            )
        }
        Some(_) => format!("{most}; no packet on the path waited for a link"),
        None => most,
    }
}

/// Returns whether the waits for a link are significant.
const fn is_late(wait_ps: u64, path: &CriticalPath) -> bool {
    wait_ps > path.completed_ps / LATE_FROM
}

/// Formats a time in a suitable unit.
pub(super) fn fitted_time(us: f64) -> String {
    let (value, unit) = match us {
        us if us >= 1e6 => (us * 1e-6, "s"),
        us if us >= 1e3 => (us * 1e-3, "ms"),
        us if us >= 1.0 || us == 0.0 => (us, "us"),
        us => (us * 1e3, "ns"),
    };
    format!("{value:.2} {unit}")
}

/// Returns sentences about load that the network cannot carry.
pub(super) fn saturation(outcome: &Outcome, topology: &Topology) -> Vec<String> {
    let mut sentences = Vec::new();
    let links = outcome.records.as_deref().map(Records::saturated_links);
    for found in links.iter().flatten().take(LINKS_SHOWN) {
        sentences.push(format!(
            "SATURATED: the queue of link {} grew from {:.3} to {:.3} us; the link was busy {:.1} \
             % of the second half of the run",
            topology.link_name(found.link),
            found.early_ps * 1e-6,
            found.late_ps * 1e-6,
            found.busy.min(1.0) * 100.0
        ));
    }
    let count = links.as_ref().map_or(0, Vec::len);
    if count > LINKS_SHOWN {
        sentences.push(format!("SATURATED: {} more links", count - LINKS_SHOWN));
    }
    if let Some(growth) = outcome.backlog.growth() {
        let remedy = match links {
            None => "; --why names the links",
            Some(_) => "",
        };
        sentences.push(format!(
            "SATURATED: the number of messages in flight grew from {:.0} to {:.0} until the last \
             message was posted: the load is more than hosts and links carry, and latencies depend \
             on the length of the run{remedy}",
            growth.early, growth.late
        ));
    }
    sentences
}

/// Returns the saturation and, if requested and known, the critical path.
pub(super) fn to_json(outcome: &Outcome, topology: &Topology, has_path: bool) -> Value {
    let path = outcome.records.as_deref().filter(|_| has_path).map(Records::critical_path);
    let path = path.map(|path| match path {
        Err(error) => json!({ "error": error.to_string() }),
        Ok(path) => path_json(&path, topology),
    });
    let links = outcome.records.as_deref().map(|records| {
        let found = records.saturated_links();
        let links = found.iter().map(|found| {
            json!({
                "link": topology.link_name(found.link),
                "early_wait_us": found.early_ps * 1e-6,
                "late_wait_us": found.late_ps * 1e-6,
                "busy_share": found.busy.min(1.0),
            })
        });
        links.collect::<Vec<_>>()
    });
    let growth = outcome.backlog.growth();
    let in_flight = growth.map(|growth| json!({ "early": growth.early, "late": growth.late }));
    json!({
        "is_saturated": growth.is_some() || links.as_ref().is_some_and(|links| !links.is_empty()),
        "messages_in_flight": in_flight,
        // The former name of the key above, for programs that read it.
        "messages_under_way": in_flight,
        "saturated_links": links,
        "critical_path": path,
    })
}

fn path_json(path: &CriticalPath, topology: &Topology) -> Value {
    let kinds = path.by_kind().into_iter().map(|(kind, share)| {
        json!({ "cause": kind.name(), "us": us(share.total_ps), "steps": share.steps })
    });
    let links = path.by_link().into_iter().map(|(link, share)| {
        json!({
            "link": topology.link_name(link),
            "us": us(share.total_ps),
            "wait_us": us(share.wait_ps),
        })
    });
    let steps = path.steps.iter().take(STEPS_IN_JSON).map(|step| {
        json!({
            "cause": step.kind.name(),
            "from_us": us(step.from_ps),
            "until_us": us(step.until_ps),
            "link": step.link.map(|link| topology.link_name(link)),
            "host": step.host.map(|host| topology.node_name(host)),
            "message": step.message,
        })
    });
    json!({
        "completed_us": us(path.completed_ps),
        "messages": path.messages,
        "verdict": verdict(path, topology),
        "by_cause": kinds.collect::<Vec<_>>(),
        "by_link": links.collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
        "steps_left_out": path.steps.len().saturating_sub(STEPS_IN_JSON),
        "has_link_waits": path.steps.iter().any(|step| step.kind == StepKind::LinkWait),
    })
}

pub(super) fn us(time_ps: u64) -> f64 {
    time_ps as f64 * 1e-6
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64 * 100.0
}

const LINKS_SHOWN: usize = 5;
/// The waits for a link are significant if they exceed the completion time divided by this number.
const LATE_FROM: u64 = 50;
/// Highest number of steps in the JSON. With this number of steps, the JSON has a few megabytes.
const STEPS_IN_JSON: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;
    use interconnect::records::Step;

    fn diagnosis_of(wait_ps: u64) -> String {
        let step = |kind, from_ps, until_ps| Step {
            kind,
            from_ps,
            until_ps,
            link: Some(0),
            host: None,
            message: Some(0),
        };
        let steps = vec![
            step(StepKind::LinkWait, 0, wait_ps),
            step(StepKind::Serialisation, wait_ps, 5_000_000_000),
        ];
        let path = CriticalPath { steps, completed_ps: 5_000_000_000, messages: 1 };
        verdict(&path, &Topology::star(2).unwrap())
    }

    #[test]
    fn a_link_delays_a_run_only_if_waits_on_it_are_significant() {
        assert!(
            diagnosis_of(2_000_000_000)
                .contains("the longest waits were for link h0->s0: 2.00 ms (40.0 %)")
        );
        assert!(
            diagnosis_of(50_000_000)
                .contains("links caused little delay: waits for all links are 1.0 %")
        );
        assert!(diagnosis_of(0).contains("no packet on the path waited for a link"));
    }
}
