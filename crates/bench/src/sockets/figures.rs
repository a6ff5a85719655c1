//! From samples to figures, as the papers have them: the highest and the lowest are dropped, the mean
//! of the others is the figure.

use serde::{Deserialize, Serialize};

use super::{Case, Contender, Test};
use crate::statistics::dropped;

/// A value over several samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The mean of the samples that were kept, in the unit of the figure.
    pub mean: f64,
    /// The lowest sample that was kept.
    pub min: f64,
    /// The highest sample that was kept.
    pub max: f64,
}

impl Figure {
    /// Returns the mean of `values`, without the highest and the lowest if there are at least three. Returns `None`
    /// for no values.
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
    /// Payload of all clients, both directions together.
    pub bytes: u64,
    /// How long it took; of several clients, the mean.
    pub seconds: f64,
    /// Payload per second, each client by its own time.
    pub bytes_per_second: f64,
    /// Round trips, messages or connections per second, each client by its own time.
    pub operations_per_second: f64,
    /// One way: half of the total time by the number of round trips, in microseconds; of several
    /// clients, the mean.
    pub latency_us: Option<f64>,
    /// 99 of 100 ways took at most this, in microseconds; of several clients, the most.
    pub latency_p99_us: Option<f64>,
    /// What `connect` took, in microseconds: the mean.
    pub connect_us: Option<f64>,
    /// From the call of `connect` to the answer to the first byte, in microseconds: the mean.
    pub first_answer_us: Option<f64>,
    /// From the client's first use of a connection until it had moved, in microseconds: the mean,
    /// by the library's counters.
    pub upgrade_us: Option<f64>,
    /// Jain's index of the clients' rates: 1 if they are equal, 1 / clients if one has everything.
    pub fairness: Option<f64>,
    /// CPU seconds of all processes.
    pub cpu_seconds: f64,
    /// CPU seconds of the processes of the clients.
    #[serde(default)]
    pub client_cpu_seconds: Option<f64>,
    /// CPU seconds of the process of the server.
    #[serde(default)]
    pub server_cpu_seconds: Option<f64>,
    /// CPU seconds of the host's softirq threads.
    pub softirq_cpu_seconds: f64,
    /// Connections that moved, by the library's own counters, both sides added up; 0 over TCP.
    pub moved: u64,
    /// Of these, connections that were reset, both sides added up: after the program had its answers, or
    /// there would be no sample.
    #[serde(default)]
    pub resets: u64,
}

/// One test with one size, number of clients and contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub test: Test,
    /// MTU of the links, in bytes.
    pub mtu: u32,
    /// Bytes of a message.
    pub message_bytes: u64,
    /// Clients, or streams of one.
    pub clients: u32,
    /// Who.
    pub contender: Contender,
    /// One way, in microseconds.
    pub latency_us: Option<Figure>,
    /// 99 of 100 ways took at most this, in microseconds.
    pub latency_p99_us: Option<Figure>,
    /// Payload, both directions together.
    pub bytes_per_second: Option<Figure>,
    /// Round trips, messages or connections.
    pub operations_per_second: Option<Figure>,
    /// What `connect` took, in microseconds.
    pub connect_us: Option<Figure>,
    /// From `connect` to the answer to the first byte, in microseconds.
    pub first_answer_us: Option<Figure>,
    /// Until both directions had moved, in microseconds.
    pub upgrade_us: Option<Figure>,
    /// Jain's index of the clients' rates.
    pub fairness: Option<Figure>,
    /// CPU time of all processes and of softirq threads, in percent of one processor.
    pub cpu_percent: Option<Figure>,
    /// CPU time of the processes of the clients, in percent of one processor.
    #[serde(default)]
    pub client_cpu_percent: Option<Figure>,
    /// CPU time of the process of the server, in percent of one processor.
    #[serde(default)]
    pub server_cpu_percent: Option<Figure>,
    /// Compared with kernel TCP, sample by sample.
    pub ratios: Vec<Ratio>,
    /// The samples, in the order in which they were taken.
    pub samples: Vec<Sample>,
}

/// A contender divided by another in the same repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The other one.
    pub to: Contender,
    /// Of the times or rates that the test is about.
    pub value: Figure,
    /// Of CPU seconds per operation.
    pub cpu: Option<Figure>,
}

impl Row {
    /// Returns what the test is about: microseconds, or bytes per second.
    pub fn value(&self) -> Option<Figure> {
        match self.test {
            Test::Latency | Test::HotSpot => self.latency_us,
            Test::Connection => self.connect_us,
            Test::Throughput | Test::MultiStream | Test::FanIn | Test::FanOut => {
                self.bytes_per_second
            }
        }
    }

    /// Returns the ratio to `other`.
    pub fn ratio_to(&self, other: Contender) -> Option<&Ratio> {
        self.ratios.iter().find(|ratio| ratio.to == other)
    }
}

/// The rows of a case. `samples`: a list for each contender, none where a sample does not count.
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

/// Nothing if none of the samples counts.
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

/// Divides repetition by repetition, so that a drift of the machine cancels.
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

/// Jain's index of fairness of `rates`; nothing for none.
pub(super) fn fairness(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (squares * rates.len() as f64))
}

/// Whom others are compared with.
const REFERENCES: [Contender; 2] = [Contender::Tcp, Contender::TcpPoll];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ten_values_the_mean_of_eight_counts() {
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
    fn a_sample_that_does_not_count_takes_its_partner_out_of_the_ratio() {
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
