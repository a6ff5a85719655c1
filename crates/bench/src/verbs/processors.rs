//! CPU time by kind, from `/proc/stat`.

use std::fs;

/// Clock ticks of one CPU since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ticks {
    /// Ticks of all kinds together.
    pub(super) all: u64,
    /// Ticks in interrupts and softirq, such as for received packets.
    pub(super) interrupts: u64,
}

/// Returns the ticks of one CPU of the client and one of the server.
pub(super) fn ticks(cpus: Option<[usize; 2]>) -> [Ticks; 2] {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    cpus.map_or_else(Default::default, |cpus| cpus.map(|cpu| of_cpu(&text, cpu)))
}

/// Returns, for each CPU, the fraction of the time between the readings `before` and `after` that
/// the CPU spent on interrupts.
pub(super) fn interrupt_shares(before: [Ticks; 2], after: [Ticks; 2]) -> [f64; 2] {
    [0, 1].map(|host| {
        let all = after[host].all.saturating_sub(before[host].all);
        let interrupts = after[host].interrupts.saturating_sub(before[host].interrupts);
        if all > 0 { interrupts as f64 / all as f64 } else { 0.0 }
    })
}

/// Parses the line of a CPU. Its fields are user, nice, system, idle, iowait, irq, softirq, steal,
/// `guest` and `guest_nice`. The sum omits the last two, because user and nice already include
/// them.
fn of_cpu(text: &str, cpu: usize) -> Ticks {
    let name = format!("cpu{cpu}");
    let line = text.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
    let fields: Vec<u64> = line
        .unwrap_or_default()
        .split_whitespace()
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    let interrupts = fields.get(5..7).unwrap_or_default().iter().sum();
    Ticks { all: fields.iter().sum(), interrupts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_each_cpu_is_found_by_its_exact_number() {
        let text = "cpu  9 9\ncpu1 1 2 3 4 5 6 7 8 1 0\ncpu10 100 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(of_cpu(text, 1), Ticks { all: 36, interrupts: 13 });
        assert_eq!(of_cpu(text, 10), Ticks { all: 100, interrupts: 0 });
        assert_eq!(of_cpu(text, 2), Ticks::default());
    }

    #[test]
    fn interrupt_shares_are_computed_over_the_interval() {
        let before = [Ticks { all: 100, interrupts: 50 }, Ticks::default()];
        let after = [Ticks { all: 200, interrupts: 75 }, Ticks::default()];
        let [client, server] = interrupt_shares(before, after);
        assert!((client - 0.25).abs() < 1e-9 && server.abs() < 1e-9);
    }
}
