//! Derives the costs of hosts from measured latencies and rates.
//!
//! The measured programs run in simulation on the same links. The calibration varies the costs
//! until the sum of squares of `simulated / measured - 1` is minimal. It uses all measurements,
//! including those in which neither host was the bottleneck.

use super::fit::{Parameter, fit};
use super::{Costs, Exercise, Length, Outcome, PAYLOAD_BYTES, Pauses, Trial, run};
use crate::channel::LinkModel;
use crate::costs::EdgeCosts;
use crate::scenario::TransferError;

/// A measurement on links that were not the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// The measured transfer pattern.
    pub exercise: Exercise,
    /// Size of a write in bytes.
    pub message_bytes: u32,
    /// Half of the round-trip time, or the time per write of a stream, in nanoseconds. For two-way
    /// streams, the time per pair of writes, one in each direction.
    pub ns: f64,
}

/// The links and programs of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The links; each model applies to both directions.
    pub links: &'a [LinkModel],
    /// Number of outstanding writes of a stream.
    pub in_flight: u32,
    /// Cost of posting a write, in picoseconds; measured separately.
    pub post_ps: u64,
    /// Number of frames of a trial; see [`Length::Frames`].
    pub frames: u32,
    /// Seed of the trials; see [`Trial::seed`].
    pub seed: u64,
}

/// The determined costs, and how well they match the measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The determined costs.
    pub costs: Costs,
    /// Each measurement, with its simulated value in nanoseconds.
    pub points: Vec<(Measurement, f64)>,
    /// Root mean square of the relative differences, in percent.
    pub rms_error_percent: f64,
    /// Largest relative difference, in percent.
    pub worst_error_percent: f64,
}

/// Why the costs cannot be determined.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The measurements are fewer than the costs to determine.
    #[error("{count} measurements were given, but {needed} or more are needed")]
    TooFew {
        /// Number of measurements given.
        count: usize,
        /// Number of measurements needed, which is the number of costs to determine.
        needed: usize,
    },
    /// A measured time is 0 or negative.
    #[error("{message_bytes} bytes took {ns} ns, but must take more than 0")]
    Time {
        /// Size of the write in bytes.
        message_bytes: u32,
        /// The time given, in nanoseconds.
        ns: f64,
    },
    /// A simulated trial failed.
    #[error("simulate what was measured: {0}")]
    Trial(#[from] TransferError),
}

/// Determines the costs. Calls `on_trials` after each simulation of all measurements.
///
/// # Errors
/// Returns [`CalibrationError`]; each variant names one cause.
pub fn calibrate(
    setting: &Setting<'_>,
    measurements: &[Measurement],
    on_trials: &mut dyn FnMut(),
) -> Result<Calibration, CalibrationError> {
    if measurements.len() < PARAMETERS {
        let count = measurements.len();
        return Err(CalibrationError::TooFew { count, needed: PARAMETERS });
    }
    check_times(measurements)?;
    let measured_ns: Vec<f64> = measurements.iter().map(|measured| measured.ns).collect();
    let mut model = |values: &[f64]| {
        let costs = costs(values, setting.post_ps);
        let times = measurements.iter().map(|measured| simulated_ns(setting, measured, costs));
        let times = times.collect::<Result<Vec<_>, _>>();
        on_trials();
        times
    };
    let found = fit(&starts(measurements), &measured_ns, &mut model)?;
    let modelled_ns = model(&found)?;
    let errors: Vec<f64> = measured_ns
        .iter()
        .zip(&modelled_ns)
        .map(|(measured, model)| (model / measured - 1.0).abs() * 100.0)
        .collect();
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    Ok(Calibration {
        costs: costs(&found, setting.post_ps),
        points: measurements.iter().copied().zip(modelled_ns).collect(),
        rms_error_percent: (squares / errors.len() as f64).sqrt(),
        worst_error_percent: errors.into_iter().fold(0.0, f64::max),
    })
}

