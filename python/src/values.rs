//! The results of a run as dictionaries. Their keys are those of `ethernot sim run --manifest`.

use interconnect::calibration::Calibration;
use interconnect::configuration::{
    Configuration, MemberConfiguration, Setting, WorkloadConfiguration,
};
use interconnect::edge::Counts;
use interconnect::ethernet::{PortCounters, TransportCounts};
use interconnect::simulation::{Outcome, WorkloadOutcome};
use pyo3::IntoPyObjectExt;
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
    let accepted = outcome.accepted.rate(configuration.topology.hosts());
    dict.set_item("accepted_bps", accepted.map(|rate| rate * 8.0))?;
    dict.set_item("latency_us", latencies)?;
    dict.set_item("hops", outcome.hops)?;
    dict.set_item("events", outcome.events)?;
    dict.set_item("histogram", classes)?;
    let ports = outcome.ports.iter().map(|of| port(python, of));
    dict.set_item("ports", ports.collect::<PyResult<Vec<_>>>()?)?;
    if let WorkloadConfiguration::Collective(workload) = &configuration.workload
        && workload.iterations > 0
    {
        let iterations = workload.iterations;
        let collective = PyDict::new(python);
        collective.set_item("iterations", iterations)?;
        let one_us = outcome.completed_ps as f64 / 1e6 / f64::from(iterations);
        collective.set_item("one_us", one_us)?;
        dict.set_item("collective", collective)?;
    }
    if let WorkloadConfiguration::Several(members) = &configuration.workload
        && !outcome.workloads.is_empty()
    {
        let of = members.iter().zip(&outcome.workloads);
        let of = of.map(|(member, own)| workload(python, member, own));
        dict.set_item("workloads", of.collect::<PyResult<Vec<_>>>()?)?;
    }
    if let Some(counts) = &outcome.engines {
        dict.set_item("engines", engines(python, counts)?)?;
    }
    if let Some(counts) = &outcome.transport {
        dict.set_item("transport", transport(python, counts, outcome)?)?;
    }
    Ok(dict)
}

fn workload<'py>(
    python: Python<'py>,
    member: &MemberConfiguration,
    own: &WorkloadOutcome,
) -> PyResult<Bound<'py, PyDict>> {
    let latencies = PyDict::new(python);
    latencies.set_item("min", own.latency.min_us())?;
    latencies.set_item("mean", own.latency.mean_us())?;
    latencies.set_item("median", own.histogram.quantile_us(0.5))?;
    latencies.set_item("p99", own.histogram.quantile_us(0.99))?;
    latencies.set_item("max", own.latency.max_us())?;
    latencies.set_item("deviation", own.latency.deviation_us())?;
    let dict = PyDict::new(python);
    dict.set_item("name", &member.name)?;
    dict.set_item("start_us", member.start_ps as f64 / 1e6)?;
    dict.set_item("class", member.class)?;
    dict.set_item("messages", own.delivered)?;
    dict.set_item("bytes", own.delivered_bytes)?;
    dict.set_item("completed_us", own.completed_ps as f64 / 1e6)?;
    dict.set_item("latency_us", latencies)?;
    Ok(dict)
}

fn transport<'py>(
    python: Python<'py>,
    counts: &TransportCounts,
    outcome: &Outcome,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(python);
    dict.set_item("connections", counts.connections)?;
    dict.set_item("goodput_bps", outcome.goodput_bps())?;
    dict.set_item("throughput_bps", counts.throughput_bps(outcome.completed_ps))?;
    dict.set_item("data_frames", counts.data_frames)?;
    dict.set_item("payload_bytes", counts.payload_bytes)?;
    dict.set_item("retransmitted_frames", counts.retransmitted_frames)?;
    dict.set_item("timeouts", counts.timeouts)?;
    dict.set_item("acknowledgements", counts.acknowledgements)?;
    dict.set_item("marked_percent", counts.marked_percent())?;
    dict.set_item("frames_lost_at_random", counts.frames_lost_at_random)?;
    dict.set_item("duplicate_frames", counts.duplicate_frames)?;
    dict.set_item("discarded_frames", counts.discarded_frames)?;
    dict.set_item("window_frames", counts.window_frames())?;
    dict.set_item("round_trip_us", counts.round_trip_ps() / 1e6)?;
    dict.set_item("round_trip_max_us", counts.round_trip_max_ps as f64 / 1e6)?;
    if let Some(rate_bps) = counts.rate_bps() {
        dict.set_item("notifications", counts.notifications)?;
        dict.set_item("rate_bps", rate_bps)?;
    }
    if counts.is_receiver_driven {
        dict.set_item("grants", counts.grants)?;
        dict.set_item("resends", counts.resends)?;
    }
    Ok(dict)
}

fn port<'py>(python: Python<'py>, port: &PortCounters) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(python);
    dict.set_item("name", &port.name)?;
    dict.set_item("lost", port.dropped)?;
    dict.set_item("marked", port.marked)?;
    dict.set_item("pauses", port.pauses)?;
    dict.set_item("paused_us", port.paused_ps as f64 / 1e6)?;
    dict.set_item("queue_bytes_max", port.queue_bytes_max)?;
    dict.set_item("headroom_bytes_max", port.headroom_bytes_max)?;
    Ok(dict)
}

fn engines<'py>(python: Python<'py>, counts: &Counts) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(python);
    dict.set_item("connections", counts.connections)?;
    dict.set_item("operations", counts.operations)?;
    dict.set_item("frames_sent", counts.frames_sent)?;
    dict.set_item("frames_received", counts.frames_received)?;
    dict.set_item("frames_marked", counts.frames_marked)?;
    dict.set_item("frames_lost_in_network", counts.frames_lost_in_network)?;
    dict.set_item("frames_lost_at_random", counts.frames_lost_at_random)?;
    dict.set_item("frames_lost_at_hosts", counts.frames_lost_at_hosts)?;
    dict.set_item("frames_astray", counts.frames_astray)?;
    dict.set_item("bytes_placed_again", counts.bytes_placed_again)?;
    dict.set_item("out_of_order_percent", counts.out_of_order_percent())?;
    dict.set_item("extra_frames_percent", counts.extra_frames_percent())?;
    let mut rails = Vec::new();
    for counters in &counts.rails {
        let rail = PyDict::new(python);
        for (name, value, _) in counters.iter() {
            rail.set_item(name, value)?;
        }
        rails.push(rail);
    }
    dict.set_item("rails", rails)?;
    Ok(dict)
}

/// Returns, by key, the settings of a point that differ from those of other points.
pub(crate) fn settings<'py>(
    python: Python<'py>,
    settings: &[(String, Setting)],
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(python);
    for (key, value) in settings {
        dict.set_item(key, setting(python, value)?)?;
    }
    Ok(dict)
}

fn setting<'py>(python: Python<'py>, value: &Setting) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Setting::Integer(number) => number.into_bound_py_any(python),
        Setting::Float(number) => number.into_bound_py_any(python),
        Setting::Boolean(flag) => flag.into_bound_py_any(python),
        Setting::String(text) => text.into_bound_py_any(python),
        Setting::Array(values) => {
            let values = values.iter().map(|value| setting(python, value));
            values.collect::<PyResult<Vec<_>>>()?.into_bound_py_any(python)
        }
        // No key of a configuration has a value of these types.
        Setting::Datetime(_) | Setting::Table(_) => Ok(python.None().into_bound(python)),
    }
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
