//! Facts about a host that are needed to interpret measurements.

use std::fs;

use serde::{Deserialize, Serialize};

/// The host of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The model name of the processor.
    pub cpu: String,
    /// Number of online CPUs.
    pub cpus: u32,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// Describes this host. Unknown facts are `unknown`.
    pub fn this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, name)| name.trim());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let kernel = if kernel.trim().is_empty() { "unknown" } else { kernel.trim() };
        Self {
            cpu: cpu.to_string(),
            // Counts all CPUs, because this process may be restricted to one.
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count().max(1)
                as u32,
            kernel: kernel.to_string(),
        }
    }
}

/// Returns the load average of one minute: the mean number of threads that run or are runnable.
/// Returns 0 if the kernel does not report it.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}