/// Determines the extra cost of several links, [`Costs::spread_ps`]. `measurements` were made on
/// all of `setting.links`. `costs` were determined on one link.
///
/// # Errors
/// Returns the errors of [`calibrate`], except that one measurement is enough.
pub fn calibrate_spread(
    setting: &Setting<'_>,
    costs: Costs,
    measurements: &[Measurement],
    on_trials: &mut dyn FnMut(),
) -> Result<Costs, CalibrationError> {
    if measurements.is_empty() {
        return Err(CalibrationError::TooFew { count: 0, needed: 1 });
    }
    check_times(measurements)?;
    let measured_ns: Vec<f64> = measurements.iter().map(|measured| measured.ns).collect();
    let with_spread =
        |values: &[f64]| Costs { spread_ps: (values[0] * 1e3).round() as u64, ..costs };
    let start = Parameter { start: USUAL_SPREAD_NS, scale: USUAL_SPREAD_NS };
    let found = fit(&[start], &measured_ns, |values| {
        let costs = with_spread(values);
        let times = measurements.iter().map(|measured| simulated_ns(setting, measured, costs));
        let times = times.collect::<Result<Vec<_>, _>>();
        on_trials();
        times
    })?;
    Ok(with_spread(&found))
}

/// Checks that all times are positive and finite.
fn check_times(measurements: &[Measurement]) -> Result<(), CalibrationError> {
    let wrong =
        measurements.iter().find(|measured| !(measured.ns > 0.0 && measured.ns.is_finite()));
    wrong.map_or(Ok(()), |&Measurement { message_bytes, ns, .. }| {
        Err(CalibrationError::Time { message_bytes, ns })
    })
}

impl Outcome {
    /// Returns the time that corresponds to a [`Measurement`] of this exercise and size, in
    /// nanoseconds.
    pub fn ns(&self, exercise: Exercise, message_bytes: u32) -> f64 {
        let directions = if exercise == Exercise::TwoWay { 2.0 } else { 1.0 };
        let stream_ns =
            || directions * f64::from(message_bytes) * 1e9 / self.bytes_per_second.max(1e-9);
        self.latency_ns.unwrap_or_else(stream_ns)
    }
}

fn simulated_ns(
    setting: &Setting<'_>,
    measured: &Measurement,
    costs: Costs,
) -> Result<f64, TransferError> {
    let Measurement { exercise, message_bytes, .. } = *measured;
    let trial = Trial {
        links: setting.links,
        exercise,
        message_bytes,
        in_flight: setting.in_flight,
        in_order: false,
        costs,
        pauses: Pauses::default(),
        length: Length::Frames(setting.frames),
        seed: setting.seed,
    };
    Ok(run(&trial)?.ns(exercise, message_bytes))
}

/// Converts parameters to costs. The parameters are in nanoseconds, in the order of [`starts`].
fn costs(values: &[f64], post_ps: u64) -> Costs {
    let ps = |index: usize| (values.get(index).copied().unwrap_or(0.0) * 1e3).round() as u64;
    Costs {
        host: EdgeCosts {
            frame_send_ps: ps(0),
            frame_send_ps_per_byte: ps(1),
            frame_receive_ps: ps(2),
            frame_receive_ps_per_byte: ps(3),
            post_ps,
            completion_ps: 0,
        },
        call_ps: ps(4),
        gather_ps: ps(5),
        poll_ps: ps(6),
        return_ps: ps(7),
        segment_ps: 0,
        spread_ps: 0,
        timer_ps: 0,
    }
}

/// Number of costs to determine.
const PARAMETERS: usize = 8;

/// Returns the starting point of the search, in nanoseconds. The starting point assumes that the
/// sender is the bottleneck. The sender's cost of a full frame is then the time per frame of the
/// longest write. Of this cost, half comes before the peer sees the frame, a quarter comes after
/// that, and a tenth is for gathering the payload.
fn starts(measurements: &[Measurement]) -> [Parameter; PARAMETERS] {
    let streams = measurements.iter().filter(|measured| measured.exercise == Exercise::OneWay);
    let longest = streams.max_by_key(|measured| measured.message_bytes);
    let frame_ns = longest.map_or(USUAL_FRAME_NS, |longest| {
        longest.ns / f64::from(longest.message_bytes.div_ceil(PAYLOAD_BYTES).max(1))
    });
    let of_frame = |share: f64| Parameter { start: frame_ns * share, scale: frame_ns * share };
    let usual = |start: f64| Parameter { start, scale: start };
    [
        of_frame(0.5),
        usual(0.1),
        usual(400.0),
        usual(0.1),
        usual(500.0),
        of_frame(0.1),
        usual(150.0),
        of_frame(0.25),
    ]
}

