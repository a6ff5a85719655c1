//! CPU time of this process and of the host's softirq threads, and pinning to a CPU.

use std::fs;
use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;

/// Returns the CPU seconds (user and system) that all threads of this process have used so far.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn process_seconds() -> io::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Returns the number of voluntary context switches of this process's threads so far.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn voluntary_switches() -> io::Result<u64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.voluntary_context_switches().cast_unsigned())
}

/// Reads the CPU time of this host's `ksoftirqd` threads.
///
/// These threads process received packets when a CPU has too many of them. The CPU time of a
/// process does not include the time of these threads. They serve the whole host, so their time is
/// an upper bound of what a measurement used.
#[derive(Debug)]
pub struct SoftirqThreads {
    schedstat_paths: Vec<String>,
}

impl SoftirqThreads {
    /// Finds the threads. If `/proc` hides the threads, as in many containers,
    /// [`seconds`](Self::seconds) returns 0.
    pub fn find() -> Self {
        let mut schedstat_paths = Vec::new();
        if let Ok(entries) = fs::read_dir("/proc") {
            for entry in entries.flatten() {
                let Ok(command) = fs::read_to_string(entry.path().join("comm")) else { continue };
                if command.starts_with("ksoftirqd/") {
                    schedstat_paths.push(format!("{}/schedstat", entry.path().display()));
                }
            }
        }
        Self { schedstat_paths }
    }

    /// Returns the CPU seconds of all these threads since boot.
    pub fn seconds(&self) -> f64 {
        let nanoseconds: u64 = self
            .schedstat_paths
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok())
            .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
            .sum();
        nanoseconds as f64 / 1e9
    }
}

/// Returns the resident memory of this process in bytes; 0 if `/proc` hides it.
pub fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// Restricts this thread, and the threads it starts later, to CPU `cpu` (counted from 0).
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}

/// Returns the CPUs that this process may use, in ascending order. If the kernel does not report
/// them, returns an empty list.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// Returns the first two CPUs that this process may use, if there are two.
pub fn first_two() -> Option<[usize; 2]> {
    allowed().first_chunk().copied()
}

fn seconds(value: TimeVal) -> f64 {
    value.tv_sec() as f64 + value.tv_usec() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_time_never_decreases() {
        let before = process_seconds().unwrap();
        let mut sum = 0_u64;
        for i in 0..1_000_000_u64 {
            sum = std::hint::black_box(sum ^ i);
        }
        assert!(process_seconds().unwrap() >= before);
    }
}
