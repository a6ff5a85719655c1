//! The results at a size and a window, and the ratios of the contenders.

use serde::{Deserialize, Serialize};

use super::Operation;
use super::contender::{Contender, Manner};
use super::document::DocumentRun;
use crate::statistics::{Summary, dropped};

/// The results of all contenders at one size and window, measured alternately.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Unique name: kind, operation, size and window.
    pub name: String,
    /// `bandwidth`, `both-ways` or `latency`; begins with `mpi-` if an MPI is among the contenders.
    pub kind: String,
    /// The operation by which the device moved messages.
    pub operation: Operation,
    /// Bytes of a message.
    pub size: u64,
    /// Number of messages in a window.
    pub window: u32,
    /// Unit of the values: `B/s` or `s`.
    pub unit: String,
    /// The contenders in the order of the user's choices.
    pub contenders: Vec<Measured>,
    /// How busy the machine was.
    pub surroundings: Surroundings,
}

/// How busy the machine was with other work while a point was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Surroundings {
    /// Highest load average of one minute: the number of processes that run or are runnable.
    pub load: f64,
    /// Variation of the dry runs before and after the samples, in percent of the shortest time. The
    /// value is the largest over all samples that count.
    pub dry_run_percent: f64,
    /// Whether `dry_run_percent` is more than 10, which shows that the machine was busy with other
    /// work.
    pub is_busy: bool,
    /// Number of samples that were repeated because the variation of the dry runs was too large.
    pub retaken: u32,
}

/// The results of one contender at a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The device or TCP, and the way in which the programs wait.
    pub name: String,
    /// The device, or `tcp`.
    pub device: String,
    /// How the programs wait.
    pub manner: Manner,
    /// The value that the paper uses: the mean without the highest and the lowest sample.
    pub paper_mean: Option<f64>,
    /// Median, lowest and highest value of the samples that `paper_mean` includes.
    pub value: Option<Summary>,
    /// Ratios to TCP, computed for each repetition. An MPI also has ratios to the same MPI over TCP
    /// and to the device.
    pub ratios: Vec<Ratio>,
    /// CPU time that the programs of client and server used, user and system together, divided by
    /// the elapsed time.
    pub cpu_shares: [f64; 2],
    /// CPU seconds of both programs per 10^9 bytes; 0 in tests of latency.
    pub cpu_seconds_per_gigabyte: f64,
    /// Fraction of the time that the CPUs of client and server spent on interrupts, such as for
    /// received packets. If the protocol has CPUs of its own, the fraction of these CPUs. All points
    /// of a pass have the same value.
    pub interrupt_shares: [f64; 2],
    /// The samples in the order of their measurement.
    pub samples: Vec<f64>,
    /// The reason why there are no samples.
    pub cannot_run: Option<String>,
}

/// The ratio of a contender to another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the other contender.
    pub to: String,
    /// Ratio of the values.
    pub value: Summary,
    /// Ratio of the CPU seconds per 10^9 bytes.
    pub cpu: Option<Summary>,
}

/// One sample of a point: the program's results, and the load of the CPUs during the pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) run: DocumentRun,
    pub(super) interrupt_shares: [f64; 2],
}

impl Sample {
    fn cpu_seconds_per_gigabyte(&self) -> Option<f64> {
        let bytes = self.run.bytes?;
        Some(self.run.cpu_seconds().iter().sum::<f64>() / bytes as f64 * 1e9)
    }
}

/// The samples of a contender, or the reason why there are none.
pub(super) type Samples = Result<Vec<Sample>, String>;

/// Computes the ratios of contenders to TCP, and of MPI to the transports that it uses.
pub(super) fn compare(contenders: &[(Contender, Samples)]) -> Vec<Measured> {
    contenders.iter().map(|(contender, samples)| measured(contender, samples, contenders)).collect()
}

fn measured(contender: &Contender, samples: &Samples, all: &[(Contender, Samples)]) -> Measured {
    let taken = samples.as_deref().unwrap_or_default();
    let values = || taken.iter().map(|sample| sample.run.value(contender.halves()));
    let median = |values: Vec<f64>| Summary::trimmed(values).map_or(0.0, |summary| summary.median);
    let share = |host: usize| {
        median(taken.iter().map(|one| one.run.cpu_seconds()[host] / one.run.seconds).collect())
    };
    let interrupts =
        |host: usize| median(taken.iter().map(|one| one.interrupt_shares[host]).collect());
    Measured {
        name: contender.name(),
        device: contender.device().to_string(),
        manner: contender.manner(),
        paper_mean: paper_mean(values()),
        value: Summary::trimmed(values()),
        ratios: all
            .iter()
            .filter(|(other, _)| contender.is_compared_with(other))
            .filter_map(|(other, others)| ratio(contender, taken, other, others.as_ref().ok()?))
            .collect(),
        cpu_shares: [share(0), share(1)],
        cpu_seconds_per_gigabyte: median(
            taken.iter().filter_map(Sample::cpu_seconds_per_gigabyte).collect(),
        ),
        interrupt_shares: [interrupts(0), interrupts(1)],
        samples: values().collect(),
        cannot_run: samples.as_ref().err().cloned(),
    }
}

