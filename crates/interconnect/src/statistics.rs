//! Statistics of times.

/// Count, extremes, mean and standard deviation of times, from exact integer sums.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Summary {
    count: u64,
    min_ps: u64,
    max_ps: u64,
    sum_ps: u128,
    /// Sum of the squares of all times, in ps². Even 2^64 values of four seconds each do not
    /// overflow this sum.
    squares: u128,
}

impl Summary {
    /// Creates an empty summary.
    pub const fn new() -> Self {
        Self { count: 0, min_ps: u64::MAX, max_ps: 0, sum_ps: 0, squares: 0 }
    }

    /// Adds a time.
    #[inline]
    pub fn add(&mut self, time_ps: u64) {
        self.count += 1;
        self.min_ps = self.min_ps.min(time_ps);
        self.max_ps = self.max_ps.max(time_ps);
        self.sum_ps += u128::from(time_ps);
        self.squares += u128::from(time_ps) * u128::from(time_ps);
    }

    /// Adds all times of another summary.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.min_ps = self.min_ps.min(other.min_ps);
        self.max_ps = self.max_ps.max(other.max_ps);
        self.sum_ps += other.sum_ps;
        self.squares += other.squares;
    }

    /// Returns the number of times.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the shortest time, in µs; 0 without times.
    pub const fn min_us(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.min_ps as f64 / 1e6 }
    }

    /// Returns the longest time, in µs; 0 without times.
    pub const fn max_us(&self) -> f64 {
        self.max_ps as f64 / 1e6
    }

    /// Returns the mean, in µs; 0 without times.
    pub fn mean_us(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum_ps as f64 / self.count as f64 / 1e6 }
    }

    /// Returns the standard deviation in µs. The times count as a whole population, not as a
    /// sample.
    pub fn deviation_us(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let mean = self.sum_ps as f64 / self.count as f64;
        let variance = self.squares as f64 / self.count as f64 - mean * mean;
        variance.max(0.0).sqrt() / 1e6
    }
}

impl Default for Summary {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns half of the width of the 95 % confidence interval of the mean. The values must be
/// independent and normally distributed. Returns `None` for fewer than two values.
pub fn confidence_95(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let freedom = values.len().checked_sub(1).filter(|&freedom| freedom > 0)?;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let quantile = STUDENT_95.get(freedom - 1).unwrap_or(&STUDENT_95_MANY);
    Some(quantile * (squares / (count - 1.0) / count).sqrt())
}

/// Student's t for 95 % (two-sided), for 1 to 30 degrees of freedom. For more degrees of freedom,
/// `STUDENT_95_MANY` is used, which is at most 4 % too large.
const STUDENT_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
const STUDENT_95_MANY: f64 = 2.04;

/// Counts of times in classes: 32 classes for each doubling, in 16 KiB. Quantiles are computed
/// under the assumption that the times within a class are evenly spread. The error of a quantile is
/// therefore at most the width of a class, 3 %.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    /// The shortest and the longest time. Quantiles are limited to this range, because the outer
    /// classes extend beyond it.
    min_ps: u64,
    max_ps: u64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Self { counts: vec![0; CLASSES], total: 0, min_ps: u64::MAX, max_ps: 0 }
    }

    /// Adds a time.
    #[inline]
    pub fn add(&mut self, time_ps: u64) {
        if let Some(count) = self.counts.get_mut(class(time_ps)) {
            *count += 1;
        }
        self.total += 1;
        self.min_ps = self.min_ps.min(time_ps);
        self.max_ps = self.max_ps.max(time_ps);
    }

    /// Returns the classes that contain times, in ascending order. Each entry has the longest time
    /// that the class can contain, in picoseconds, and the number of times in the class.
    pub fn classes(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(index, count)| (upper_ps(index).min(self.max_ps), *count))
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.min_ps = self.min_ps.min(other.min_ps);
        self.max_ps = self.max_ps.max(other.max_ps);
    }

    /// Returns a quantile of the times, in µs. `share`, from 0 to 1, is the part of the times that
    /// do not exceed the result.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let wanted = (share * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            if seen + count < wanted {
                seen += count;
                continue;
            }
            // The shortest and the longest time are stored, so they are exact.
            if wanted == self.total {
                return self.max_ps as f64 / 1e6;
            }
            if wanted == 1 {
                return self.min_ps as f64 / 1e6;
            }
            let below_ps = if index == 0 { 0 } else { upper_ps(index - 1) + 1 };
            let (from_ps, to_ps) = (below_ps.max(self.min_ps), upper_ps(index).min(self.max_ps));
            let share = ((wanted - seen) as f64 - 0.5) / *count as f64;
            return (from_ps as f64 + (to_ps - from_ps) as f64 * share) / 1e6;
        }
        0.0
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

