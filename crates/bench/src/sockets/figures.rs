//! Computes figures from samples as the papers do: drops the highest and the lowest sample, and
//! averages the others.

use serde::{Deserialize, Serialize};

use super::{Case, Contender, Test};
use crate::statistics::dropped;

/// Statistics of a value over several samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The mean of the samples, without the highest and the lowest.
    pub mean: f64,
    /// The lowest value, after the highest and the lowest sample were excluded.
    pub min: f64,
    /// The highest value, after the highest and the lowest sample were excluded.
    pub max: f64,
}

impl Figure {
    /// Returns the mean of `values`. If there are at least three values, excludes the highest and
    /// the lowest. Returns `None` if there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let drop_each = dropped(values.len() as u32) as usize / 2;
        let kept = values.get(drop_each..values.len() - drop_each)?;
        let (min, max) = (*kept.first()?, *kept.last()?);
        Some(Self { mean: kept.iter().sum::<f64>() / kept.len() as f64, min, max })
    }

    /// Returns half the distance between lowest and highest, in percent of the mean.
    pub fn spread_percent(&self) -> f64 {
        if self.mean > 0.0 { (self.max - self.min) / self.mean * 50.0 } else { 0.0 }
    }
}

/// One sample of one contender.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Round trips, messages or connections of all clients.
    pub operations: u64,
    /// Payload bytes of all clients, both directions together.
    pub bytes: u64,
    /// Duration in seconds. With several clients, the mean of their durations.
    pub seconds: f64,
    /// Payload bytes per second. With several clients, the sum of their rates. The rate of a client
    /// is its payload divided by its own duration.
    pub bytes_per_second: f64,
    /// Round trips, messages or connections per second. With several clients, the sum of their
    /// rates, each computed with the client's own duration.
    pub operations_per_second: f64,
    /// Mean one-way latency, in microseconds: the total time divided by twice the number of round
    /// trips. With several clients, the mean of their latencies.
    pub latency_us: Option<f64>,
    /// 99th percentile of the one-way latency, in microseconds. With several clients, the highest
    /// of their percentiles.
    pub latency_p99_us: Option<f64>,
    /// Mean duration of `connect`, in microseconds.
    pub connect_us: Option<f64>,
    /// Mean time from the call of `connect` to the answer to the first byte, in microseconds.
    pub first_answer_us: Option<f64>,
    /// Mean time from the client's first use of a connection until the connection had moved, in
    /// microseconds. The library's counters contain this time.
    pub upgrade_us: Option<f64>,
    /// Jain's index of the clients' rates. It is 1 if all rates are equal. It is 1 / clients if
    /// only one client has a rate above 0.
    pub fairness: Option<f64>,
    /// CPU seconds of all processes.
    pub cpu_seconds: f64,
    /// CPU seconds of the clients' processes.
    #[serde(default)]
    pub client_cpu_seconds: Option<f64>,
    /// CPU seconds of the server's process.
    #[serde(default)]
    pub server_cpu_seconds: Option<f64>,
    /// CPU seconds of the host's softirq threads.
    pub softirq_cpu_seconds: f64,
    /// Number of connections that moved, by the library's counters, added over both sides; 0 over
    /// TCP.
    pub moved: u64,
    /// Number of moved connections that were reset, added over both sides. All these resets came
    /// after the program had received all answers, because the sample fails if a reset comes
    /// earlier.
    #[serde(default)]
    pub resets: u64,
}

