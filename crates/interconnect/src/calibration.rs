//! Fits the parameters of a model to measured latencies.
//!
//! The time of a message of k bytes from one program to another is a + b k, with constants a and b.
//! The latencies do not show which part of this time is spent in the hosts and which in the
//! network. Therefore the caller supplies the known parameters of the network. The remaining time
//! is divided equally between the two hosts, as in the study of 1999 (see [`paper`](super::paper)).

use super::loggp::LogGpConfiguration;
use super::simulation::HostCosts;

/// Measured latencies, and parameters of the network that the caller knows.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// Message lengths in bytes, and one-way latencies in µs: half of the round-trip time.
    pub latencies: Vec<(u64, f64)>,
    /// Minimum time between two messages of a stream from one host, in µs; 0 if it is not known.
    pub interval_us: f64,
    /// Rate of the link, in bits per second. If this is `None`, the whole measured time per byte is
    /// assigned to the network.
    pub link_rate_bps: Option<u64>,
    /// Latency of the network alone, in µs. It includes the switches, but not the time per byte. If
    /// this is `None`, the whole part of the measured time that does not depend on the length of
    /// messages is assigned to the network.
    pub network_latency_us: Option<f64>,
}

/// Parameters that fit the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Parameters of the LogGP model.
    pub loggp: LogGpConfiguration,
    /// Costs of messages at the hosts. They are suitable for the LogGP model and for all other
    /// fabrics.
    pub costs: HostCosts,
    /// Root mean square of the relative errors, in percent.
    pub rms_error_percent: f64,
    /// Largest relative error, in percent.
    pub worst_error_percent: f64,
}

/// Why parameters cannot be determined.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// Fewer than two different lengths were measured, so no line can be fitted.
    #[error("{count} different lengths were measured, but a line needs 2 or more")]
    TooFew {
        /// Number of different lengths.
        count: usize,
    },
    /// A measured latency is 0 or negative.
    #[error("the latency of {bytes} bytes is {latency_us} us, but must be above 0")]
    Latency {
        /// Message length, in bytes.
        bytes: u64,
        /// Latency given, in µs.
        latency_us: f64,
    },
    /// A known parameter exceeds the measured time.
    #[error(
        "{what} is {known}, but with the measured latencies it can be at most {most}: correct it, \
         or measure again"
    )]
    Known {
        /// Name of the parameter.
        what: &'static str,
        /// Value of the parameter, with unit.
        known: String,
        /// Maximum value that the measurements permit, with unit.
        most: String,
    },
}

/// Determines parameters by least squares of the relative errors. With relative errors, short
/// messages have the same weight as long ones.
///
/// # Errors
/// Returns [`CalibrationError`]; each variant names one cause.
pub fn calibrate(measurements: &Measurements) -> Result<Calibration, CalibrationError> {
    let Measurements { latencies, interval_us, link_rate_bps, network_latency_us } = measurements;
    let (start_us, per_byte_us) = line(latencies)?;
    let (start_ps, per_byte_ps) = (start_us * PS_PER_US, (per_byte_us * PS_PER_US).max(0.0));

    let byte_ps = match link_rate_bps {
        None => per_byte_ps,
        Some(rate_bps) => {
            let byte_ps = 8e12 / (*rate_bps).max(1) as f64;
            if byte_ps > per_byte_ps * TOLERANCE {
                return Err(CalibrationError::Known {
                    what: "the time of a byte on the link",
                    known: format!("{byte_ps:.0} ps"),
                    most: format!("{per_byte_ps:.0} ps"),
                });
            }
            byte_ps.min(per_byte_ps)
        }
    };
    // For a message of k bytes, the fitted line contains the time of k bytes, but the model adds G
    // for only k − 1 bytes. Therefore the time of one byte, G, is added to the fixed time.
    let fixed_ps = start_ps + byte_ps;
    let latency_ps = match network_latency_us {
        None => fixed_ps.max(0.0),
        Some(latency_us) => {
            let latency_ps = latency_us * PS_PER_US;
            if !(0.0..=fixed_ps).contains(&latency_ps) {
                return Err(CalibrationError::Known {
                    what: "the latency of the network",
                    known: format!("{latency_us} us"),
                    most: format!("{} us", fixed_ps / PS_PER_US),
                });
            }
            latency_ps
        }
    };
    let host_ps = ((fixed_ps - latency_ps) / 2.0).round() as u64;
    let host_ps_per_byte = ((per_byte_ps - byte_ps) / 2.0).round() as u64;
    let loggp = LogGpConfiguration::new(
        latency_ps.round() as u64,
        (interval_us.max(0.0) * PS_PER_US).round() as u64,
        byte_ps.round() as u64,
    );
    let costs = HostCosts::symmetric(host_ps, host_ps_per_byte);
    let (rms_error_percent, worst_error_percent) = errors(latencies, &loggp, &costs);
    Ok(Calibration { loggp, costs, rms_error_percent, worst_error_percent })
}