const fn class(time_ps: u64) -> usize {
    if time_ps < 64 {
        return time_ps as usize;
    }
    let shift = time_ps.ilog2() - 5;
    ((shift as usize) << 5) + (time_ps >> shift) as usize
}

/// Returns the longest time that belongs to a class.
const fn upper_ps(class: usize) -> u64 {
    if class < 64 {
        return class as u64;
    }
    let shift = (class >> 5) - 1;
    let mantissa = (class - (shift << 5)) as u64;
    ((mantissa + 1) << shift).wrapping_sub(1)
}

/// Number of classes: 64 classes with a single time each, and 32 for each doubling from 2^6 to
/// 2^64.
const CLASSES: usize = 64 + 58 * 32;

/// Adds a value to a hash.
#[inline]
pub(super) const fn mix(hash: u64, value: u64) -> u64 {
    let word = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ (word >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_is_that_of_students_distribution() {
        assert_eq!(confidence_95(&[]), None);
        assert_eq!(confidence_95(&[3.0]), None);
        // The three values have a standard deviation of 1.
        let margin = confidence_95(&[1.0, 2.0, 3.0]).expect("several");
        assert!((margin - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9, "{margin}");
        assert_eq!(confidence_95(&[5.0; 40]), Some(0.0));
    }

    #[test]
    fn a_summary_is_exact() {
        let mut summary = Summary::new();
        for time_us in [2, 4, 4, 4, 5, 5, 7, 9] {
            summary.add(time_us * 1_000_000);
        }
        assert_eq!(summary.count(), 8);
        let figures =
            [summary.min_us(), summary.mean_us(), summary.max_us(), summary.deviation_us()];
        for (figure, expected) in figures.into_iter().zip([2.0, 5.0, 9.0, 2.0]) {
            assert!((figure - expected).abs() < 1e-9, "{figures:?}");
        }
    }

    #[test]
    fn histogram_classes_contain_their_times() {
        for time in [0, 1, 63, 64, 65, 127, 128, 1_000, 123_456_789, u64::MAX / 3, u64::MAX] {
            let class = class(time);
            assert!(time <= upper_ps(class), "{time}");
            assert!(class == 0 || time > upper_ps(class - 1), "{time}");
        }
    }

    #[test]
    fn no_quantile_exceeds_the_largest_time() {
        let mut histogram = Histogram::new();
        (0..3).for_each(|_| histogram.add(2_961_600));
        let mut other = Histogram::new();
        other.add(2_961_700);
        assert!((histogram.quantile_us(0.5) - 2.9616).abs() < 1e-9);
        histogram.merge(&other);
        assert!((histogram.quantile_us(1.0) - 2.9617).abs() < 1e-9);
        assert_eq!(histogram.classes().collect::<Vec<_>>(), [(2_961_700, 4)]);
    }

    /// The upper bound of a class is at most 3 % above its lower bound.
    #[test]
    fn quantiles_lie_within_their_class() {
        let mut even = Histogram::new();
        (1..=100_000).for_each(|time| even.add(time * 1_000));
        let mut exponential = Histogram::new();
        let logarithm = |number: f64| -(1.0 - (number - 0.5) / 1e5).ln();
        (1..=100_000)
            .for_each(|number| exponential.add((logarithm(f64::from(number)) * 1e7) as u64));
        for share in [0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999] {
            let found = even.quantile_us(share) / (share * 100.0);
            assert!((found - 1.0).abs() < 0.001, "{share}: {found}");
            let found = exponential.quantile_us(share) / (-10.0 * (1.0 - share).ln());
            assert!((found - 1.0).abs() < 0.003, "{share}: {found}");
        }
    }

    #[test]
    fn quantiles_are_close() {
        let mut histogram = Histogram::new();
        (1..=1_000).for_each(|time| histogram.add(time * 1_000_000));
        for (share, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0), (0.0, 1.0)] {
            let found = histogram.quantile_us(share);
            assert!((found / expected - 1.0).abs() < 0.003, "{share}: {found}");
        }
        assert_eq!(histogram.classes().map(|(_, count)| count).sum::<u64>(), 1_000);
    }
}
