//! Detects whether the machine is busy with other work: repeats the same piece of work on the CPUs
//! of the hosts, and compares the times.

use std::hint::black_box;
use std::thread;

use crate::cpu;
use testbed::clock::Stopwatch;

/// Returns the variation of the times of the work, in percent of the shortest time. Measures all of
/// `cpus`, and returns the largest variation. If `cpus` is empty, runs the work on any CPU.
pub(super) fn variation_percent(cpus: &[usize]) -> f64 {
    let places: Vec<Option<usize>> =
        if cpus.is_empty() { vec![None] } else { cpus.iter().copied().map(Some).collect() };
    let threads: Vec<_> = places
        .into_iter()
        .map(|cpu| {
            thread::spawn(move || {
                // If this process may not pin the thread, the work still shows the load of the CPU
                // on which it happens to run.
                let _pinned = cpu.map(cpu::pin_to);
                spread_percent(&times_ns())
            })
        })
        .collect();
    threads.into_iter().filter_map(|thread| thread.join().ok()).fold(0.0, f64::max)
}

fn times_ns() -> Vec<u64> {
    let time = |_| {
        let watch = Stopwatch::start();
        let mut sum = 0_u64;
        for i in 0..STEPS {
            sum = black_box(sum.rotate_left(5) ^ i);
        }
        watch.elapsed_ns()
    };
    (0..TIMES).map(time).collect()
}

/// Returns the difference between the longest and the shortest of the times that count, in percent
/// of the shortest. The first time does not count, because it includes the warm-up. The longest of
/// the other times does not count, because a single timer of the kernel can lengthen it even on an
/// idle machine.
fn spread_percent(times_ns: &[u64]) -> f64 {
    let mut times: Vec<u64> = times_ns.iter().skip(1).copied().collect();
    times.sort_unstable();
    times.pop();
    match (times.first(), times.last()) {
        (Some(&shortest), Some(&longest)) if shortest > 0 => {
            (longest - shortest) as f64 / shortest as f64 * 100.0
        }
        _ => 0.0,
    }
}

/// Variation above which the machine counts as busy.
pub(super) const BUSY_PERCENT: f64 = 10.0;

/// Steps of the work, about 2 ms on a current processor.
const STEPS: u64 = 1_000_000;

const TIMES: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_is_ignored_and_two_count_as_load() {
        assert!(spread_percent(&[900, 100, 101, 150, 100]) < 2.0);
        assert!(spread_percent(&[100, 100, 150, 150, 100]) > 49.0);
        assert!(spread_percent(&[]).abs() < f64::EPSILON);
    }
}
