//! Latency: half of a round trip.

use super::Wishes;
use super::contender::{Contender, Manner};
use super::pass::{Kind, Pass};

/// Returns one pass for each operation. Each pass includes TCP that polls, and also TCP that
/// blocks, because most programs block.
pub(super) fn passes(wishes: &Wishes) -> Vec<Pass> {
    let sizes: &[u64] = if wishes.is_quick { &SIZES_QUICK } else { &SIZES };
    let sizes = if wishes.sizes.is_empty() { sizes } else { &wishes.sizes };
    let pass = |&operation| {
        let mut contenders = wishes.on_devices(operation, Manner::Polling);
        contenders.extend([Manner::Polling, Manner::Events].map(Contender::Tcp));
        if !wishes.is_quick {
            contenders.extend(wishes.on_devices(operation, Manner::Events));
        }
        Pass { kind: Kind::Latency, operation, sizes: sizes.to_vec(), windows: vec![1], contenders }
    };
    wishes.operations.iter().map(pass).collect()
}

/// Message sizes from 1 B to 64 KiB.
const SIZES: [u64; 7] = [1, 8, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
const SIZES_QUICK: [u64; 3] = [8, 1 << 10, 64 << 10];
