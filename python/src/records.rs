//! The records of a run: links, queues, saturation and the critical path.

use interconnect::configuration::{Configuration, Slowdowns};
use interconnect::records::{CriticalPath, Records};
use interconnect::simulation::Outcome;
use interconnect::topology::Topology;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns all records, or `None` if the run was not recorded.
pub(crate) fn plain<'py>(
    python: Python<'py>,
    configuration: &Configuration,
    outcome: &Outcome,
    slowdowns: Option<&Slowdowns>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(records) = outcome.records.as_deref() else { return Ok(None) };
    let dict = PyDict::new(python);
    dict.set_item("links", links(python, configuration, records)?)?;
    dict.set_item("queues", queues(python, &configuration.topology, records)?)?;
    dict.set_item("saturation", saturation(python, &configuration.topology, outcome, records)?)?;
    if let Some(slowdowns) = slowdowns {
        dict.set_item("slowdown", slowdown(python, slowdowns)?)?;
    }
    let path = match records.critical_path() {
        Ok(path) => critical_path(python, &configuration.topology, &path)?,
        Err(error) => {
            let dict = PyDict::new(python);
            dict.set_item("error", error.to_string())?;
            dict
        }
    };
    dict.set_item("critical_path", path)?;
    Ok(Some(dict))
}

/// Returns one row for each direction of a cable. The rows are those of `ethernot sim run --links`.
fn links<'py>(
    python: Python<'py>,
    configuration: &Configuration,
    records: &Records,
) -> PyResult<Bound<'py, PyDict>> {
    let topology = &configuration.topology;
    let rates = configuration.fabric.rates();
    let rate_bps = |link: u32| rates.map_or(0, |rates| rates.of(topology, link));
    let of = &records.links;
    let numbers = || 0..of.len() as u32;
    let dict = PyDict::new(python);
    dict.set_item("link", numbers().map(|link| topology.link_name(link)).collect::<Vec<String>>())?;
    dict.set_item("rate_bps", numbers().map(rate_bps).collect::<Vec<u64>>())?;
    dict.set_item("packets", of.iter().map(|link| link.packets).collect::<Vec<u64>>())?;
    dict.set_item("bytes", of.iter().map(|link| link.bytes).collect::<Vec<u64>>())?;
    let busy = of.iter().map(|link| records.busy_share(link));
    dict.set_item("busy_share", busy.collect::<Vec<f64>>())?;
    let mean = of.iter().map(|link| link.wait_mean_ps() * 1e-6);
    dict.set_item("wait_mean_us", mean.collect::<Vec<f64>>())?;
    dict.set_item("wait_max_us", of.iter().map(|link| us(link.wait_max_ps)).collect::<Vec<f64>>())?;
    let at = of.iter().map(|link| us(link.wait_max_at_ps));
    dict.set_item("wait_max_at_us", at.collect::<Vec<f64>>())?;
    Ok(dict)
}

/// Returns the slowdowns: the durations of messages divided by their durations on an empty network.
fn slowdown<'py>(python: Python<'py>, slowdowns: &Slowdowns) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(python);
    dict.set_item("messages", slowdowns.count())?;
    dict.set_item("mean", slowdowns.mean())?;
    let quantiles = [
        ("min", 0.0),
        ("median", 0.5),
        ("p95", 0.95),
        ("p99", 0.99),
        ("p99_9", 0.999),
        ("max", 1.0),
    ];
    for (name, share) in quantiles {
        dict.set_item(name, slowdowns.quantile(share))?;
    }
    Ok(dict)
}

/// Returns one row for each link and time window.
fn queues<'py>(
    python: Python<'py>,
    topology: &Topology,
    records: &Records,
) -> PyResult<Bound<'py, PyDict>> {
    let (mut names, mut from_us) = (Vec::new(), Vec::new());
    let (mut wait_max_us, mut busy_share) = (Vec::new(), Vec::new());
    for (number, link) in (0..).zip(&records.links) {
        for (at, window) in (0_u64..).zip(&link.windows) {
            names.push(topology.link_name(number));
            from_us.push(us(at * records.window_ps));
            wait_max_us.push(us(window.wait_max_ps));
            busy_share.push(window.busy_ps as f64 / records.window_ps.max(1) as f64);
        }
    }
    let dict = PyDict::new(python);
    dict.set_item("link", names)?;
    dict.set_item("from_us", from_us)?;
    dict.set_item("wait_max_us", wait_max_us)?;
    dict.set_item("busy_share", busy_share)?;
    Ok(dict)
}

/// Returns two results: the links whose queues grew during the run, and whether the number of
/// messages in flight grew.
fn saturation<'py>(
    python: Python<'py>,
    topology: &Topology,
    outcome: &Outcome,
    records: &Records,
) -> PyResult<Bound<'py, PyDict>> {
    let found = records.saturated_links();
    let links = PyDict::new(python);
    let names = found.iter().map(|found| topology.link_name(found.link));
    links.set_item("link", names.collect::<Vec<String>>())?;
    let early = found.iter().map(|found| found.early_ps * 1e-6);
    links.set_item("early_wait_us", early.collect::<Vec<f64>>())?;
    let late = found.iter().map(|found| found.late_ps * 1e-6);
    links.set_item("late_wait_us", late.collect::<Vec<f64>>())?;
    let busy = found.iter().map(|found| found.busy.min(1.0));
    links.set_item("busy_share", busy.collect::<Vec<f64>>())?;
    let growth = outcome.backlog.growth();
    let dict = PyDict::new(python);
    dict.set_item("is_saturated", growth.is_some() || !found.is_empty())?;
    dict.set_item("messages_in_flight", growth.map(|growth| (growth.early, growth.late)))?;
    dict.set_item("links", links)?;
    Ok(dict)
}

/// Returns the causes of the completion time.
fn critical_path<'py>(
    python: Python<'py>,
    topology: &Topology,
    path: &CriticalPath,
) -> PyResult<Bound<'py, PyDict>> {
    let causes = PyDict::new(python);
    for (kind, share) in path.by_kind() {
        causes.set_item(kind.name(), us(share.total_ps))?;
    }
    let shares = path.by_link();
    let links = PyDict::new(python);
    let names = shares.iter().map(|(link, _)| topology.link_name(*link));
    links.set_item("link", names.collect::<Vec<String>>())?;
    let all = shares.iter().map(|(_, share)| us(share.total_ps));
    links.set_item("us", all.collect::<Vec<f64>>())?;
    let waits = shares.iter().map(|(_, share)| us(share.wait_ps));
    links.set_item("wait_us", waits.collect::<Vec<f64>>())?;
    let steps = PyDict::new(python);
    let of = &path.steps;
    steps.set_item("cause", of.iter().map(|step| step.kind.name()).collect::<Vec<&str>>())?;
    steps.set_item("from_us", of.iter().map(|step| us(step.from_ps)).collect::<Vec<f64>>())?;
    steps.set_item("until_us", of.iter().map(|step| us(step.until_ps)).collect::<Vec<f64>>())?;
    let place = |link: Option<u32>| link.map_or(String::new(), |link| topology.link_name(link));
    steps.set_item("link", of.iter().map(|step| place(step.link)).collect::<Vec<String>>())?;
    let dict = PyDict::new(python);
    dict.set_item("completed_us", us(path.completed_ps))?;
    dict.set_item("messages", path.messages)?;
    dict.set_item("causes_us", causes)?;
    dict.set_item("links", links)?;
    dict.set_item("steps", steps)?;
    Ok(dict)
}

fn us(time_ps: u64) -> f64 {
    time_ps as f64 * 1e-6
}
