//! The native part of the Python package `ethernot_sim`. Its functions take texts and return plain
//! values. The classes and functions for users are written in Python, in the folder `ethernot_sim`.

mod errors;
mod records;
mod stop;
mod values;

use std::fs;
use std::path::Path;

use interconnect::calibration::{Measurements, calibrate as fit};
use interconnect::configuration::{
    Configuration, ConfigurationError, Point, Slowdowns, Watch, parse_sweep,
};
use interconnect::drawing;
use interconnect::goal::Goal;
use interconnect::records::RecordLimits;
use interconnect::simulation::{InTurns, Outcome};
use interconnect::topology::LinkKind;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use errors::{configuration_error, run_error, wrong};
use stop::{Stop, Watching};

/// Defines the module `_native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let python = module.py();
    module.add("ConfigurationError", python.get_type::<errors::ConfigurationError>())?;
    module.add("SimulationError", python.get_type::<errors::SimulationError>())?;
    module.add_class::<Stop>()?;
    module.add_function(wrap_pyfunction!(effective, module)?)?;
    module.add_function(wrap_pyfunction!(points, module)?)?;
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(replay, module)?)?;
    module.add_function(wrap_pyfunction!(topology, module)?)?;
    module.add_function(wrap_pyfunction!(calibrate, module)?)?;
    Ok(())
}

/// Returns all settings of a configuration as TOML, including defaults and the contents of files.
#[pyfunction]
fn effective(file: &str, text: &str, folder: &str) -> PyResult<String> {
    Ok(parse(file, text, folder)?.effective)
}

/// A point in the form that Python uses. It has a name, all settings as TOML, the hash of the
/// settings, and, by key, the settings that differ between points. The hash is the name of the
/// result's file.
type PlainPoint<'py> = (String, String, String, Bound<'py, PyDict>);

/// Returns the points of a sweep.
#[pyfunction]
fn points<'py>(
    python: Python<'py>,
    file: &str,
    text: &str,
    folder: &str,
) -> PyResult<Vec<PlainPoint<'py>>> {
    let points = python.detach(|| parse_sweep(file, text, &beside(folder)));
    let plain = |point: Point| {
        let hash = format!("{:016x}", point.configuration.hash());
        let settings = values::settings(python, &point.settings)?;
        Ok((point.name, point.configuration.effective, hash, settings))
    };
    points.map_err(|error| configuration_error(&error))?.into_iter().map(plain).collect()
}

/// The results of a run. If the run was recorded, also its records.
type PlainResult<'py> = (Bound<'py, PyDict>, Option<Bound<'py, PyDict>>);

/// Runs a configuration until the run ends or `stop` stops it. If `is_recorded` is true, records
/// the run.
#[pyfunction]
#[pyo3(signature = (file, text, folder, stop = None, is_recorded = false))]
fn run<'py>(
    python: Python<'py>,
    file: &str,
    text: &str,
    folder: &str,
    stop: Option<&Stop>,
    is_recorded: bool,
) -> PyResult<PlainResult<'py>> {
    let mut configuration = parse(file, text, folder)?;
    // Use one thread. The number of threads does not change the result.
    configuration.threads = 1;
    let run = |watch: Watch| configuration.run_watched(&InTurns, watch);
    let ended = watched(python, &configuration, stop, is_recorded, run)?;
    plain(python, &configuration, &ended)
}

/// The outcome of a run. If the run was recorded, also the slowdown of its messages relative to an
/// empty network.
type Ended = (Outcome, Option<Slowdowns>);

fn plain<'py>(
    python: Python<'py>,
    configuration: &Configuration,
    (outcome, slowdowns): &Ended,
) -> PyResult<PlainResult<'py>> {
    let result = values::result(python, configuration, outcome)?;
    Ok((result, records::plain(python, configuration, outcome, slowdowns.as_ref())?))
}

/// Runs a simulation while other Python threads run. A signal or `stop` ends the run early.
fn watched(
    python: Python<'_>,
    configuration: &Configuration,
    stop: Option<&Stop>,
    is_recorded: bool,
    run: impl FnOnce(Watch) -> Result<Outcome, ConfigurationError> + Send,
) -> PyResult<Ended> {
    let (ended, signalled) = python.detach(|| {
        let mut watching = Watching::new(stop);
        let mut progress = |_| watching.look();
        let records = is_recorded.then(RecordLimits::default);
        let outcome = run(Watch { progress: Some(&mut progress), records, ..Watch::default() });
        let ended = outcome.and_then(|outcome| {
            let records = outcome.records.as_deref();
            let compare = |records| configuration.slowdowns(records, &mut |_| watching.look());
            let slowdowns = records.map(compare).transpose()?;
            Ok((outcome, slowdowns))
        });
        (ended, watching.signalled())
    });
    match signalled {
        Some(error) => Err(error),
        None => ended.map_err(|error| run_error(&error)),
    }
}

