//! `ucx_perftest`: an 8-byte put of UCX over TCP, both sides polling.

use super::Hosts;
use super::tool::{Tool, ToolError};

pub(super) fn ping_pong(hosts: &Hosts<'_>) -> Result<f64, ToolError> {
    TOOL.run(hosts)
}

const TOOL: Tool = Tool {
    name: "ucx_perftest",
    package: "ucx-utils",
    server: |_address| words("ucx_perftest"),
    client: |address| {
        words(&format!("ucx_perftest {address} -t ucp_put_lat -s 8 -n 20000 -w 2000 -f -v"))
    },
    parse,
};

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(String::from).collect()
}

/// Parses the last line. The line has the number of iterations, and then three times in
/// microseconds: the median, the average since the previous line, and the overall average. With
/// `-v`, commas separate the values.
fn parse(printed: &str) -> Option<f64> {
    let fields = |line: &str| -> Vec<f64> {
        let words = line.split([',', ' ']).filter(|word| !word.is_empty());
        words.map_while(|word| word.parse().ok()).collect()
    };
    let last = printed.lines().map(fields).rfind(|fields| fields.len() >= 4)?;
    let median_us = *last.get(1)?;
    (median_us > 0.0).then_some(median_us * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_second_field_of_the_last_line() {
        let printed = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                       20000,11.251,12.004,12.100,0.64,0.63,83302,82643\n";
        assert!((parse(printed).unwrap() - 11_251.0).abs() < 1e-6);
        assert!(parse("[1234] UCX ERROR no route\n").is_none());
    }
}