impl Calibration {
    /// Returns the latency of a message in the model, in µs.
    pub fn latency_us(&self, bytes: u64) -> f64 {
        latency_us(bytes, &self.loggp, &self.costs)
    }
}

fn latency_us(bytes: u64, loggp: &LogGpConfiguration, costs: &HostCosts) -> f64 {
    let bytes = bytes as f64;
    let hosts = (costs.send_ps + costs.receive_ps) as f64
        + (costs.send_ps_per_byte + costs.receive_ps_per_byte) as f64 * bytes;
    let network = loggp.latency_ps as f64 + (bytes - 1.0).max(0.0) * loggp.byte_ps as f64;
    (hosts + network) / PS_PER_US
}

/// Returns the relative errors of the model's latencies in percent: the root mean square, and the
/// maximum.
fn errors(latencies: &[(u64, f64)], loggp: &LogGpConfiguration, costs: &HostCosts) -> (f64, f64) {
    let mut squares = 0.0;
    let mut worst = 0.0_f64;
    for &(bytes, measured_us) in latencies {
        let error = (latency_us(bytes, loggp, costs) / measured_us - 1.0) * 100.0;
        squares += error * error;
        worst = worst.max(error.abs());
    }
    ((squares / latencies.len() as f64).sqrt(), worst)
}

/// Fits a line by least squares of relative errors. Returns its value at 0 and its slope.
fn line(latencies: &[(u64, f64)]) -> Result<(f64, f64), CalibrationError> {
    let mut lengths: Vec<u64> = latencies.iter().map(|(bytes, _)| *bytes).collect();
    lengths.sort_unstable();
    lengths.dedup();
    if lengths.len() < 2 {
        return Err(CalibrationError::TooFew { count: lengths.len() });
    }
    // Sums of weights, and of weights times x, y, x² and x y.
    let mut sums = [0.0; 5];
    for &(bytes, latency_us) in latencies {
        if !(latency_us > 0.0 && latency_us.is_finite()) {
            return Err(CalibrationError::Latency { bytes, latency_us });
        }
        let (x, y, weight) = (bytes as f64, latency_us, 1.0 / (latency_us * latency_us));
        let terms = [1.0, x, y, x * x, x * y];
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += weight * term;
        }
    }
    let [weights, x, y, xx, xy] = sums;
    let slope = (weights * xy - x * y) / (weights * xx - x * x);
    Ok(((y - slope * x) / weights, slope))
}

const PS_PER_US: f64 = 1e6;
/// Largest accepted ratio of a link's known time per byte to the measured slope. A ratio slightly
/// above 1 can come from measurement errors.
const TOLERANCE: f64 = 1.02;

#[cfg(test)]
mod tests {
    use super::super::loggp::LogGp;
    use super::super::simulation::Simulation;
    use super::super::workload::TokenPass;
    use super::*;

