//! Results as dictionaries, with the names that `ethernot sim run --manifest` gives them.

use fabric::interconnect::calibration::Calibration;
use fabric::interconnect::configuration::Configuration;
use fabric::interconnect::simulation::Outcome;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(crate) fn result<'py>(
    python: Python<'py>,
    configuration: &Configuration,
    outcome: &Outcome,
) -> PyResult<Bound<'py, PyDict>> {
    let Outcome { latency, histogram, .. } = outcome;
    let latencies = PyDict::new(python);
    latencies.set_item("min", latency.min_us())?;
    latencies.set_item("mean", latency.mean_us())?;
    latencies.set_item("median", histogram.quantile_us(0.5))?;
    latencies.set_item("p99", histogram.quantile_us(0.99))?;
    latencies.set_item("max", latency.max_us())?;
    latencies.set_item("deviation", latency.deviation_us())?;

    let classes = PyDict::new(python);
    let upper_us = histogram.classes().map(|(upper_ps, _)| upper_ps as f64 / 1e6);
    classes.set_item("upper_us", upper_us.collect::<Vec<f64>>())?;
    let counts = histogram.classes().map(|(_, count)| count);
    classes.set_item("messages", counts.collect::<Vec<u64>>())?;

    let dict = PyDict::new(python);
    dict.set_item("version", env!("CARGO_PKG_VERSION"))?;
    dict.set_item("configuration", &configuration.effective)?;
    dict.set_item("configuration_hash", format!("{:016x}", configuration.hash()))?;
    dict.set_item("seed", configuration.seed)?;
    dict.set_item("result_hash", format!("{:016x}", outcome.hash))?;
    dict.set_item("messages", outcome.delivered)?;
    dict.set_item("bytes", outcome.delivered_bytes)?;
    dict.set_item("packets_lost", outcome.dropped)?;
    dict.set_item("completed_us", outcome.completed_ps as f64 / 1e6)?;
    dict.set_item("latency_us", latencies)?;
    dict.set_item("hops", outcome.hops)?;
    dict.set_item("events", outcome.events)?;
    dict.set_item("histogram", classes)?;
    Ok(dict)
}

pub(crate) fn calibration<'py>(
    python: Python<'py>,
    found: &Calibration,
) -> PyResult<Bound<'py, PyDict>> {
    let loggp = PyDict::new(python);
    loggp.set_item("latency_ps", found.loggp.latency_ps)?;
    loggp.set_item("gap_ps", found.loggp.gap_ps)?;
    loggp.set_item("byte_ps", found.loggp.byte_ps)?;
    let host = PyDict::new(python);
    host.set_item("send_ps", found.costs.send_ps)?;
    host.set_item("send_ps_per_byte", found.costs.send_ps_per_byte)?;
    host.set_item("receive_ps", found.costs.receive_ps)?;
    host.set_item("receive_ps_per_byte", found.costs.receive_ps_per_byte)?;
    let dict = PyDict::new(python);
    dict.set_item("loggp", loggp)?;
    dict.set_item("host", host)?;
    dict.set_item("rms_error_percent", found.rms_error_percent)?;
    dict.set_item("worst_error_percent", found.worst_error_percent)?;
    Ok(dict)
}