/// Replays a trace instead of the configuration's workload. The trace is in GOAL, as text or in its
/// binary form.
#[pyfunction]
#[pyo3(signature = (file, text, folder, trace_file, trace, is_recorded = false))]
fn replay<'py>(
    python: Python<'py>,
    file: &str,
    text: &str,
    folder: &str,
    trace_file: &str,
    trace: &[u8],
    is_recorded: bool,
) -> PyResult<PlainResult<'py>> {
    let configuration = parse(file, text, folder)?;
    let goal = Goal::read(trace_file, trace).map_err(|error| wrong(&error))?;
    let (ranks, hosts) = (goal.ranks(), configuration.topology.hosts());
    if ranks > hosts {
        return Err(wrong(&format!(
            "{trace_file} has {ranks} ranks, but there are only {hosts} hosts"
        )));
    }
    let run = |watch: Watch| configuration.run_workload_watched(goal, ranks, watch);
    let ended = watched(python, &configuration, None, is_recorded, run)?;
    let (result, records) = plain(python, &configuration, &ended)?;
    let finished_us = ended.0.finished_ps.iter().map(|time_ps| *time_ps as f64 / 1e6);
    result.set_item("finished_us", finished_us.collect::<Vec<f64>>())?;
    // The results describe the trace, so remove the values that describe the configured workload.
    if result.contains("collective")? {
        result.del_item("collective")?;
    }
    Ok((result, records))
}

/// Returns the topology of a configuration.
#[pyfunction]
fn topology<'py>(python: Python<'py>, text: &str) -> PyResult<Bound<'py, PyDict>> {
    let configuration = parse("topology", text, "")?;
    let topology = &configuration.topology;
    let links = topology.links();
    let dict = PyDict::new(python);
    dict.set_item("name", topology.name())?;
    dict.set_item("hosts", topology.hosts())?;
    dict.set_item("switches", topology.switches())?;
    let names = (0..topology.nodes()).map(|node| topology.node_name(node));
    dict.set_item("names", names.collect::<Vec<String>>())?;
    dict.set_item("from", links.iter().map(|link| link.from).collect::<Vec<u32>>())?;
    dict.set_item("to", links.iter().map(|link| link.to).collect::<Vec<u32>>())?;
    let is_trunk = |kind| u32::from(matches!(kind, LinkKind::Switch { .. }));
    dict.set_item("trunk", links.iter().map(|link| is_trunk(link.kind)).collect::<Vec<u32>>())?;
    dict.set_item("lane", links.iter().map(|link| u32::from(link.lane)).collect::<Vec<u32>>())?;
    dict.set_item("svg", drawing::draw(topology))?;
    Ok(dict)
}

/// Finds the parameters of hosts and of the LogGP model that best fit the measured latencies.
#[pyfunction]
#[pyo3(signature = (sizes, latencies_us, interval_us, link_rate_bps, network_latency_us))]
fn calibrate(
    python: Python<'_>,
    sizes: Vec<u64>,
    latencies_us: Vec<f64>,
    interval_us: f64,
    link_rate_bps: Option<u64>,
    network_latency_us: Option<f64>,
) -> PyResult<Bound<'_, PyDict>> {
    if sizes.len() != latencies_us.len() {
        let (sizes, latencies) = (sizes.len(), latencies_us.len());
        return Err(wrong(&format!("{sizes} sizes, but {latencies} latencies")));
    }
    let measurements = Measurements {
        latencies: sizes.into_iter().zip(latencies_us).collect(),
        interval_us,
        link_rate_bps,
        network_latency_us,
    };
    let found = fit(&measurements).map_err(|error| wrong(&error))?;
    values::calibration(python, &found)
}

fn parse(file: &str, text: &str, folder: &str) -> PyResult<Configuration> {
    Configuration::parse_with_files(file, text, &beside(folder))
        .map_err(|error: ConfigurationError| configuration_error(&error))
}

/// Returns a function that reads the files named in a configuration. Relative paths start at
/// `folder`.
fn beside(folder: &str) -> impl Fn(&str) -> Result<String, String> {
    move |path| fs::read_to_string(Path::new(folder).join(path)).map_err(|error| error.to_string())
}