/// The figures of one test with one message size, number of clients and contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The test.
    pub test: Test,
    /// MTU of the links, in bytes.
    pub mtu: u32,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Number of clients; in multi-stream, number of streams of the client.
    pub clients: u32,
    /// The contender whose figures these are.
    pub contender: Contender,
    /// One-way latency, in microseconds.
    pub latency_us: Option<Figure>,
    /// 99th percentile of the one-way latency, in microseconds.
    pub latency_p99_us: Option<Figure>,
    /// Payload bytes per second, both directions together.
    pub bytes_per_second: Option<Figure>,
    /// Round trips, messages or connections per second.
    pub operations_per_second: Option<Figure>,
    /// Duration of `connect`, in microseconds.
    pub connect_us: Option<Figure>,
    /// Time from `connect` to the answer to the first byte, in microseconds.
    pub first_answer_us: Option<Figure>,
    /// Time until both directions of a connection had moved to the edge, in microseconds.
    pub upgrade_us: Option<Figure>,
    /// Jain's index of the clients' rates.
    pub fairness: Option<Figure>,
    /// CPU time of all processes and of the softirq threads, in percent of one processor.
    pub cpu_percent: Option<Figure>,
    /// CPU time of the clients' processes, in percent of one processor.
    #[serde(default)]
    pub client_cpu_percent: Option<Figure>,
    /// CPU time of the server's process, in percent of one processor.
    #[serde(default)]
    pub server_cpu_percent: Option<Figure>,
    /// Ratios to kernel TCP, computed for each repetition.
    pub ratios: Vec<Ratio>,
    /// The samples in the order of their measurement.
    pub samples: Vec<Sample>,
}

/// Ratios of a contender to another one in the same repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The other contender.
    pub to: Contender,
    /// Ratio of the value that the test compares: a time or a rate.
    pub value: Figure,
    /// Ratio of the CPU seconds per operation.
    pub cpu: Option<Figure>,
}

impl Row {
    /// Returns the figure that the test compares, in microseconds or bytes per second.
    pub fn value(&self) -> Option<Figure> {
        match self.test {
            Test::Latency | Test::HotSpot => self.latency_us,
            Test::Connection => self.connect_us,
            Test::Throughput | Test::MultiStream | Test::FanIn | Test::FanOut => {
                self.bytes_per_second
            }
        }
    }

    /// Returns the ratio to `other`; `None` if this ratio was not computed.
    pub fn ratio_to(&self, other: Contender) -> Option<&Ratio> {
        self.ratios.iter().find(|ratio| ratio.to == other)
    }
}

/// Returns the rows of a case. `samples` has a list for each contender, with `None` for each
/// refused sample.
pub(super) fn rows(case: &Case, mtu: u32, samples: Vec<Vec<Option<Sample>>>) -> Vec<Row> {
    let references: Vec<_> = case
        .contenders
        .iter()
        .copied()
        .zip(samples.clone())
        .filter(|(contender, _)| REFERENCES.contains(contender))
        .collect();
    let rows = case.contenders.iter().zip(samples);
    rows.filter_map(|(contender, samples)| row(case, mtu, *contender, samples, &references))
        .collect()
}

/// Returns the row of one contender; `None` if all its samples were refused.
fn row(
    case: &Case,
    mtu: u32,
    contender: Contender,
    samples: Vec<Option<Sample>>,
    references: &[(Contender, Vec<Option<Sample>>)],
) -> Option<Row> {
    let ratios = references.iter().filter(|(other, _)| *other != contender);
    let ratios = ratios.filter_map(|(to, reference)| {
        Some(Ratio {
            to: *to,
            value: ratio(&samples, reference, |sample| main_value(case.test, sample))?,
            cpu: ratio(&samples, reference, cpu_per_operation),
        })
    });
    let ratios = ratios.collect();
    let samples: Vec<Sample> = samples.into_iter().flatten().collect();
    if samples.is_empty() {
        return None;
    }
    let over = |value: fn(&Sample) -> Option<f64>| Figure::of(samples.iter().filter_map(value));
    Some(Row {
        test: case.test,
        mtu,
        message_bytes: case.message_bytes,
        clients: case.clients,
        contender,
        latency_us: over(|sample| sample.latency_us),
        latency_p99_us: over(|sample| sample.latency_p99_us),
        bytes_per_second: over(|sample| Some(sample.bytes_per_second)),
        operations_per_second: over(|sample| Some(sample.operations_per_second)),
        connect_us: over(|sample| sample.connect_us),
        first_answer_us: over(|sample| sample.first_answer_us),
        upgrade_us: over(|sample| sample.upgrade_us),
        fairness: over(|sample| sample.fairness),
        cpu_percent: over(|sample| {
            percent_of_cpu(sample, sample.cpu_seconds + sample.softirq_cpu_seconds)
        }),
        client_cpu_percent: over(|sample| percent_of_cpu(sample, sample.client_cpu_seconds?)),
        server_cpu_percent: over(|sample| percent_of_cpu(sample, sample.server_cpu_seconds?)),
        ratios,
        samples,
    })
}

