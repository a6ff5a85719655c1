//! Converts measurements of `bench` into host costs for `fabric`, and simulated values back.

use bench::plan::Options;
use bench::reality::{self, FittedPoint, FreePath, HostCosts, Samples};
use bench::run::Observer;
use bench::transport::Test;
use fabric::polling::calibration::{self, Calibration, CalibrationError, Setting};
use fabric::polling::{Costs, Exercise};
use fabric::{Jitter, LinkModel, Overhead, TokenBucket, stream};
use indicatif::{ProgressBar, ProgressStyle};
use testbed::switched::{self, ETHERNET_HEADER_BYTES, LinkShape};

use crate::{Failure, own_program, shaped_command};

/// Measurements on links that are faster than the hosts, from one or several runs.
#[derive(Debug)]
pub(crate) struct Free {
    path: FreePath,
    mtu: u32,
    in_flight: u32,
    samples: Vec<Samples>,
    /// Measurements of small messages on two links.
    of_two: Vec<Samples>,
}

impl Free {
    pub(crate) fn new(path: FreePath, options: &Options) -> Self {
        let (mtu, in_flight) = (options.mtu, options.in_flight);
        Self { path, mtu, in_flight, samples: Vec::new(), of_two: Vec::new() }
    }

    /// Runs the measurements of `options`, and adds their results.
    pub(crate) fn measure(
        &mut self,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        Samples::join(&mut self.samples, reality::measure_free(self.path, 1, options, observer)?);
        Ok(())
    }

    /// Finds the tests and sizes on one link whose samples vary too much, and measures them again.
    /// Returns false if there are none.
    pub(crate) fn repeat_unsteady(
        &mut self,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<bool, Failure> {
        let Some(options) = of_unsteady(options, &self.samples) else { return Ok(false) };
        self.measure(&options, observer)?;
        Ok(true)
    }

    /// Measures small messages on two links, to find the cost of the second link. Does nothing if
    /// the hosts are joined by a cable, because a cable is a single link.
    pub(crate) fn measure_two(
        &mut self,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        let small = Options {
            sizes: vec![SMALL_BYTES],
            budget_seconds: options.budget_seconds * SHARE_OF_TWO,
            ..options.clone()
        };
        Samples::join(&mut self.of_two, reality::measure_free(self.path, 2, &small, observer)?);
        Ok(())
    }

    /// Fits the costs of a host to the measurements.
    pub(crate) fn costs(&self) -> Result<(HostCosts, Costs), Failure> {
        let post_ns = Samples::post_ns(&self.samples).unwrap_or(0.0);
        let measurements: Vec<_> = self.samples.iter().filter_map(measurement).collect();
        let model = link_model(&reality::free_shape(), self.mtu);
        let setting = Setting {
            links: &[model],
            in_flight: self.in_flight,
            post_ps: (post_ns * 1e3).round() as u64,
            frames: FRAMES_OF_FIT,
            seed: SEED,
        };
        let spinner = ProgressBar::new_spinner();
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} fitting costs, {pos} simulations of all points")
        {
            spinner.set_style(style);
        }
        let mut on_trials = || spinner.inc(1);
        let found = calibration::calibrate(&setting, &measurements, &mut on_trials)
            .and_then(|found| self.with_second_link(found, &setting, &mut on_trials));
        spinner.finish_and_clear();
        let found = found?;
        Ok((host_costs(self.path, &found), found.costs))
    }

    /// Adds the cost of a second link, if it was measured.
    fn with_second_link(
        &self,
        found: Calibration,
        setting: &Setting<'_>,
        on_trials: &mut dyn FnMut(),
    ) -> Result<Calibration, CalibrationError> {
        let of_two: Vec<_> = self.of_two.iter().filter_map(measurement).collect();
        let &[link] = setting.links else { return Ok(found) };
        if of_two.is_empty() {
            return Ok(found);
        }
        let setting = Setting { links: &[link; 2], ..*setting };
        let costs = calibration::calibrate_spread(&setting, found.costs, &of_two, on_trials)?;
        Ok(Calibration { costs, ..found })
    }
}

/// Returns the time of a stream or a ping-pong in the form that the fit needs.
fn measurement(samples: &Samples) -> Option<calibration::Measurement> {
    let message_bytes = u32::try_from(samples.message_bytes).ok()?;
    let exercise = exercise(samples.test)?;
    Some(calibration::Measurement { exercise, message_bytes, ns: samples.ns()? })
}

/// Returns the simulator's counterpart of a test; `None` if the simulator has no such test.
pub(crate) const fn exercise(test: Test) -> Option<Exercise> {
    match test {
        Test::PingPong => Some(Exercise::PingPong),
        Test::OneWay => Some(Exercise::OneWay),
        Test::TwoWay => Some(Exercise::TwoWay),
        _ => None,
    }
}

