//! Computes measurements from samples.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::{Case, Contender};
use crate::results::{Measurement, Ratio, Sample};
use crate::transport::counter;

/// Statistics of a value over several repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median. For an even number of values, the mean of the two middle values.
    pub median: f64,
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
}

impl Summary {
    /// Summarises `values`. If there are at least three values, excludes the highest and the
    /// lowest, like the papers. Returns `None` if there are no values.
    pub fn trimmed(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let drop_each = dropped(values.len() as u32) as usize / 2;
        let kept = values.get(drop_each..values.len() - drop_each)?;
        let (min, max) = (*kept.first()?, *kept.last()?);
        let upper = *kept.get(kept.len() / 2)?;
        let lower = *kept.get((kept.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }

    /// Multiplies all three values by `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let Self { median, min, max } = self;
        Self { median: median * factor, min: min * factor, max: max * factor }
    }

    /// Returns half the distance between the lowest and the highest value, in percent of the
    /// median.
    pub fn spread_percent(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / self.median * 50.0 } else { 0.0 }
    }
}

/// Returns the lower and upper quartile of `values`, interpolated where necessary; `None` if there
/// are no values.
pub fn quartiles(values: impl IntoIterator<Item = f64>) -> Option<[f64; 2]> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = |quarters: usize| {
        let (place, rest) = (last * quarters / 4, (last * quarters % 4) as f64 / 4.0);
        let above = values.get(place + 1).unwrap_or(&values[place]);
        values[place] + (above - values[place]) * rest
    };
    Some([at(1), at(3)])
}

/// Returns the number of values that [`Summary::trimmed`] excludes from `repetitions` values.
pub fn dropped(repetitions: u32) -> u32 {
    if repetitions >= 3 { 2 } else { 0 }
}

/// Summarises the samples of one contender of `case`. `references` are other transports with their
/// samples of the same repetitions. Returns `None` if there are no samples.
pub fn measurement(
    case: &Case,
    contender: &Contender,
    samples: Vec<Sample>,
    references: &[(&str, &[Sample])],
) -> Option<Measurement> {
    let over =
        |value: fn(&Sample) -> Option<f64>| Summary::trimmed(samples.iter().filter_map(value));
    let ratios = references.iter().filter(|(name, _)| *name != contender.transport);
    let ratios = ratios.map(|(name, reference)| Ratio {
        to: (*name).to_string(),
        latency: ratio(&samples, reference, Sample::latency_ns_p50),
        throughput: ratio(&samples, reference, |sample| Some(sample.operations_per_second())),
        cpu: ratio(&samples, reference, Sample::cpu_seconds_per_gigabyte),
    });
    Some(Measurement {
        test: case.test,
        transport: contender.transport.clone(),
        links: contender.links,
        waiting: contender.waiting,
        message_bytes: case.message_bytes,
        latency_ns: over(Sample::latency_ns_p50),
        latency_p99_ns: over(|sample| sample.latency_ns.map(|latency| latency.p99)),
        bytes_per_second: over(|sample| Some(sample.bytes_per_second()))?,
        operations_per_second: over(|sample| Some(sample.operations_per_second()))?,
        cpu_seconds_per_gigabyte: over(Sample::cpu_seconds_per_gigabyte),
        softirq_cpu_seconds_per_gigabyte: over(Sample::softirq_cpu_seconds_per_gigabyte),
        extra_frame_percent: percentage(
            &samples,
            &[counter::EXPLICIT_ACKS, counter::RETRANSMISSIONS],
            counter::DATA_FRAMES,
        ),
        out_of_order_percent: percentage(
            &samples,
            &[counter::OUT_OF_ORDER_FRAMES],
            counter::RECEIVED_DATA_FRAMES,
        ),
        ratios: ratios.collect(),
        counters: means(&samples),
        samples,
    })
}

/// Computes ratios for each repetition, so that slow changes of the machine's speed cancel out.
fn ratio(
    samples: &[Sample],
    reference: &[Sample],
    value: fn(&Sample) -> Option<f64>,
) -> Option<Summary> {
    let ratios = samples
        .iter()
        .zip(reference)
        .filter_map(|(sample, reference)| Some(value(sample)? / value(reference)?));
    Summary::trimmed(ratios)
}

