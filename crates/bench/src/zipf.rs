//! Requests like those of the papers' web traces. The popularity of files follows Zipf's law, and
//! more popular files are smaller.
//!
//! Files are numbered from 1 to `N`, and file 1 is the most requested. File `i` is requested with
//! probability `i^-α / Σ k^-α`, and has `1 KiB · 1024^((i-1)/(N-1))` bytes. The larger `α`, the
//! smaller the mean number of bytes of a request.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The files, and the share of requests for each.
#[derive(Debug, Clone, PartialEq)]
pub struct Zipf {
    alpha: f64,
    /// For each file, the probability that a request is for this file. The files are in the order
    /// of their ranks.
    probabilities: Vec<f64>,
}

impl Zipf {
    /// Makes the distribution with exponent `alpha`, 0 or more.
    pub fn new(alpha: f64) -> Self {
        let weights: Vec<f64> = (1..=FILES).map(|rank| f64::from(rank).powf(-alpha)).collect();
        let sum: f64 = weights.iter().sum();
        Self { alpha, probabilities: weights.iter().map(|weight| weight / sum).collect() }
    }

    /// Returns the exponent of the distribution.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Returns the mean number of bytes of a request.
    pub fn mean_bytes(&self) -> f64 {
        self.probabilities.iter().zip(sizes()).map(|(share, bytes)| share * bytes as f64).sum()
    }

    /// Returns [`TRACE_REQUESTS`] requests, as indices of files from 0. The probability of a file
    /// determines the number of its requests. `seed` only determines the order of requests, so all
    /// traces of a distribution have the same mean size of a request.
    pub fn trace(&self, seed: u64) -> Vec<usize> {
        let mut requests: Vec<usize> = self
            .shares()
            .into_iter()
            .enumerate()
            .flat_map(|(file, count)| std::iter::repeat_n(file, count))
            .collect();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for last in (1..requests.len()).rev() {
            let other = random.next_u64() % (last as u64 + 1);
            requests.swap(last, other as usize);
        }
        requests
    }

    /// Returns the number of requests for each file in a trace. Rounds the numbers down. The files
    /// with the largest remainders then get one more request each, until the sum is
    /// [`TRACE_REQUESTS`].
    fn shares(&self) -> Vec<usize> {
        let exact: Vec<f64> =
            self.probabilities.iter().map(|share| share * TRACE_REQUESTS as f64).collect();
        let mut counts: Vec<usize> = exact.iter().map(|count| count.floor() as usize).collect();
        let mut by_rest: Vec<usize> = (0..exact.len()).collect();
        by_rest.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
        let left_over = TRACE_REQUESTS - counts.iter().sum::<usize>();
        for &file in by_rest.iter().take(left_over) {
            counts[file] += 1;
        }
        counts
    }
}

/// Returns the size of each file in bytes, by rank.
pub fn sizes() -> impl Iterator<Item = u64> {
    let exponent = |rank: u32| f64::from(rank) / f64::from(FILES - 1);
    (0..FILES).map(move |rank| (SMALLEST_BYTES * SPAN.powf(exponent(rank))).round() as u64)
}

/// Number of files of a trace.
pub const FILES: u32 = 100;

/// Number of requests after which a trace begins again.
pub const TRACE_REQUESTS: usize = 2000;

/// Exponents of the traces. They are our choice, because the slides print none.
pub const ALPHAS: [f64; 6] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.2];

const SMALLEST_BYTES: f64 = 1024.0;

/// Ratio of the largest file's size to the smallest file's size.
const SPAN: f64 = 1024.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_transfers_match_the_definition() {
        let means = ALPHAS.map(|alpha| (Zipf::new(alpha).mean_bytes() / 1024.0).round() as u64);
        assert_eq!(means, [139, 120, 89, 60, 45, 22]);
    }

    #[test]
    fn file_sizes_span_a_kibibyte_to_a_mebibyte() {
        let sizes: Vec<u64> = sizes().collect();
        assert_eq!((sizes.len(), sizes[0], sizes[99]), (100, 1 << 10, 1 << 20));
        let mebibytes = sizes.iter().sum::<u64>() as f64 / f64::from(1 << 20);
        assert!((mebibytes - 14.8).abs() < 0.05, "{mebibytes}");
    }

    #[test]
    fn a_trace_has_every_file_in_its_share_and_depends_on_the_seed_alone() {
        let zipf = Zipf::new(0.75);
        let trace = zipf.trace(1);
        assert_eq!(trace.len(), TRACE_REQUESTS);
        assert_eq!(trace, zipf.trace(1));
        assert_ne!(trace, zipf.trace(2));
        let sizes: Vec<u64> = sizes().collect();
        let mean = trace.iter().map(|&file| sizes[file]).sum::<u64>() as f64 / trace.len() as f64;
        assert!((mean / zipf.mean_bytes() - 1.0).abs() < 0.005, "{mean}");
        let mut counts = [0_usize; FILES as usize];
        for &file in &trace {
            counts[file] += 1;
        }
        assert!(counts.is_sorted_by(|a, b| a >= b) && counts[99] > 0, "{counts:?}");
    }
}
