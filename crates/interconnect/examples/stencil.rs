//! A program of coroutine ranks on three interconnects: `stencil [BYTES]`.
//!
//! Sixteen ranks share a grid. Each rank sends the values at its borders to four neighbours. While
//! these messages are in flight, the rank computes its inner part; then it computes its border. An
//! all-reduce decides whether all ranks continue. The simulator models only the lengths of
//! messages, not their contents. The residuals, however, are computed values that the ranks
//! exchange, because they determine when the program ends.

use interconnect::configuration::Configuration;
use interconnect::coroutine::{Coroutines, Operation, Rank};

async fn program(mpi: Rank, border_bytes: u32) {
    let (x, y) = (mpi.number() % SIDE, mpi.number() / SIDE);
    let neighbours = [
        (x + 1) % SIDE + SIDE * y,
        (x + SIDE - 1) % SIDE + SIDE * y,
        x + SIDE * ((y + 1) % SIDE),
        x + SIDE * ((y + SIDE - 1) % SIDE),
    ];
    // Some ranks start with a larger residual.
    let mut residual = 1.0 + f64::from(x + y);
    for iteration in 0.. {
        let receives = neighbours.map(|neighbour| mpi.irecv(neighbour, iteration));
        let sends = neighbours.map(|neighbour| mpi.isend(neighbour, border_bytes, iteration));
        mpi.compute(INNER_NS).await;
        mpi.wait_all(receives).await;
        mpi.wait_all(sends).await;
        mpi.compute(BORDER_NS).await;
        residual /= 2.0;
        if mpi.all_reduce(8, residual, Operation::Max).await < ENOUGH {
            return;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1);
    let border_bytes = argument.map_or(Ok(4_096), |text| text.parse())?;
    for (name, text) in INTERCONNECTS {
        let cluster = Configuration::parse(name, text)?;
        let ranks = Coroutines::new(SIDE * SIDE, |rank| program(rank, border_bytes));
        let outcome = cluster.run_workload(ranks, SIDE * SIDE)?;
        println!(
            "{name:9} completed at {:8.3} us; {} messages, latency mean {:6.3} us, max {:6.3} us; hash {:016x}",
            outcome.completed_ps as f64 / 1e6,
            outcome.delivered,
            outcome.latency.mean_us(),
            outcome.latency.max_us(),
            outcome.hash
        );
    }
    Ok(())
}

const SIDE: u32 = 4;
const INNER_NS: u64 = 20_000;
const BORDER_NS: u64 = 5_000;
const ENOUGH: f64 = 0.01;

const INTERCONNECTS: [(&str, &str); 3] = [
    (
        "Ethernet",
        "[topology]\nkind = \"leaf_spine\"\nleaves = 4\nhosts = 4\nspines = 2\n\
         [fabric]\nhost_rate_bps = 10_000_000_000\nchoice = \"least_loaded\"\n\
         [host]\nsend_ps = 1_500_000\nreceive_ps = 1_500_000\n",
    ),
    (
        "Myrinet",
        "[topology]\nkind = \"torus\"\nsizes = [4, 2]\nhosts = 2\nlanes = 2\n\
         [fabric]\nkind = \"wormhole\"\n\
         [host]\nsend_ps = 1_500_000\nreceive_ps = 1_500_000\n",
    ),
    (
        "LogGP",
        "[topology]\nhosts = 16\n[fabric]\nkind = \"loggp\"\nbyte_ps = 800\n\
         [host]\nsend_ps = 1_500_000\nreceive_ps = 1_500_000\n",
    ),
];