    const LOGGP: LogGpConfiguration = LogGpConfiguration::new(3_000_000, 700_000, 800);
    const LENGTHS: [u64; 7] = [1, 8, 64, 512, 4_096, 65_536, 1_048_576];

    /// Returns the lengths of messages, and their one-way latencies in µs in a simulated ping-pong
    /// with the LogGP model.
    fn measured(costs: HostCosts) -> Vec<(u64, f64)> {
        let one_way = |bytes| {
            let token = TokenPass::new(2, bytes as u32, 0, 2);
            let simulation = Simulation::new(LogGp::new(2, LOGGP), token, &[0, 1], costs);
            (bytes, simulation.run().expect("it ends").completed_ps as f64 / 2e6)
        };
        LENGTHS.map(one_way).into()
    }

    #[test]
    fn calibration_recovers_the_parameters_of_the_model() {
        let costs = HostCosts::symmetric(1_200_000, 50);
        let measurements = Measurements {
            latencies: measured(costs),
            interval_us: 0.7,
            link_rate_bps: Some(10_000_000_000),
            network_latency_us: Some(3.0),
        };
        let found = calibrate(&measurements).expect("they fit");
        assert_eq!((found.loggp, found.costs), (LOGGP, costs));
        assert!(found.worst_error_percent < 0.01, "{found:?}");
    }

    #[test]
    fn without_processor_times_all_latency_belongs_to_the_network() {
        let costs = HostCosts::symmetric(1_200_000, 50);
        let measurements = Measurements { latencies: measured(costs), ..Measurements::default() };
        let found = calibrate(&measurements).expect("they fit");
        assert_eq!(found.costs, HostCosts::default());
        assert_eq!((found.loggp.latency_ps, found.loggp.byte_ps), (5_400_100, 900));
        assert!((found.latency_us(4_096) - measurements.latencies[4].1).abs() < 0.01);
    }

    #[test]
    fn noise_is_averaged_out() {
        let mut random = crate::Random::new(3);
        let mut latencies = Vec::new();
        for (bytes, exact) in measured(HostCosts::symmetric(1_000_000, 0)) {
            // Each latency is within 5 % of the exact latency.
            let noise = |random: &mut crate::Random| random.between(950, 1_050) as f64 / 1_000.0;
            latencies.extend((0..200).map(|_| (bytes, exact * noise(&mut random))));
        }
        let found = calibrate(&Measurements { latencies, ..Measurements::default() });
        let found = found.expect("they fit").loggp;
        assert!(found.latency_ps.abs_diff(5_000_000) < 60_000, "{found:?}");
        assert!(found.byte_ps.abs_diff(800) < 10, "{found:?}");
    }

    #[test]
    fn insufficient_or_contradictory_measurements_are_refused() {
        let refused = |measurements: Measurements| {
            calibrate(&measurements).expect_err("it is wrong").to_string()
        };
        let with = |latencies: &[(u64, f64)]| Measurements {
            latencies: latencies.to_vec(),
            ..Measurements::default()
        };
        assert!(refused(with(&[])).contains("0 different lengths"));
        assert!(refused(with(&[(8, 1.0), (8, 1.1)])).contains("1 different lengths"));
        assert!(refused(with(&[(8, 1.0), (9, 0.0)])).contains("must be above 0"));
        assert!(refused(with(&[(8, 1.0), (9, f64::NAN)])).contains("must be above 0"));
        let latencies = measured(HostCosts::default());
        let slow = Measurements {
            latencies: latencies.clone(),
            link_rate_bps: Some(1_000_000_000),
            ..Measurements::default()
        };
        assert!(refused(slow).contains("the time of a byte on the link is 8000 ps"));
        let far =
            Measurements { latencies, network_latency_us: Some(9.0), ..Measurements::default() };
        assert!(refused(far).contains("the latency of the network is 9 us"));
    }
}
