//! Bandwidth and latency of each MPI over the device and over its own TCP. The device and TCP are
//! measured in the same pass.

use super::contender::{Contender, Manner, Provided};
use super::mpi::{Mpi, Over};
use super::pass::{Kind, Pass};
use super::{Operation, Wishes};

/// Returns one pass for each kind of test.
pub(super) fn passes(wishes: &Wishes) -> Vec<Pass> {
    let quick = wishes.is_quick;
    let kinds: &[Kind] = if quick { &KINDS[..2] } else { &KINDS };
    let pass = |&kind: &Kind| {
        let sizes: &[u64] = match (kind, quick) {
            (Kind::Latency, true) => &LATENCY_SIZES_QUICK,
            (Kind::Latency, false) => &LATENCY_SIZES,
            (_, true) => &SIZES_QUICK,
            (_, false) => &SIZES,
        };
        let windows: &[u32] = match (kind, quick) {
            (Kind::Latency, _) => &[1],
            (_, true) => &WINDOWS_QUICK,
            (_, false) => &WINDOWS,
        };
        let windows = match kind {
            Kind::Latency => windows,
            _ if wishes.windows.is_empty() => windows,
            _ => &wishes.windows,
        };
        let sizes = if wishes.sizes.is_empty() { sizes } else { &wishes.sizes };
        Pass {
            kind,
            operation: Operation::Write,
            sizes: sizes.to_vec(),
            windows: windows.to_vec(),
            contenders: contenders(),
        }
    };
    kinds.iter().map(pass).collect()
}

/// Returns the contenders. Each MPI over the edge is followed by the same MPI over TCP.
fn contenders() -> Vec<Contender> {
    let device = Contender::Verbs(Provided::Edge, Operation::Write, Manner::Polling);
    let mut contenders = vec![device, Contender::Tcp(Manner::Polling)];
    for mpi in Mpi::ALL {
        contenders.extend([Over::Edge, Over::Tcp].map(|over| Contender::Mpi(mpi, over)));
    }
    contenders
}

/// The kinds of tests. In the paper, MPI in both directions at the same time is only measured by
/// COMB.
const KINDS: [Kind; 3] = [Kind::Bandwidth, Kind::Latency, Kind::BothWays];

/// The sizes of the paper's figures of bandwidth, which begin at 1 KiB.
const SIZES: [u64; 5] = [1 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20];
const SIZES_QUICK: [u64; 2] = [64 << 10, 1 << 20];
/// The sizes up to 2 KiB are enough for a straight line through the latencies, as in Sandia's study.
const LATENCY_SIZES: [u64; 8] = [1, 8, 32, 128, 512, 1 << 10, 2 << 10, 64 << 10];
const LATENCY_SIZES_QUICK: [u64; 4] = [8, 256, 1 << 10, 2 << 10];

const WINDOWS: [u32; 2] = [16, 64];
const WINDOWS_QUICK: [u32; 1] = [16];