/// Typical cost of sending a full frame, in nanoseconds.
const USUAL_FRAME_NS: f64 = 3000.0;

/// Typical cost of a second link for each frame, in nanoseconds.
const USUAL_SPREAD_NS: f64 = 300.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::raw_link;

    const LINKS: [LinkModel; 1] = [raw_link(100_000_000_000, 0)];

    fn setting() -> Setting<'static> {
        Setting { links: &LINKS, in_flight: 16, post_ps: 90_000, frames: 400, seed: 1 }
    }

    /// Returns the measurements that hosts with these costs would have.
    fn measured(costs: Costs) -> Vec<Measurement> {
        let exercises = [Exercise::PingPong, Exercise::OneWay, Exercise::TwoWay];
        let cases = [8, 1024, 16 << 10, 128 << 10].into_iter().flat_map(|bytes| {
            exercises.map(|exercise| Measurement { exercise, message_bytes: bytes, ns: 0.0 })
        });
        let measure = |case: Measurement| {
            let ns = simulated_ns(&setting(), &case, costs).expect("nothing is in the way");
            Measurement { ns, ..case }
        };
        cases.map(measure).collect()
    }

    #[test]
    fn calibration_recovers_known_host_costs() {
        for values in [
            [3000.0, 0.3, 600.0, 0.2, 900.0, 700.0, 150.0, 300.0],
            [900.0, 0.1, 500.0, 0.1, 300.0, 200.0, 100.0, 0.0],
        ] {
            let measurements = measured(costs(&values, setting().post_ps));
            let found = calibrate(&setting(), &measurements, &mut || ()).expect("they fit");
            assert!(found.worst_error_percent < 5.0, "{found:?}");
            // Costs per byte and costs per frame can compensate for each other, so the test
            // compares the total cost of a full frame.
            let full_ns = |costs: &Costs| {
                let EdgeCosts { frame_send_ps, frame_send_ps_per_byte, .. } = costs.host;
                let fixed_ps = frame_send_ps + costs.gather_ps + costs.return_ps;
                (fixed_ps + 1488 * frame_send_ps_per_byte) as f64 / 1e3
            };
            let exact_ns = full_ns(&costs(&values, 0));
            let error = (full_ns(&found.costs) / exact_ns - 1.0).abs();
            assert!(error < 0.1, "{found:?}");
        }
    }

    #[test]
    fn calibration_recovers_the_cost_of_a_second_link() {
        let links = [LINKS[0]; 2];
        let setting = Setting { links: &links, ..setting() };
        let alone = costs(&[3000.0, 0.3, 600.0, 0.2, 900.0, 700.0, 150.0, 300.0], setting.post_ps);
        for spread_ps in [0, 200_000, 900_000] {
            let exercises = [Exercise::PingPong, Exercise::OneWay, Exercise::TwoWay];
            let measured = exercises.map(|exercise| {
                let case = Measurement { exercise, message_bytes: 8, ns: 0.0 };
                let ns = simulated_ns(&setting, &case, Costs { spread_ps, ..alone });
                Measurement { ns: ns.expect("nothing is in the way"), ..case }
            });
            let found = calibrate_spread(&setting, alone, &measured, &mut || ()).expect("it fits");
            assert!(found.spread_ps.abs_diff(spread_ps) < 50_000, "{found:?} for {spread_ps}");
        }
        let none = calibrate_spread(&setting, alone, &[], &mut || ()).expect_err("there are none");
        assert!(none.to_string().contains("0 measurements were given, but 1"), "{none}");
    }

    #[test]
    fn insufficient_measurements_are_refused() {
        let few = calibrate(&setting(), &[], &mut || ()).expect_err("there are none");
        assert!(few.to_string().contains("0 measurements were given, but 8"), "{few}");
        let mut measurements = measured(costs(&[1000.0; PARAMETERS], 0));
        measurements[3].ns = 0.0;
        let wrong = calibrate(&setting(), &measurements, &mut || ()).expect_err("one is 0");
        assert!(wrong.to_string().contains("1024 bytes took 0 ns"), "{wrong}");
    }
}