/// Returns the sum of the counters in `parts` over all samples, in percent of the counter `whole`.
/// Returns `None` if the transport lacks these counters.
fn percentage(samples: &[Sample], parts: &[&str], whole: &str) -> Option<f64> {
    let sum =
        |name: &str| -> f64 { samples.iter().filter_map(|sample| sample.counters.get(name)).sum() };
    let whole = sum(whole);
    (whole > 0.0).then(|| 100.0 * parts.iter().map(|part| sum(part)).sum::<f64>() / whole)
}

fn means(samples: &[Sample]) -> BTreeMap<String, f64> {
    let mut means = BTreeMap::new();
    for (name, value) in samples.iter().flat_map(|sample| &sample.counters) {
        *means.entry(name.clone()).or_default() += value / samples.len() as f64;
    }
    means
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_values_lie_between_the_quartiles() {
        assert_eq!(quartiles([5.0, 1.0, 4.0, 2.0, 3.0]), Some([2.0, 4.0]));
        assert_eq!(quartiles([1.0, 2.0, 3.0, 4.0]), Some([1.75, 3.25]));
        assert_eq!(quartiles([7.0]), Some([7.0, 7.0]));
        assert_eq!(quartiles([]), None);
    }
    use crate::transport::{Test, Waiting};

    #[test]
    fn the_highest_and_the_lowest_are_left_out() {
        let summary = Summary::trimmed([100.0, 2.0, 1.0, 3.0, -50.0]).unwrap();
        assert_eq!(summary, Summary { median: 2.0, min: 1.0, max: 3.0 });
        let summary = Summary::trimmed([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(summary, Summary { median: 2.5, min: 2.0, max: 3.0 });
    }

    #[test]
    fn one_or_two_values_are_all_kept() {
        assert_eq!(Summary::trimmed([]), None);
        assert_eq!(Summary::trimmed([5.0]), Some(Summary { median: 5.0, min: 5.0, max: 5.0 }));
        let summary = Summary::trimmed([7.0, 5.0]).unwrap();
        assert_eq!(summary, Summary { median: 6.0, min: 5.0, max: 7.0 });
    }

    #[test]
    fn values_that_are_not_numbers_are_ignored() {
        let only = Summary { median: 1.0, min: 1.0, max: 1.0 };
        assert_eq!(Summary::trimmed([f64::NAN, 1.0]), Some(only));
    }

    #[test]
    fn a_drift_of_the_machine_cancels_in_the_ratio() {
        // Each repetition has half the rate of the repetition before, but always twice the rate of
        // the baseline.
        let samples: Vec<_> = (0..5).map(|i| sample(2000 >> i)).collect();
        let baseline: Vec<_> = (0..5).map(|i| sample(1000 >> i)).collect();
        let contender = Contender { transport: "x".into(), links: 1, waiting: Waiting::Poll };
        let contenders = vec![contender.clone()];
        let case = Case { test: Test::OneWay, message_bytes: 1, contenders };
        let references = [("tcp", baseline.as_slice()), ("x", baseline.as_slice())];
        let found = measurement(&case, &contender, samples, &references).unwrap();
        assert_eq!(found.ratios.len(), 1);
        let throughput = found.ratio_to("tcp").unwrap();
        assert!((throughput.median - 2.0).abs() < 0.02, "{throughput:?}");
        assert!(throughput.spread_percent() < 1.0);
        assert_eq!(found.extra_frame_percent, None);
    }

    #[test]
    fn extra_frames_are_acks_and_retransmissions_per_data_frame() {
        let mut one = sample(1);
        one.counters = [
            (counter::DATA_FRAMES.to_string(), 200.0),
            (counter::EXPLICIT_ACKS.to_string(), 8.0),
            (counter::RETRANSMISSIONS.to_string(), 2.0),
        ]
        .into();
        let parts = [counter::EXPLICIT_ACKS, counter::RETRANSMISSIONS];
        assert_eq!(percentage(&[one.clone(), one], &parts, counter::DATA_FRAMES), Some(5.0));
    }

    fn sample(operations: u64) -> Sample {
        Sample {
            operations,
            bytes: operations,
            seconds: 1.0,
            latency_ns: None,
            cpu_seconds_client: 0.5,
            cpu_seconds_server: 0.5,
            cpu_seconds_softirq: 0.0,
            voluntary_switches: 0,
            counters: [].into(),
            timeline: Vec::new(),
            timeline_start_ms: 0,
        }
    }
}