/// Computes ratios for each repetition, so that slow changes of the machine's speed cancel out.
fn ratio(
    samples: &[Option<Sample>],
    reference: &[Option<Sample>],
    value: impl Fn(&Sample) -> Option<f64>,
) -> Option<Figure> {
    let pairs = samples.iter().zip(reference);
    Figure::of(pairs.filter_map(|(sample, reference)| {
        Some(value(sample.as_ref()?)? / value(reference.as_ref()?)?)
    }))
}

fn main_value(test: Test, sample: &Sample) -> Option<f64> {
    match test {
        Test::Latency | Test::HotSpot => sample.latency_us,
        Test::Connection => sample.connect_us,
        Test::Throughput | Test::MultiStream | Test::FanIn | Test::FanOut => {
            Some(sample.bytes_per_second)
        }
    }
}

fn percent_of_cpu(sample: &Sample, cpu_seconds: f64) -> Option<f64> {
    (sample.seconds > 0.0).then(|| cpu_seconds / sample.seconds * 100.0)
}

fn cpu_per_operation(sample: &Sample) -> Option<f64> {
    let cpu_seconds = sample.cpu_seconds + sample.softirq_cpu_seconds;
    (sample.operations > 0 && cpu_seconds > 0.0).then(|| cpu_seconds / sample.operations as f64)
}

/// Returns Jain's index of fairness of `rates`; `None` if all are 0 or there are none.
pub(super) fn fairness(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (squares * rates.len() as f64))
}

/// The contenders to which ratios are computed.
const REFERENCES: [Contender; 2] = [Contender::Tcp, Contender::TcpPoll];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trimmed_mean_uses_eight_of_ten_values() {
        let values = [1000.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, -1000.0];
        assert_eq!(Figure::of(values), Some(Figure { mean: 5.5, min: 2.0, max: 9.0 }));
        assert_eq!(Figure::of([1.0, 3.0]), Some(Figure { mean: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Figure::of([]), None);
    }

    #[test]
    fn equal_rates_are_fair_and_one_rate_is_not() {
        assert_eq!(fairness(&[2.0, 2.0, 2.0, 2.0]), Some(1.0));
        assert_eq!(fairness(&[2.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(fairness(&[]), None);
    }

    #[test]
    fn an_invalid_sample_excludes_its_partner_from_the_ratio() {
        let contenders = vec![Contender::Tcp, Contender::Sockets];
        let case = Case { test: Test::Latency, message_bytes: 1, clients: 1, contenders };
        let sample = |latency| Some(Sample { latency_us: Some(latency), ..Sample::default() });
        let tcp = vec![sample(10.0), sample(20.0), sample(1000.0)];
        let sockets = vec![sample(5.0), sample(10.0), None];
        let rows = rows(&case, 1500, vec![tcp, sockets]);
        let ratio = rows[1].ratio_to(Contender::Tcp).unwrap().value;
        assert_eq!(ratio, Figure { mean: 0.5, min: 0.5, max: 0.5 });
        assert!(rows[0].ratios.is_empty());
        assert_eq!(rows[1].samples.len(), 2);
    }

    #[test]
    fn a_program_that_never_moved_has_no_row() {
        let contenders = vec![Contender::Tcp, Contender::Sockets];
        let case = Case { test: Test::Latency, message_bytes: 1, clients: 1, contenders };
        let tcp = vec![Some(Sample { latency_us: Some(1.0), ..Sample::default() })];
        assert_eq!(rows(&case, 1500, vec![tcp, vec![None]]).len(), 1);
    }
}