/// Computes ratios for each repetition, so that slow changes of the machine's speed cancel out.
fn ratio(own: &Contender, samples: &[Sample], to: &Contender, others: &[Sample]) -> Option<Ratio> {
    let pairs = || samples.iter().zip(others);
    let values =
        pairs().map(|(one, other)| one.run.value(own.halves()) / other.run.value(to.halves()));
    let cpu = pairs().filter_map(|(one, other)| {
        Some(one.cpu_seconds_per_gigabyte()? / other.cpu_seconds_per_gigabyte()?)
    });
    Some(Ratio { to: to.name(), value: Summary::trimmed(values)?, cpu: Summary::trimmed(cpu) })
}

/// Returns the mean without the highest and the lowest value, if there are at least three.
fn paper_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let left_out = dropped(values.len() as u32) as usize / 2;
    let kept = values.get(left_out..values.len() - left_out)?;
    (!kept.is_empty()).then(|| kept.iter().sum::<f64>() / kept.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::super::contender::Provided;
    use super::*;

    fn sample(bytes: u64, cpu: f64) -> Sample {
        let run = DocumentRun {
            seconds: 1.0,
            bytes: Some(bytes),
            rounds: None,
            cpu_user_s: cpu,
            cpu_system_s: 0.0,
            peer_cpu_user_s: 0.0,
            peer_cpu_system_s: cpu,
        };
        Sample { run, interrupt_shares: [0.1, 0.3] }
    }

    #[test]
    fn the_paper_uses_the_mean_of_eight_out_of_ten() {
        let ten = [1.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 1000.0];
        assert_eq!(paper_mean(ten.into_iter()), Some(3.0));
        assert_eq!(paper_mean([1.0, 3.0].into_iter()), Some(2.0));
        assert_eq!(paper_mean(std::iter::empty()), None);
    }

    #[test]
    fn ratios_are_computed_per_sample_and_not_to_the_contender_itself() {
        let edge = Contender::Verbs(Provided::Edge, Operation::Write, Manner::Polling);
        let tcp = Contender::Tcp(Manner::Polling);
        // Simulates a machine that becomes slower from sample to sample.
        let own = vec![sample(400, 0.5), sample(200, 0.5), sample(100, 0.5)];
        let others = vec![sample(200, 1.0), sample(100, 1.0), sample(50, 1.0)];
        let found = compare(&[(edge, Ok(own)), (tcp, Ok(others))]);
        let ratio = &found[0].ratios[0];
        assert_eq!(ratio.to, "tcp-polling");
        assert!((ratio.value.min - 2.0).abs() < 1e-9 && (ratio.value.max - 2.0).abs() < 1e-9);
        assert!((ratio.cpu.unwrap().median - 0.25).abs() < 1e-9);
        assert!(found[1].ratios.is_empty());
        let is_near = |shares: [f64; 2], [client, server]: [f64; 2]| {
            (shares[0] - client).abs() < 1e-9 && (shares[1] - server).abs() < 1e-9
        };
        assert!(is_near(found[0].cpu_shares, [0.5, 0.5]), "{found:?}");
        assert!(is_near(found[0].interrupt_shares, [0.1, 0.3]), "{found:?}");
    }

    #[test]
    fn a_contender_that_cannot_run_has_a_reason_and_no_figure() {
        let edge = Contender::Verbs(Provided::Edge, Operation::Write, Manner::Polling);
        let tcp = Contender::Tcp(Manner::Polling);
        let failed = Err("no device".to_string());
        let found = compare(&[(edge, failed), (tcp, Ok(vec![sample(1, 1.0)]))]);
        assert_eq!(found[0].cannot_run.as_deref(), Some("no device"));
        assert!(found[0].value.is_none() && found[0].paper_mean.is_none());
        assert!(found[1].value.is_some() && found[1].cannot_run.is_none());
    }
}
