//! `sockperf ping-pong` over TCP, with the smallest message of sockperf and blocking sockets.

use super::Hosts;
use super::tool::{Tool, ToolError};

pub(super) fn ping_pong(hosts: &Hosts<'_>) -> Result<f64, ToolError> {
    TOOL.run(hosts)
}

const TOOL: Tool = Tool {
    name: "sockperf",
    package: "sockperf",
    server: |address| words(&format!("sockperf server --tcp -i {address}")),
    client: |address| words(&format!("sockperf ping-pong --tcp -i {address} -m 14 -t 1")),
    parse,
};

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(String::from).collect()
}

/// Parses the percentiles of half round trips, in microseconds.
fn parse(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.contains("percentile 50.000"))?;
    let median_us: f64 = line.rsplit_once('=')?.1.trim().parse().ok()?;
    (median_us > 0.0).then_some(median_us * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_found_among_the_percentiles() {
        let printed = "sockperf: ---> percentile 75.000 =    7.160\n\
                       sockperf: ---> percentile 50.000 =    6.880\n";
        assert!((parse(printed).unwrap() - 6880.0).abs() < 1e-6);
        assert!(parse("sockperf: ERROR: Connection refused").is_none());
    }
}
