//! Packet-hops per second of the Ethernet model on a fat tree: `packet_hops [RADIX] [MICROSECONDS]`.
#![expect(clippy::disallowed_methods, reason = "measures how long things take")]

use std::time::Instant;

use fabric::interconnect::benchmark;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let radix = arguments.next().map_or(Ok(16), |text| text.parse())?;
    let microseconds: u64 = arguments.next().map_or(Ok(300), |text| text.parse())?;
    let benchmark = benchmark::fat_tree(radix, microseconds * 1_000_000)?;
    let (hosts, bytes) = (benchmark.hosts, benchmark.network_bytes);
    let start = Instant::now();
    let outcome = benchmark.simulation.run()?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{hosts} hosts: {} packet-hops in {seconds:.3} s, {:.2} M/s ({:.2} M events/s); {} messages at most; {} B a host; hash {:016x}",
        outcome.hops,
        outcome.hops as f64 / seconds * 1e-6,
        outcome.events as f64 / seconds * 1e-6,
        outcome.messages_max,
        bytes / hosts as usize,
        outcome.hash
    );
    Ok(())
}