const fn test(exercise: Exercise) -> Test {
    match exercise {
        Exercise::PingPong => Test::PingPong,
        Exercise::OneWay => Test::OneWay,
        Exercise::TwoWay => Test::TwoWay,
    }
}

/// Returns a link of the simulator with the rate, burst and queue of a switch port of `bench`.
pub(crate) fn link_model(shape: &LinkShape, mtu: u32) -> LinkModel {
    let shaped = stream::shaped(stream::raw_link(shape.rate, 0));
    let burst_ns =
        u128::from(shape.burst_bytes(mtu)) * 8_000_000_000 / u128::from(shape.rate.max(1));
    let bucket = shaped.bucket.map(|bucket| TokenBucket {
        peak_rate: bucket.peak_rate.max(shape.rate),
        burst_ns: burst_ns as u64,
        ..bucket
    });
    let envelope_bytes = wire_envelope_bytes();
    LinkModel {
        bucket,
        overhead: Overhead {
            network_bytes: envelope_bytes,
            // Virtual interfaces do not pad frames.
            packet_bytes_min: 0,
            ethernet_bytes: ETHERNET_HEADER_BYTES as u32,
        },
        propagation_ns: u64::from(shape.delay_us) * 1_000,
        jitter: Jitter::Constant,
        queue_bytes: switched::queue_bytes(mtu) as u32,
        frame_bytes_max: (mtu.saturating_sub(envelope_bytes)).min(u32::from(u16::MAX)) as u16,
        ..shaped
    }
}

/// Returns the bytes of a raw frame before the protocol's bytes.
fn wire_envelope_bytes() -> u32 {
    stream::raw_link(1, 0).overhead.network_bytes
}

fn host_costs(path: FreePath, found: &Calibration) -> HostCosts {
    let ns = |ps: u64| ps as f64 / 1e3;
    let Costs { host, call_ps, gather_ps, poll_ps, return_ps, spread_ps, .. } = found.costs;
    let point = |(measured, fitted_ns): &(calibration::Measurement, f64)| FittedPoint {
        test: test(measured.exercise),
        message_bytes: u64::from(measured.message_bytes),
        measured_ns: measured.ns,
        fitted_ns: *fitted_ns,
    };
    HostCosts {
        path,
        frame_send_ns: ns(host.frame_send_ps),
        frame_send_ns_per_byte: ns(host.frame_send_ps_per_byte),
        frame_receive_ns: ns(host.frame_receive_ps),
        frame_receive_ns_per_byte: ns(host.frame_receive_ps_per_byte),
        post_ns: ns(host.post_ps),
        call_ns: ns(call_ps),
        gather_ns: ns(gather_ps),
        poll_ns: ns(poll_ps),
        return_ns: ns(return_ps),
        spread_ns: ns(spread_ps),
        rms_error_percent: found.rms_error_percent,
        worst_error_percent: found.worst_error_percent,
        points: found.points.iter().map(point).collect(),
    }
}

/// Returns options for the tests and sizes whose samples vary too much, probably because other
/// programs used the processors. Returns `None` if no samples vary too much.
pub(crate) fn of_unsteady(options: &Options, samples: &[Samples]) -> Option<Options> {
    let unsteady: Vec<_> = samples.iter().filter(|samples| !samples.are_steady()).collect();
    if unsteady.is_empty() {
        return None;
    }
    let (mut tests, mut sizes) = (options.tests.clone(), options.sizes.clone());
    tests.retain(|test| unsteady.iter().any(|samples| samples.test == *test));
    sizes.retain(|size| unsteady.iter().any(|samples| samples.message_bytes == *size));
    let all = (options.tests.len() * options.sizes.len()).max(1);
    let share = (tests.len() * sizes.len()) as f64 / all as f64;
    let budget_seconds = options.budget_seconds * share;
    Some(Options { tests, sizes, budget_seconds, ..options.clone() })
}

/// Returns the options of the measurements on links that are faster than the hosts. The tests and
/// sizes are those of the set-ups.
pub(crate) fn free_options(is_quick: bool) -> Result<Options, Failure> {
    Ok(Options {
        tests: shaped_command::TESTS.to_vec(),
        sizes: bench::multiedge::SIZES.to_vec(),
        repetitions: 3,
        budget_seconds: if is_quick { 15.0 } else { 30.0 },
        in_flight: IN_FLIGHT,
        interleaved: true,
        ..Options::new(own_program()?)
    })
}

/// Operations in flight in one-way and two-way, the same number as in `bench multiedge`.
const IN_FLIGHT: u32 = 16;

/// Message size in the tests on two links, in bytes. Such a message is one frame, for which the
/// engine chooses one of the links.
const SMALL_BYTES: u64 = 8;

/// The time for the tests on two links, divided by the time for all sizes on one link.
const SHARE_OF_TWO: f64 = 0.2;

/// Frames of a simulated test: enough to reach a steady state.
const FRAMES_OF_FIT: u32 = 1_200;

/// Seed of the engines and of late timers during the fit.
const SEED: u64 = 1;
